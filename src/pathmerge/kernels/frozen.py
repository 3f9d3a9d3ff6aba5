"""Step IV for models of one head: all perturbed features of one input through a layer that is frozen, feature by
feature, and what becomes of the products.

Keys are the normalised rows and a 1, queries are keys times a matrix, so that the product of a perturbed query with a
recorded key is that of a perturbed normalised row with something recorded too (`reads`): no perturbed query is needed.

Shapes: F features, n rows of the input, D, K and the room for more rows as in `one_head`; R base rows of all inputs.
"""

from __future__ import annotations

from pathmerge.kernels.compile import float_kernel
from pathmerge.kernels.one_head import dot, read
from pathmerge.kernels.products import multiply, multiply_onto
from pathmerge.kernels.rows import normalise_one


@float_kernel
def begin(embedded, other, bare, holding, out):
    """Each feature perturbed in the input, F x (n + room) x D: first the vertices, whose rows become those of `other`,
    then positions, whose row becomes that of `bare`. All are n x D; holding: vertices x n, bool."""
    n, vertices = embedded.shape[0], holding.shape[0]
    for f in range(out.shape[0]):
        for t in range(n):
            row = embedded[t]
            if f < vertices:
                row = other[t] if holding[f, t] else row
            elif f - vertices == t:
                row = bare[t]
            for w in range(row.shape[0]):
                out[f, t, w] = row[w]


@float_kernel
def frozen(zero, n, base, weights, real, epsilon, scratch, x, products, target, source):
    """One layer. x: F x (n + room) x D, the rows before it, written over with those after it.

    base: (keys, queries, reads, pattern, gate) of the base rows, R x K, R x n and R x the width of the activation; the
    input's begin at `zero`. products: Q_j·K_i, j x i; target: Q̃_j·K_i, j x F x i; source: Q_j·K̃_i, i x F x j; all with
    room for more rows, and for columns up to a multiple of eight. scratch: two of (n + room) x K, (n + room) x columns,
    (n + room) x the width of the activation, two of K x columns.
    """
    keys, queries, reads, pattern, gate = base
    h, mixed, shares, active, turned_reads, turned_queries = scratch
    _, move, _, second, _, _ = weights
    size = h.shape[1]
    for t in range(n):
        for w in range(size):
            h[t, w] = keys[zero + t, w]
            turned_reads[w, t], turned_queries[w, t] = reads[zero + t, w], queries[zero + t, w]
        for i in range(n):
            shares[t, i] = pattern[zero + t, i]
    multiply(h, n, size, turned_reads, products, 0)
    for f in range(x.shape[0]):
        now = x[f]
        normalise_one(now[:n], real, epsilon, h)
        multiply(h, n, size, turned_reads, target[:, f], 0)
        multiply(h, n, size, turned_queries, source[:, f], 0)
        multiply(shares, n, n, h, mixed, 0)
        multiply_onto(mixed, n, size, move, now, 0)
        read(now, 0, n, h, weights, real, epsilon, active)
        for t in range(n):
            for w in range(active.shape[1]):
                active[t, w] *= gate[zero + t, w]
        multiply_onto(active, n, active.shape[1], second, now, 0)


@float_kernel
def frozen_last(zero, n, keys, queries, reads, real, epsilon, h, x, products, target, source):
    """The last layer, of which only the last row's queries count. x: the rows before it. products: 1 x i, target:
    1 x F x i, source: i x F x 1."""
    last = zero + n - 1
    for i in range(n):
        products[0, i] = dot(keys[last], reads[zero + i])
    for f in range(x.shape[0]):
        normalise_one(x[f, :n], real, epsilon, h)
        for i in range(n):
            target[0, f, i] = dot(h[n - 1], reads[zero + i])
            source[i, f, 0] = dot(h[i], queries[last])
