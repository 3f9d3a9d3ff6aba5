"""Graphs as bit sets: row v of `out` holds the children of v, row v of `into` its parents, 64 vertices per word.

`sets` is scratch of the same width. Each function says which rows it writes. `words` is a tuple as long as a row: its
length belongs to its type, so the loops over words are unrolled (with a plain number LLVM makes calls of memset and
vector code out of loops that mostly run once, and everything takes half as long again).
"""

from __future__ import annotations

import numpy as np

from pathmerge.kernels.compile import count_ones, helper, inline, trailing_zeros
from pathmerge.kernels.random import below, below64

ZERO = np.uint64(0)
ONE = np.uint64(1)

SET_ROWS = 10
# Rows of `sets`. numpy integers, because numba would compile each helper anew for each plain constant it is given.
WAITING, COREACH, VISITED, USEFUL, OTHER, NEXT_USEFUL, NEXT_OTHER, POOL, FRONTIER, REACHED = np.arange(SET_ROWS)


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
    for w in range(len(words)):
        rows[i, w] = ZERO


@inline
def is_empty(rows, i, words):
    found = ZERO
    for w in range(len(words)):
        found |= rows[i, w]
    return found == ZERO


@inline
def size(rows, i, words):
    total = 0
    for w in range(len(words)):
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
    for w in range(len(words)):
        x = rows[i, w]
        if x != ZERO:
            rows[i, w] = x & (x - ONE)
            member = (w << 6) + trailing_zeros(x)
            break
    return member


@inline
def keep_range(rows, i, low, high, words):
    """Remove every member outside low..high-1."""
    for w in range(len(words)):
        first = low - (w << 6)
        last = high - (w << 6)
        if first >= 64 or last <= 0:
            rows[i, w] = ZERO
        else:
            if first > 0:
                rows[i, w] &= ~((ONE << np.uint64(first)) - ONE)
            if last < 64:
                rows[i, w] &= (ONE << np.uint64(last)) - ONE


@inline
def nth(rows, i, n, words):
    """The n-th smallest member of a set that has more than n."""
    member = -1
    for w in range(len(words)):
        x = rows[i, w]
        count = count_ones(x)
        if n < count:
            for _ in range(n):
                x &= x - ONE
            member = (w << 6) + trailing_zeros(x)
            break
        n -= count
    return member


@inline
def pick(rng, rows, i, words):
    """A uniformly random member of a set; -1 if it is empty."""
    total = size(rows, i, words)
    return nth(rows, i, below(rng, total) if total > 1 else np.int64(0), words)


@helper
def close(links, sets, row, words):
    """Grow the set `row` by everything that `links` leads to from it. Writes WAITING."""
    for w in range(len(words)):
        sets[WAITING, w] = sets[row, w]
    while True:
        v = pop(sets, WAITING, words)
        if v < 0:
            return
        for w in range(len(words)):
            new = links[v, w] & ~sets[row, w]
            sets[row, w] |= new
            sets[WAITING, w] |= new


@inline
def coreach(into, sets, goal, words):
    """Set COREACH to the vertices from which `goal` can be reached, itself included. Writes WAITING."""
    clear(sets, COREACH, words)
    put(sets, COREACH, goal)
    close(into, sets, COREACH, words)


@helper
def trace_path(out, sets, follow, start, goal, words):
    """Write one start-goal path: follow[v] is the vertex after v on it, -1 elsewhere. COREACH is set. Writes VISITED.

    As long as this path is whole, no edge outside it is needed to reach the goal.
    """
    for v in range(goal + 1):
        follow[v] = -1
    v = start
    while v != goal:
        for w in range(len(words)):
            sets[VISITED, w] = out[v, w] & sets[COREACH, w]
        follow[v] = nth(sets, VISITED, 0, words)
        v = follow[v]


@helper
def reroute(out, into, sets, follow, u, v, start, goal, words):
    """Take the edge u -> v out of a path by `trace_path` if there is another way; else leave all as it was."""
    remove_edge(out, into, u, v)
    coreach(into, sets, goal, words)
    if has(sets, COREACH, start):
        trace_path(out, sets, follow, start, goal, words)
        return True
    add_edge(out, into, u, v)
    return False


@helper
def lookahead(out, sets, start, goal, words):
    """The lookahead of an example whose COREACH is set (docs/problems.md). Writes VISITED and the branch rows."""
    unhelpful = ZERO
    for w in range(len(words)):
        children = out[start, w]
        sets[USEFUL, w] = children & sets[COREACH, w]
        sets[OTHER, w] = children & ~sets[COREACH, w]
        sets[VISITED, w] = children
        unhelpful |= sets[OTHER, w]
    if unhelpful == ZERO:
        return 0
    level = 1
    while not has(sets, USEFUL, goal):
        for w in range(len(words)):
            sets[NEXT_USEFUL, w] = ZERO
            sets[NEXT_OTHER, w] = ZERO
        while True:
            v = pop(sets, USEFUL, words)
            if v < 0:
                break
            for w in range(len(words)):
                sets[NEXT_USEFUL, w] |= out[v, w]
        while True:
            v = pop(sets, OTHER, words)
            if v < 0:
                break
            for w in range(len(words)):
                sets[NEXT_OTHER, w] |= out[v, w]
        unhelpful = ZERO
        for w in range(len(words)):
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
    for w in range(len(words)):
        sets[VISITED, w] &= sets[COREACH, w]
        sets[POOL, w] = sets[VISITED, w]
    while True:
        v = pop(sets, POOL, words)
        if v < 0:
            break
        counts[v] = ZERO
        degree = 0
        for w in range(len(words)):
            degree += count_ones(out[v, w] & sets[VISITED, w])
        pending[v] = degree
    counts[goal] = ONE
    stack[0] = goal
    top = 1
    while top > 0:
        top -= 1
        v = stack[top]
        for w in range(len(words)):
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
    for w in range(len(words)):
        sets[POOL, w] = out[start, w] & sets[VISITED, w]
    while True:
        v = pop(sets, POOL, words)
        if ticket < counts[v]:
            return v
        ticket -= counts[v]
