"""Balanced graphs in which ways meet: some vertex has two parents.

In most balanced graphs no ways meet (of 41 vertices four in five, of 9 nine in ten), and models trained on them make
most of their mistakes on the rest (docs/experiments.md). These are the rest alone: to test on, and to train on more
often (`Curriculum.tangled`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pathmerge.problems.balanced import Balanced

FEWEST_VERTICES = 4


@dataclass(frozen=True, kw_only=True)
class Tangled(Balanced):
    """Balanced problems that are drawn again until some vertex has two parents.

    That takes a vertex beside the chains, so the largest lookahead is (V-2)//2.
    """

    name: ClassVar[str] = "tangled"
    bound: ClassVar[tuple[str, int]] = ("(V-2)//2", 2)

    def __post_init__(self) -> None:
        if self.most_vertices < FEWEST_VERTICES:
            field = "input_size" if self.vertices is None else "vertices"
            raise ValueError(
                f"{field}={getattr(self, field)}: tangled problems need at least {FEWEST_VERTICES} vertices, "
                f"input_size {3 * FEWEST_VERTICES + 5}"
            )
        super().__post_init__()

    def parameters(self) -> dict[str, int]:
        given = super().parameters()
        return {**given, "option": given["option"] | 2}  # TANGLED in kernels/search.py
