"""What a study costs before it starts: examples, FLOPs, and hours on this machine from a measured throughput.

Choices a reader could not guess:
- FLOPs are those of `pathmerge.training.flops`: with sequence length, without padding. The tokens of an example are the
  mean of a few that are drawn. Runs that stop early or grow their problems cost less.
- Besides its training a task takes START seconds for its process, for holding problems out and for judging; a task that
  measures more says so itself (`Task.minutes`).
- The throughput is that of two short trainings, a small and a larger model, on one core; it is kept for this machine
  and these versions in the user's cache folder. Wider models are faster per FLOP; in between we interpolate.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from pathmerge.encodings.language import PAD as TEXT_PAD
from pathmerge.models.config import Edges, ModelConfig
from pathmerge.problems.distribution import Distribution
from pathmerge.recipes import recipe
from pathmerge.studies.study import Task
from pathmerge.training.config import Holding, RunConfig
from pathmerge.training.curriculum import Curriculum
from pathmerge.version import __version__

MEASURED_SIZES = (32, 96)
START = 8.0
"""Smoke studies, which train for a moment, took 6 to 11 seconds a task on the machine this was written on."""
LARGEST_DRAWN = 199
"""Larger problems have kernels of their own, which take some time to compile; their tokens are extrapolated."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of a task, or of several."""

    runs: int = 0
    examples: int = 0
    flops: float = 0.0
    core_seconds: float = 0.0
    longest: float = 0.0
    """Seconds of the longest task."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            runs=self.runs + other.runs,
            examples=self.examples + other.examples,
            flops=self.flops + other.flops,
            core_seconds=self.core_seconds + other.core_seconds,
            longest=max(self.longest, other.longest),
        )

    def hours(self, cores: int) -> float:
        """How long it takes with so many cores: no shorter than its longest task."""
        return max(self.core_seconds / cores, self.longest) / 3600


def cost_of(tasks: Sequence[Task], pace: Pace) -> Cost:
    """Of all these tasks together, if nothing of them is done."""
    total = Cost()
    for task in tasks:
        seconds = START + 60 * task.minutes
        if task.config is None:
            total += Cost(core_seconds=seconds, longest=seconds)
            continue
        flops = task.config.training.examples * flops_per_example(task.config)
        seconds += flops / pace.at(task.config.model.width)
        examples = task.config.training.examples
        total += Cost(runs=1, examples=examples, flops=flops, core_seconds=seconds, longest=seconds)
    return total


def flops_per_example(config: RunConfig) -> float:
    """Of training, at the full size of the problem."""
    tokens = tokens_of(config.problem, isinstance(config.model, Edges))
    model = config.model
    attention = 12.0 * model.layers * model.loops * model.width * tokens**2
    return 6.0 * model.loops * parameters_of(model) * tokens + attention


def parameters_of(model: ModelConfig) -> int:
    """All weights but those that embed and read, which are few: six square matrices a layer, with biases and norms."""
    return model.layers * (6 * model.width**2 + 10 * model.width) + 2 * model.width


@cache
def tokens_of(problem: Distribution, edges: bool) -> float:
    """The mean number of tokens that are not padding; an edge is one token for models of edges."""
    size = min(problem.input_size, LARGEST_DRAWN)
    drawn = replace(problem, input_size=size)
    batch = drawn.sample(64, seed=0, threads=1)
    pad = TEXT_PAD if problem.name == "language" else drawn.layout.pad
    used = float((np.asarray(batch.tokens) != pad).sum(1).mean())
    whole = used * problem.input_size / size
    return (whole - 5) / 3 + 1 if edges else whole


@dataclass(frozen=True, kw_only=True)
class Pace:
    """FLOPs a second of one core in training, by the width of the model."""

    points: tuple[tuple[int, float], ...]

    def at(self, width: int) -> float:
        widths, paces = zip(*self.points, strict=True)
        return float(np.exp(np.interp(math.log(width), np.log(widths), np.log(paces))))


def measure_pace() -> Pace:
    """From the cache, or by training for some seconds."""
    path = _cache()
    key = "|".join(_machine())
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        return Pace(points=tuple((int(width), float(pace)) for width, pace in known[key]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    points = tuple(_measure(size) for size in MEASURED_SIZES)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({key: points}), encoding="utf-8")
    except OSError:
        pass  # measured again next time
    return Pace(points=points)


def _measure(size: int) -> tuple[int, float]:
    from pathmerge.training.loop import train

    base = recipe("tuned", size, 0)
    training = replace(
        base.training, examples=4096, minutes=0.06, stop="never", log_every=64, validate_every=10**9, threads=1
    )
    config = replace(base, training=training, curriculum=Curriculum(), held_out=Holding(test=100, validation=10))
    with tempfile.TemporaryDirectory() as folder:
        lines = [line for line in train(config, folder, quiet=True).metrics() if line["kind"] == "train"]
    first, last = lines[0], lines[-1]  # the first steps warm up
    return config.model.width, (last["flops"] - first["flops"]) / max(last["seconds"] - first["seconds"], 1e-9)


def _machine() -> tuple[str, ...]:
    import torch

    return (__version__, torch.__version__, torch.backends.cpu.get_cpu_capability(), str(os.cpu_count()))


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "pathmerge" / "throughput.json"
