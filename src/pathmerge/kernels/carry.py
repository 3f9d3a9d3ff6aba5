"""Perturbed passes from one changed row to the last row of the last layer, for models of one head (see `one_head`).

A pass goes through all layers before the next one begins, so that it stays in the cache. Its first row and its last
each need products with the weights too: BLOCK passes share these, since a product with one row takes as long as with
four.

Shapes as in `one_head`; L layers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pathmerge.kernels.compile import float_inline, float_kernel
from pathmerge.kernels.last_row import attend_last
from pathmerge.kernels.one_head import only_moved, through_one, through_whole, update
from pathmerge.kernels.products import multiply
from pathmerge.kernels.rows import normalise_one

BLOCK = 32
_ZERO = np.float32(0)
_LEFT = np.float32(-1)


class Scratch(NamedTuple):
    """Room for BLOCK passes, and for the rows of one."""

    changed: Any
    """(BLOCK + 3) x D, as `before`."""
    before: Any
    sums: Any
    """(BLOCK + 3) x K, as h and q."""
    h: Any
    q: Any
    of_row: Any
    """(BLOCK + 3) x 2D, as `of_value`."""
    of_value: Any
    active: Any
    """(BLOCK + 3) x F."""
    rows: Any
    """n integers."""
    x: Any
    """(n + 3) x D."""
    one: Any
    """Of `through_one`, and of the others."""
    whole: Any
    last: Any


@float_inline
def _of_layer(weights, at):
    mix, move, first, second, bias, inner, after = weights
    return mix[at], move[at], first[at], second[at], bias[at], inner[at], after[at]


@float_kernel
def carry(
    layer, rows, begin, count, owner, mixed, x, allowed, weights, doubling, base, final, scale, watched, watched_first,
    was, real, epsilon, tolerance, least, share, scratch, out_x, out_change, out_changed, left_first, left_rows, left_x,
):  # fmt: skip
    """The last rows after the last layer (out_x, B x D) of passes that change row rows[b] of their input in the
    attention of `layer`, where its sum of values is mixed[b]; also whether they change, and the largest change of their
    products with the keys of watched rows. The input owns count[b] rows from begin[b] on, and its watched (head,
    source) pairs from watched_first[owner[b]] on.

    x: L x R x D, the rows before each layer; allowed: L x R x n; weights: those of `Folded`, of all layers; doubling:
    the matrices that double a row and a value in the layer after; base, final: what `through_one` and `attend_last`
    want of the layer after and of the last one. Where `least` is above 0, rows that the layer after changes by less are
    left out of passes in which it changes only a `share` by more. Passes of which no more than a `share` of the rows
    has then changed, with more layers to come before the last, are left to others: out_change is -1, and they own the
    rows left_rows, left_x from left_first on.
    """
    s, end, left = scratch, x.shape[0] - 1, 0
    mix, _, _, second, bias, inner, after = _of_layer(weights, layer + 1)
    left_first[0] = 0
    for low in range(0, rows.shape[0], BLOCK):
        many = min(BLOCK, rows.shape[0] - low)
        for b in range(many):
            at = begin[low + b] + rows[low + b]
            for w in range(s.changed.shape[1]):
                s.changed[b, w] = x[layer, at, w]
        update(s.changed, many, mixed[low:], _of_layer(weights, layer), real, epsilon, s.h, s.active)
        if layer + 1 < end:
            normalise_one(s.changed[:many], real, epsilon, s.h)
            multiply(s.h, many, s.h.shape[1], mix, s.q, 0)
            multiply(s.h, many, s.h.shape[1], doubling[1], s.of_value, 0)
            for b in range(many):
                for w in range(s.changed.shape[1]):
                    s.before[b, w] = s.changed[b, w] + bias[w]
            multiply(s.before, many, s.before.shape[1], doubling[0], s.of_row, 0)
        for b in range(many):
            zero, n, row = begin[low + b], count[low + b], rows[low + b]
            if layer + 1 < end:
                found = through_one(
                    row, zero, n, s.q[b], s.h[b], s.of_row[b], s.of_value[b], base, allowed[layer + 1], scale,
                    (inner, after), second, real, epsilon, tolerance, s.one, s.rows, s.x,
                )  # fmt: skip
                if least > _ZERO:
                    found = only_moved(found, s.x, s.rows, x[layer + 2], zero, least, share)
                if layer + 2 < end and found <= share * n:
                    for m in range(found):
                        left_rows[left_first[left] + m] = s.rows[m]
                        for w in range(s.x.shape[1]):
                            left_x[left_first[left] + m, w] = s.x[m, w]
                    left += 1
                    left_first[left] = left_first[left - 1] + found
                    out_change[low + b] = _LEFT
                    continue
            else:
                found, s.rows[0] = 1, row
                for w in range(s.x.shape[1]):
                    s.x[0, w] = s.changed[b, w]
            for at in range(layer + 2, end):
                through_whole(
                    found, s.rows, s.x, x[at], zero, n, allowed[at], scale, _of_layer(weights, at), real, epsilon,
                    s.whole,
                )  # fmt: skip
                found = n
            h, q, _, _, _ = s.whole
            if found and s.rows[found - 1] == n - 1:
                normalise_one(s.x[found - 1 : found], real, epsilon, h)
                multiply(h, 1, h.shape[1], weights[0][end], q, 0)
            own = slice(watched_first[owner[low + b]], watched_first[owner[low + b] + 1])
            out_change[low + b], out_changed[low + b] = attend_last(
                found, s.rows, s.x, zero, n, q[0], final, allowed[end], scale, watched[own], was[own], real, epsilon,
                tolerance, s.last, s.before[b], s.sums[b],
            )  # fmt: skip
        update(s.before, many, s.sums, _of_layer(weights, end), real, epsilon, s.h, s.active)
        for b in range(many):
            for w in range(s.before.shape[1]):
                out_x[low + b, w] = s.before[b, w]
    return left
