"""The scratch memory of one thread and the parameters of a draw: all that a kernel touches besides its output."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pathmerge.kernels.graph import SET_ROWS
from pathmerge.kernels.random import STATE_WORDS


class Parameters(NamedTuple):
    """What is asked for; plain integers, because kernels know no strings."""

    task: tuple[int, ...]  # one entry for search, two for depth-first search, three for selection-inference
    kind: int
    input_size: int
    vertices: int  # the largest vertex id, V
    most: int  # how many vertices a search problem may have, at most V
    edges: int  # how many fit
    region: int  # width of what follows the query
    words: tuple[int, ...]  # as many entries as a bit set has words
    label: int  # one of LABEL_*
    option: int  # balanced: incoming chain, two parents; depth-first: prefix
    padding: int  # depth-first: random padding


NAIVE, BALANCED, STAR, DFS_NAIVE, DFS_BALANCED, SELECTION_INFERENCE = range(6)
LABEL_PATH, LABEL_VERTEX = range(2)
SELECTION, INFERENCE = range(2)


MOST_WORDS = 3
"""What a bit set of the largest problems needs."""


def words_for(vertices: int) -> tuple[int, ...]:
    """As many entries as a bit set has words: one up to 64 vertices, else as many as the largest problems need. With
    two where two are enough, draws at N=256 are 2 to 7% faster, and each task is compiled once more."""
    return (0,) * (1 if vertices <= 64 else MOST_WORDS)


class Workspace(NamedTuple):
    """`source`, `target`: the edge list in construction numbering. The rest is described where it is used."""

    rng: Any  # uint64
    out: Any  # uint64, vertices x words
    into: Any
    sets: Any
    source: Any  # int64
    target: Any
    ids: Any
    counts: Any  # uint64
    pending: Any  # int64
    stack: Any
    region: Any  # vertex + 1, or 0 for filler
    visited: Any  # the trace, or the targets of the visited edges
    origin: Any  # the sources of the visited edges


def make_workspace(vertices: int, words: int) -> Workspace:
    """Room for any graph: selection-inference may have several times as many edges before it trims them."""
    most_edges = vertices * (vertices + 1) // 2 + 1
    line = 3 * vertices + 16
    return Workspace(
        rng=np.zeros(STATE_WORDS, np.uint64),
        out=np.zeros((vertices + 2, words), np.uint64),
        into=np.zeros((vertices + 2, words), np.uint64),
        sets=np.zeros((SET_ROWS, words), np.uint64),
        source=np.zeros(most_edges, np.int64),
        target=np.zeros(most_edges, np.int64),
        ids=np.zeros(vertices + 2, np.int64),
        counts=np.zeros(vertices + 2, np.uint64),
        pending=np.zeros(line, np.int64),
        stack=np.zeros(line, np.int64),
        region=np.zeros(line, np.int64),
        visited=np.zeros(line, np.int64),
        origin=np.zeros(line, np.int64),
    )
