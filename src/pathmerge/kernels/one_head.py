"""Changed rows through a layer, for models of one head whose keys and values are the normalised rows themselves and a 1
(`TransformerSubject`): what `attention` does for any model, and more of the layer in one go.

Passes, base rows and what is counted how: see `attention`. Shapes: M changed rows, B passes, R base rows, n rows of the
longest input, D width of a row (of which the first `real` count), K width of a key.
"""

from __future__ import annotations

import numpy as np

from pathmerge.kernels.attention import LITTLE, TINY
from pathmerge.kernels.compile import float_inline, float_kernel
from pathmerge.kernels.rows import moments

_ZERO = np.float32(0)
_ONE = np.float32(1)
_NONE = np.float32(-np.inf)


@float_inline
def _weigh(scores, n):
    """Turn n scores into their softmax in place; zeros if there is none but -inf."""
    top = _NONE
    for i in range(n):
        top = max(top, scores[i])
    total = _ZERO
    for i in range(n):
        weight = _ZERO
        if scores[i] != _NONE:
            weight = np.exp(scores[i] - top)
        scores[i] = weight
        total += weight
    if total > _ZERO:
        for i in range(n):
            scores[i] /= total


@float_inline
def _add_mixed(weights, n, row, new, values, begin, out):
    """Add the values times their weights to `out`, `new` being that of row `row`."""
    for i in range(n):
        if weights[i] > TINY:
            value = new if i == row else values[begin + i]
            for w in range(out.shape[0]):
                out[w] += weights[i] * value[w]


@float_kernel
def attend_one(
    rows, begin, count, q, k, new_row, new_value, stale, base, allowed, scale, biases, real, epsilon, tolerance,
    scratch, double, out_first, out_rows, out_x, out_active,
):  # fmt: skip
    """The rows that change in passes with one changed row each, as far as the layer's activation; returns how many.

    Rows are doubled (`TransformerSubject.doubles`): beside each stands what the feed-forward reads of it, but for the
    norm's scale. The sum of doubled rows is the double of their sum, so no row needs a product of its own.
    q, k, new_row, new_value: of the changed row of each pass; base: (scores, pattern, tops, sums, keys, doubled rows,
    doubled sums of values, doubled values) of the base rows; biases: of the activation's input, and of the output,
    which out_x has already. double: scratch, as wide as a doubled row.
    """
    scores, pattern, tops, sums, keys, residual, mixed, values = base
    bias, after = biases
    wide, size = out_x.shape[1], double.shape[0]
    found = 0
    out_first[0] = 0
    for b in range(rows.shape[0]):
        zero, n, row = begin[b], count[b], rows[b]
        for t in range(n):
            at = zero + t
            if t == row:
                for i in range(n):
                    score = _NONE
                    if allowed[0, at, i]:
                        key = k[b] if i == row else keys[zero + i, 0]
                        score = _ZERO
                        for w in range(q.shape[1]):
                            score += q[b, w] * key[w]
                        score *= scale
                    scratch[i] = score
                for w in range(size):
                    double[w] = new_row[b, w]
                _weigh(scratch, n)
                _add_mixed(scratch, n, row, new_value[b], values, zero, double)
            else:
                if not allowed[0, at, row]:
                    continue
                top = max(tops[0, at], stale[0, b, t])
                before = sums[0, at] * np.exp(tops[0, at] - top)
                old, new = pattern[0, at, row], np.exp(stale[0, b, t] - top)
                total = before * (_ONE - old) + new
                if old + new / total < tolerance:
                    continue
                if _ONE - old < LITTLE:
                    for i in range(n):
                        scratch[i] = scores[0, at, i]
                    scratch[row] = stale[0, b, t]
                    for w in range(size):
                        double[w] = residual[at, w]
                    _weigh(scratch, n)
                    _add_mixed(scratch, n, row, new_value[b], values, zero, double)
                else:
                    kept, more = before / total, new / total
                    less = old * kept
                    for w in range(size):
                        double[w] = (
                            residual[at, w]
                            + kept * mixed[at, w]
                            + more * new_value[b, w]
                            - less * values[zero + row, w]
                        )
            _, factor = moments(double, real, epsilon)
            for w in range(wide):
                out_x[found, w] = double[w] + after[w]
            for w in range(size - wide):
                out_active[found, w] = max(_ZERO, double[wide + w] * factor + bias[w])
            out_rows[found] = t
            found += 1
        out_first[b + 1] = found
    return found


@float_kernel
def finish_one(
    first, rows, begin, count, owner, x, asked, q, base, allowed, scale, watched, watched_first, was, real, epsilon,
    tolerance, place, scores, norms, out_mixed, out_change, out_changed,
):  # fmt: skip
    """The last layer's attention in each input's last row: its weighted sums of values, B x K, where it changes
    (out_changed), and the largest change of its products with the keys of watched rows.

    x: the changed rows; q: the queries of last rows among them, row m's being q[asked[m]]. base: (scores, pattern,
    tops, sums, keys, sums of values, queries) of the base rows. watched: (head, source) pairs, those of input g from
    watched_first[g] on; owner: the input of each pass; was: their products in the base. scores, norms: scratch, n
    and n x 2.
    """
    base_scores, pattern, tops, sums, keys, mixed, queries = base
    for b in range(first.shape[0] - 1):
        low, high, zero, n = first[b], first[b + 1], begin[b], count[b]
        last, out = zero + n - 1, out_mixed[b]
        for i in range(n):
            place[i] = -1
        for m in range(low, high):
            place[rows[m]] = m
        mine = place[n - 1]
        query = q[asked[mine]] if mine >= 0 else queries[last, 0]
        if mine >= 0:
            for i in range(n):
                if place[i] < 0:
                    product = _ZERO
                    for w in range(real + 1):
                        product += query[w] * keys[zero + i, 0, w]
                    scores[i] = product
        along = _ZERO
        for w in range(real):
            along += query[w]
        for m in range(low, high):
            mean, factor = moments(x[m], real, epsilon)
            product = _ZERO
            for w in range(real):
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
            before = sums[0, last] * np.exp(tops[0, last] - top)
            for m in range(low, high):
                if allowed[0, last, rows[m]]:
                    new += np.exp(scores[rows[m]] * scale - top)
            rest = max(_ZERO, _ONE - old)  # a sum of several: it can pass 1 by rounding
            total = before * rest + new
            out_changed[b] = not (top == _NONE or old + new / total < tolerance)
            if not out_changed[b]:
                continue
            if rest >= LITTLE:
                kept = before / total  # 0 where the old top cannot be seen beside a new one: then all is summed anew
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
            _weigh(scores, n)
        for w in range(out.shape[0]):
            out[w] = kept * mixed[last, 0, w]
        shift = _ZERO
        for i in range(n):
            m = place[i]
            if m >= 0:
                factor = scores[i] * norms[i, 1]
                shift += factor * norms[i, 0]
                for w in range(real):
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
