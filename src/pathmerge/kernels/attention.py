"""Attention of many slightly changed inputs at once, computing only the rows that change.

A *pass* is one perturbed copy of an input; it is given by its changed rows, as a stretch of a flat list (pass b owns
first[b]..first[b+1]-1). All other rows are those of the unperturbed input ("base").

Shapes: M changed rows, H heads, n rows of the input, K and W widths of keys and values. Scores are products times
`scale`; base scores are -inf where a row may not look.
"""

from __future__ import annotations

import numpy as np

from pathmerge.kernels.compile import float_kernel, helper

_ZERO = np.float32(0)
_ONE = np.float32(1)
_NONE = np.float32(-np.inf)
_TINY = np.float32(1e-10)
"""Weights that cannot change a float32 sum of which another term has weight 1."""
_LITTLE = np.float32(0.1)
"""Below this share of a row's weight, what is left is summed anew instead of by subtraction, which would round."""


@helper
def _mix(scores, place, v, values, h, out):
    """The softmax of a row's scores times the values, those of changed rows where there are."""
    for w in range(out.shape[0]):
        out[w] = _ZERO
    top = _NONE
    for i in range(scores.shape[0]):
        top = max(top, scores[i])
    if top == _NONE:
        return
    total = _ZERO
    for i in range(scores.shape[0]):
        weight = np.exp(scores[i] - top)
        total += weight
        if weight > _TINY:
            at = place[i]
            if at >= 0:
                for w in range(out.shape[0]):
                    out[w] += weight * v[at, h, w]
            else:
                for w in range(out.shape[0]):
                    out[w] += weight * values[i, h, w]
    for w in range(out.shape[0]):
        out[w] /= total


@float_kernel
def perturb(scores, pattern, values, mixed, operations, out):
    """The weighted sums of values after changing one attention weight: kind 0 to zero, kind 1 to its row's maximum.

    operations: M x 4 (head, target, source, kind); out: M x H x W, the sums of the target's row.
    """
    n, width = pattern.shape[1], values.shape[2]
    for m in range(operations.shape[0]):
        head, target, source, kind = operations[m, 0], operations[m, 1], operations[m, 2], operations[m, 3]
        for h in range(values.shape[1]):
            for w in range(width):
                out[m, h, w] = mixed[target, h, w]
        weight = pattern[head, target, source]
        if kind == 1:
            top = _ZERO
            total = _ZERO
            for i in range(n):
                total += pattern[head, target, i]
                top = max(top, pattern[head, target, i])
            by = top - weight
            total += by
            for w in range(width):
                out[m, head, w] = (mixed[target, head, w] + by * values[source, head, w]) / total
            continue
        rest = _ZERO
        for i in range(n):
            if i != source:
                rest += pattern[head, target, i]
        if rest > _LITTLE:
            for w in range(width):
                out[m, head, w] = (mixed[target, head, w] - weight * values[source, head, w]) / rest
            continue
        top = _NONE
        for i in range(n):
            if i != source:
                top = max(top, scores[head, target, i])
        for w in range(width):
            out[m, head, w] = _ZERO
        if top == _NONE:
            continue
        total = _ZERO
        for i in range(n):
            if i != source:
                weight = np.exp(scores[head, target, i] - top)
                total += weight
                if weight > _ZERO:
                    for w in range(width):
                        out[m, head, w] += weight * values[i, head, w]
        for w in range(width):
            out[m, head, w] /= total


