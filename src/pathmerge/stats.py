"""Achieved histograms of a batch: difficulty, vertices, edges, degrees, acceptance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pathmerge.problems.batch import Batch


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Counts by value; what is counted (examples or vertices) is in `unit`."""

    name: str
    values: tuple[int, ...]
    counts: tuple[int, ...]
    unit: str = "examples"


def histogram(name: str, values: np.ndarray, unit: str = "examples") -> Histogram:
    found, counts = np.unique(values, return_counts=True)
    return Histogram(name=name, values=tuple(int(v) for v in found), counts=tuple(int(c) for c in counts), unit=unit)


def histograms(batch: Batch) -> list[Histogram]:
    """What `pathmerge sample --stats` prints."""
    edges = batch.edges
    most = batch.distribution.layout.max_vertices
    degree = np.zeros((2, len(batch), most + 1), np.int64)
    rows = np.broadcast_to(np.arange(len(batch))[:, None], edges.shape[:2])
    for end in range(2):
        np.add.at(degree[end], (rows, edges[:, :, end]), 1)
    present = degree.sum(0) > 0
    present[:, 0] = False
    return [
        *(histogram(name, batch.difficulty[:, i]) for i, name in enumerate(batch.distribution.columns)),
        histogram("vertices", present.sum(1)),
        histogram("edges", (edges[:, :, 0] > 0).sum(1)),
        histogram("answers", batch.answers.sum(1)),
        histogram("out-degree", degree[0][present], "vertices"),
        histogram("in-degree", degree[1][present], "vertices"),
    ]


def acceptance(batch: Batch) -> dict[tuple[int, ...], float]:
    """Examples per attempt for each difficulty that was requested; redraws for held-out problems count as attempts."""
    columns = len(batch.distribution.columns)
    cells, where = np.unique(batch.difficulty[:, :columns], axis=0, return_inverse=True)
    attempts = np.bincount(where.reshape(-1), weights=batch.attempts)
    counts = np.bincount(where.reshape(-1))
    return {tuple(int(v) for v in cell): float(n / a) for cell, n, a in zip(cells, counts, attempts, strict=True)}
