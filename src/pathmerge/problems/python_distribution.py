"""Distributions written in Python: one function proposes a graph, everything else is derived from it.

Choices a reader could not guess:
- `propose` gets a generator that is keyed by (seed, split, stream, index, attempt). As long as it takes its randomness
  from there alone, example i is a pure function of its key; `verify` draws again and would tell.
- Vertices may be anything that can be a key of a dictionary: (row, column), words. Ids, the order of the edges, tokens,
  label, answers, lookahead and hash are not the proposal's business.
- It is slower than the built-in distributions, which are compiled: some thousand problems a second.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from pathmerge.errors import check_range
from pathmerge.problems.distribution import Cell, SearchDistribution

Proposal = tuple[Sequence[tuple[Hashable, Hashable]], Hashable, Hashable]
"""Edges, start, goal."""
IN_PYTHON = -1


@dataclass(frozen=True, kw_only=True)
class PythonDistribution(SearchDistribution):
    """Search problems that a function `propose` makes; subclass it and `register` the subclass."""

    lookahead: int | None = None
    """The lookahead; none: drawn uniformly, or left to chance if the distribution has no `largest_lookahead`."""
    max_lookahead: int | None = None
    """The largest lookahead to draw; none: the distribution's own."""

    difficulty_names: ClassVar[tuple[str, ...]] = ("lookahead",)

    # What a subclass provides.

    def propose(self, random: random.Random, lookahead: int | None) -> Proposal | None:
        """Edges, start and goal of one problem, drawn with `random` and nothing else.

        It is drawn again, with fresh randomness and the same `lookahead`, if it is None, has more vertices or edges
        than `self.most_vertices`, has no path from start to goal, or another lookahead than the one asked for. A cycle
        or an edge that is there twice is an error.
        """
        raise NotImplementedError(f"{type(self).__name__}.propose")

    @property
    def largest_lookahead(self) -> int | None:
        """The largest lookahead that problems of at most `self.most_vertices` vertices have, if all from 1 to there are
        wanted equally often; none: the lookahead is left to chance."""
        return None

    # The rest follows.

    def __post_init__(self) -> None:
        super().__post_init__()
        largest = self.largest_lookahead
        if largest is not None and (not isinstance(largest, int) or isinstance(largest, bool)):
            raise ValueError(f"{self.name}.largest_lookahead={largest!r}: must be a whole number, or None")
        most = (self.most_vertices - 1) // 2 if largest is None else largest
        if most < 1:
            raise ValueError(f"{self.name}: problems of {self.size_text} have no lookahead of 1 or more; choose larger")
        for field in ("lookahead", "max_lookahead"):
            if getattr(self, field) is not None:
                check_range(field, getattr(self, field), 1, most, f"the largest at {self.size_text}")
        if self.lookahead is not None and self.max_lookahead is not None:
            raise ValueError(
                f"max_lookahead={self.max_lookahead}: must be left out when lookahead={self.lookahead} is given"
            )

    def cells(self) -> list[Cell]:
        if self.lookahead is not None:
            return [(self.lookahead, 0, 0)]
        most = self.max_lookahead or self.largest_lookahead
        return [(0, 0, 0)] if most is None else [(lookahead, 0, 0) for lookahead in range(1, most + 1)]

    def fixed(self) -> Sequence[Self]:
        return [replace(self, lookahead=cell[0] or None, max_lookahead=None) for cell in self.cells()]

    def parameters(self) -> dict[str, int]:
        return {"kind": IN_PYTHON, **super().parameters()}
