"""A curriculum: problems grow, by lookahead or by size, whenever the model is competent at the present stage.

Choices a reader could not guess:
- Competence is the accuracy on the last `window` examples of the present stage, as training met them: each was new to
  the model when it was answered, so no validation pass is needed.
- With many lookaheads that accuracy says little of the newest one: four unknown ones of 22 are hidden by 0.9 of all.
  `newest` asks for it by itself.
- A stage limits the largest lookahead or the number of vertices; ids and positions are those of the full size. The last
  stage is the problem itself.
- `easier` is the share of each batch that comes from earlier stages, which take turns. (A stage is itself a mixture of
  all lookaheads up to its largest.)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from pathmerge.errors import check_choice, check_flag, check_number, check_range
from pathmerge.problems.balanced import Balanced
from pathmerge.problems.distribution import Distribution
from pathmerge.problems.tangled import FEWEST_VERTICES, Tangled

Over = Literal["none", "lookahead", "size"]
SMALLEST_SIZE = 5


@dataclass(frozen=True, kw_only=True)
class Curriculum:
    """How problems grow in training; `over="none"`: they do not."""

    over: Over = "none"
    """What grows: the largest lookahead, or the number of vertices (`size`)."""
    first: int | None = None
    """The lookahead or number of vertices of the first stage; none: 1, or 5 vertices."""
    step: int = 1
    """By how much a stage is larger than the one before."""
    threshold: float = 0.96
    """The accuracy at which the next stage begins."""
    mastery: float | None = None
    """The accuracy at which the last stage is mastered, so that the rate begins to fall; none: the threshold, and with
    `over="none"` the rate falls at the end of the run."""
    window: int = 2048
    """How many examples of the present stage that accuracy is taken over."""
    newest: float | None = None
    """What the accuracy on the largest lookahead of the present stage must be, too, over the same window, for the next
    stage to begin or the problem to be mastered. None: it is only part of the accuracy on all."""
    easier: float = 0.125
    """The share of each batch drawn from earlier stages."""
    scatter: bool = False
    """Before the last stage, whether edges stand anywhere in the input instead of at its end, so that every position
    is trained from the beginning; all examples of a step share the places, so the others can be dropped."""

    slow_from: int | None = None
    """Beyond this many vertices (or this lookahead) the rate falls in proportion: in a stage of twice as many it is a
    half. None: the same in all stages."""

    tangled: float | None = None
    """Once the problem is mastered (without such a rule: from the beginning), the share of each batch, in sixteens, of
    tangled problems: balanced ones in which some vertex has two parents. None: as many as chance brings."""

    largest: int | None = None
    """In one of so many batches, the tangled share is problems of the largest lookahead instead, which leave no vertex
    to tangle when V is odd and so would be rarer than the others. None: never."""

    def __post_init__(self) -> None:
        check_choice("curriculum.over", self.over, ("none", "lookahead", "size"))
        if self.first is not None:
            check_range("curriculum.first", self.first, 3 if self.over == "size" else 1, 10**6)
        check_range("curriculum.step", self.step, 1, 10**6)
        check_number("curriculum.threshold", self.threshold, 0, 1)
        if self.mastery is not None:
            check_number("curriculum.mastery", self.mastery, 0, 1)
        check_range("curriculum.window", self.window, 1, 10**9)
        if self.newest is not None:
            check_number("curriculum.newest", self.newest, 0.01, 1)
            if not self.rate_waits:
                raise ValueError(
                    f"curriculum.newest={self.newest}: needs curriculum.over or curriculum.mastery, no stage ends"
                )
        check_number("curriculum.easier", self.easier, 0, 0.9)
        check_flag("curriculum.scatter", self.scatter)
        if self.slow_from is not None:
            check_range("curriculum.slow_from", self.slow_from, 1, 10**6)
            if self.over == "none":
                raise ValueError(f"curriculum.slow_from={self.slow_from}: needs curriculum.over, nothing grows")
        if self.tangled is not None:
            check_number("curriculum.tangled", self.tangled, 0, 0.9)
            if self.over != "none" and self.tangled + self.easier > 0.9:
                raise ValueError(
                    f"curriculum.tangled={self.tangled}: must be at most {0.9 - self.easier:g}, since "
                    f"curriculum.easier={self.easier} and a tenth of each batch is the problem itself"
                )
        if self.largest is not None:
            check_range("curriculum.largest", self.largest, 2, 10**6)
            if not self.tangled:
                raise ValueError(f"curriculum.largest={self.largest}: needs curriculum.tangled, whose share it takes")
        if self.scatter and self.over != "size":
            raise ValueError(f"curriculum.scatter=True: needs curriculum.over='size', not {self.over!r}")

    @property
    def rate_waits(self) -> bool:
        """Whether the rate waits with its fall until the problem is mastered."""
        return self.over != "none" or self.mastery is not None

    def stages(self, problem: Distribution) -> list[Distribution]:
        """The distributions from the easiest to the problem itself."""
        if self.newest is not None and _largest_lookahead(problem) is None:
            fits = "balanced problems of all lookaheads"
            raise ValueError(f"curriculum.newest={self.newest}: needs {fits}, not {problem.describe()}")
        if self.over == "none":
            return [problem]
        field = {"lookahead": "max_lookahead", "size": "vertices"}[self.over]
        graph: Any = getattr(problem, "symbolic", problem)
        chance = self.over == "lookahead" and getattr(graph, "largest_lookahead", None) is None
        if chance or not hasattr(graph, field) or getattr(problem, "lookahead", None) is not None:
            fits = "balanced problems of all lookaheads" if self.over == "lookahead" else "naive, balanced or star ones"
            raise ValueError(f"curriculum.over={self.over!r}: needs {fits}, not {problem.describe()}")
        if self.over == "lookahead":
            last, first = graph.max_lookahead or graph.largest_lookahead, self.first or 1
        else:
            last = graph.most_vertices
            first = self.first or min(SMALLEST_SIZE, last)
        least = FEWEST_VERTICES if self.over == "size" and isinstance(graph, Tangled) else 1
        check_range("curriculum.first", first, least, last, f"the largest {self.over} of {problem.describe()}")
        return [*(self._limited(problem, field, at) for at in range(first, last, self.step)), problem]

    def _limited(self, problem: Distribution, field: str, at: int) -> Distribution:
        largest = getattr(problem, "max_lookahead", None)
        if field == "max_lookahead" or largest is None:
            return replace(problem, **{field: at})
        free: Any = replace(problem, vertices=at, max_lookahead=None)
        most = getattr(free, "symbolic", free).largest_lookahead
        return replace(free, max_lookahead=min(largest, most))

    def sources(self, problem: Distribution) -> list[Distribution]:
        """All that is drawn from: the stages, and tangled problems and those of the largest lookahead if there is to be
        a share of them."""
        stages = self.stages(problem)
        if self.tangled is None:
            return stages
        if type(problem) is not Balanced or problem.lookahead is not None or problem.most_vertices < FEWEST_VERTICES:
            fits = f"balanced problems of all lookaheads and at least {FEWEST_VERTICES} vertices"
            raise ValueError(f"curriculum.tangled={self.tangled}: needs {fits}, not {problem.describe()}")
        given = asdict(problem)
        if problem.max_lookahead is not None:
            whole = Tangled(input_size=problem.input_size, vertices=problem.vertices)
            given["max_lookahead"] = min(problem.max_lookahead, whole.largest_lookahead)
        beside: list[Distribution] = [Tangled(**given)]
        if self.largest is not None:
            beside.append(problem.fixed()[-1])
        return [*stages, *beside]

    def beside(self, batches: int) -> int:
        """Which of the sources after the stages the tangled share of the next batch comes from."""
        return int(self.largest is not None and batches % self.largest == 0)

    def tangled_part(self, size: int) -> int:
        """How many of a batch of `size` are tangled, in sixteens."""
        return int(size * (self.tangled or 0.0)) // 16 * 16

    def easier_part(self, size: int, stage: int) -> int:
        """How many of a batch of `size` come from an earlier stage: in sixteens, so that processes can share them."""
        if stage == 0:
            return 0
        return int(size * self.easier) // 16 * 16

    def newest_of(self, stage: Distribution) -> int | None:
        """The lookahead that `newest` asks for in this stage; none if nothing is asked."""
        return None if self.newest is None else _largest_lookahead(stage)


def _largest_lookahead(problem: Distribution) -> int | None:
    """The largest lookahead that is drawn; none where it is left to chance or the same in all problems."""
    graph: Any = getattr(problem, "symbolic", problem)
    if getattr(problem, "lookahead", None) is not None:
        return None
    return getattr(problem, "max_lookahead", None) or getattr(graph, "largest_lookahead", None)
