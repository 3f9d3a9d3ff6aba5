"""Perturbed passes through the layers: each begins as a few changed rows.

Exact, and cheap because an operation changes one row: one layer up only that row's query, key and value are new, and a
row that gives no weight to a changed row, before or after, stays as it is. The last layer needs only its last row.
`skip` also drops rows that a layer changed by less than so much (screened results only).

How a pass is computed depends on nothing but itself, its input and that input's other passes, so that its result does
not either.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from pathmerge.circuits.passes import DENSE, ROUNDING, Outcome, Passes, Watched, places, positions
from pathmerge.circuits.trace import Layer, Trace, attention
from pathmerge.kernels import attention as kernels
from pathmerge.kernels.rows import gather


def forward(
    trace: Trace, passes: Passes, layer: int, watched: Watched, tokens: np.ndarray, skip: float = 0.0
) -> Outcome:
    """Carry passes from before `layer` to the end, for the logits of `tokens` (one for each input) and the products of
    watched operations."""
    while layer < len(trace.layers) - 1:
        whole = passes.sizes > DENSE * trace.counts[passes.owner]
        if whole.any() and not whole.all():
            logit, change = np.empty(len(passes), np.float32), np.empty(len(passes), np.float32)
            for chosen in (whole, ~whole):
                part = forward(trace, passes.only(chosen), layer, watched, tokens, skip)
                logit[chosen], change[chosen] = part.logit, part.change
            return Outcome(logit, change)
        passes = _through_whole(trace, passes, layer) if whole.any() else _through(trace, passes, layer, skip)
        layer += 1
    return _finish(trace, passes, watched, tokens)


def _through(trace: Trace, passes: Passes, at: int, skip: float) -> Passes:
    """One layer, of passes of which few rows have changed."""
    layer, model = trace.layers[at], trace.model
    q, k, v = model.project(at, passes.x, positions(trace, passes))
    assert q is not None
    stale, asked = _scores(trace, passes, k, layer.q), np.arange(len(passes.rows))
    first, rows, source, mixed = _attend(trace, layer, passes, asked, q, k, v, stale)
    after = model.update(at, _before(trace, layer, passes, first, rows, source), mixed)
    following = Passes(passes.owner, first, rows, after)
    return _moved(trace, following, trace.layers[at + 1].x, skip) if skip else following


def _moved(trace: Trace, passes: Passes, base: Tensor, skip: float) -> Passes:
    """Without the rows that changed by less than `skip`, in passes where they are enough to make up for looking."""
    few, compared = np.empty(len(passes), bool), (passes.x.numpy(), base.numpy(), places(trace, passes))
    kernels.settled(passes.first, *compared, np.float32(skip), DENSE, few)
    if not few.any():
        return passes
    moved = np.empty(len(passes.rows), bool)
    kernels.moved(*compared, np.float32(skip), moved)
    kept = moved | ~np.repeat(few, passes.sizes)
    counts = np.concatenate([[0], np.cumsum(kept)])
    return Passes(passes.owner, counts[passes.first], passes.rows[kept], passes.x[torch.from_numpy(kept)])


def _through_whole(trace: Trace, passes: Passes, at: int) -> Passes:
    """One layer, all rows."""
    layer, model = trace.layers[at], trace.model
    passes = _filled(trace, layer, passes)
    q, k, v = model.project(at, passes.x, positions(trace, passes))
    assert q is not None
    mixed = torch.empty(v.shape)
    for g, low, high in passes.inputs():
        mixed[low:high] = _attend_whole(trace, at, g, q[low:high], k[low:high], v[low:high])
    return Passes(passes.owner, passes.first, passes.rows, model.update(at, passes.x, mixed))


def _filled(trace: Trace, layer: Layer, passes: Passes) -> Passes:
    """The same passes with all their rows."""
    sizes = trace.counts[passes.owner]
    first = np.concatenate([[0], np.cumsum(sizes)])
    if first[-1] == len(passes.rows):
        return passes
    rows = np.arange(first[-1]) - np.repeat(first[:-1], sizes)
    x = layer.x[torch.from_numpy(rows + np.repeat(trace.first[passes.owner], sizes))]
    x[torch.from_numpy(np.repeat(first[:-1], passes.sizes) + passes.rows)] = passes.x
    return Passes(passes.owner, first, rows, x)


def _attend_whole(trace: Trace, at: int, g: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The sums of values where all rows of all passes of an input have changed."""
    n = int(trace.counts[g])
    q, k, v = (value.view(-1, n, *value.shape[1:]).transpose(1, 2) for value in (q, k, v))
    scores = torch.matmul(q, k.transpose(2, 3)).mul_(trace.scale)
    if trace.sees_all(at):
        pattern = torch.softmax(scores, -1)
    else:
        allowed = trace.layers[at].allowed[:, trace.first[g] : trace.first[g + 1], :n]
        pattern = attention(scores.masked_fill_(~allowed, -math.inf))
    return torch.matmul(pattern, v).transpose(1, 2).flatten(0, 1)


