"""Proposals for selection-inference; the numbered steps are those of docs/problems.md.

The visited edges are `origin[i] -> visited[i]`. FRONTIER and REACHED are the frontier and the visited vertices.
"""

from __future__ import annotations

from pathmerge.kernels.compile import count_ones, helper, inline
from pathmerge.kernels.graph import (
    COREACH,
    FRONTIER,
    POOL,
    REACHED,
    VISITED,
    ZERO,
    add_edge,
    clear,
    close,
    coreach,
    drop,
    has,
    keep_range,
    nth,
    pick,
    pop,
    put,
    remove_edge,
    reroute,
    size,
    trace_path,
)
from pathmerge.kernels.random import below
from pathmerge.kernels.search import REJECTED


@inline
def _unvisited_children(out, sets, v, words):
    total = 0
    for w in range(len(words)):
        total += count_ones(out[v, w] & ~sets[REACHED, w])
    return total


@helper
def _place(work, length, source, target):
    """Insert a visited edge at a random place after the edge that reached its source and before any out of its target.

    Returns the new length, or -1 if there is no such place.
    """
    origin, visited = work.origin, work.visited
    low = 0
    high = length
    for i in range(length):
        if visited[i] == source:
            low = i + 1
        if origin[i] == target and i < high:
            high = i
    if low > high:
        return -1
    place = low + below(work.rng, high - low + 1)
    for i in range(length, place, -1):
        origin[i] = origin[i - 1]
        visited[i] = visited[i - 1]
    origin[place] = source
    visited[place] = target
    return length + 1


@helper
def _draw_initial_edges(work, n, current, branch, limit, words):
    """Step 2. A ticket is the vertex itself or one per edge out of it: weight 1 + out-degree."""
    rng, out, into, source, target = work.rng, work.out, work.into, work.source, work.target
    edges = 0
    degree = 0
    for v in range(n):
        clear(out, v, words)
        clear(into, v, words)
    for v in range(n):
        full = degree == branch and current < v
        wanted = min(below(rng, min(v, limit) + 1), v - 1 if full else v)
        known = edges
        for _ in range(wanted):
            while True:
                ticket = below(rng, v + known)
                u = ticket if ticket < v else source[ticket - v]
                if not (has(into, v, u) or (full and u == current)):
                    break
            add_edge(out, into, u, v)
            source[edges] = u
            target[edges] = v
            edges += 1
            if u == current:
                degree += 1
    return edges


@helper
def _reach_frontier(work, n, start, current, branch, words):
    """Step 3: make every frontier vertex visited. Returns (visited edges, edges added), -1 if impossible."""
    rng, out, into, sets = work.rng, work.out, work.into, work.sets
    length = 0
    added = 0
    for f in range(start + 1, n):
        if not has(sets, FRONTIER, f):
            continue
        clear(sets, POOL, words)
        put(sets, POOL, f)
        close(into, sets, POOL, words)
        for w in range(len(words)):
            sets[POOL, w] &= sets[REACHED, w]
        full = size(out, current, words) >= branch
        if full and not has(into, f, current):
            drop(sets, POOL, current)
        a = pick(rng, sets, POOL, words)
        if a >= 0:
            if not has(into, f, a):
                remove_edge(out, into, pick(rng, into, f, words), f)
                add_edge(out, into, a, f)
        else:
            for w in range(len(words)):
                sets[POOL, w] = sets[REACHED, w]
            keep_range(sets, POOL, 0, f, words)
            if full:
                drop(sets, POOL, current)
            a = pick(rng, sets, POOL, words)
            if a < 0:
                return -1, 0
            add_edge(out, into, a, f)
            added += 1
        length = _place(work, length, a, f)
        put(sets, REACHED, f)
    return length, added


@helper
def _link(work, u, v, words):
    """Give v the parent u in place of a random unvisited parent, or besides the others if it has none; 1 if added."""
    out, into, sets = work.out, work.into, work.sets
    for w in range(len(words)):
        sets[VISITED, w] = into[v, w] & ~sets[REACHED, w]
    p = pick(work.rng, sets, VISITED, words)
    if p >= 0:
        remove_edge(out, into, p, v)
    add_edge(out, into, u, v)
    return 0 if p >= 0 else 1


@helper
def _give_frontier_children(work, n, current, branch, words):
    """Step 4: every frontier vertex gets an unvisited child. Returns the edges added, -1 if impossible."""
    rng, out, sets = work.rng, work.out, work.sets
    added = 0
    for f in range(n):
        if not has(sets, FRONTIER, f) or _unvisited_children(out, sets, f, words) > 0:
            continue
        if f == current and size(out, current, words) >= branch:
            return -1
        for w in range(len(words)):
            sets[POOL, w] = ~sets[REACHED, w]
        keep_range(sets, POOL, f + 1, n, words)
        v = pick(rng, sets, POOL, words)
        if v < 0:
            return -1
        added += _link(work, f, v, words)
    return added


