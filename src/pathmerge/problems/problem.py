"""One problem by itself: what tokens parse into, what the oracle judges and what a picture shows."""

from __future__ import annotations

from dataclasses import dataclass

from pathmerge.layout import Task


@dataclass(frozen=True)
class Problem:
    """A graph-search problem in vertex ids.

    `visited` is the depth-first trace (task "dfs", starting with `start`), `visited_edges` the edges followed so far
    (tasks "selection" and "inference"); `current` is the vertex whose child is asked for in "inference", and in
    "selection" the vertex that the branch count refers to, if known.
    """

    task: Task
    edges: tuple[tuple[int, int], ...]
    start: int
    goal: int
    visited: tuple[int, ...] = ()
    visited_edges: tuple[tuple[int, int], ...] = ()
    current: int | None = None

    @property
    def vertices(self) -> tuple[int, ...]:
        """Every vertex id that occurs, in increasing order."""
        return tuple(sorted({v for e in self.edges for v in e} | {self.start, self.goal}))

    def canonical(self) -> tuple[object, ...]:
        """What makes two problems the same: all but the order of the edges (SPEC section 2, "Held out").

        In a selection step the current vertex is only in the record, not in the input, so it does not count.
        """
        current = self.current if self.task == "inference" else None
        return self.task, tuple(sorted(self.edges)), self.start, self.goal, self.visited, self.visited_edges, current
