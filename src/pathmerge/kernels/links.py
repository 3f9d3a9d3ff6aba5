"""Step V for several inputs: which attention operations could be a merge or a copy, by how their products respond to
perturbed features, which of them are, and where they lead.

Shapes: G inputs, R rows of all inputs, n rows of the longest, S operations, F features, H heads, L layers. Operations
are S x 4 (layer, head, target among all rows, source in its input), an input's in a row and by layer; sets R x F, bool.
"""

from __future__ import annotations

from pathmerge.kernels.compile import float_inline, float_kernel, kernel


@float_inline
def _match(held, answers, source, f, column, was, threshold, out):
    """Add to out (n x 2) the rows whose products, `was`, both answers change by more than `threshold`: those of the
    target (n) and those of feature f of the source, where the rows hold it (held, n x F)."""
    for i in range(out.shape[0]):
        if held[i, f]:
            one, other = answers[i] - was[i], source[i, f, column] - was[i]
            out[i, 0] |= one < -threshold and other < -threshold
            out[i, 1] |= one > threshold and other > threshold


@float_kernel
def linkable(rules, after, shift, products, target, source, threshold, sets, allowed, out, following):
    """out[h, j, i, way]: whether the features that respond (way 0: fall, 1: rise, by more than `threshold`) and are
    contained in the rows' sets make row j reading row i a merge or a copy; zeros before.

    products: H x j x i, q·k; target (H x j x F x i) and source (H x i x F x j): the same with each feature perturbed in
    row j, or in row i. Row j of input g stands at j + shift[g] in the first two, j - after[g] in the third; rows before
    after[g] are not there. following: the same sets, to which all these operations carry over what their source holds.
    """
    for g in range(after.shape[0]):
        low, vertices = rules.first[g], rules.vertices[g]
        n, features = rules.first[g + 1] - low, rules.features[g]
        held = sets[low : low + n]
        for h in range(out.shape[0]):
            sources = source[h, low : low + n]
            for j in range(after[g], n):
                column, found = j - after[g], out[h, low + j, :n]
                was, answers = products[h, j + shift[g]], target[h, j + shift[g]]
                for f in range(vertices):
                    if held[j, f]:
                        _match(held, answers[f], sources, f, column, was, threshold, found)
                for e in range(rules.edges[g]):
                    for turn in range(2):
                        a, b = vertices + rules.slots[g, e] + 1 + turn, vertices + rules.slots[g, e] + 2 - turn
                        if held[j, a]:
                            _match(held, answers[a], sources, b, column, was, threshold, found)
                if j == n - 1 and features > vertices:
                    for f in range(features - 4, features - 2):
                        for i in range(n):
                            if held[i, f]:
                                other = sources[i, f, column] - was[i]
                                found[i, 0] |= other < -threshold
                                found[i, 1] |= other > threshold
                for i in range(n):
                    if not allowed[h, low + j, i]:
                        found[i, 0], found[i, 1] = False, False
                    elif found[i, 0] or found[i, 1]:
                        for f in range(features):
                            following[low + j, f] |= held[i, f]


@float_kernel
def depend(
    rules, owner, operations, which, by, after, shift, products, target, source, threshold, in_target, in_source
):
    """Which features the operations `which`, all of one layer, depend on in their target and source row, S x F each:
    the product must fall by more than `threshold` where the operation is important under zero (by, S x 2), or else
    rise. owner: the input of each row. The rest as in `linkable`."""
    for s in which:
        h, row, i = operations[s, 1], operations[s, 2], operations[s, 3]
        g = owner[row]
        low = rules.first[g]
        at, column = row - low + shift[g], row - low - after[g]
        was = products[h, at, i]
        for f in range(rules.features[g]):
            one, other = target[h, at, f, i] - was, source[h, low + i, f, column] - was
            if by[s, 0]:
                in_target[s, f], in_source[s, f] = one < -threshold, other < -threshold
            else:
                in_target[s, f], in_source[s, f] = one > threshold, other > threshold


@float_kernel
def changes(rules, owner, operations, present, first, layer, after, shift, products, answers, in_source, which, out):
    """For the operations of one layer, the features they depend on (present, S x F) and how much each changes the
    product: those of operation s from first[s] on, in `which` and `out`. `answers` are the layer's responses in the
    source (`in_source`) or the target, as in `linkable`."""
    for s in range(operations.shape[0]):
        if operations[s, 0] != layer:
            continue
        h, row, i = operations[s, 1], operations[s, 2], operations[s, 3]
        g = owner[row]
        low = rules.first[g]
        place, column = row - low + shift[g], row - low - after[g]
        k = first[s]
        for f in range(present.shape[1]):
            if present[s, f]:
                value = answers[h, low + i, f, column] if in_source else answers[h, place, f, i]
                which[k], out[k] = f, value - products[h, place, i]
                k += 1