@helper
def _fill_branch(work, n, current, branch, wanted, length, words):
    """Steps 5 and 6: the current vertex gets exactly `branch` children. Returns the edges added, -1 if impossible."""
    rng, out, into, sets, origin, visited = work.rng, work.out, work.into, work.sets, work.origin, work.visited
    added = 0
    degree = size(out, current, words)
    shared = 0
    for i in range(length):
        if origin[i] == current:
            shared += 1
    while shared < wanted:
        for w in range(len(words)):
            sets[POOL, w] = sets[FRONTIER, w] & (out[current, w] if degree >= branch else ~ZERO)
        keep_range(sets, POOL, current + 1, n, words)
        for i in range(length):
            if origin[i] == current:
                drop(sets, POOL, visited[i])
        f = pick(rng, sets, POOL, words)
        if f < 0:
            break
        if not has(out, current, f):
            add_edge(out, into, current, f)
            added += 1
            degree += 1
        shared += 1
        at = 0
        while visited[at] != f:
            at += 1
        for i in range(at, length - 1):
            origin[i] = origin[i + 1]
            visited[i] = visited[i + 1]
        if _place(work, length - 1, current, f) < 0:
            return -1
    while degree < branch:
        for w in range(len(words)):
            sets[POOL, w] = ~(sets[FRONTIER, w] | out[current, w])
        keep_range(sets, POOL, current + 1, n, words)
        v = pick(rng, sets, POOL, words)
        if v < 0:
            return -1
        added += _link(work, current, v, words)
        degree += 1
    return added


@helper
def _list_edges(work, n, words):
    """Write the edge list anew from the bit sets; returns its length."""
    sets = work.sets
    edges = 0
    for u in range(n):
        for w in range(len(words)):
            sets[POOL, w] = work.out[u, w]
        while True:
            v = pop(sets, POOL, words)
            if v < 0:
                break
            work.source[edges] = u
            work.target[edges] = v
            edges += 1
    return edges


@helper
def _trim(work, edges, remove, start, goal, current, length, words):
    """Step 8: remove random superfluous edges; COREACH is the goal's. Returns how many edges are left.

    Once needed, an edge stays needed, so one pass in random order is the same as drawing among the superfluous ones.
    """
    rng, out, into, sets, source, target = work.rng, work.out, work.into, work.sets, work.source, work.target
    follow, came_from = work.pending, work.stack
    for i in range(length):
        came_from[work.visited[i]] = work.origin[i]
    came_from[start] = -1
    trace_path(out, sets, follow, start, goal, words)
    left = edges
    while remove > 0 and left > 0:
        e = below(rng, left)
        left -= 1
        u, v = source[e], target[e]
        source[e], target[e] = source[left], target[left]
        source[left], target[left] = u, v
        if u == current:
            continue
        if has(sets, REACHED, v):
            if came_from[v] == u:
                continue
        elif has(sets, FRONTIER, u) and _unvisited_children(out, sets, u, words) == 1:
            continue
        if v <= goal and follow[u] == v and not reroute(out, into, sets, follow, u, v, start, goal, words):
            continue
        remove_edge(out, into, u, v)
        remove -= 1
        edges -= 1
        source[left], target[left] = source[edges], target[edges]
    return edges


@helper
def _visit_more(work, goal, most, length, words):
    """Step 9: follow further edges without changing the frontier. Returns the number of visited edges."""
    rng, out, into, sets, origin, visited = work.rng, work.out, work.into, work.sets, work.origin, work.visited
    weight = (length + most) * (most - length + 1) // 2
    wanted = length
    if weight > 0:
        ticket = below(rng, weight)
        while ticket >= wanted:
            ticket -= wanted
            wanted += 1
    while length < wanted:
        # Only frontier vertices lead on. COREACH and VISITED are no longer needed: COREACH becomes the vertices that
        # may be visited next, VISITED those that are some frontier vertex's last unvisited child.
        for w in range(len(words)):
            sets[POOL, w] = sets[FRONTIER, w]
            sets[COREACH, w] = ZERO
            sets[VISITED, w] = ZERO
        while True:
            u = pop(sets, POOL, words)
            if u < 0:
                break
            last = _unvisited_children(out, sets, u, words) == 1
            for w in range(len(words)):
                sets[COREACH, w] |= out[u, w]
                sets[VISITED, w] |= out[u, w] if last else ZERO
        drop(sets, COREACH, goal)
        for w in range(len(words)):
            sets[COREACH, w] &= ~(sets[REACHED, w] | sets[VISITED, w])
            sets[POOL, w] = sets[COREACH, w]
        edges = 0
        while True:
            v = pop(sets, POOL, words)
            if v < 0:
                break
            if _unvisited_children(out, sets, v, words) > 0:
                drop(sets, COREACH, v)
            else:
                for w in range(len(words)):
                    edges += count_ones(into[v, w] & sets[REACHED, w])
        if edges == 0:
            break
        ticket = below(rng, edges)
        while True:
            v = pop(sets, COREACH, words)
            for w in range(len(words)):
                sets[POOL, w] = into[v, w] & sets[REACHED, w]
            parents = size(sets, POOL, words)
            if ticket < parents:
                break
            ticket -= parents
        origin[length] = nth(sets, POOL, ticket, words)
        visited[length] = v
        put(sets, REACHED, v)
        length += 1
    return length


