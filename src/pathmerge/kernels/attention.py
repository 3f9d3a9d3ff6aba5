"""Attention of many slightly changed inputs at once, computing only the rows that change.

A *pass* is one perturbed copy of an input; it is given by its changed rows, as a stretch of a flat list (pass b owns
first[b]..first[b+1]-1). All other rows are those of the unperturbed input ("base"). There can be several inputs, whose
base rows stand one after the other: that of pass b has count[b] of them, from begin[b] on. Rows of a pass and sources
are counted within their input.

Shapes: M changed rows, H heads, R base rows, n rows of the longest input, K and W widths of keys and values. Scores are
products times `scale`; base scores are -inf where a row may not look.
"""

from __future__ import annotations

import numpy as np

from pathmerge.kernels.compile import float_kernel, helper, inline

_ZERO = np.float32(0)
_ONE = np.float32(1)
_NONE = np.float32(-np.inf)
TINY = np.float32(1e-10)
"""Weights that cannot change a float32 sum of which another term has weight 1."""
LITTLE = np.float32(0.1)
"""Below this share of a row's weight, what is left is summed anew instead of by subtraction, which would round."""


@float_kernel
def attend_all(q, k, v, allowed, first, scale, scores, pattern, tops, sums, mixed):
    """The attention of whole inputs, of which number g owns rows first[g]..first[g+1]-1: scaled scores (H x R x n; -inf
    where a row may not look), their softmax, its parts (the largest score of each row and the sum of exp(score - top)),
    and the weighted sums of values. A row that may look nowhere reads nothing."""
    for g in range(first.shape[0] - 1):
        low, n = first[g], first[g + 1] - first[g]
        for h in range(scores.shape[0]):
            for r in range(low, low + n):
                top = _NONE
                for i in range(scores.shape[2]):
                    score = _NONE
                    if i < n and allowed[h, r, i]:
                        score = _ZERO
                        for w in range(q.shape[2]):
                            score += q[r, h, w] * k[low + i, h, w]
                        score *= scale
                    scores[h, r, i] = score
                    top = max(top, score)
                total = _ZERO
                for i in range(scores.shape[2]):
                    weight = _ZERO
                    if scores[h, r, i] != _NONE:
                        weight = np.exp(scores[h, r, i] - top)
                    pattern[h, r, i] = weight
                    total += weight
                for w in range(v.shape[2]):
                    mixed[r, h, w] = _ZERO
                if total > _ZERO:
                    for i in range(n):
                        pattern[h, r, i] /= total
                        for w in range(v.shape[2]):
                            mixed[r, h, w] += pattern[h, r, i] * v[low + i, h, w]
                tops[h, r], sums[h, r] = top, total


@helper
def _mix(scores, n, place, v, values, begin, h, out):
    """The softmax of a row's n scores times the values, those of changed rows where there are."""
    for w in range(out.shape[0]):
        out[w] = _ZERO
    top = _NONE
    for i in range(n):
        top = max(top, scores[i])
    if top == _NONE:
        return
    total = _ZERO
    for i in range(n):
        weight = np.exp(scores[i] - top)
        total += weight
        if weight > TINY:
            at = place[i]
            if at >= 0:
                for w in range(out.shape[0]):
                    out[w] += weight * v[at, h, w]
            else:
                for w in range(out.shape[0]):
                    out[w] += weight * values[begin + i, h, w]
    for w in range(out.shape[0]):
        out[w] /= total


@float_kernel
def perturb(scores, pattern, values, mixed, operations, begin, count, out):
    """The weighted sums of values after changing one attention weight: kind 0 to zero, kind 1 to its row's maximum.

    operations: M x 4 (head, target among all base rows, source, kind); begin and count: of the target's input.
    out: M x H x W, the sums of the target's row.
    """
    width = values.shape[2]
    for m in range(operations.shape[0]):
        head, target, source, kind = operations[m, 0], operations[m, 1], operations[m, 2], operations[m, 3]
        n, low = count[m], begin[m]
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
                out[m, head, w] = (mixed[target, head, w] + by * values[low + source, head, w]) / total
            continue
        rest = _ZERO
        for i in range(n):
            if i != source:
                rest += pattern[head, target, i]
        if rest > LITTLE:
            for w in range(width):
                out[m, head, w] = (mixed[target, head, w] - weight * values[low + source, head, w]) / rest
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
                        out[m, head, w] += weight * values[low + i, head, w]
        for w in range(width):
            out[m, head, w] /= total


