"""The learning rate, the batch size and the depth as pure functions of the number of examples seen, and a run's own.

Choices a reader could not guess:
- Nothing depends on the number of steps: another batch size, or the same batch in smaller parts, meets the same rate at
  the same example, and resuming needs no state here.
- A step takes the rate of its end, `examples + size`: the first step of a warm-up moves, and with floor 0 the step that
  ends at `decay_end` (and every later one) does not.
- The batch size grows in doublings that share the ramp equally: with first=64, last=512, ramp=3000 it is 64 for the
  first 1000 examples, then 128, then 256, then 512. A step that starts before a boundary keeps its size across it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from pathmerge.errors import check_choice, whole

if TYPE_CHECKING:
    from pathmerge.training.config import RunConfig

Schedule = Literal["constant", "cosine", "linear"]


def rate_factor(
    examples: int, *, size: int, kind: Schedule, warmup: int, decay_start: int, decay_end: int, floor: float
) -> float:
    """The fraction of the peak rate for a step of `size` examples that starts after `examples` examples.

    Linear from 0 over `warmup` examples, then 1, then from `decay_start` to `decay_end` down to `floor`, then `floor`.
    A constant schedule stays at 1 after its warm-up and does not look at the last three.
    """
    check_choice("kind", kind, get_args(Schedule))
    position = _at_least("examples", examples, 0) + _at_least("size", size, 1)
    warmup = _at_least("warmup", warmup, 0)
    if kind != "constant":
        decay_start = _at_least("decay_start", decay_start, warmup, "the end of the warm-up")
        decay_end = _at_least("decay_end", decay_end, decay_start + 1, "after decay_start")
        if isinstance(floor, bool) or not isinstance(floor, int | float) or not 0 <= floor <= 1:
            raise ValueError(f"floor={floor!r}: must be a number from 0 to 1, a fraction of the peak rate")
    if position < warmup:
        return position / warmup
    if kind == "constant" or position <= decay_start:
        return 1.0
    if position >= decay_end:
        return float(floor)
    done = (position - decay_start) / (decay_end - decay_start)
    left = 1 - done if kind == "linear" else (1 + math.cos(math.pi * done)) / 2
    return floor + (1 - floor) * left


def batch_size_at(examples: int, *, first: int, last: int, ramp: int) -> int:
    """The size of the batch that starts after `examples` examples: first, 2·first, 4·first, ... and after `ramp`, last.

    Sizes above `last` are cut to it. With ramp=0 it is always `last`.
    """
    examples = _at_least("examples", examples, 0)
    first = _at_least("first", first, 1)
    last = _at_least("last", last, first, "first")
    ramp = _at_least("ramp", ramp, 0)
    if examples >= ramp:
        return last
    doublings = (-(-last // first) - 1).bit_length()  # the fewest with first·2^doublings >= last
    return min(last, first << (examples * doublings // ramp))


@dataclass(frozen=True, kw_only=True)
class RunSchedule:
    """The rate, the batch size and the depth of one run. Where a curriculum says when the rate falls, all but size and
    depth depend on the example at which its last stage was `mastered`; none while it is not."""

    config: RunConfig

    def batch_size(self, examples: int) -> int:
        settings = self.config.training
        first = settings.first_batch_size or settings.batch_size
        return batch_size_at(examples, first=first, last=settings.batch_size, ramp=settings.ramp)

    def layers(self, examples: int) -> int:
        """How many blocks are applied in the step that begins there; with `deepest`, seed and example decide."""
        model, deepest = self.config.model, self.config.training.deepest
        loops = model.loops
        if deepest is not None:
            # The other half of the keys of `batch_gradients`. As a plain list they would become floats and lose digits.
            key = np.array([self.config.seed & (2**63 - 1), 2**63 | examples], np.uint64)
            loops = int(np.random.Generator(np.random.Philox(key=key)).integers(loops, deepest + 1))
        return model.layers * loops

    def rate_factor(self, examples: int, size: int, mastered: int | None) -> float:
        """The fraction of the peak rate."""
        settings = self.config.training
        begin, end = self._fall(mastered)
        if settings.schedule == "constant" or begin is None or end is None:
            kind, begin, end = "constant", 0, 1
        else:
            kind, begin = settings.schedule, max(begin, settings.warmup)
            end = max(end, begin + 1)
        return rate_factor(
            examples,
            size=size,
            kind=kind,
            warmup=settings.warmup,
            decay_start=begin,
            decay_end=end,
            floor=settings.floor,
        )

    def fading(self, examples: int, size: int, mastered: int | None) -> float:
        """1 until the rate falls, then the fraction of its peak that it has."""
        begin, _ = self._fall(mastered)
        return 1.0 if begin is None or examples < begin else self.rate_factor(examples, size, mastered)

    def until(self, mastered: int | None) -> int:
        """The example at which the run ends, as far as that is known; it may converge before."""
        settings = self.config.training
        _, end = self._fall(mastered)
        if not self.config.curriculum.rate_waits or settings.schedule == "constant" or settings.decay is None:
            return settings.examples
        return settings.examples if end is None else min(end, settings.examples)

    def _fall(self, mastered: int | None) -> tuple[int | None, int | None]:
        """From where to where the rate falls."""
        settings = self.config.training
        if not self.config.curriculum.rate_waits:
            begin = settings.warmup if settings.decay is None else settings.examples - settings.decay
            return max(begin, 0), settings.examples
        if mastered is None:
            return None, None
        length = settings.examples - mastered if settings.decay is None else settings.decay
        return mastered, mastered + length


def _at_least(field: str, value: Any, low: int, why: str = "") -> int:
    """The value as an int; raises unless it is a whole number of at least `low`; `why` says where the bound is from."""
    allowed = f"must be a whole number, {low} or more" + (f" ({why})" if why else "")
    try:
        number = whole(field, value)
    except ValueError:
        raise ValueError(f"{field}={value!r}: {allowed}") from None
    if number < low:
        raise ValueError(f"{field}={number}: {allowed}")
    return number