@float_kernel
def attend(
    first, rows, asked, q, k, v, fresh, stale, base, allowed, scale, start, tolerance, scratch, place,
    out_first, out_rows, out_from, out_mixed,
):  # fmt: skip
    """The weighted sums of all rows from `start` on that a pass's changed rows change; returns how many there are.

    k, v: M x H x K or W of the changed rows; q of those that need one, where asked[m] is the row's place in q.
    fresh: H x len(q) x n, their queries with base keys; stale: H x (n - start) x M, base queries with changed keys;
    both scaled. base: (scores, pattern, tops, sums, values, mixed), where sums are those of exp(score - top).
    A row is left out if the weights it gives to changed rows, before and after, sum to less than `tolerance`.
    out_from: the row's place in the list of changed rows, or -1.
    """
    scores, pattern, tops, sums, values, mixed = base
    n, heads, width = values.shape
    found = 0
    out_first[0] = 0
    for b in range(first.shape[0] - 1):
        low, high = first[b], first[b + 1]
        for i in range(n):
            place[i] = -1
        for m in range(low, high):
            place[rows[m]] = m
        for t in range(start, n):
            mine = place[t]
            if mine >= 0:
                own = asked[mine]
                for h in range(heads):
                    for i in range(n):
                        score = _NONE
                        if allowed[h, t, i]:
                            at = place[i]
                            if at >= 0:
                                score = _ZERO
                                for w in range(q.shape[2]):
                                    score += q[own, h, w] * k[at, h, w]
                                score *= scale
                            else:
                                score = fresh[h, own, i]
                        scratch[i] = score
                    _mix(scratch, place, v, values, h, out_mixed[found, h])
                out_rows[found] = t
                out_from[found] = mine
                found += 1
                continue
            touched = False
            for h in range(heads):
                top = tops[h, t]
                for m in range(low, high):
                    if allowed[h, t, rows[m]]:
                        top = max(top, stale[h, t - start, m])
                before = sums[h, t] * np.exp(tops[h, t] - top)
                old, new = _ZERO, _ZERO
                for m in range(low, high):
                    if allowed[h, t, rows[m]]:
                        old += pattern[h, t, rows[m]]
                        new += np.exp(stale[h, t - start, m] - top)
                if top == _NONE or old + new / (before * (_ONE - old) + new) < tolerance:
                    continue
                if not touched:
                    touched = True
                    for other in range(heads):
                        if heads > 1 or high - low > 1:
                            for w in range(width):
                                out_mixed[found, other, w] = mixed[t, other, w]
                out = out_mixed[found, h]
                if _ONE - old < _LITTLE:
                    for i in range(n):
                        scratch[i] = scores[h, t, i]
                        if place[i] >= 0 and allowed[h, t, i]:
                            scratch[i] = stale[h, t - start, place[i]]
                    _mix(scratch, place, v, values, h, out)
                    continue
                total = before * (_ONE - old) + new
                if high - low == 1:
                    # The most common case in one sweep: one row has changed.
                    kept, more = before / total, new / total
                    less = old * kept
                    for w in range(width):
                        out[w] = kept * mixed[t, h, w] + more * v[low, h, w] - less * values[rows[low], h, w]
                    continue
                for w in range(width):
                    out[w] *= before
                for m in range(low, high):
                    if allowed[h, t, rows[m]]:
                        less = pattern[h, t, rows[m]] * before
                        more = np.exp(stale[h, t - start, m] - top)
                        for w in range(width):
                            out[w] += more * v[m, h, w] - less * values[rows[m], h, w]
                for w in range(width):
                    out[w] /= total
            if touched:
                out_rows[found] = t
                out_from[found] = -1
                found += 1
        out_first[b + 1] = found
    return found


@float_kernel
def products(first, rows, asked, q, k, last_query, keys, watched, out):
    """The product of the last row's query with the keys of watched (head, source) pairs, in each pass: P x S."""
    last = keys.shape[0] - 1
    for b in range(first.shape[0] - 1):
        for s in range(watched.shape[0]):
            h, i = watched[s, 0], watched[s, 1]
            mine, its = -1, -1
            for m in range(first[b], first[b + 1]):
                if rows[m] == last:
                    mine = asked[m]
                if rows[m] == i:
                    its = m
            total = _ZERO
            for w in range(keys.shape[2]):
                left = q[mine, h, w] if mine >= 0 else last_query[h, w]
                right = k[its, h, w] if its >= 0 else keys[i, h, w]
                total += left * right
            out[b, s] = total


@float_kernel
def moved(x, base, rows, least, out):
    """Which rows differ from their base row by at least `least` somewhere."""
    for m in range(x.shape[0]):
        most = _ZERO
        for j in range(x.shape[1]):
            most = max(most, abs(x[m, j] - base[rows[m], j]))
        out[m] = most >= least
