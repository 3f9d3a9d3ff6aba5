"""Proposals for the search task: naive, balanced, star (SPEC section 2, docs/problems.md).

A proposal returns (vertices, edges, start, goal), vertices = 0 for a rejected attempt. What can reject is drawn first,
so that a rejected attempt costs little: acceptance of naive is about one in ten.
"""

from __future__ import annotations

import numpy as np

from pathmerge.kernels.compile import helper
from pathmerge.kernels.graph import COREACH, POOL, add_edge, clear, close, coreach, has, lookahead, put, size
from pathmerge.kernels.random import below, draw16

REJECTED = (0, 0, 0, 0)
INCOMING, TANGLED = 1, 2
"""What balanced graphs may or must have, as bits: a chain that leads into start; a vertex with two parents."""
_THREE_BITS = np.uint64(7)
_SHIFT = np.uint64(3)


@helper
def draw_parent_counts(rng, pending, n, limit):
    """How many parents vertices 1..n-1 take, into `pending`: 1 with 5/8, else 2, 3, 4; returns their sum.

    Five vertices share one 16-bit draw, three bits each. Stops early once the sum is over `limit`.
    """
    total = 0
    for block in range(1, n, 5):
        bits = draw16(rng)
        for i in range(block, min(block + 5, n)):
            count = min(max(1, np.int64(bits & _THREE_BITS) - 3), i)
            bits >>= _SHIFT
            pending[i] = count
            total += count
        if total > limit:
            break
    return total


@helper
def draw_parents(work, first, last, edges, words):
    """Give vertices first..last-1 their parents, `pending` many, uniformly without replacement among those before."""
    rng, out, into, source, target = work.rng, work.out, work.into, work.source, work.target
    for v in range(first, last):
        clear(out, v, words)
        clear(into, v, words)
        if v == 0:
            continue
        for _ in range(work.pending[v]):
            u = below(rng, v)
            while has(into, v, u):
                u = below(rng, v)
            add_edge(out, into, u, v)
            source[edges] = u
            target[edges] = v
            edges += 1
    return edges


@helper
def draw_ends(rng, low, high):
    """The number of vertices, low..high, and a uniform pair of distinct vertices."""
    n = low + below(rng, high - low + 1)
    start = below(rng, n)
    goal = below(rng, n - 1)
    return n, start, goal + 1 if goal >= start else goal


@helper
def propose_naive(work, low, high, limit, words):
    """A naive graph of low..high vertices and at most `limit` edges, with COREACH set for its goal."""
    rng = work.rng
    n, start, goal = draw_ends(rng, low, high)
    if goal < start or draw_parent_counts(rng, work.pending, n, limit) > limit:
        return REJECTED
    edges = draw_parents(work, 0, goal + 1, 0, words)
    coreach(work.into, work.sets, goal, words)
    if not has(work.sets, COREACH, start):
        return REJECTED
    edges = draw_parents(work, goal + 1, n, edges, words)
    return n, edges, start, goal


@helper
def propose_star(work, spokes, length, words):
    out, into = work.out, work.into
    n = spokes * length + 1
    edges = 0
    clear(out, 0, words)
    clear(into, 0, words)
    for v in range(1, n):
        clear(out, v, words)
        clear(into, v, words)
        u = 0 if v % length == 1 or length == 1 else v - 1
        add_edge(out, into, u, v)
        work.source[edges] = u
        work.target[edges] = v
        edges += 1
    coreach(into, work.sets, length, words)
    return n, edges, 0, length


@helper
def draw_chains(work, most, length, option, words):
    """The chains of balanced(L): start is vertex 0, the goal vertex L, then the further chains and the incoming one.

    Returns (vertices in all, vertices so far, further chains, incoming edges); there is one edge less than vertices.
    """
    rng, out, into, source, target = work.rng, work.out, work.into, work.source, work.target
    branches = 1 + below(rng, (most - 1) // length - 1)
    base = length * (branches + 1) + 1
    n = min(base + below(rng, 7), most)
    spare = n - base
    for v in range(n):
        clear(out, v, words)
        clear(into, v, words)
    top = 1
    for chain in range(branches + 1):
        steps = length
        if chain > 0 and spare > 0 and below(rng, 2) == 1:
            steps += 1
            spare -= 1
        u = 0
        for _ in range(steps):
            add_edge(out, into, u, top)
            source[top - 1] = u
            target[top - 1] = top
            u = top
            top += 1
    behind = below(rng, spare + 1) if option & INCOMING and spare > 0 else 0
    v = 0
    for _ in range(behind):
        add_edge(out, into, top, v)
        source[top - 1] = top
        target[top - 1] = v
        v = top
        top += 1
    return n, top, branches, behind


@helper
def propose_balanced(work, most, length, option, words):
    """One attempt at balanced(L)."""
    sets = work.sets
    n, top, _, _ = draw_chains(work, most, length, option, words)
    edges = top - 1
    while top < n:
        edges = _attach(work, top, edges, words)
        top += 1
        if edges > most:
            return REJECTED
    if option & TANGLED and not _meets(work.into, n, words):
        return REJECTED
    coreach(work.into, sets, length, words)
    if lookahead(work.out, sets, 0, length, words) != length:
        return REJECTED
    return n, edges, 0, length


@helper
def _meets(into, n, words):
    """Whether a vertex has two parents."""
    v = 0
    while v < n and size(into, v, words) < 2:
        v += 1
    return v < n


@helper
def _attach(work, new, edges, words):
    """Link a left-over vertex to those before it, preferring high degrees.

    Weight 1/2 + degree is 1 + 2·degree: a ticket is either the vertex itself or one of two per edge at it.
    """
    rng, out, into, sets, source, target = work.rng, work.out, work.into, work.sets, work.source, work.target
    children = below(rng, 4)
    parents = below(rng, 4) if children > 0 else 1 + below(rng, 3)
    known = edges
    for _ in range(min(children, new)):
        while True:
            ticket = below(rng, new + 2 * known)
            child = ticket if ticket < new else target[(ticket - new) >> 1]
            if not has(out, new, child):
                break
        add_edge(out, into, new, child)
        source[edges] = new
        target[edges] = child
        edges += 1
    if parents == 0:
        return edges
    clear(sets, POOL, words)
    put(sets, POOL, new)
    close(out, sets, POOL, words)
    free = new + 1 - size(sets, POOL, words)
    for _ in range(min(parents, free)):
        while True:
            ticket = below(rng, new + 2 * known)
            parent = ticket if ticket < new else source[(ticket - new) >> 1]
            if not has(sets, POOL, parent):
                break
        put(sets, POOL, parent)
        add_edge(out, into, parent, new)
        source[edges] = parent
        target[edges] = new
        edges += 1
    return edges
