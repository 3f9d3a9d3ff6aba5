"""Naive graphs: each vertex takes one to four random parents before it (paper, appendix A.1.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pathmerge.problems.distribution import Cell, SearchDistribution


@dataclass(frozen=True, kw_only=True)
class Naive(SearchDistribution):
    """Random graphs whose lookahead is left to chance, and so is almost always small."""

    name: ClassVar[str] = "naive"
    difficulty_names: ClassVar[tuple[str, ...]] = ("lookahead",)

    def cells(self) -> list[Cell]:
        return [(0, 0, 0)]

    def fixed(self) -> Sequence[Naive]:
        return [self]

    def parameters(self) -> dict[str, int]:
        return {"kind": 0, **super().parameters()}
