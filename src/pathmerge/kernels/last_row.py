"""The last layer of changed passes, in the last row only, for models of one head (see `one_head`)."""

from __future__ import annotations

import numpy as np

from pathmerge.kernels.attention import LITTLE, TINY
from pathmerge.kernels.compile import float_kernel
from pathmerge.kernels.rows import wide_moments
from pathmerge.kernels.softmax import weigh

_ZERO = np.float32(0)
_ONE = np.float32(1)
_NONE = np.float32(-np.inf)


@float_kernel
def finish(
    first, rows, begin, count, owner, x, asked, q, base, allowed, scale, watched, watched_first, was, real, epsilon,
    tolerance, scratch, out_before, out_mixed, out_change, out_changed,
):  # fmt: skip
    """The last layer's attention in each input's last row: its weighted sums of values, B x K, and the row before it,
    B x D, whether it changes (out_changed), and the largest change of its products with the keys of watched rows.

    x: the changed rows; q: the queries of last rows among them, pass b's being q[asked[b]], or none (-1). base:
    (scores, pattern, tops, sums, keys, sums of values, queries, rows) of the base rows. watched: (head, source) pairs,
    those of input g from watched_first[g] on; owner: the input of each pass; was: their products in the base. scratch:
    n integers, n (widened for `softmax`), n x 2.
    """
    base_scores, pattern, tops, sums, keys, mixed, queries, base_x = base
    place, scores, norms = scratch
    for b in range(first.shape[0] - 1):
        low, high, zero, n = first[b], first[b + 1], begin[b], count[b]
        last, out = zero + n - 1, out_mixed[b]
        for i in range(n):
            place[i] = -1
        for m in range(low, high):
            place[rows[m]] = m
        mine = place[n - 1]
        query = q[asked[b]] if mine >= 0 else queries[last, 0]
        before = x[mine] if mine >= 0 else base_x[last]
        for w in range(before.shape[0]):
            out_before[b, w] = before[w]
        if mine >= 0:
            for i in range(n):
                if place[i] < 0:
                    product = _ZERO
                    for w in range(query.shape[0]):
                        product += query[w] * keys[zero + i, 0, w]
                    scores[i] = product
        along = _ZERO
        for w in range(real):
            along += query[w]
        for m in range(low, high):
            mean, factor = wide_moments(x[m], real, epsilon)
            product = _ZERO
            for w in range(x.shape[1]):
                product += query[w] * x[m, w]
            scores[rows[m]] = factor * (product - mean * along) + query[real]
            norms[rows[m], 0], norms[rows[m], 1] = mean, factor
        most = _ZERO
        for s in range(watched_first[owner[b]], watched_first[owner[b] + 1]):
            source = watched[s, 1]
            if mine >= 0 or place[source] >= 0:
                most = max(most, abs(scores[source] - was[s]))
        out_change[b] = most

        # Now `scores` become what each row's key or value is multiplied with.
        kept = _ZERO
        if mine < 0:
            top, old, new = tops[0, last], _ZERO, _ZERO
            for m in range(low, high):
                if allowed[0, last, rows[m]]:
                    top = max(top, scores[rows[m]] * scale)
                    old += pattern[0, last, rows[m]]
            left = sums[0, last] * np.exp(tops[0, last] - top)
            for m in range(low, high):
                if allowed[0, last, rows[m]]:
                    new += np.exp(scores[rows[m]] * scale - top)
            rest = max(_ZERO, _ONE - old)  # a sum of several: it can pass 1 by rounding
            total = left * rest + new
            out_changed[b] = not (top == _NONE or old + new / total < tolerance)
            if not out_changed[b]:
                for w in range(out.shape[0]):
                    out[w] = mixed[last, 0, w]
                continue
            if rest >= LITTLE:
                kept = left / total  # 0 where the old top cannot be seen beside a new one: then all is summed anew
            if kept > _ZERO:
                for m in range(low, high):
                    i = rows[m]
                    scores[i] = np.exp(scores[i] * scale - top) / total if allowed[0, last, i] else _ZERO
        out_changed[b] = True
        if kept == _ZERO:
            for i in range(n):
                if not allowed[0, last, i]:
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
