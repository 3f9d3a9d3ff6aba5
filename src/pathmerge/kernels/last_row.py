"""The last layer of changed passes, in the last row only, for models of one head (see `one_head`)."""

from __future__ import annotations

import numpy as np

from pathmerge.kernels.attention import LITTLE, TINY
from pathmerge.kernels.compile import float_helper
from pathmerge.kernels.rows import wide_moments
from pathmerge.kernels.softmax import weigh

_ZERO = np.float32(0)
_ONE = np.float32(1)
_NONE = np.float32(-np.inf)


@float_helper
def attend_last(
    count, rows, x, zero, n, q, base, allowed, scale, watched, was, real, epsilon, tolerance, scratch, before, out
):  # fmt: skip
    """The last layer's attention in the last row of a pass: its weighted sum of values (out, K) and the row before it
    (before, D). Returns the largest change of its products with the keys of watched rows, and whether it changes.

    rows, x: the first `count` are those that have changed, in increasing order; q: the query of the last row if it is
    among them. base: (scores, pattern, tops, sums, keys, sums of values, queries, rows) of the base rows; allowed:
    R x n. watched: (head, source) pairs; was: their products in the base. scratch: n integers, n (widened for
    `softmax`), n x 2.
    """
    base_scores, pattern, tops, sums, keys, mixed, queries, base_x = base
    place, scores, norms = scratch
    last = zero + n - 1
    for i in range(n):
        place[i] = -1
    for m in range(count):
        place[rows[m]] = m
    mine = place[n - 1]
    query = q if mine >= 0 else queries[last, 0]
    given = x[mine] if mine >= 0 else base_x[last]
    for w in range(given.shape[0]):
        before[w] = given[w]
    if mine >= 0:
        for i in range(n):
            if place[i] < 0:
                product = _ZERO
                for w in range(query.shape[0]):
                    product += query[w] * keys[zero + i, 0, w]
                scores[i] = product
    along = _ZERO
    for w in range(query.shape[0]):
        along += query[w]
    for w in range(real, query.shape[0]):
        along -= query[w]
    for m in range(count):
        mean, factor = wide_moments(x[m], real, epsilon)
        product = _ZERO
        for w in range(x.shape[1]):
            product += query[w] * x[m, w]
        scores[rows[m]] = factor * (product - mean * along) + query[real]
        norms[rows[m], 0], norms[rows[m], 1] = mean, factor
    most = _ZERO
    for s in range(watched.shape[0]):
        source = watched[s, 1]
        if mine >= 0 or place[source] >= 0:
            most = max(most, abs(scores[source] - was[s]))

    # Now `scores` become what each row's key or value is multiplied with.
    kept = _ZERO
    if mine < 0:
        top, old, new = tops[0, last], _ZERO, _ZERO
        for m in range(count):
            if allowed[last, rows[m]]:
                top = max(top, scores[rows[m]] * scale)
                old += pattern[0, last, rows[m]]
        left = sums[0, last] * np.exp(tops[0, last] - top)
        for m in range(count):
            if allowed[last, rows[m]]:
                new += np.exp(scores[rows[m]] * scale - top)
        rest = max(_ZERO, _ONE - old)  # a sum of several: it can pass 1 by rounding
        total = left * rest + new
        if top == _NONE or old + new / total < tolerance:
            for w in range(out.shape[0]):
                out[w] = mixed[last, 0, w]
            return most, False
        if rest >= LITTLE:
            kept = left / total  # 0 where the old top cannot be seen beside a new one: then all is summed anew
        if kept > _ZERO:
            for m in range(count):
                i = rows[m]
                scores[i] = np.exp(scores[i] * scale - top) / total if allowed[last, i] else _ZERO
    if kept == _ZERO:
        for i in range(n):
            if not allowed[last, i]:
                scores[i] = _NONE
            elif mine >= 0 or place[i] >= 0:
                scores[i] *= scale
            else:
                scores[i] = base_scores[0, last, i]
        weigh(scores, n)
    for w in range(out.shape[0]):
        out[w] = kept * mixed[last, 0, w]
    shift = _ZERO
    for i in range(n):
        m = place[i]
        if m >= 0:
            factor = scores[i] * norms[i, 1]
            shift += factor * norms[i, 0]
            for w in range(x.shape[1]):
                out[w] += factor * x[m, w]
            out[real] += scores[i]
            if kept > _ZERO:
                less = kept * pattern[0, last, i]
                for w in range(out.shape[0]):
                    out[w] -= less * keys[zero + i, 0, w]
        elif kept == _ZERO and scores[i] > TINY:
            for w in range(out.shape[0]):
                out[w] += scores[i] * keys[zero + i, 0, w]
    for w in range(real):
        out[w] -= shift
    return most, True
