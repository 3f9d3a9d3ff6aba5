"""Proposals for the depth-first task (docs/problems.md). `visited` holds the trace in construction numbering."""

from __future__ import annotations

from pathmerge.kernels.compile import count_ones, helper
from pathmerge.kernels.graph import (
    COREACH,
    FRONTIER,
    POOL,
    REACHED,
    ZERO,
    add_edge,
    clear,
    coreach,
    drop,
    has,
    is_empty,
    pick,
    put,
    remove_edge,
    reroute,
    trace_path,
)
from pathmerge.kernels.random import below
from pathmerge.kernels.search import REJECTED, draw_parent_counts, draw_parents, propose_naive


@helper
def _search(work, length, goal, words):
    """Go on depth-first from the `length` vertices in `visited`, inside the set FRONTIER, until the goal is next or
    nothing is left; returns the new length. Takes what it visits out of FRONTIER; writes POOL and `stack`."""
    rng, out, sets, visited, stack = work.rng, work.out, work.sets, work.visited, work.stack
    for i in range(length):
        stack[i] = visited[i]
    top = length
    while top > 0:
        v = stack[top - 1]
        found = ZERO
        for w in range(len(words)):
            sets[POOL, w] = out[v, w] & sets[FRONTIER, w]
            found |= sets[POOL, w]
        if found == ZERO:
            top -= 1
            continue
        v = pick(rng, sets, POOL, words)
        if v == goal:
            break
        drop(sets, FRONTIER, v)
        visited[length] = v
        length += 1
        stack[top] = v
        top += 1
    return length


@helper
def propose_naive_trace(work, most_vertices, most_edges, words):
    """Naive mode: returns the proposal and the trace's length."""
    n, edges, start, goal = propose_naive(
        work, min(3, most_vertices), min(most_vertices, most_edges + 1), most_edges, words
    )
    if n == 0:
        return REJECTED, 0
    sets = work.sets
    for w in range(len(words)):
        sets[FRONTIER, w] = ~ZERO
    work.visited[0] = start
    length = 1 + below(work.rng, _search(work, 1, goal, words))
    return (n, edges, start, goal), length


@helper
def _trim(work, edges, most_edges, first_behind, start, goal, prefix, words):
    """Remove random superfluous edges until `most_edges` are left; FRONTIER is {s} and G2, COREACH is the goal's.

    Once needed, an edge stays needed, so going once through the edges in random order is the same as drawing among
    the superfluous ones each time.
    """
    rng, out, into, sets, source, target = work.rng, work.out, work.into, work.sets, work.source, work.target
    follow = work.pending
    trace_path(out, sets, follow, start, goal, words)
    left = edges
    while edges > most_edges and left > 0:
        e = below(rng, left)
        left -= 1
        u, v = source[e], target[e]
        source[e], target[e] = source[left], target[left]
        source[left], target[left] = u, v
        needed = False
        if v >= first_behind:
            if has(sets, FRONTIER, u):
                links = 0
                for w in range(len(words)):
                    links += count_ones(into[v, w] & sets[FRONTIER, w])
                needed = links == 1
        else:
            for i in range(prefix):
                needed |= work.visited[i] == u and work.visited[i + 1] == v
            if not needed and v <= goal and follow[u] == v:
                needed = not reroute(out, into, sets, follow, u, v, start, goal, words)
        if not needed:
            remove_edge(out, into, u, v)
            edges -= 1
            source[left], target[left] = source[edges], target[edges]
    return edges


@helper
def propose_balanced_trace(work, most_vertices, most_edges, backtrack, with_prefix, words):
    """Exact backtrack distance: returns the proposal and the trace's length."""
    rng, out, into, sets, visited = work.rng, work.out, work.into, work.sets, work.visited
    low = min(max(3, backtrack + 2), most_vertices)
    n = low + below(rng, min(most_vertices, most_edges + 1) - low + 1)
    draw_parent_counts(rng, work.pending, n, 4 * n)
    edges = draw_parents(work, 0, n, 0, words)
    behind = n - backtrack
    start = -1
    if backtrack > 0:
        for w in range(len(words)):
            sets[POOL, w] = into[behind, w]
        drop(sets, POOL, behind - 1)
        start = pick(rng, sets, POOL, words)
    if start < 0:
        start = below(rng, behind - 1)
    goal = start + 1 + below(rng, behind - 1 - start)

    clear(sets, FRONTIER, words)
    put(sets, FRONTIER, start)
    for v in range(behind, n):
        put(sets, FRONTIER, v)
    for v in range(behind, n):
        links = ZERO
        for w in range(len(words)):
            links |= into[v, w] & sets[FRONTIER, w]
        if links == ZERO:
            add_edge(out, into, start, v)
            work.source[edges], work.target[edges] = start, v
            edges += 1
    coreach(into, sets, goal, words)
    if not has(sets, COREACH, start):
        add_edge(out, into, start, goal)
        work.source[edges], work.target[edges] = start, goal
        edges += 1
        coreach(into, sets, goal, words)

    prefix = 0
    if with_prefix != 0:
        met = 0
        v = start
        while not is_empty(into, v, words):
            v = pick(rng, into, v, words)
            work.stack[met] = v
            met += 1
        prefix = below(rng, met + 1)
        for i in range(prefix):
            visited[i] = work.stack[prefix - 1 - i]
    visited[prefix] = start
    if edges > most_edges:
        edges = _trim(work, edges, most_edges, behind, start, goal, prefix, words)

    drop(sets, FRONTIER, start)
    length = _search(work, prefix + 1, -1, words)
    if edges > most_edges or length != prefix + 1 + backtrack:
        return REJECTED, 0
    return (n, edges, visited[0], goal), length


@helper
def turning_point(work, length, words):
    """How many places before the end the most recently visited vertex with unvisited children stands; POOL becomes
    those children. -1 if there is none. Writes REACHED."""
    out, sets, visited = work.out, work.sets, work.visited
    clear(sets, REACHED, words)
    for i in range(length):
        put(sets, REACHED, visited[i])
    for back in range(length):
        v = visited[length - 1 - back]
        for w in range(len(words)):
            sets[POOL, w] = out[v, w] & ~sets[REACHED, w]
        if not is_empty(sets, POOL, words):
            return back
    return -1


@helper
def write_trace(work, length, slots, padding):
    """Put the trace into its slots; `region` has one leading filler and then the slots."""
    rng, region, visited = work.rng, work.region, work.visited
    filler = slots - length
    slot = slots
    for i in range(length - 1, -1, -1):
        if padding != 0:
            skip = below(rng, filler + 1)
            filler -= skip
            for _ in range(skip):
                region[slot] = 0
                slot -= 1
        region[slot] = visited[i] + 1
        slot -= 1
    while slot >= 0:
        region[slot] = 0
        slot -= 1
