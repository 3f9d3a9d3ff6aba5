"""Depth-first search with its trace so far: predict the next vertex it visits (paper section 6.1, appendix A.7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pathmerge.errors import check_choice, check_flag, check_range
from pathmerge.layout import Task
from pathmerge.problems.distribution import Cell, Distribution

Mode = Literal["balanced", "naive"]
Padding = Literal["standard", "random"]


@dataclass(frozen=True, kw_only=True)
class DFS(Distribution):
    """A graph and a valid depth-first trace; the difficulty is how far the search has to go back."""

    mode: Mode = "balanced"
    """Balanced: exact backtrack distance; naive: a search cut at a random place."""
    backtrack: int | None = None
    """The backtrack distance, 0..min(E-1, V-2) with E = (N-4)//4; none: drawn uniformly (balanced mode only)."""
    padding: Padding = "standard"
    """Standard: filler before the trace; random: filler between its vertices too."""
    prefix: bool = False
    """Let vertices be visited before the one to go back to, so that it is not always start (balanced mode only)."""

    name: ClassVar[str] = "dfs"
    difficulty_names: ClassVar[tuple[str, ...]] = ("backtrack",)
    task: ClassVar[Task] = "dfs"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("mode", self.mode, ("balanced", "naive"))
        check_choice("padding", self.padding, ("standard", "random"))
        check_flag("prefix", self.prefix)
        if self.mode == "naive" and self.backtrack is not None:
            raise ValueError(
                f"backtrack={self.backtrack!r}: must be left out when mode='naive', which leaves it to chance"
            )
        if self.mode == "naive" and self.prefix:
            raise ValueError("prefix=True: must be False when mode='naive', whose traces have no fixed shape")
        if self.backtrack is not None:
            check_range("backtrack", self.backtrack, 0, self.largest_backtrack, f"at input_size={self.input_size}")

    @property
    def largest_backtrack(self) -> int:
        return min(self.layout.max_edges - 1, self.layout.max_vertices - 2)

    def cells(self) -> list[Cell]:
        if self.mode == "naive":
            return [(0, 0, 0)]
        if self.backtrack is not None:
            return [(self.backtrack, 0, 0)]
        return [(backtrack, 0, 0) for backtrack in range(self.largest_backtrack + 1)]

    def fixed(self) -> Sequence[DFS]:
        return [self] if self.mode == "naive" else [replace(self, backtrack=cell[0]) for cell in self.cells()]

    def parameters(self) -> dict[str, int]:
        kind = 3 if self.mode == "naive" else 4
        return {"kind": kind, "option": int(self.prefix), "padding": int(self.padding == "random")}