@helper
def propose_selection_inference(work, input_size, most_edges, frontier, branch, words):
    """One attempt: returns the proposal, the number of visited edges and the current vertex."""
    rng, out, into, sets = work.rng, work.out, work.into, work.sets
    low = max(frontier, branch) + 1
    n = low + below(rng, max(low, most_edges - frontier + 1) - low + 1)
    current = below(rng, n - branch)
    start = below(rng, min(current + 1, n - frontier))
    first_goal = max(current + 1, start + frontier)
    if first_goal >= n or (frontier == 1 and start != current):
        return REJECTED, 0, 0
    goal = first_goal + below(rng, n - first_goal)

    clear(sets, FRONTIER, words)
    clear(sets, REACHED, words)
    put(sets, REACHED, start)
    put(sets, FRONTIER, start)
    put(sets, FRONTIER, current)
    for w in range(len(words)):
        sets[POOL, w] = ~ZERO
    keep_range(sets, POOL, start + 1, n, words)
    drop(sets, POOL, current)
    drop(sets, POOL, goal)
    missing = frontier - (1 if start == current else 2)
    if size(sets, POOL, words) < missing:
        return REJECTED, 0, 0

    for _ in range(missing):
        for w in range(len(words)):
            sets[POOL, w] &= ~sets[FRONTIER, w]
        put(sets, FRONTIER, pick(rng, sets, POOL, words))
    if has(sets, FRONTIER, n - 1):
        return REJECTED, 0, 0  # step 4 would have no child for it
    _draw_initial_edges(work, n, current, branch, input_size // 24 + 1, words)
    length, added = _reach_frontier(work, n, start, current, branch, words)
    if length < 0 or length > most_edges - 1:
        return REJECTED, 0, 0
    more = _give_frontier_children(work, n, current, branch, words)
    if more < 0:
        return REJECTED, 0, 0
    added += more
    more = _fill_branch(work, n, current, branch, max(0, 2 * frontier + branch - most_edges), length, words)
    if more < 0:
        return REJECTED, 0, 0
    added += more
    coreach(into, sets, goal, words)
    if not has(sets, COREACH, start):
        clear(sets, POOL, words)
        put(sets, POOL, start)
        close(out, sets, POOL, words)
        keep_range(sets, POOL, 0, goal, words)
        if size(out, current, words) >= branch:
            drop(sets, POOL, current)
        u = pick(rng, sets, POOL, words)
        if u < 0:
            return REJECTED, 0, 0
        add_edge(out, into, u, goal)
        added += 1
        coreach(into, sets, goal, words)

    edges = _list_edges(work, n, words)
    edges = _trim(work, edges, edges - most_edges if edges > most_edges else added, start, goal, current, length, words)
    if edges > most_edges:
        return REJECTED, 0, 0
    length = _visit_more(work, goal, most_edges - 1, length, words)
    open_vertices = 0
    for v in range(n):
        if has(sets, REACHED, v) and _unvisited_children(out, sets, v, words) > 0:
            open_vertices += 1
    if open_vertices != frontier or size(out, current, words) != branch:
        return REJECTED, 0, 0
    return (n, edges, start, goal), length, current


@helper
def write_visited(work, length, current, width, inference):
    """Fill the region from the right: the current vertex in an inference step, then each visited edge and PATH."""
    region = work.region
    for i in range(width):
        region[i] = 0
    at = width - 1
    if inference != 0:
        region[at] = current + 1
        at -= 1
    for i in range(length - 1, -1, -1):
        region[at - 1] = work.visited[i] + 1
        region[at - 2] = work.origin[i] + 1
        at -= 3


@helper
def answers(work, n, current, inference, words):
    """Set POOL to the answers of a selection or an inference step."""
    out, sets = work.out, work.sets
    for w in range(len(words)):
        sets[POOL, w] = out[current, w] & ~sets[REACHED, w] if inference != 0 else ZERO
    if inference == 0:
        for v in range(n):
            if has(sets, REACHED, v) and _unvisited_children(out, sets, v, words) > 0:
                put(sets, POOL, v)
