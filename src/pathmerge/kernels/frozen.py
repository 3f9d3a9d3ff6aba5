"""Step IV for models of one head: all perturbed features of one input through its frozen layers, and what becomes of
the products.

Keys are the normalised rows and a 1, queries are keys times a matrix, so that the product of a perturbed query with a
recorded key is that of a perturbed normalised row with something recorded too (`reads`): no perturbed query is needed.

A perturbed feature changes a few rows of the input. So in the first layer only their products are new, what the other
rows read changes by their share of a few rows, and with doubled rows (`TransformerSubject.doubles`) only the second
matrix of the feed-forward is multiplied with all rows. From the second layer on all rows have changed.

Shapes: F features, n rows of the input, R base rows of all inputs, C changed rows, L layers; D, K and the room for more
rows as in `one_head`.
"""

from __future__ import annotations

import numpy as np

from pathmerge.kernels.compile import float_inline, float_kernel
from pathmerge.kernels.one_head import dot, read
from pathmerge.kernels.products import multiply, multiply_onto
from pathmerge.kernels.rows import normalise_one, wide_moments

_ZERO = np.float32(0)


@float_kernel
def begin(base, features, rows, changed, out):
    """The rows of an input with each feature perturbed, F x (n + room) x D: base rows (n x D), and changed ones, C x D,
    of which number c is row rows[c] of feature features[c]."""
    n = base.shape[0]
    for f in range(out.shape[0]):
        for t in range(n):
            for w in range(base.shape[1]):
                out[f, t, w] = base[t, w]
    for c in range(rows.shape[0]):
        for w in range(base.shape[1]):
            out[features[c], rows[c], w] = changed[c, w]


@float_inline
def _turn(rows, zero, n, out):
    """The rows of an input as columns."""
    for t in range(n):
        for w in range(rows.shape[1]):
            out[w, t] = rows[zero + t, w]


@float_inline
def _spread(of, n, begin, out):
    """Each of n rows for each feature, out[begin + t, f]."""
    for t in range(n):
        for f in range(out.shape[1]):
            for i in range(out.shape[2]):
                out[begin + t, f, i] = of[t, i]


@float_kernel
def first_layer(
    zero, n, base, doubled, weights, matrices, real, epsilon, features, rows, changed, scratch, x, products, target,
    source,
):  # fmt: skip
    """The first layer, from the changed rows (see `begin`), which are normalised and doubled here. x: F x (n + room) x
    D, the rows after it. The rest as in `frozen`.

    base: (keys, queries, reads, pattern, gate, rows) of the layer; doubled: what stands beside the base rows with the
    attention's output, R x 2D; matrices: those that double a row and a value. scratch: that of `frozen`, 2D numbers,
    and (C + room) of K, 2D, 2D and columns.
    """
    keys, queries, reads, pattern, gate, before = base
    h, _, _, active, turned_reads, turned_queries, double, fresh, of_row, of_value, answers = scratch
    _, _, _, second, _, inner, after = weights
    wide, size = x.shape[2], double.shape[0]
    count = rows.shape[0]
    for t in range(n):
        for w in range(h.shape[1]):
            h[t, w] = keys[zero + t, w]
    _turn(reads, zero, n, turned_reads)
    _turn(queries, zero, n, turned_queries)
    multiply(h, n, h.shape[1], turned_reads, products, zero)
    _spread(products[zero : zero + n], n, zero, target)
    for i in range(n):
        for j in range(n):
            answers[0, j] = products[zero + j, i]
        _spread(answers[:1], 1, zero + i, source)
    normalise_one(changed, real, epsilon, fresh)
    multiply(fresh, count, h.shape[1], turned_reads, answers, 0)
    for c in range(count):
        for i in range(n):
            target[zero + rows[c], features[c], i] = answers[c, i]
    multiply(fresh, count, h.shape[1], turned_queries, answers, 0)
    for c in range(count):
        for j in range(n):
            source[zero + rows[c], features[c], j] = answers[c, j]
        for w in range(h.shape[1]):
            fresh[c, w] -= keys[zero + rows[c], w]
        for w in range(wide):
            changed[c, w] -= before[zero + rows[c], w]
    multiply(changed, count, wide, matrices[0], of_row, 0)
    multiply(fresh, count, h.shape[1], matrices[1], of_value, 0)
    c = 0
    for f in range(x.shape[0]):
        own = c
        while c < count and features[c] == f:
            c += 1
        for t in range(n):
            for w in range(size):
                double[w] = doubled[zero + t, w]
            for m in range(own, c):
                share = pattern[zero + t, rows[m]]
                for w in range(size):
                    double[w] += share * of_value[m, w]
                if rows[m] == t:
                    for w in range(size):
                        double[w] += of_row[m, w]
            _, factor = wide_moments(double[:wide], real, epsilon)
            for w in range(wide):
                x[f, t, w] = double[w] + after[w]
            for w in range(size - wide):
                active[t, w] = (double[wide + w] * factor + inner[w]) * gate[zero + t, w]
        multiply_onto(active, n, active.shape[1], second, x[f], 0)


