"""Graphs as bit sets: row v of `out` holds the children of v, row v of `into` its parents, 64 vertices per word.

`sets` is scratch of the same width. Each function says which rows it writes. `words` is the number of words per row.
"""

from __future__ import annotations

import numpy as np

from pathmerge.kernels.compile import count_ones, helper, inline, trailing_zeros
from pathmerge.kernels.random import below, below64

ZERO = np.uint64(0)
ONE = np.uint64(1)

# Rows of `sets`.
TODO, COREACH, VISITED, USEFUL, OTHER, NEXT_USEFUL, NEXT_OTHER, POOL, FRONTIER, REACHED = range(10)
SET_ROWS = 10


@inline
def has(rows, i, j):
    return (rows[i, j >> 6] >> np.uint64(j & 63)) & ONE != ZERO


@inline
def put(rows, i, j):
    rows[i, j >> 6] |= ONE << np.uint64(j & 63)


@inline
def drop(rows, i, j):
    rows[i, j >> 6] &= ~(ONE << np.uint64(j & 63))


@inline
def clear(rows, i, words):
    for w in range(words):
        rows[i, w] = ZERO


@inline
def is_empty(rows, i, words):
    found = ZERO
    for w in range(words):
        found |= rows[i, w]
    return found == ZERO


@inline
def size(rows, i, words):
    total = 0
    for w in range(words):
        total += count_ones(rows[i, w])
    return total


@inline
def add_edge(out, into, u, v):
    put(out, u, v)
    put(into, v, u)


@inline
def remove_edge(out, into, u, v):
    drop(out, u, v)
    drop(into, v, u)


@inline
def pop(rows, i, words):
    """Take the smallest member out of a set; -1 if it is empty."""
    member = -1
    for w in range(words):
        x = rows[i, w]
        if x != ZERO:
            rows[i, w] = x & (x - ONE)
            member = (w << 6) + trailing_zeros(x)
            break
    return member


@inline
def keep_range(rows, i, low, high, words):
    """Remove every member outside low..high-1."""
    for w in range(words):
        first = low - (w << 6)
        last = high - (w << 6)
        if first >= 64 or last <= 0:
            rows[i, w] = ZERO
        else:
            if first > 0:
                rows[i, w] &= ~((ONE << np.uint64(first)) - ONE)
            if last < 64:
                rows[i, w] &= (ONE << np.uint64(last)) - ONE


@helper
def nth(rows, i, n, words):
    """The n-th smallest member of a set that has more than n."""
    for w in range(words):
        x = rows[i, w]
        count = count_ones(x)
        if n < count:
            for _ in range(n):
                x &= x - ONE
            return (w << 6) + trailing_zeros(x)
        n -= count
    return -1


@helper
def pick(rng, rows, i, words):
    """A uniformly random member of a set; -1 if it is empty."""
    total = size(rows, i, words)
    if total == 0:
        return -1
    if total == 1:
        return nth(rows, i, 0, words)
    return nth(rows, i, below(rng, total), words)


@helper
def close(links, sets, row, words):
    """Grow the set `row` by everything that `links` leads to from it. Writes TODO."""
    for w in range(words):
        sets[TODO, w] = sets[row, w]
    while True:
        v = pop(sets, TODO, words)
        if v < 0:
            return
        for w in range(words):
            new = links[v, w] & ~sets[row, w]
            sets[row, w] |= new
            sets[TODO, w] |= new


@inline
def coreach(into, sets, goal, words):
    """Set COREACH to the vertices from which `goal` can be reached, itself included. Writes TODO."""
    clear(sets, COREACH, words)
    put(sets, COREACH, goal)
    close(into, sets, COREACH, words)


@helper
def lookahead(out, sets, start, goal, words):
    """The lookahead of an example whose COREACH is set (docs/problems.md). Writes VISITED and the branch rows."""
    unhelpful = ZERO
    for w in range(words):
        children = out[start, w]
        sets[USEFUL, w] = children & sets[COREACH, w]
        sets[OTHER, w] = children & ~sets[COREACH, w]
        sets[VISITED, w] = children
        unhelpful |= sets[OTHER, w]
    if unhelpful == ZERO:
        return 0
    level = 1
    while not has(sets, USEFUL, goal):
        for w in range(words):
            sets[NEXT_USEFUL, w] = ZERO
            sets[NEXT_OTHER, w] = ZERO
        while True:
            v = pop(sets, USEFUL, words)
            if v < 0:
                break
            for w in range(words):
                sets[NEXT_USEFUL, w] |= out[v, w]
        while True:
            v = pop(sets, OTHER, words)
            if v < 0:
                break
            for w in range(words):
                sets[NEXT_OTHER, w] |= out[v, w]
        unhelpful = ZERO
        for w in range(words):
            useful = sets[NEXT_USEFUL, w] & ~sets[VISITED, w]
            sets[VISITED, w] |= useful
            other = sets[NEXT_OTHER, w] & ~sets[VISITED, w]
            sets[VISITED, w] |= other
            sets[USEFUL, w] = useful
            sets[OTHER, w] = other
            unhelpful |= other
        if unhelpful == ZERO:
            break
        level += 1
    return level


@helper
def first_step_of_random_path(rng, out, into, sets, counts, pending, stack, start, goal, words):
    """The second vertex of a start-goal path drawn uniformly among all; COREACH is set. Writes VISITED and POOL.

    Paths are counted from the goal upwards, a vertex once all its children that matter are done.
    """
    clear(sets, VISITED, words)
    put(sets, VISITED, start)
    close(out, sets, VISITED, words)
    for w in range(words):
        sets[VISITED, w] &= sets[COREACH, w]
        sets[POOL, w] = sets[VISITED, w]
    while True:
        v = pop(sets, POOL, words)
        if v < 0:
            break
        counts[v] = ZERO
        degree = 0
        for w in range(words):
            degree += count_ones(out[v, w] & sets[VISITED, w])
        pending[v] = degree
    counts[goal] = ONE
    stack[0] = goal
    top = 1
    while top > 0:
        top -= 1
        v = stack[top]
        for w in range(words):
            sets[POOL, w] = into[v, w] & sets[VISITED, w]
        while True:
            p = pop(sets, POOL, words)
            if p < 0:
                break
            counts[p] += counts[v]
            pending[p] -= 1
            if pending[p] == 0:
                stack[top] = p
                top += 1
    ticket = below64(rng, counts[start])
    for w in range(words):
        sets[POOL, w] = out[start, w] & sets[VISITED, w]
    while True:
        v = pop(sets, POOL, words)
        if ticket < counts[v]:
            return v
        ticket -= counts[v]