@float_kernel
def attend(
    first, rows, begin, count, asked, q, k, v, stale, base, allowed, scale, last_only, tolerance, scratch, place,
    out_first, out_rows, out_from, out_mixed,
):  # fmt: skip
    """The weighted sums of all rows (or of each input's last) that a pass's changed rows change; returns how many.

    k, v: M x H x K or W of the changed rows; q of those that need one, where asked[m] is the row's place in q.
    stale: H x M x n (x 1 for the last only), base queries with changed keys, scaled. base: (scores, pattern, tops,
    sums, values, mixed, keys) of the base rows.
    A row is left out if the weights it gives to changed rows, before and after, sum to less than `tolerance`.
    out_from: the row's place in the list of changed rows, or -1.
    """
    scores, pattern, tops, sums, values, mixed, keys = base
    heads, width = values.shape[1], values.shape[2]
    found = 0
    out_first[0] = 0
    for b in range(first.shape[0] - 1):
        low, high, zero, n = first[b], first[b + 1], begin[b], count[b]
        start = n - 1 if last_only else 0
        for i in range(n):
            place[i] = -1
        for m in range(low, high):
            place[rows[m]] = m
        for t in range(start, n):
            mine, at = place[t], zero + t
            if mine >= 0:
                own = asked[mine]
                for h in range(heads):
                    for i in range(n):
                        score = _NONE
                        if allowed[h, at, i]:
                            its = place[i]
                            key = k[its, h] if its >= 0 else keys[zero + i, h]
                            score = _ZERO
                            for w in range(q.shape[2]):
                                score += q[own, h, w] * key[w]
                            score *= scale
                        scratch[i] = score
                    _mix(scratch, n, place, v, values, zero, h, out_mixed[found, h])
                out_rows[found] = t
                out_from[found] = mine
                found += 1
                continue
            touched = False
            for h in range(heads):
                top = tops[h, at]
                for m in range(low, high):
                    if allowed[h, at, rows[m]]:
                        top = max(top, stale[h, m, t - start])
                before = sums[h, at] * np.exp(tops[h, at] - top)
                old, new = _ZERO, _ZERO
                for m in range(low, high):
                    if allowed[h, at, rows[m]]:
                        old += pattern[h, at, rows[m]]
                        new += np.exp(stale[h, m, t - start] - top)
                rest = max(_ZERO, _ONE - old)  # a sum of several: it can pass 1 by rounding
                if top == _NONE or old + new / (before * rest + new) < tolerance:
                    continue
                if not touched:
                    touched = True
                    for other in range(heads):
                        if heads > 1 or high - low > 1:
                            for w in range(width):
                                out_mixed[found, other, w] = mixed[at, other, w]
                out = out_mixed[found, h]
                if rest < LITTLE:
                    for i in range(n):
                        scratch[i] = scores[h, at, i]
                        if place[i] >= 0 and allowed[h, at, i]:
                            scratch[i] = stale[h, place[i], t - start]
                    _mix(scratch, n, place, v, values, zero, h, out)
                    continue
                total = before * rest + new
                if high - low == 1:
                    # The most common case in one sweep: one row has changed.
                    kept, more = before / total, new / total
                    less = old * kept
                    for w in range(width):
                        out[w] = kept * mixed[at, h, w] + more * v[low, h, w] - less * values[zero + rows[low], h, w]
                    continue
                for w in range(width):
                    out[w] *= before
                for m in range(low, high):
                    if allowed[h, at, rows[m]]:
                        less = pattern[h, at, rows[m]] * before
                        more = np.exp(stale[h, m, t - start] - top)
                        for w in range(width):
                            out[w] += more * v[m, h, w] - less * values[zero + rows[m], h, w]
                for w in range(width):
                    out[w] /= total
            if touched:
                out_rows[found] = t
                out_from[found] = -1
                found += 1
        out_first[b + 1] = found
    return found


@float_kernel
def last_scores(k, last, query, scale, out):
    """The scaled product of each changed row's key with its input's last query, query[last[m]]: H x M x 1."""
    for m in range(k.shape[0]):
        for h in range(k.shape[1]):
            total = _ZERO
            for w in range(k.shape[2]):
                total += query[last[m], h, w] * k[m, h, w]
            out[h, m, 0] = total * scale


@float_kernel
def changes(first, rows, begin, count, owner, asked, q, k, base_q, base_k, watched, watched_first, was, place, out):
    """The largest change, in each pass, of the products of its input's last query with the keys of watched rows.

    watched: (head, source) pairs, those of input g from watched_first[g] on; owner: the input of each pass; was: their
    products in the base.
    """
    for b in range(first.shape[0] - 1):
        last = count[b] - 1
        for i in range(count[b]):
            place[i] = -1
        for m in range(first[b], first[b + 1]):
            place[rows[m]] = m
        mine = place[last]
        most = _ZERO
        for s in range(watched_first[owner[b]], watched_first[owner[b] + 1]):
            h, its = watched[s, 0], place[watched[s, 1]]
            query = q[asked[mine], h] if mine >= 0 else base_q[begin[b] + last, h]
            key = k[its, h] if its >= 0 else base_k[begin[b] + watched[s, 1], h]
            total = _ZERO
            for w in range(query.shape[0]):
                total += query[w] * key[w]
            most = max(most, abs(total - was[s]))
        out[b] = most


@inline
def differs(one, other, least):
    """Whether two rows are at least so much apart somewhere."""
    j = 0
    while j < one.shape[0] and abs(one[j] - other[j]) < least:
        j += 1
    return j < one.shape[0]


@float_kernel
def settled(first, x, base, places, least, share, out):
    """Which passes have at most this share of their rows that differ from their base row, base[places[m]], by at least
    `least` somewhere."""
    for b in range(first.shape[0] - 1):
        most = share * (first[b + 1] - first[b])
        count = 0
        for m in range(first[b], first[b + 1]):
            count += differs(x[m], base[places[m]], least)
            if count > most:
                break
        out[b] = count <= most


@float_kernel
def moved(x, base, places, least, out):
    """Which rows differ from their base row, base[places[m]], by at least `least` somewhere."""
    for m in range(x.shape[0]):
        out[m] = differs(x[m], base[places[m]], least)