@float_kernel
def frozen(zero, n, kept, base, weights, real, epsilon, scratch, x, products, target, source):
    """One layer. x: F x (n + room) x D, the rows before it, written over with those after it: only rows `kept`, in
    increasing order, one after the other.

    base: (keys, queries, reads, pattern, gate) of the base rows, R x K, R x n and R x the width of the activation; the
    input's begin at `zero`. products: Q_j·K_i, j x i; target: Q̃_j·K_i, j x F x i; source: Q_j·K̃_i, i x F x j; of all
    inputs, R rows and room for more, which are written over, and for columns up to a multiple of eight. scratch: two of
    (n + room) x K, (n + room) x columns, (n + room) x the width of the activation, two of K x columns.
    """
    keys, queries, reads, pattern, gate = base
    h, mixed, shares, active, turned_reads, turned_queries = scratch
    _, move, _, second, _, _, _ = weights
    size, count = h.shape[1], kept.shape[0]
    for t in range(n):
        for w in range(size):
            h[t, w] = keys[zero + t, w]
    for t in range(count):
        for i in range(n):
            shares[t, i] = pattern[zero + kept[t], i]
    _turn(reads, zero, n, turned_reads)
    _turn(queries, zero, n, turned_queries)
    multiply(h, n, size, turned_reads, products, zero)
    for f in range(x.shape[0]):
        now = x[f]
        normalise_one(now[:n], real, epsilon, h)
        multiply(h, n, size, turned_reads, target[:, f], zero)
        multiply(h, n, size, turned_queries, source[:, f], zero)
        multiply(shares, count, n, h, mixed, 0)
        if count < n:
            for t in range(count):
                for w in range(now.shape[1]):
                    now[t, w] = now[kept[t], w]
        multiply_onto(mixed, count, size, move, now, 0)
        read(now, count, h, weights, real, epsilon, active)
        for t in range(count):
            for w in range(active.shape[1]):
                active[t, w] *= gate[zero + kept[t], w]
        multiply_onto(active, count, active.shape[1], second, now, 0)


@float_kernel
def frozen_last(zero, n, kept, g, keys, queries, reads, real, epsilon, h, x, products, target, source):
    """The last layer, of which only the last row's queries count. x: rows `kept` before it, the last among them.
    products: G x i, target: G x F x i, of all inputs, of which this is number g; source: R x F x 1, of rows `kept`."""
    last, count = zero + n - 1, kept.shape[0]
    for i in range(n):
        products[g, i] = dot(keys[last], reads[zero + i])
    for f in range(x.shape[0]):
        normalise_one(x[f, :count], real, epsilon, h)
        for i in range(n):
            target[g, f, i] = dot(h[count - 1], reads[zero + i])
        for t in range(count):
            source[zero + kept[t], f, 0] = dot(h[t], queries[last])
