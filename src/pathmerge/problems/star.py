"""Stars: chains of one length from a centre, the goal at the end of one (Bachmann & Nagarajan 2024, figure 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import factorial, perm
from typing import ClassVar

from pathmerge.errors import check_range
from pathmerge.problems.distribution import Cell, SearchDistribution


@dataclass(frozen=True, kw_only=True)
class Star(SearchDistribution):
    """k chains of L edges from start; without them, uniform over all pairs with k ≥ 2 and k·L+1 ≤ V."""

    spokes: int | None = None
    """k, the number of chains; none: drawn, uniformly over feasible pairs."""
    lookahead: int | None = None
    """L, the edges of each chain; none: drawn, uniformly over feasible pairs."""

    name: ClassVar[str] = "star"
    difficulty_names: ClassVar[tuple[str, ...]] = ("lookahead", "spokes")

    def __post_init__(self) -> None:
        super().__post_init__()
        room = self.most_vertices - 1
        why = f"spokes·lookahead+1 ≤ V={room + 1} at {self.size_text}"
        length = 1 if self.lookahead is None else check_range("lookahead", self.lookahead, 1, room // 2, why)
        if self.spokes is not None:
            check_range("spokes", self.spokes, 2, room // length, why)

    def cells(self) -> list[Cell]:
        room = self.most_vertices - 1
        return [
            (length, spokes, 0)
            for spokes in range(2, room + 1)
            for length in range(1, room // spokes + 1)
            if self.spokes in (None, spokes) and self.lookahead in (None, length)
        ]

    def fixed(self) -> Sequence[Star]:
        return [replace(self, lookahead=cell[0], spokes=cell[1]) for cell in self.cells()]

    def parameters(self) -> dict[str, int]:
        return {"kind": 2, **super().parameters()}

    def problem_count(self) -> int:
        """Ways to label the vertices, chains without the goal being interchangeable."""
        return sum(
            perm(self.layout.max_vertices, spokes * length + 1) // factorial(spokes - 1)
            for length, spokes, _ in self.cells()
        )
