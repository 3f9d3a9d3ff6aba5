"""Changed rows through a layer, for models of one head whose keys and values are the normalised rows themselves and a 1
(`TransformerSubject`): what `attention` does for any model, and the rest of the layer in one go, pass by pass.

Passes, base rows and what is counted how: see `attention`. Shapes: M changed rows, B passes, R base rows, n rows of the
longest input, D width of a row (of which the first `real` count), K width of a key, F of the feed-forward. What comes
out has room for a few rows more (`products`).
"""

from __future__ import annotations

import numpy as np

from pathmerge.kernels.attention import LITTLE, TINY, differs
from pathmerge.kernels.compile import float_inline, float_kernel, larger
from pathmerge.kernels.products import multiply, multiply_onto
from pathmerge.kernels.rows import normalise_one, wide_moments, write_normal
from pathmerge.kernels.softmax import exponential, weigh

_ZERO = np.float32(0)
_ONE = np.float32(1)
_NONE = np.float32(-np.inf)


@float_inline
def _add_mixed(weights, n, row, new, values, begin, out):
    """Add the values times their weights to `out`, `new` being that of row `row`."""
    for i in range(n):
        if weights[i] > TINY:
            value = new if i == row else values[begin + i]
            for w in range(out.shape[0]):
                out[w] += weights[i] * value[w]


@float_inline
def dot(one, other):
    total = _ZERO
    for w in range(one.shape[0]):
        total += one[w] * other[w]
    return total


@float_inline
def _only_moved(first, last, x, rows, base, zero, least, share):
    """Rows first..last-1 of x without those that differ by less than `least` from their base row, where they are all
    but a small share; returns where they end."""
    most, count = share * (last - first), 0
    for m in range(first, last):
        count += differs(x[m], base[zero + rows[m]], least)
        if count > most:
            return last
    found = first
    for m in range(first, last):
        if differs(x[m], base[zero + rows[m]], least):
            for w in range(x.shape[1]):
                x[found, w] = x[m, w]
            rows[found] = rows[m]
            found += 1
    return found


@float_inline
def _shift(zero, n, row, key, base, scale, terms):
    """How the attention of each row of an input changes where row `row` gets another key (terms, 4 x n): what remains
    of its sum of values, the weight of the new value, that of the old one in what remains, and the new score."""
    _, pattern, tops, sums, queries, _, _, _, _ = base
    for t in range(n):
        terms[3, t] = scale * dot(queries[zero + t, 0], key)
    for t in range(n):
        stale, top, old = terms[3, t], tops[0, zero + t], pattern[0, zero + t, row]
        apart = exponential(-abs(top - stale))
        before, new = sums[0, zero + t], _ONE  # both by e to the larger of the two scores
        if stale > top:
            before *= apart
        else:
            new = apart
        total = before * (_ONE - old) + new
        terms[0, t], terms[1, t] = before / total, new / total
        terms[2, t] = old * terms[0, t]


@float_inline
def _sum(given, begin, kept, more, less, out):
    """A part of a doubled row, from `begin` on, with what remains of its sum of values and one value for another."""
    row, mixed, value, old = given
    row, mixed, value, old = row[begin:], mixed[begin:], value[begin:], old[begin:]
    for w in range(out.shape[0]):
        out[w] = row[w] + kept * mixed[w] + more * value[w] - less * old[w]


@float_inline
def _attend_anew(at, zero, n, row, value, base, weights, double):
    """The doubled row `at` with its sum of values, `value` being that of row `row`, from n scores (weights)."""
    _, _, _, _, _, _, residual, _, values = base
    for w in range(double.shape[0]):
        double[w] = residual[at, w]
    weigh(weights, n)
    _add_mixed(weights, n, row, value, values, zero, double)


