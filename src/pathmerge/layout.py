"""Sizes and token numbers: everything that follows from `input_size`, the one dial.

Choices a reader could not guess:
- Token 0 is never used; vertices are 1..V; the four markers stand after them. This is the layout of the published
  data, so that files and weights can be exchanged.
- All tasks share one frame, ``PAD* (EDGE u v)* QUERY start goal REGION``; only the width of the region differs. The
  region is written with 0 for filler inside the program and with PATH in tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pathmerge.errors import check_choice, check_range

Task = Literal["search", "dfs", "selection", "inference"]
TASKS: tuple[Task, ...] = ("search", "dfs", "selection", "inference")
MAX_INPUT_SIZE = 512
SMALLEST_INPUT_SIZE: dict[Task, int] = {"search": 14, "dfs": 11, "selection": 11, "inference": 11}


@dataclass(frozen=True)
class Layout:
    """The token layout of one task at one input size."""

    input_size: int
    task: Task = "search"

    def __post_init__(self) -> None:
        check_choice("task", self.task, TASKS)
        low = SMALLEST_INPUT_SIZE[self.task]
        check_range("input_size", self.input_size, low, MAX_INPUT_SIZE, f"task {self.task}")

    @property
    def max_vertices(self) -> int:
        """V, the largest vertex id."""
        return (self.input_size - 5) // 3

    @property
    def max_edges(self) -> int:
        """How many edges fit."""
        match self.task:
            case "search":
                return self.max_vertices
            case "dfs":
                return (self.input_size - 4) // 4
            case _:
                return (self.input_size - 2) // 6

    @property
    def region_width(self) -> int:
        """Tokens after the query: what has been visited so far, with filler."""
        match self.task:
            case "search":
                return 2
            case "dfs":
                return self.max_edges + 1
            case _:
                return 3 * self.max_edges - 1

    @property
    def vocabulary_size(self) -> int:
        return self.max_vertices + 5

    @property
    def path(self) -> int:
        return self.max_vertices + 1

    @property
    def edge(self) -> int:
        return self.max_vertices + 2

    @property
    def pad(self) -> int:
        return self.max_vertices + 3

    @property
    def query(self) -> int:
        return self.max_vertices + 4