@kernel
def carry(rules, begin, operations, in_target, in_source, lenient, whole, sets, kinds, linked, by_token, by_edge):
    """Algorithm 1: what each operation is (0 by token, 1 by position, 2 copy, 3 other), whether it carries its source's
    set over, and the sets that follow.

    Input g owns operations begin[g]..begin[g+1]-1. in_target, in_source: S x F, the features each depends on; sets:
    L+1 x R x F, of which the first is given. Strict: an operation with a feature that its rows' sets do not hold
    carries nothing. Lenient: such features are left aside. whole: carried over is the source's set, or else the
    operation's features that are held. by_token, by_edge: S x V and S x E, the vertices and edges that make it a merge.
    """
    for g in range(begin.shape[0] - 1):
        low, high = rules.first[g], rules.first[g + 1]
        vertices, features = rules.vertices[g], rules.features[g]
        s = begin[g]
        for layer in range(sets.shape[0] - 1):
            now, following = sets[layer], sets[layer + 1]
            for j in range(low, high):
                for f in range(features):
                    following[j, f] = now[j, f]
            while s < begin[g + 1] and operations[s, 0] == layer:
                j, i = operations[s, 2], low + operations[s, 3]
                kind, contained = 3, True
                for f in range(features):
                    contained &= (not in_target[s, f] or now[j, f]) and (not in_source[s, f] or now[i, f])
                if j == high - 1 and features > vertices:
                    for f in range(features - 4, features - 2):
                        if in_source[s, f] and now[i, f]:
                            kind = 2
                for e in range(rules.edges[g]):
                    a, b = vertices + rules.slots[g, e] + 1, vertices + rules.slots[g, e] + 2
                    by_edge[s, e] = (in_target[s, a] and now[j, a] and in_source[s, b] and now[i, b]) or (
                        in_target[s, b] and now[j, b] and in_source[s, a] and now[i, a]
                    )
                    if by_edge[s, e]:
                        kind = 1
                for f in range(vertices):
                    by_token[s, f] = in_target[s, f] and now[j, f] and in_source[s, f] and now[i, f]
                    if by_token[s, f]:
                        kind = 0
                kinds[s] = kind
                linked[s] = kind < 3 and (lenient or contained)
                if linked[s]:
                    for f in range(features):
                        if whole:
                            following[j, f] |= now[i, f]
                        else:
                            following[j, f] |= (in_target[s, f] and now[j, f]) or (in_source[s, f] and now[i, f])
                s += 1


@kernel
def downwards(rules, begin, operations, linked, layers, kept, reached):
    """Which of the operations that are `linked` have a chain of such (rows also pass on to themselves) to the last row
    after the last of `layers`, and which rows before the first layer have one (reached, R)."""
    reached[:] = False
    for g in range(begin.shape[0] - 1):
        low = rules.first[g]
        reached[rules.first[g + 1] - 1] = True
        end = begin[g + 1]
        for layer in range(layers - 1, -1, -1):
            s = end
            # First all of a layer, by the rows reached above it; then what they reach.
            while s > begin[g] and operations[s - 1, 0] == layer:
                s -= 1
                kept[s] = linked[s] and reached[operations[s, 2]]
            for at in range(s, end):
                if kept[at]:
                    reached[low + operations[at, 3]] = True
            end = s


@kernel
def leads(rules, held, reached, edges, start, goal, second, through, seen, out):
    """Whether a path from start to goal, with second[g] after start if that is not 0, has all its vertices among those
    that reached rows hold (held: R x 2). edges: G x E x 2; through, seen: bool, for every vertex id."""
    for g in range(out.shape[0]):
        through[:], seen[:] = False, False
        for row in range(rules.first[g], rules.first[g + 1]):
            if reached[row]:
                through[held[row, 0]], through[held[row, 1]] = True, True
        through[0] = False
        begins = second[g] == 0
        for e in range(edges.shape[1]):
            begins |= edges[g, e, 0] == start[g] and edges[g, e, 1] == second[g]
        origin = second[g] if second[g] else start[g]
        more = begins and through[start[g]] and through[origin]
        if more:
            seen[origin] = True
        while more:
            more = False
            for e in range(edges.shape[1]):
                source, target = edges[g, e, 0], edges[g, e, 1]
                if seen[source] and through[target] and not seen[target]:
                    seen[target] = True
                    more = True
        out[g] = seen[goal[g]]
