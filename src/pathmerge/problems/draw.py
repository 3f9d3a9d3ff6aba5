"""From a config and a key to arrays: cut the rows into chunks and let threads fill them without the GIL."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from pathmerge.errors import DrawError, check_range
from pathmerge.kernels.compile import generators, mark_compiled
from pathmerge.kernels.fill import fill
from pathmerge.kernels.random import MAX_ATTEMPTS
from pathmerge.kernels.workspace import Parameters, Workspace, make_workspace, words_for
from pathmerge.layout import TASKS
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import Distribution
from pathmerge.problems.python_distribution import PythonDistribution
from pathmerge.problems.python_fill import fill_in_python
from pathmerge.rng import MAX_INDEX, Key

if TYPE_CHECKING:
    from pathmerge.heldout import HeldOut

CHUNK = 1024
_NOTHING_HELD = np.zeros(1, np.uint64)
_local = threading.local()


def _workspace(vertices: int, words: int) -> Workspace:
    """This thread's scratch memory for a size; kept, since a stream asks for the same again and again."""
    known: dict[int, Workspace] = _local.__dict__.setdefault("workspaces", {})
    if vertices not in known:
        known[vertices] = make_workspace(vertices, words)
    return known[vertices]


@lru_cache(maxsize=256)
def _request(distribution: Distribution) -> tuple[Parameters, np.ndarray]:
    layout = distribution.layout
    given = {"most": layout.max_vertices, "option": 0, "padding": 0, "label": 0, **distribution.parameters()}
    ask = Parameters(
        task=(0,) * (TASKS.index(distribution.task) + 1),
        input_size=layout.input_size,
        vertices=layout.max_vertices,
        edges=layout.max_edges,
        region=layout.region_width,
        words=words_for(layout.max_vertices),
        **given,
    )
    return ask, np.array(distribution.cells(), np.int64).reshape(-1, 3)


def _fill_chunk(
    distribution: Distribution,
    key: Key,
    first: int,
    held: np.ndarray,
    columns: tuple[np.ndarray, ...],
    progress: Callable[[int], None] | None,
    begin: int,
) -> None:
    """Fill the rows begin..begin+CHUNK-1 of the columns, on whatever thread this runs."""
    ask, cells = _request(distribution)
    rows = tuple(column[begin : begin + CHUNK] for column in columns)
    if isinstance(distribution, PythonDistribution):
        fill_in_python(distribution, ask, cells, key, first + begin, held, rows)
    else:
        failed = fill(
            _workspace(ask.vertices, len(ask.words)),
            ask,
            cells,
            np.uint64(key.seed),
            key.split_number,
            key.stream,
            first + begin,
            held,
            rows,
        )
        mark_compiled(generators(distribution.task, len(ask.words)))
        if failed >= 0:
            raise DrawError(
                f"{distribution.describe()}: example {first + begin + failed} of {key} was not found "
                f"in {MAX_ATTEMPTS} attempts; hold out fewer problems or choose another difficulty"
            )
    if progress is not None:
        progress(len(rows[0]))


def _empty_columns(count: int, ask: Parameters) -> tuple[np.ndarray, ...]:
    """In the order in which `fill` takes them."""
    return (
        np.empty((count, ask.input_size), np.int64),
        np.empty(count, np.int64),
        np.empty((count, ask.vertices + 5), np.bool_),
        np.empty((count, 3), np.int64),
        np.empty((count, 3), np.int64),
        np.empty(count, np.uint64),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
    )


def draw(
    distribution: Distribution,
    key: Key,
    first: int,
    count: int,
    *,
    held_out: HeldOut | None = None,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Batch:
    """Examples first..first+count-1. Memory is that of the result; see `Distribution.sample`."""
    count = check_range("count", count, 0, MAX_INDEX)
    first = check_range("first", first, 0, MAX_INDEX - count)
    threads = check_range("threads", min(8, os.cpu_count() or 1) if threads is None else threads, 1, 1024)
    ask, cells = _request(distribution)
    if not len(cells):
        raise ValueError(f"{distribution.describe()}: no difficulty is feasible")
    try:
        columns = _empty_columns(count, ask)
    except MemoryError:
        raise ValueError(f"count={count}: does not fit into memory at once; draw fewer, and go on with first") from None
    held = _NOTHING_HELD if held_out is None else held_out.table
    chunk = partial(_fill_chunk, distribution, key, first, held, columns, progress)
    starts = range(0, count, CHUNK)
    # Python's threads would only wait for each other.
    if threads == 1 or len(starts) <= 1 or isinstance(distribution, PythonDistribution):
        for begin in starts:
            chunk(begin)
    else:
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(chunk, starts):
                pass
    tokens, label, answers, difficulty, ends, identity, attempts, redraws = columns
    return Batch(
        distribution=distribution,
        key=key,
        first=first,
        tokens=tokens,
        label=label,
        answers=answers,
        difficulty=difficulty,
        start=ends[:, 0],
        goal=ends[:, 1],
        current=ends[:, 2],
        identity=identity,
        attempts=attempts,
        redraws=redraws,
        held_out=held_out,
    )