@float_kernel
def through_one(
    rows, begin, count, q, k, new_row, new_value, base, allowed, scale, biases, second, real, epsilon, tolerance,
    following, least, share, scratch, out_first, out_rows, out_x,
):  # fmt: skip
    """The rows that change in passes with one changed row each; returns how many.

    Rows are doubled (`TransformerSubject.doubles`): beside each stands what the feed-forward reads of it, but for the
    norm's scale. The sum of doubled rows is the double of their sum, so no row needs a product of its own but the
    feed-forward's second, with the matrix `second`.
    q, k, new_row, new_value: of the changed row of each pass; base: (scores, pattern, tops, sums, queries, keys,
    doubled rows, doubled sums of values, doubled values) of the base rows; biases: of the activation's input, and of
    the output. Where `least` is above 0, rows that differ by less from the base rows after the layer (`following`) are
    left out of passes in which only a `share` differs. scratch: n (widened for `softmax`), 2D, (n + 3) x F, 4 x n.
    Each step is done for all rows of a pass before the next: within a row every step waits for the one before.
    """
    scores, pattern, _, _, _, keys, residual, mixed, values = base
    bias, after = biases
    weights, double, active, terms = scratch
    wide, size = out_x.shape[1], double.shape[0]
    found = 0
    out_first[0] = 0
    for b in range(rows.shape[0]):
        zero, n, row, low = begin[b], count[b], rows[b], found
        _shift(zero, n, row, k[b], base, scale, terms)
        old_value, value = values[zero + row], new_value[b]
        for t in range(n):
            at = zero + t
            old = pattern[0, at, row]
            if t == row:
                for i in range(n):
                    score = _NONE
                    if allowed[0, at, i]:
                        score = scale * dot(q[b], k[b] if i == row else keys[zero + i, 0])
                    weights[i] = score
                _attend_anew(at, zero, n, row, value, base, weights, double)
                for w in range(size):
                    double[w] += new_row[b, w] - residual[at, w]
            elif not allowed[0, at, row] or old + terms[1, t] < tolerance:
                continue
            elif _ONE - old < LITTLE:
                for i in range(n):
                    weights[i] = scores[0, at, i]
                weights[row] = terms[3, t]
                _attend_anew(at, zero, n, row, value, base, weights, double)
            else:
                kept, more, less = terms[0, t], terms[1, t], terms[2, t]
                given = (residual[at], mixed[at], value, old_value)
                _sum(given, 0, kept, more, less, out_x[found])
                _sum(given, wide, kept, more, less, active[found - low])
                out_rows[found] = t
                found += 1
                continue
            for w in range(wide):
                out_x[found, w] = double[w]
            for w in range(size - wide):
                active[found - low, w] = double[wide + w]
            out_rows[found] = t
            found += 1
        for m in range(found - low):
            _, terms[0, m] = wide_moments(out_x[low + m], real, epsilon)
        for m in range(found - low):
            for w in range(wide):
                out_x[low + m, w] += after[w]
            for w in range(size - wide):
                active[m, w] = larger(_ZERO, active[m, w] * terms[0, m] + bias[w])
        multiply_onto(active, found - low, size - wide, second, out_x, low)
        if least > _ZERO:
            found = _only_moved(low, found, out_x, out_rows, following, zero, least, share)
        out_first[b + 1] = found
    return found


@float_inline
def read(x, begin, n, h, weights, real, epsilon, active):
    """What the activation reads (active) of n residual rows from `begin` on, to which the attention's output has been
    added; they get both biases."""
    _, _, first_layer, _, bias, after = weights
    for t in range(n):
        row = x[begin + t]
        for w in range(row.shape[0]):
            row[w] += bias[w]
        mean, factor = wide_moments(row, real, epsilon)
        write_normal(row, mean, factor, real, h[t])
        for w in range(row.shape[0]):
            row[w] += after[w]
    multiply(h, n, h.shape[1], first_layer, active, 0)


@float_kernel
def through_whole(
    first, rows, begin, count, x, base, allowed, scale, weights, real, epsilon, scratch, out_first, out_rows, out_x
):  # fmt: skip
    """All rows of passes of which many have changed.

    x: the changed rows; base: all rows before the layer; weights: those of `Folded`. scratch: two of (n + 3) x K, K x n
    (columns up to a multiple of eight), (n + 3) x n (widened for `softmax`), (n + 3) x F.
    """
    mix, move, _, second, _, _ = weights
    h, q, turned, scores, active = scratch
    out_first[0] = 0
    for b in range(begin.shape[0]):
        zero, n, found = begin[b], count[b], out_first[b]
        for t in range(n):
            out_rows[found + t] = t
            for w in range(x.shape[1]):
                out_x[found + t, w] = base[zero + t, w]
        for m in range(first[b], first[b + 1]):
            for w in range(x.shape[1]):
                out_x[found + rows[m], w] = x[m, w]
        normalise_one(out_x[found : found + n], real, epsilon, h)
        for t in range(n):
            for w in range(h.shape[1]):
                turned[w, t] = h[t, w]
        multiply(h, n, h.shape[1], mix, q, 0)
        multiply(q, n, h.shape[1], turned, scores, 0)
        for t in range(n):
            for i in range(n):
                scores[t, i] = scores[t, i] * scale if allowed[0, zero + t, i] else _NONE
            weigh(scores[t], n)
        multiply(scores, n, n, h, q, 0)
        multiply_onto(q, n, h.shape[1], move, out_x, found)
        read(out_x, found, n, h, weights, real, epsilon, active)
        for t in range(n):
            for w in range(active.shape[1]):
                active[t, w] = larger(_ZERO, active[t, w])
        multiply_onto(active, n, active.shape[1], second, out_x, found)
        out_first[b + 1] = found + n
