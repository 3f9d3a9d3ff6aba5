"""Balanced graphs: the lookahead is exactly the one asked for, and no simple heuristic helps (appendix A.1.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from pathmerge.errors import check_flag, check_range
from pathmerge.problems.distribution import Cell, SearchDistribution


@dataclass(frozen=True, kw_only=True)
class Balanced(SearchDistribution):
    """Problems of exact lookahead; without `lookahead`, uniform over 1..max_lookahead."""

    lookahead: int | None = None
    """The lookahead, 1..(V-1)//2; none: drawn uniformly."""
    max_lookahead: int | None = None
    """The largest lookahead to draw; none: the largest that fits, (V-1)//2."""
    incoming: bool = True
    """Whether a chain may lead into start."""

    name: ClassVar[str] = "balanced"
    difficulty_names: ClassVar[tuple[str, ...]] = ("lookahead",)
    bound: ClassVar[tuple[str, int]] = ("(V-1)//2", 1)
    """The largest lookahead that fits: its formula, and what it takes off V."""

    def __post_init__(self) -> None:
        super().__post_init__()
        most = self.largest_lookahead
        why = f"{self.bound[0]} at {self.size_text}"
        for field in ("lookahead", "max_lookahead"):
            if getattr(self, field) is not None:
                check_range(field, getattr(self, field), 1, most, why)
        check_flag("incoming", self.incoming)
        if self.lookahead is not None and self.max_lookahead is not None:
            raise ValueError(
                f"max_lookahead={self.max_lookahead}: must be left out when lookahead={self.lookahead} is given"
            )

    @property
    def largest_lookahead(self) -> int:
        return (self.most_vertices - self.bound[1]) // 2

    def cells(self) -> list[Cell]:
        if self.lookahead is not None:
            return [(self.lookahead, 0, 0)]
        return [(lookahead, 0, 0) for lookahead in range(1, (self.max_lookahead or self.largest_lookahead) + 1)]

    def fixed(self) -> Sequence[Balanced]:
        return [replace(self, lookahead=cell[0], max_lookahead=None) for cell in self.cells()]

    def parameters(self) -> dict[str, int]:
        return {"kind": 1, "option": int(self.incoming), **super().parameters()}
