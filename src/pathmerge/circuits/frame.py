"""What the rows of an input stand for: vertices, positions, and the graph they state.

Choices a reader could not guess:
- Features are numbered: first the vertex ids that occur, in increasing order, then the positions of the rows, if the
  model has position embeddings. Sets of features are rows of a bool array over these.
- A row of edge tokens holds both ends of its edge; for direction and distance it stands for the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from torch import Tensor

from pathmerge.problems.batch import Batch

FeatureKind = Literal["vertex", "position"]


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One search problem as rows of tokens; rows are those that are not padding."""

    vertices: tuple[int, ...]
    """The vertex ids that occur."""
    most: int
    """V, the largest id there could be."""
    edges: tuple[tuple[int, int], ...]
    start: int
    goal: int
    answers: frozenset[int]
    positions: tuple[int, ...]
    """Where each row stands in the input."""
    held: tuple[tuple[int, ...], ...]
    """The vertices each row holds."""
    width: int
    """Tokens of the input, padding included."""
    has_positions: bool

    @property
    def rows(self) -> int:
        return len(self.positions)

    @property
    def substitute(self) -> int:
        """The smallest vertex id that does not occur, or token 0 if all do."""
        return next((v for v in range(1, self.most + 1) if v not in self.vertices), 0)

    @property
    def features(self) -> list[tuple[FeatureKind, int]]:
        places: Sequence[int] = self.positions if self.has_positions else ()
        return [*(("vertex", v) for v in self.vertices), *(("position", p) for p in places)]

    @cached_property
    def initial(self) -> np.ndarray:
        """N(0, j): what each row holds before the first layer, rows x features."""
        sets = np.zeros((self.rows, len(self.features)), bool)
        number = {v: at for at, v in enumerate(self.vertices)}
        there = [(j, number[v]) for j, vertices in enumerate(self.held) for v in vertices]
        sets[tuple(zip(*there, strict=True))] = True
        if self.has_positions:
            sets[:, len(self.vertices) :] = np.eye(self.rows, dtype=bool)
        return sets

    @cached_property
    def holding(self) -> np.ndarray:
        """Which rows hold which vertex of `vertices`, vertices x rows."""
        return self.initial[:, : len(self.vertices)].T.copy()

    @cached_property
    def vertex_of_row(self) -> np.ndarray:
        """The vertex a row stands for, or 0."""
        return np.array([vertices[0] if vertices else 0 for vertices in self.held])

    @cached_property
    def edge_features(self) -> np.ndarray:
        """The two position features of each edge, edges x 2; empty where there are none."""
        if not self.has_positions:
            return np.empty((0, 2), np.int64)
        slots = [j for j in range(self.rows - 5) if not self.held[j]]
        return np.array([(j + 1, j + 2) for j in slots], np.int64).reshape(-1, 2) + len(self.vertices)

    @cached_property
    def query_features(self) -> np.ndarray:
        """The position features of start and goal in the query."""
        if not self.has_positions:
            return np.empty(0, np.int64)
        return np.array([self.rows - 4, self.rows - 3]) + len(self.vertices)

    @cached_property
    def distance(self) -> np.ndarray:
        """Steps from each vertex id to each, (most + 1) x (most + 1); -1 where there is no path."""
        steps = np.full((self.most + 1, self.most + 1), -1, np.int64)
        children: dict[int, list[int]] = {}
        for source, target in self.edges:
            children.setdefault(source, []).append(target)
        for origin in self.vertices:
            steps[origin, origin] = 0
            level = [origin]
            while level:
                following: list[int] = []
                for vertex in level:
                    for child in children.get(vertex, ()):
                        if steps[origin, child] < 0:
                            steps[origin, child] = steps[origin, vertex] + 1
                            following.append(child)
                level = following
        return steps

    @cached_property
    def reach(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps from each row's vertex to each of `vertices`, and the other way round, rows x vertices."""
        here, there = self.vertex_of_row[:, None], np.array(self.vertices)
        return self.distance[here, there], self.distance[there, here]

    def leads(self, through: set[int], second: int | None) -> bool:
        """Whether a path from start to goal, with `second` after start if given, has all its vertices in `through`."""
        if self.start not in through:
            return False
        if second is not None:
            if (self.start, second) not in self.edges or second not in through:
                return False
            seen, waiting = {second}, [second]
        else:
            seen, waiting = {self.start}, [self.start]
        while waiting:
            vertex = waiting.pop()
            if vertex == self.goal:
                return True
            for source, target in self.edges:
                if source == vertex and target in through and target not in seen:
                    seen.add(target)
                    waiting.append(target)
        return False


def frame_of(batch: Batch, index: int, tokens: Tensor, rows: Tensor, has_positions: bool) -> Frame:
    """The frame of one example; `tokens` are those of the model, `rows` the positions that are not padding."""
    layout = batch.distribution.layout
    row_tokens = tokens[rows]
    if row_tokens.ndim == 2:
        held = tuple(tuple(dict.fromkeys(pair)) for pair in row_tokens[:, :2].tolist())
    else:
        held = tuple((v,) if 1 <= v <= layout.max_vertices else () for v in row_tokens.tolist())
    edges = tuple((u, v) for u, v in batch.edges[index].tolist() if u)
    start, goal = int(batch.start[index]), int(batch.goal[index])
    return Frame(
        vertices=tuple(sorted({v for edge in edges for v in edge} | {start, goal})),
        most=layout.max_vertices,
        edges=edges,
        start=start,
        goal=goal,
        answers=frozenset(np.flatnonzero(batch.answers[index]).tolist()),
        positions=tuple(rows.tolist()),
        held=held,
        width=len(tokens),
        has_positions=has_positions,
    )