def _finish(trace: Trace, passes: Passes, watched: Watched, tokens: np.ndarray) -> Outcome:
    """The last layer: its last row only."""
    layer, model, at = trace.layers[-1], trace.model, len(trace.layers) - 1
    at_positions = positions(trace, passes)
    _, k, v = model.project(at, passes.x, at_positions, queries=False)
    # Of the changed rows only the last needs a query; the others' are never read.
    mine = np.flatnonzero(passes.rows == passes.each(trace.counts) - 1)
    asked = np.full(len(passes.rows), -1)
    asked[mine] = np.arange(len(mine))
    q = layer.q[:0]
    if len(mine):
        chosen = torch.from_numpy(mine)
        q, _, _ = model.project(at, passes.x.index_select(0, chosen), at_positions.index_select(0, chosen))
        assert q is not None
    begin, count = trace.first[passes.owner], trace.counts[passes.owner]
    places, change = np.empty(layer.scores.shape[2], np.int64), np.empty(len(passes), np.float32)
    kernels.changes(
        passes.first, passes.rows, begin, count, passes.owner, asked, _array(q), _array(k), _array(layer.q),
        _array(layer.k), watched.pairs, watched.first, watched.was, places, change,
    )  # fmt: skip
    stale = torch.empty(len(layer.scores), len(k), 1)
    last = passes.each(trace.first[1:]) - 1
    kernels.last_scores(_array(k), last, _array(layer.q), np.float32(trace.scale), stale.numpy())
    first, rows, source, mixed = _attend(trace, layer, passes, asked, q, k, v, stale, last_only=True)
    token = tokens[passes.owner]
    logit = trace.logits.numpy()[passes.owner, token]
    if len(rows):
        changed = np.diff(first) > 0
        after = model.update(at, _before(trace, layer, passes, first, rows, source), mixed)
        logit[changed] = model.logits(after).numpy()[np.arange(len(rows)), token[changed]]
    return Outcome(logit, change)


def _scores(trace: Trace, passes: Passes, keys: Tensor, queries: Tensor) -> Tensor:
    """Scaled products of the changed rows' keys with their input's base queries, H x M x n."""
    found = torch.empty(keys.shape[1], len(keys), trace.layers[0].scores.shape[2])
    for g, low, high in passes.inputs():
        own = queries[trace.first[g] : trace.first[g + 1]]
        found[:, low:high, : len(own)] = torch.matmul(keys[low:high].transpose(0, 1), own.permute(1, 2, 0))
    return found.mul_(trace.scale)


def _before(
    trace: Trace, layer: Layer, passes: Passes, first: np.ndarray, rows: np.ndarray, source: np.ndarray
) -> Tensor:
    """The residual rows before the layer: of the pass where it had changed them, else of the base."""
    found = torch.empty(len(rows), passes.x.shape[1])
    base = len(passes.x) + rows + np.repeat(trace.first[passes.owner], np.diff(first))
    gather(passes.x.numpy(), layer.x.numpy(), np.where(source >= 0, source, base), found.numpy())
    return found


def _attend(
    trace: Trace,
    layer: Layer,
    passes: Passes,
    asked: np.ndarray,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    stale: Tensor,
    *,
    last_only: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Tensor]:
    """The rows (or only the last ones) that change in this layer's attention: pass limits, rows, where they were in the
    list of changed rows (or -1), and their sums of values."""
    begin, count, n = trace.first[passes.owner], trace.counts[passes.owner], layer.scores.shape[2]
    room = len(passes) if last_only else int(count.sum())
    out_rows, out_from = np.empty(room, np.int64), np.empty(room, np.int64)
    out_first = np.empty(len(passes) + 1, np.int64)
    mixed = torch.empty(room, *layer.v.shape[1:])
    found = kernels.attend(
        passes.first, passes.rows, begin, count, asked, _array(q), _array(k), _array(v), stale.numpy(),
        layer.base, layer.allowed.numpy(), np.float32(trace.scale), last_only, np.float32(ROUNDING),
        np.empty(n, np.float32), np.empty(n, np.int64), out_first, out_rows, out_from, mixed.numpy(),
    )  # fmt: skip
    return out_first, out_rows[:found], out_from[:found], mixed[:found]


def _array(value: Tensor) -> np.ndarray:
    return value.contiguous().numpy()
