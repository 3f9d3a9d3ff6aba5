"""Many perturbed passes at once: each begins as a few changed rows and is carried on through the layers.

Exact, and cheap because an operation changes one row: one layer up only that row's query, key and value are new, and a
row that gives no weight to a changed row, before or after, stays as it is. The last layer needs only its last row.
`skip` also drops rows that a layer changed by less than so much (screened results only).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pathmerge.circuits.trace import Layer, Trace, attention
from pathmerge.kernels import attention as kernels
from pathmerge.kernels.rows import gather

ROUNDING = 2e-8
"""A weight that cannot be seen beside 1 in float32."""
DENSE = 0.3
"""Where more than this share of the rows has changed, computing all of them at once is faster."""


@dataclass(frozen=True)
class Passes:
    """The changed rows of some passes before a layer: pass b owns first[b]..first[b+1]-1."""

    first: np.ndarray
    rows: np.ndarray
    x: Tensor

    def __len__(self) -> int:
        return len(self.first) - 1


@dataclass(frozen=True)
class Outcome:
    """What became of each pass: the prediction's logit, and the products of last-layer operations."""

    logit: Tensor
    products: Tensor


def single_rows(rows: np.ndarray, x: Tensor) -> Passes:
    """Passes with one changed row each."""
    return Passes(np.arange(len(rows) + 1), rows.astype(np.int64), x)


def forward(trace: Trace, passes: Passes, layer: int, watched: np.ndarray, token: int, skip: float = 0.0) -> Outcome:
    """Carry passes from before `layer` to the end, for the logit of `token` and the products of `watched` operations of
    the last layer, S x 2 (head, source)."""
    while layer < len(trace.layers) - 1:
        passes = _through(trace, passes, layer, skip)
        layer += 1
    return _finish(trace, passes, layer, watched, token)


def _through(trace: Trace, passes: Passes, at: int, skip: float) -> Passes:
    """One layer, all rows."""
    layer, model = trace.layers[at], trace.model
    if len(passes.rows) > DENSE * len(passes) * len(trace.rows):
        passes = _filled(layer, passes)
        q, k, v = model.project(at, passes.x, trace.at(passes.rows))
        assert q is not None
        after = model.update(at, passes.x, _attend_whole(trace, layer, len(passes), q, k, v))
        return Passes(passes.first, passes.rows, after)
    q, k, v = model.project(at, passes.x, trace.at(passes.rows))
    assert q is not None
    stale = _scores(trace, layer.q, k)
    fresh = _scores(trace, q, layer.k)
    asked = np.arange(len(passes.rows))
    first, rows, source, mixed = _attend(trace, layer, passes, asked, q, k, v, fresh, stale, start=0)
    after = model.update(at, _before(layer, passes, rows, source), mixed)
    return _moved(Passes(first, rows, after), trace.layers[at + 1].x, skip) if skip else Passes(first, rows, after)


def _moved(passes: Passes, base: Tensor, skip: float) -> Passes:
    """Without the rows that changed by less than `skip`, if there are enough of them to make up for looking."""
    moved = np.empty(len(passes.rows), bool)
    kernels.moved(passes.x.numpy(), base.numpy(), passes.rows, np.float32(skip), moved)
    if moved.sum() > DENSE * len(moved):
        return passes
    counts = np.concatenate([[0], np.cumsum(moved)])
    return Passes(counts[passes.first], passes.rows[moved], passes.x[torch.from_numpy(moved)])


def _filled(layer: Layer, passes: Passes) -> Passes:
    """The same passes with all their rows."""
    n = len(layer.x)
    if len(passes.rows) == len(passes) * n:
        return passes
    x = layer.x.repeat(len(passes), 1)
    owner = np.repeat(np.arange(len(passes)), np.diff(passes.first))
    x[torch.from_numpy(owner * n + passes.rows)] = passes.x
    return Passes(np.arange(len(passes) + 1) * n, np.tile(np.arange(n), len(passes)), x)


