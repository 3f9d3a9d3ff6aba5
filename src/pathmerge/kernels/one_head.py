"""Changed rows through a layer, for models of one head whose keys and values are the normalised rows themselves and a 1
(`TransformerSubject`): what `attention` does for any model, and the rest of the layer in one go, for one pass.

Passes, base rows and what is counted how: see `attention`. Here a pass is of an input of n rows, those from `zero` on.
Shapes: R base rows, D width of a row (of which the first `real` count), K width of a key, F of the feed-forward; arrays
that are multiplied have room for a few rows more (`products`).
"""

from __future__ import annotations

import numpy as np

from pathmerge.kernels.attention import LITTLE, TINY, differs
from pathmerge.kernels.compile import float_helper, float_inline, larger
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
def only_moved(count, x, rows, base, zero, least, share):
    """The first `count` rows of x without those that differ by less than `least` from their base row, where they are
    all but a small share; returns how many there are."""
    moved = 0
    for m in range(count):
        moved += differs(x[m], base[zero + rows[m]], least)
        if moved > share * count:
            return count
    found = 0
    for m in range(count):
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
        terms[0, t], terms[1, t], terms[2, t] = tops[0, zero + t], sums[0, zero + t], pattern[0, zero + t, row]
        terms[3, t] = scale * dot(queries[zero + t, 0], key)
    for t in range(terms.shape[1]):
        top, before, old, stale = terms[0, t], terms[1, t], terms[2, t], terms[3, t]
        apart = exponential(-abs(top - stale))
        new = _ONE if stale > top else apart  # both by e to the larger of the two scores
        before = before * apart if stale > top else before
        total = before * (_ONE - old) + new
        kept = before / total
        terms[0, t], terms[1, t], terms[2, t] = kept, new / total, old * kept


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


@float_helper
def through_one(
    row, zero, n, q, k, new_row, new_value, base, allowed, scale, biases, second, real, epsilon, tolerance, scratch,
    out_rows, out_x,
):  # fmt: skip
    """The rows that change in a pass of which row `row` has changed, in increasing order; returns how many.

    Rows are doubled (`TransformerSubject.doubles`): beside each stands what the feed-forward reads of it, but for the
    norm's scale. The sum of doubled rows is the double of their sum, so no row needs a product of its own but the
    feed-forward's second, with the matrix `second`.
    q, k, new_row, new_value: of the changed row; base: (scores, pattern, tops, sums, queries, keys, doubled rows,
    doubled sums of values, doubled values) of the base rows; allowed: R x n; biases: of the activation's input, and of
    the output. scratch: n (widened for `softmax`), 2D, (n + 3) x F, 4 x n (widened); out_x: (n + 3) x D.
    Each step is done for all rows before the next: within a row every step waits for the one before.
    """
    scores, pattern, _, _, _, keys, residual, mixed, values = base
    bias, after = biases
    weights, double, active, terms = scratch
    wide, size = out_x.shape[1], double.shape[0]
    found = 0
    _shift(zero, n, row, k, base, scale, terms)
    old_value = values[zero + row]
    for t in range(n):
        at = zero + t
        old = pattern[0, at, row]
        if t == row:
            for i in range(n):
                score = _NONE
                if allowed[at, i]:
                    score = scale * dot(q, k if i == row else keys[zero + i, 0])
                weights[i] = score
            _attend_anew(at, zero, n, row, new_value, base, weights, double)
            for w in range(size):
                double[w] += new_row[w] - residual[at, w]
        elif not allowed[at, row] or old + terms[1, t] < tolerance:
            continue
        elif _ONE - old < LITTLE:
            for i in range(n):
                weights[i] = scores[0, at, i]
            weights[row] = terms[3, t]
            _attend_anew(at, zero, n, row, new_value, base, weights, double)
        else:
            kept, more, less = terms[0, t], terms[1, t], terms[2, t]
            given = (residual[at], mixed[at], new_value, old_value)
            _sum(given, 0, kept, more, less, out_x[found])
            _sum(given, wide, kept, more, less, active[found])
            out_rows[found] = t
            found += 1
            continue
        for w in range(wide):
            out_x[found, w] = double[w]
        for w in range(size - wide):
            active[found, w] = double[wide + w]
        out_rows[found] = t
        found += 1
    for m in range(found):
        _, terms[0, m] = wide_moments(out_x[m], real, epsilon)
    for m in range(found):
        for w in range(wide):
            out_x[m, w] += after[w]
        for w in range(size - wide):
            active[m, w] = larger(_ZERO, active[m, w] * terms[0, m] + bias[w])
    multiply_onto(active, found, size - wide, second, out_x, 0)
    return found


@float_inline
def read(x, n, h, weights, real, epsilon, active):
    """What the activation reads (active) of n residual rows, to which the attention's output has been added; they get
    both biases."""
    _, _, first, _, bias, _, after = weights
    for t in range(n):
        row = x[t]
        for w in range(row.shape[0]):
            row[w] += bias[w]
        mean, factor = wide_moments(row, real, epsilon)
        write_normal(row, mean, factor, real, h[t])
        for w in range(row.shape[0]):
            row[w] += after[w]
    multiply(h, n, h.shape[1], first, active, 0)


@float_helper
def update(x, n, mixed, weights, real, epsilon, h, active):
    """n residual rows before a layer become those after it; mixed: their weighted sums of values, n x K. weights: those
    of `Folded`. h, active: scratch, (n + 3) x K and (n + 3) x F."""
    _, move, _, second, _, _, _ = weights
    multiply_onto(mixed, n, mixed.shape[1], move, x, 0)
    read(x, n, h, weights, real, epsilon, active)
    for t in range(n):
        for w in range(active.shape[1]):
            active[t, w] = larger(_ZERO, active[t, w])
    multiply_onto(active, n, active.shape[1], second, x, 0)


@float_helper
def through_whole(count, rows, x, base, zero, n, allowed, scale, weights, real, epsilon, scratch):
    """All rows of a pass of which `count` have changed: rows (in increasing order) and x, written over with all of them
    after the layer.

    base: the rows of all inputs before the layer; allowed: R x n. scratch: two of (n + 3) x K, K x n (columns up to a
    multiple of eight), (n + 3) x n (widened for `softmax`), (n + 3) x F.
    """
    mix, _, _, _, _, _, _ = weights
    h, q, turned, scores, active = scratch
    m, t = count, n - 1
    while m <= t:  # the rows before them stand where they belong
        given = base[zero + t]
        if m and rows[m - 1] == t:
            m -= 1
            given = x[m]
        rows[t] = t
        for w in range(x.shape[1]):
            x[t, w] = given[w]
        t -= 1
    normalise_one(x[:n], real, epsilon, h)
    for t in range(n):
        for w in range(h.shape[1]):
            turned[w, t] = h[t, w]
    multiply(h, n, h.shape[1], mix, q, 0)
    multiply(q, n, h.shape[1], turned, scores, 0)
    for t in range(n):
        for i in range(n):
            scores[t, i] = scores[t, i] * scale if allowed[zero + t, i] else _NONE
        weigh(scores[t], n)
    multiply(scores, n, n, h, q, 0)
    update(x, n, q, weights, real, epsilon, h, active)
