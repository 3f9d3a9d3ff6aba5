"""Which attention operations could be a merge or a copy, by how their products respond to perturbed features."""

from __future__ import annotations

from pathmerge.kernels.compile import float_kernel


@float_kernel
def linkable(
    after, products, target, source, threshold, sets, vertices, edges, query, allowed, begin, out, following
):  # fmt: skip
    """out[h, begin + j, i, way]: whether the features that respond (way 0: fall, 1: rise, by more than `threshold`) and
    are contained in the rows' sets make row j reading row i a merge or a copy.

    products: H x j x i, q·k; target (H x j x F x i) and source (H x i x F x j): the same with each feature perturbed in
    row j, or in row i. Rows j are those from `after` on, and counted from there in these arrays. sets: n x F, bool. The
    first `vertices` features are vertices. edges: E x 2, features of an edge's two positions; query: those of start and
    goal in the query. following: the sets if all these operations carried over what their source holds.
    """
    n, features = sets.shape
    for j in range(n):
        for f in range(features):
            following[j, f] = sets[j, f]
    for h in range(out.shape[0]):
        for j in range(after, n):
            at = j - after
            for i in range(n):
                fall, rise = False, False
                if allowed[h, begin + j, i]:
                    was = products[h, at, i]
                    for f in range(vertices):
                        if sets[j, f] and sets[i, f]:
                            one, other = target[h, at, f, i] - was, source[h, i, f, at] - was
                            fall |= one < -threshold and other < -threshold
                            rise |= one > threshold and other > threshold
                    for e in range(edges.shape[0]):
                        for turn in range(2):
                            a, b = edges[e, turn], edges[e, 1 - turn]
                            if sets[j, a] and sets[i, b]:
                                one, other = target[h, at, a, i] - was, source[h, i, b, at] - was
                                fall |= one < -threshold and other < -threshold
                                rise |= one > threshold and other > threshold
                    if j == n - 1:
                        for e in range(query.shape[0]):
                            if sets[i, query[e]]:
                                other = source[h, i, query[e], at] - was
                                fall |= other < -threshold
                                rise |= other > threshold
                out[h, begin + j, i, 0], out[h, begin + j, i, 1] = fall, rise
                if fall or rise:
                    for f in range(features):
                        following[j, f] |= sets[i, f]


@float_kernel
def depend(
    operations, by, after, products, target, source, threshold, in_target, in_source, target_change, source_change
):  # fmt: skip
    """Which features some operations (S x 3: head, target, source) depend on, and how much each changes the product,
    S x F each: it must fall by more than `threshold` where the operation is important under zero (by, S x 2), or else
    rise. The rest as in `linkable`."""
    for s in range(operations.shape[0]):
        h, j, i = operations[s, 0], operations[s, 1] - after, operations[s, 2]
        was = products[h, j, i]
        for f in range(in_target.shape[1]):
            one, other = target[h, j, f, i] - was, source[h, i, f, j] - was
            target_change[s, f], source_change[s, f] = one, other
            if by[s, 0]:
                in_target[s, f], in_source[s, f] = one < -threshold, other < -threshold
            else:
                in_target[s, f], in_source[s, f] = one > threshold, other > threshold


@float_kernel
def carry(
    operations, in_target, in_source, sets, vertices, edges, query, lenient, whole, kinds, linked, following
):  # fmt: skip
    """One layer of Algorithm 1: what each operation is (0 by token, 1 by position, 2 copy, 3 other), whether it carries
    its source's set over, and the sets that follow.

    operations: S x 3 (head, target, source); in_target, in_source: S x F, the features each depends on; sets: n x F.
    Strict: an operation with a feature that its rows' sets do not hold carries nothing. Lenient: such features are left
    aside. whole: carried over is the source's set, or else the operation's features that are held.
    """
    n, features = sets.shape
    for j in range(n):
        for f in range(features):
            following[j, f] = sets[j, f]
    for s in range(operations.shape[0]):
        j, i = operations[s, 1], operations[s, 2]
        kind, contained = 3, True
        for f in range(features):
            contained &= (not in_target[s, f] or sets[j, f]) and (not in_source[s, f] or sets[i, f])
        if j == n - 1:
            for e in range(query.shape[0]):
                if in_source[s, query[e]] and sets[i, query[e]]:
                    kind = 2
        for e in range(edges.shape[0]):
            for turn in range(2):
                a, b = edges[e, turn], edges[e, 1 - turn]
                if in_target[s, a] and sets[j, a] and in_source[s, b] and sets[i, b]:
                    kind = 1
        for f in range(vertices):
            if in_target[s, f] and sets[j, f] and in_source[s, f] and sets[i, f]:
                kind = 0
        kinds[s] = kind
        linked[s] = kind < 3 and (lenient or contained)
        if linked[s]:
            for f in range(features):
                if whole:
                    following[j, f] |= sets[i, f]
                else:
                    following[j, f] |= (in_target[s, f] and sets[j, f]) or (in_source[s, f] and sets[i, f])
