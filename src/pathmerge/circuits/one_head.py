"""Perturbed passes through the layers of a model of one head whose rows can be doubled (`TransformerSubject.doubles`):
one kernel for each layer, and products with the weights in the kernel too, where a pass stays in the cache.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pathmerge.circuits.passes import DENSE, ROUNDING, Outcome, Passes, Watched, positions
from pathmerge.circuits.subject import TransformerSubject
from pathmerge.circuits.trace import Trace
from pathmerge.kernels import last_row, one_head
from pathmerge.kernels.products import LANES, ROWS
from pathmerge.kernels.softmax import WIDE
from pathmerge.models.transformer import EPSILON

_EPSILON, _ROUNDING = np.float32(EPSILON), np.float32(ROUNDING)


def through_one(trace: Trace, passes: Passes, at: int, skip: float) -> Passes:
    """One layer, of passes with one changed row each: no product for each row but the feed-forward's second."""
    layer, model = trace.layers[at], _model(trace)
    q, k, v = model.project(at, passes.x, positions(trace, passes))
    assert q is not None
    begin, count, n = trace.first[passes.owner], trace.counts[passes.owner], layer.scores.shape[2]
    room, width = int(count.sum()), passes.x.shape[1]
    weights = model.folded(at)
    scores, pattern, tops, sums, _, _, keys = layer.base
    base = (scores, pattern, tops, sums, layer.q.numpy(), keys, *trace.doubled(at))
    shapes = (_wide(n), 2 * width, (n + ROWS, len(weights.second)), (4, n))
    scratch = tuple(np.zeros(shape, np.float32) for shape in shapes)
    first, rows, x = np.empty(len(passes) + 1, np.int64), np.empty(room, np.int64), torch.empty(room + ROWS, width)
    found = one_head.through_one(
        passes.rows, begin, count, _rows(q), _rows(k), model.double_rows(at, passes.x).numpy(),
        model.double_values(at, v).numpy(), base, layer.allowed.numpy(), np.float32(trace.scale),
        (weights.first[model.width], weights.after), weights.second, model.width, _EPSILON, _ROUNDING,
        trace.layers[at + 1].x.numpy(), np.float32(skip), DENSE, scratch, first, rows, x.numpy(),
    )  # fmt: skip
    return Passes(passes.owner, first, rows[:found], x[:found])


def through_whole(trace: Trace, passes: Passes, at: int) -> Passes:
    """One layer, all rows."""
    layer, model = trace.layers[at], _model(trace)
    begin, count, n = trace.first[passes.owner], trace.counts[passes.owner], layer.scores.shape[2]
    weights, room, width = model.folded(at), int(count.sum()), passes.x.shape[1]
    size, wide = len(weights.mix), n + -n % LANES
    scratch = (
        *(room_for(n, size), room_for(n, size), np.zeros((size, wide), np.float32)),
        *(room_for(n, _wide(n)), room_for(n, len(weights.second))),
    )
    first, rows, x = np.empty(len(passes) + 1, np.int64), np.empty(room, np.int64), torch.empty(room + ROWS, width)
    one_head.through_whole(
        passes.first, passes.rows, begin, count, passes.x.numpy(), layer.x.numpy(), layer.allowed.numpy(),
        np.float32(trace.scale), weights, model.width, _EPSILON, scratch, first, rows, x.numpy(),
    )  # fmt: skip
    return Passes(passes.owner, first, rows, x[:room])


def finish(trace: Trace, passes: Passes, watched: Watched, tokens: np.ndarray) -> Outcome:
    """The last layer: its last row only."""
    layer, model, at = trace.layers[-1], _model(trace), len(trace.layers) - 1
    begin, count, n = trace.first[passes.owner], trace.counts[passes.owner], layer.scores.shape[2]
    # Changed rows stand in increasing order: an input's last row is the last of its pass, or not among them.
    ends = passes.first[1:] - 1
    own = passes.sizes > 0
    own[own] = passes.rows[ends[own]] == count[own] - 1
    asked, q = np.where(own, np.cumsum(own) - 1, -1), layer.q[:0]
    if own.any():
        mine = torch.from_numpy(ends[own])
        places = torch.from_numpy(trace.first[passes.owner[own] + 1] - 1)
        q, _, _ = model.project(at, passes.x.index_select(0, mine), trace.rows.index_select(0, places))
        assert q is not None
    scores, pattern, tops, sums, _, sums_of_values, keys = layer.base
    base = (scores, pattern, tops, sums, keys, sums_of_values, layer.q.numpy(), layer.x.numpy())
    scratch = (np.empty(n, np.int64), np.empty(_wide(n), np.float32), np.empty((n, 2), np.float32))
    before, mixed = torch.empty(len(passes), passes.x.shape[1]), torch.empty(len(passes), layer.v.shape[2])
    change, changed = np.empty(len(passes), np.float32), np.empty(len(passes), bool)
    last_row.finish(
        passes.first, passes.rows, begin, count, passes.owner, passes.x.numpy(), asked, _rows(q), base,
        layer.allowed.numpy(), np.float32(trace.scale), watched.pairs, watched.first, watched.was, model.width,
        _EPSILON, _ROUNDING, scratch, before.numpy(), mixed.numpy(), change, changed,
    )  # fmt: skip
    token = tokens[passes.owner]
    logit = trace.logits.numpy()[passes.owner, token]
    if changed.any():
        after = model.logits(model.update(at, before, mixed[:, None])).numpy()
        logit = np.where(changed, after[np.arange(len(after)), token], logit)
    return Outcome(logit, change)


def _model(trace: Trace) -> TransformerSubject:
    assert isinstance(trace.model, TransformerSubject)
    return trace.model


def room_for(rows: int, width: int) -> np.ndarray:
    """For so many rows, multiplied by fours; zeros, since what is multiplied for nothing should at least be numbers."""
    return np.zeros((rows + ROWS, width), np.float32)


def _wide(rows: int) -> int:
    return rows + -rows % WIDE


def _rows(value: Tensor) -> np.ndarray:
    return value[:, 0].contiguous().numpy()