def _finish(trace: Trace, passes: Passes, at: int, watched: np.ndarray, token: int) -> Outcome:
    """The last layer: its last row only."""
    layer, model = trace.layers[at], trace.model
    last = len(trace.rows) - 1
    _, k, v = model.project(at, passes.x, trace.at(passes.rows), queries=False)
    # Of the changed rows only the last needs a query; the others' are never read.
    mine = np.flatnonzero(passes.rows == last)
    asked = np.full(len(passes.rows), -1)
    asked[mine] = np.arange(len(mine))
    q, fresh = layer.q[:0], torch.empty(len(layer.scores), 0, len(trace.rows))
    if len(mine):
        q, _, _ = model.project(at, passes.x.index_select(0, torch.from_numpy(mine)), trace.rows[-1:].expand(len(mine)))
        assert q is not None
        fresh = _scores(trace, q, layer.k)
    products = torch.empty(len(passes), len(watched))
    kernels.products(
        passes.first, passes.rows, asked, _array(q), _array(k), _array(layer.q[-1]), _array(layer.k), watched,
        products.numpy(),
    )  # fmt: skip
    logit = torch.full((len(passes),), float(trace.logits[token]))
    stale = _scores(trace, layer.q[last:], k)
    first, changed, source, mixed = _attend(trace, layer, passes, asked, q, k, v, fresh, stale, start=last)
    if len(changed):
        after = model.update(at, _before(layer, passes, changed, source), mixed)
        logit[torch.from_numpy(np.diff(first) > 0)] = model.logits(after)[:, token]
    return Outcome(logit, products)


def _attend_whole(trace: Trace, layer: Layer, count: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The sums of values where all rows of all passes have changed."""
    n = len(trace.rows)
    q, k, v = (value.view(count, n, *value.shape[1:]).transpose(1, 2) for value in (q, k, v))
    scores = torch.matmul(q, k.transpose(2, 3)).mul_(trace.scale)
    if not layer.sees_all:
        scores.masked_fill_(~layer.allowed, -math.inf)
    pattern = torch.softmax(scores, -1) if layer.sees_all else attention(scores)
    mixed = torch.matmul(pattern, v)
    return mixed.transpose(1, 2).reshape(count * n, *mixed.shape[1::2])


def _scores(trace: Trace, q: Tensor, k: Tensor) -> Tensor:
    """Scaled products of all rows of one list with all of another, H x rows x rows."""
    return torch.matmul(q.transpose(0, 1), k.permute(1, 2, 0)).mul_(trace.scale)


def _before(layer: Layer, passes: Passes, rows: np.ndarray, source: np.ndarray) -> Tensor:
    """The residual rows before the layer: of the pass where it had changed them, else of the base."""
    found = torch.empty(len(rows), passes.x.shape[1])
    places = np.where(source >= 0, source, len(passes.x) + rows)
    gather(passes.x.numpy(), layer.x.numpy(), places, found.numpy())
    return found


def _attend(
    trace: Trace,
    layer: Layer,
    passes: Passes,
    asked: np.ndarray,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    fresh: Tensor,
    stale: Tensor,
    start: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Tensor]:
    """The rows from `start` on that change in this layer's attention: pass limits, rows, where they were in the list of
    changed rows (or -1), and their sums of values."""
    n, heads, width = layer.v.shape
    room = len(passes) * (n - start)
    out_rows, out_from = np.empty(room, np.int64), np.empty(room, np.int64)
    out_first = np.empty(len(passes) + 1, np.int64)
    mixed = torch.empty(room, heads, width)
    count = kernels.attend(
        passes.first, passes.rows, asked, _array(q), _array(k), _array(v), fresh.numpy(), stale.numpy(), layer.base,
        layer.allowed.numpy(), np.float32(trace.scale), start, np.float32(ROUNDING), np.empty(n, np.float32),
        np.empty(n, np.int64), out_first, out_rows, out_from, mixed.numpy(),
    )  # fmt: skip
    return out_first, out_rows[:count], out_from[:count], mixed[:count]


def _array(value: Tensor) -> np.ndarray:
    return value.contiguous().numpy()
