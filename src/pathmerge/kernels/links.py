"""Which attention operations could be a merge or a copy, by how their products respond to perturbed features."""

from __future__ import annotations

from pathmerge.kernels.compile import float_kernel


@float_kernel
def linkable(target, source, threshold, sets, vertices, edges, query, allowed, begin, out, following):
    """out[h, begin + j, i, way]: whether the features that respond (way 0: fall, 1: rise, by more than `threshold`) and
    are contained in the rows' sets make row j reading row i a merge or a copy.

    target, source: H x F x n x n, how q·k changes with each feature perturbed in row j (.. x j x i) or in row i
    (.. x i x j). sets: n x F, bool. The first `vertices` features are vertices. edges: E x 2, features of an edge's two
    positions; query: those of start and goal in the query. following: the sets if all these operations carried over
    what their source holds.
    """
    n, features = sets.shape
    for j in range(n):
        for f in range(features):
            following[j, f] = sets[j, f]
    for h in range(out.shape[0]):
        for j in range(n):
            for i in range(n):
                if not allowed[h, begin + j, i]:
                    out[h, begin + j, i, 0] = out[h, begin + j, i, 1] = False
                    continue
                for way in range(2):
                    found = False
                    sign = 1 if way else -1
                    for f in range(vertices):
                        if sets[j, f] and sets[i, f] and sign * target[h, f, j, i] > threshold:
                            found |= sign * source[h, f, i, j] > threshold
                    for e in range(edges.shape[0]):
                        for turn in range(2):
                            a, b = edges[e, turn], edges[e, 1 - turn]
                            if sets[j, a] and sets[i, b] and sign * target[h, a, j, i] > threshold:
                                found |= sign * source[h, b, i, j] > threshold
                    if j == n - 1:
                        for e in range(query.shape[0]):
                            found |= sets[i, query[e]] and sign * source[h, query[e], i, j] > threshold
                    out[h, begin + j, i, way] = found
                if out[h, begin + j, i, 0] or out[h, begin + j, i, 1]:
                    for f in range(features):
                        following[j, f] |= sets[i, f]
