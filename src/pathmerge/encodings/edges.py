"""One token per edge: a pair of vertices and a kind, no positions. About a third of the symbolic tokens.

Choices a reader could not guess:
- The query is the edge goal → start, so that a path from start to goal closes into a cycle through it.
- A depth-first trace v0 v1 v2 becomes the steps (v0, v1), (v1, v2): its order can be read off without positions. A
  visited edge of selection-inference is a step too; the current vertex c of an inference step is the pair (c, c).
- Columns: the graph's edges (right-aligned), then steps (right-aligned), then the query last; kind 0 is padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from pathmerge.errors import check_range
from pathmerge.layout import Layout, Task
from pathmerge.oracle import violations
from pathmerge.problems.batch import Batch
from pathmerge.problems.problem import Problem

PAD, EDGE, QUERY, STEP, CURRENT = range(5)


@dataclass(frozen=True, kw_only=True)
class EdgeTokens:
    """`pairs[b, t]` = (source, target) and `kind[b, t]` one of PAD, EDGE, QUERY, STEP, CURRENT."""

    pairs: Int64[np.ndarray, "batch tokens 2"]
    kind: Int64[np.ndarray, "batch tokens"]


def width(layout: Layout) -> int:
    """Tokens per example."""
    return layout.max_edges + _steps(layout) + 1


def _steps(layout: Layout) -> int:
    match layout.task:
        case "search":
            return 0
        case "dfs":
            return layout.max_edges - 1
        case _:
            return layout.max_edges


def encode(batch: Batch) -> EdgeTokens:
    """The batch as edge tokens."""
    layout = batch.distribution.layout
    graph = batch.edges
    steps, kinds = _encode_region(batch.tokens[:, layout.input_size - layout.region_width :], layout)
    query = np.stack([batch.goal, batch.start], axis=1)[:, None, :]
    return EdgeTokens(
        pairs=np.concatenate([graph, steps, query], axis=1),
        kind=np.concatenate([np.where(graph[:, :, 0] > 0, EDGE, PAD), kinds, np.full((len(batch), 1), QUERY)], axis=1),
    )


def _encode_region(region: np.ndarray, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Steps and their kinds, right-aligned."""
    count, slots = len(region), _steps(layout)
    if slots == 0:
        return np.zeros((count, 0, 2), np.int64), np.zeros((count, 0), np.int64)
    filler = region == layout.path
    if layout.task == "dfs":
        order = np.argsort(~filler, axis=1, kind="stable")
        trace = np.where(np.take_along_axis(filler, order, axis=1), 0, np.take_along_axis(region, order, axis=1))
        pairs = np.stack([trace[:, 1:-1], trace[:, 2:]], axis=2)
        present = pairs[:, :, 0] > 0
        return np.where(present[:, :, None], pairs, 0), np.where(present, STEP, PAD)
    inference = ~filler[:, -1]
    pairs = np.zeros((count, slots, 2), np.int64)
    kinds = np.zeros((count, slots), np.int64)
    # Visited edges end one place further left when the current vertex stands last.
    for chosen, end in ((inference, region.shape[1] - 1), (~inference, region.shape[1])):
        edges = region[chosen][:, end - 3 * (slots - 1) : end].reshape(chosen.sum(), slots - 1, 3)[:, :, :2]
        present = edges[:, :, 0] != layout.path
        pairs[chosen, : slots - 1] = np.where(present[:, :, None], edges, 0)
        kinds[chosen, : slots - 1] = np.where(present, STEP, PAD)
    pairs[inference, -1] = region[inference, -1:]
    kinds[inference, -1] = CURRENT
    return pairs, kinds


def decode(tokens: EdgeTokens, layout: Layout, row: int, *, current: int | None = None) -> Problem:
    """The problem of one row, judged as `symbolic.parse` judges; `current` as there."""
    if tokens.pairs.shape != (*tokens.kind.shape, 2):
        raise ValueError(f"pairs: have shape {tokens.pairs.shape}, must be {(*tokens.kind.shape, 2)} as kind says")
    most = layout.max_vertices
    of_kind: dict[int, list[tuple[int, int]]] = {kind: [] for kind in range(CURRENT + 1)}
    for i, ((u, v), kind) in enumerate(zip(tokens.pairs[row], tokens.kind[row], strict=True)):
        low, high = (0, 0) if kind == PAD else (1, most)
        ends = [check_range(f"pairs[{row}, {i}]", end, low, high) for end in (u, v)]
        of_kind[check_range(f"kind[{row}, {i}]", kind, PAD, CURRENT)].append((ends[0], ends[1]))
    for kind, name, allowed in (
        (QUERY, "query", (1,)),
        (STEP, "step", (0,) if layout.task == "search" else range(layout.max_edges)),
        (CURRENT, "current", (0, 1) if layout.task in ("selection", "inference") else (0,)),
    ):
        if len(of_kind[kind]) not in allowed:
            raise ValueError(f"kind[{row}]: {len(of_kind[kind])} {name} tokens, must be {_span(allowed)}")
    ((goal, start),) = of_kind[QUERY]
    task: Task = layout.task
    visited: list[int] = []
    steps = of_kind[STEP]
    if task == "dfs":
        visited, steps = _chain(start, steps), []
    elif task != "search":
        task = "inference" if of_kind[CURRENT] else "selection"
        for c, d in of_kind[CURRENT]:
            if c != d:
                raise ValueError(f"pairs[{row}]: current token ({c}, {d}), must be the same vertex twice")
            current = c
    problem = Problem(
        task,
        tuple(of_kind[EDGE]),
        start,
        goal,
        tuple(visited),
        tuple(steps),
        current if task in ("selection", "inference") else None,
    )
    for violation in violations(problem, Layout(layout.input_size, task)):
        raise ValueError(violation)
    return problem


def _span(allowed: Sequence[int]) -> str:
    return str(allowed[0]) if len(allowed) == 1 else f"{allowed[0]}..{allowed[-1]}"


def _chain(start: int, steps: list[tuple[int, int]]) -> list[int]:
    """The trace that steps make, in whatever order they come."""
    follow = dict(steps)
    trace = [start]
    while trace[-1] in follow:
        trace.append(follow.pop(trace[-1]))
    if follow or len(trace) != len(steps) + 1:
        raise ValueError(f"steps: {steps} do not form one trace from start {start}")
    return trace
