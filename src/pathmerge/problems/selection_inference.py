"""Selection-inference: choose a visited vertex to go on from, then a child of it (paper section 6.2, appendix A.9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pathmerge.errors import check_choice, check_range
from pathmerge.layout import Task
from pathmerge.problems.distribution import Cell, Distribution

Step = Literal["selection", "inference"]
STEPS: tuple[Step, ...] = ("selection", "inference")


@dataclass(frozen=True, kw_only=True)
class SelectionInference(Distribution):
    """A graph and its visited edges, with exact frontier size F and branch count B."""

    frontier: int | None = None
    """F, the visited vertices with unvisited children; none: drawn, uniformly over feasible pairs."""
    branch: int | None = None
    """B, the children of the current vertex; none: drawn, uniformly over feasible pairs."""
    step: Step | None = None
    """Selection or inference; none: either with equal chance."""

    name: ClassVar[str] = "selection-inference"
    difficulty_names: ClassVar[tuple[str, ...]] = ("frontier", "branch", "step")
    task: ClassVar[Task] = "selection"

    def __post_init__(self) -> None:
        super().__post_init__()
        most = self.layout.max_edges
        why = f"frontier+max(frontier,branch)-1 ≤ E={most} at input_size={self.input_size}"
        if self.step is not None:
            check_choice("step", self.step, STEPS)
        if self.frontier is not None:
            check_range("frontier", self.frontier, 1, (most + 1) // 2, why)
        if self.branch is not None:
            check_range("branch", self.branch, 1, most + 1 - (self.frontier or 1), why)

    def cells(self) -> list[Cell]:
        most = self.layout.max_edges
        return [
            (frontier, branch, step)
            for frontier in range(1, (most + 1) // 2 + 1)
            for branch in range(1, most + 2 - frontier)
            for step in range(2)
            if self.frontier in (None, frontier) and self.branch in (None, branch) and self.step in (None, STEPS[step])
        ]

    def fixed(self) -> Sequence[SelectionInference]:
        return [replace(self, frontier=cell[0], branch=cell[1], step=STEPS[cell[2]]) for cell in self.cells()]

    def parameters(self) -> dict[str, int]:
        return {"kind": 5}
