"""What training is fed: batches from the stages of a curriculum, each example once, with a position that can be saved.

Choices a reader could not guess:
- Stage s draws from stream s of the run's seed, so each stage's examples are a pure function of the seed, whenever the
  stage begins; tangled problems come from the stream after the last stage's, those of the largest lookahead from the
  one after that. The position is one number per stream: the examples taken from it.
- Batch b takes its easier part from stage b mod (present stage): earlier stages take turns.
- Processes that share the work take parts of the same pieces: 1, 2 or 4 of them see the same examples in each step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from pathmerge.heldout import HeldOut
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import Distribution
from pathmerge.stream import Stream
from pathmerge.training.curriculum import Curriculum


class Feed:
    """An endless supply of batches; `observe` moves it to the next stage."""

    def __init__(
        self,
        problem: Distribution,
        curriculum: Curriculum,
        *,
        seed: int,
        held_out: HeldOut | None,
        shard: tuple[int, int] = (0, 1),
        threads: int = 1,
    ) -> None:
        self.curriculum = curriculum
        self.stages = curriculum.stages(problem)
        self.sources = curriculum.sources(problem)
        self.stage = 0
        self.batches = 0
        self.taken = [0] * len(self.sources)
        self.mastered = False
        """Whether the model has been competent at the last stage."""
        self.redrawn = 0
        """Held-out problems met and redrawn so far, by this process."""
        self._window: deque[tuple[int, ...]] = deque()
        self._seed, self._held_out, self._shard, self._threads = seed, held_out, shard, threads
        self._streams: dict[int, Stream] = {}

    def next(self, size: int) -> list[Batch]:
        """This process's part of the next batch: the present stage's piece and, if there are any, the tangled and the
        easier piece."""
        easier = self.curriculum.easier_part(size, self.stage)
        waits = self.curriculum.rate_waits and not self.mastered
        tangled = 0 if waits else self.curriculum.tangled_part(size)
        pieces = [self._take(self.stage, size - easier - tangled)]
        if tangled:
            pieces.append(self._take(len(self.stages) + self.curriculum.beside(self.batches), tangled))
        if easier:
            pieces.append(self._take(self.batches % self.stage, easier))
        self.batches += 1
        return pieces

    def _take(self, source: int, size: int) -> Batch:
        processes = self._shard[1]
        if size % processes:
            raise ValueError(f"batch_size: a piece of {size} examples cannot be shared by {processes} processes")
        stream = self._streams.get(source)
        if stream is None or stream.size != size:
            if stream is not None:
                stream.close()
            present = source == self.stage or source >= len(self.stages)
            stream = self._streams[source] = Stream(
                self.sources[source],
                size,
                seed=self._seed,
                stream=source,
                start=self.taken[source],
                held_out=self._held_out,
                shard=self._shard,
                threads=self._threads if present else 1,
                ahead=4 if present else 1,
            )
        batch = next(stream).source
        self.taken[source] += size
        self.redrawn += int(batch.redraws.sum())
        return batch

    def observe(self, correct: int, count: int, newest: tuple[int, int] = (0, 0)) -> bool:
        """Take in how many of the present stage's examples were right, and (right, seen) of the largest lookahead
        alone; true if the model is now competent at it.

        That begins the next stage; at the last stage it is told once.
        """
        if self.mastered:
            return False
        self._window.append((correct, count, *newest))
        while sum(entry[1] for entry in self._window) - self._window[0][1] >= self.curriculum.window:
            self._window.popleft()
        right, seen, newest_right, newest_seen = (sum(column) for column in zip(*self._window, strict=True))
        asked = self.curriculum.threshold
        if self.at_last_stage and self.curriculum.mastery is not None:
            asked = self.curriculum.mastery
        if seen < self.curriculum.window or right < asked * seen:
            return False
        if self.curriculum.newest is not None and not 0 < self.curriculum.newest * newest_seen <= newest_right:
            return False
        self._window.clear()
        if self.at_last_stage:
            self.mastered = True
        else:
            self._streams.pop(self.stage).close()
            self.stage += 1
        return True

    @property
    def at_last_stage(self) -> bool:
        """Whether the problems are those of the full size."""
        return self.stage == len(self.stages) - 1

    @property
    def extent(self) -> int:
        """How many vertices, or how much lookahead, the present stage has at most."""
        now = self.stages[self.stage]
        graph: Any = getattr(now, "symbolic", now)
        if self.curriculum.over != "lookahead":
            return graph.most_vertices
        return getattr(now, "max_lookahead", None) or graph.largest_lookahead

    @property
    def newest(self) -> int | None:
        """The lookahead that the rule asks for by itself in the present stage."""
        return self.curriculum.newest_of(self.stages[self.stage])

    @property
    def rate_factor(self) -> float:
        """The fraction of its peak that the rate has in the present stage, before it falls at the end."""
        slow_from = self.curriculum.slow_from
        return 1.0 if slow_from is None else min(1.0, slow_from / self.extent)

    def describe(self) -> str | None:
        """The present stage for people; none if there is no curriculum."""
        if len(self.stages) == 1:
            return None
        what = "lookahead" if self.curriculum.over == "lookahead" else "vertices"
        return f"{self.stage + 1}/{len(self.stages)} ({what} ≤ {self.extent})"

    def state(self) -> dict[str, Any]:
        """All that has to be kept to go on from here, as plain values."""
        return {
            "stage": self.stage,
            "batches": self.batches,
            "taken": list(self.taken),
            "redrawn": self.redrawn,
            "mastered": self.mastered,
            "window": [list(entry) for entry in self._window],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.close()
        self.stage, self.batches, self.redrawn = state["stage"], state["batches"], state["redrawn"]
        self.taken, self.mastered = list(state["taken"]), state["mastered"]
        # Runs begun before there was a rule for the newest lookahead kept two numbers.
        self._window = deque((*entry, 0, 0)[:4] for entry in state["window"])

    def close(self) -> None:
        """End the threads."""
        while self._streams:
            self._streams.popitem()[1].close()

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
