"""Which attention operations could be a merge or a copy, by how their products respond to perturbed features."""

from __future__ import annotations

from pathmerge.kernels.compile import float_kernel


@float_kernel
def linkable(target, source, threshold, sets, vertices, edges, query, allowed, out):
    """out[h, j, i, way]: whether the features that respond (way 0: fall, 1: rise, by more than `threshold`) and are
    contained in the rows' sets make row j reading row i a merge or a copy.

    target, source: F x H x n x n, how q·k changes with each feature perturbed in row j or in row i. sets: n x F, bool.
    The first `vertices` features are vertices. edges: E x 2, features of an edge's two positions; query: those of start
    and goal in the query.
    """
    heads, n = out.shape[0], out.shape[1]
    for h in range(heads):
        for j in range(n):
            for i in range(n):
                for way in range(2):
                    found = False
                    sign = 1 if way else -1
                    if allowed[h, j, i]:
                        for f in range(vertices):
                            if sets[j, f] and sets[i, f] and sign * target[f, h, j, i] > threshold:
                                found |= sign * source[f, h, j, i] > threshold
                        for e in range(edges.shape[0]):
                            for turn in range(2):
                                a, b = edges[e, turn], edges[e, 1 - turn]
                                if sets[j, a] and sets[i, b] and sign * target[a, h, j, i] > threshold:
                                    found |= sign * source[b, h, j, i] > threshold
                        if j == n - 1:
                            for e in range(query.shape[0]):
                                found |= sets[i, query[e]] and sign * source[query[e], h, j, i] > threshold
                    out[h, j, i, way] = found
