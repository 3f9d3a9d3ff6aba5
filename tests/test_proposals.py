"""Proposals of the kernels, before anything is rejected, against their exact probabilities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import permutations, product

import numpy as np
import pytest
from samples import (
    LEAST,
    ONE_WORD,
    PARENTS,
    Edge,
    capped,
    goodness,
    graph_probabilities,
    uniformity,
)

from pathmerge.kernels.compile import kernel
from pathmerge.kernels.graph import add_edge, clear
from pathmerge.kernels.random import set_index, set_stream
from pathmerge.kernels.search import _attach, draw_chains, draw_ends, draw_parent_counts, draw_parents
from pathmerge.kernels.workspace import make_workspace


@kernel
def draw_graphs(work, words, seed, n, limit, totals, counts, parents):
    """Naive graphs of n vertices; `parents[row, v]` as a bit mask, all 0 if there were more than `limit` edges."""
    rng = work.rng
    set_stream(rng, seed, 0, 0)
    for row in range(totals.shape[0]):
        set_index(rng, row, 0)
        totals[row] = draw_parent_counts(rng, work.pending, n, limit)
        if totals[row] <= limit:
            draw_parents(work, 0, n, 0, words)
            for v in range(1, n):
                counts[row, v] = work.pending[v]
                parents[row, v] = work.into[v, 0]


@kernel
def draw_many_ends(work, seed, low, high, ends):
    set_stream(work.rng, seed, 0, 0)
    for row in range(ends.shape[0]):
        set_index(work.rng, row, 0)
        ends[row, 0], ends[row, 1], ends[row, 2] = draw_ends(work.rng, low, high)


@kernel
def draw_many_chains(work, words, seed, most, length, incoming, sizes, edges):
    set_stream(work.rng, seed, 0, 0)
    for row in range(sizes.shape[0]):
        set_index(work.rng, row, 0)
        sizes[row, 0], sizes[row, 1], sizes[row, 2], sizes[row, 3] = draw_chains(work, most, length, incoming, words)
        for e in range(sizes[row, 1] - 1):
            edges[row, e, 0] = work.source[e]
            edges[row, e, 1] = work.target[e]


@kernel
def attach_many(work, words, seed, source, target, new, masks):
    """Link vertex `new` to a given graph, again and again; its children and parents as bit masks."""
    set_stream(work.rng, seed, 0, 0)
    for row in range(masks.shape[0]):
        set_index(work.rng, row, 0)
        for v in range(new + 1):
            clear(work.out, v, words)
            clear(work.into, v, words)
        for e in range(source.shape[0]):
            add_edge(work.out, work.into, source[e], target[e])
            work.source[e] = source[e]
            work.target[e] = target[e]
        edges = _attach(work, new, source.shape[0], words)
        masks[row, 0] = work.out[new, 0]
        masks[row, 1] = work.into[new, 0]
        masks[row, 2] = edges


def some_graphs(n: int, limit: int, draws: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    totals, counts = np.zeros(draws, np.int64), np.zeros((draws, n), np.int64)
    parents = np.zeros((draws, n), np.uint64)
    draw_graphs(make_workspace(n, 1), ONE_WORD, np.uint64(11), n, limit, totals, counts, parents)
    return totals, counts, parents


def test_numbers_of_parents():
    """Vertex i takes min(k, i-1) parents; three bits of one draw for each must not make neighbours depend."""
    _, counts, _ = some_graphs(24, 10**6, 20_000)
    for v in range(2, 24):
        assert goodness(Counter(counts[:, v].tolist()), capped(PARENTS, v)) > LEAST, v
    for v in range(2, 23):
        pairs = Counter(zip(counts[:, v].tolist(), counts[:, v + 1].tolist(), strict=True))
        exact = product(capped(PARENTS, v).items(), capped(PARENTS, v + 1).items())
        assert goodness(pairs, {(j, k): p * q for (j, p), (k, q) in exact}) > LEAST, v


def test_total_of_parents_and_its_limit():
    totals, counts, _ = some_graphs(12, 10**6, 50_000)
    exact: dict[int, Fraction] = {1: Fraction(1)}
    for v in range(2, 12):
        sums: dict[int, Fraction] = {}
        for (total, p), (k, q) in product(exact.items(), capped(PARENTS, v).items()):
            sums[total + k] = sums.get(total + k, Fraction(0)) + p * q
        exact = sums
    assert (totals == counts.sum(axis=1)).all()
    assert goodness(Counter(totals.tolist()), exact) > LEAST
    limited, _, _ = some_graphs(12, 17, 50_000)
    assert ((limited > 17) == (totals > 17)).all()
    assert (limited[totals <= 17] == totals[totals <= 17]).all()


def test_parents_are_drawn_uniformly():
    _, _, parents = some_graphs(5, 10**6, 200_000)
    assert goodness(Counter(map(tuple, parents[:, 1:].tolist())), graph_probabilities(5)) > LEAST


@pytest.mark.parametrize(("low", "high"), [(3, 3), (3, 7), (2, 2), (3, 20)])
def test_ends_are_drawn_uniformly(low: int, high: int):
    ends = np.zeros((100_000, 3), np.int64)
    draw_many_ends(make_workspace(high, 1), np.uint64(12), low, high, ends)
    if low < high:
        assert uniformity(ends[:, 0], range(low, high + 1)) > LEAST
    for n in {low, (low + high) // 2, high}:
        pairs = [(s, g) for m, s, g in ends.tolist() if m == n]
        assert uniformity(pairs, permutations(range(n), 2)) > LEAST, n


def chain_probabilities(
    most: int, length: int, incoming: bool, surplus: int = 6
) -> dict[tuple[int, int, tuple[int, ...], int], Fraction]:
    """Balanced(L) before leftover vertices: (n, B, lengths of the further chains, incoming edges)."""
    exact: dict[tuple[int, int, tuple[int, ...], int], Fraction] = {}
    further = range(1, (most - 1) // length)
    for b, u in product(further, range(surplus + 1)):
        base = length * (b + 1) + 1
        n = min(base + u, most)
        chains: dict[tuple[int, ...], Fraction] = {(): Fraction(1, len(further) * (surplus + 1))}
        for _ in range(b):
            longer: dict[tuple[int, ...], Fraction] = {}
            for lengths, p in chains.items():
                used = sum(lengths) - length * len(lengths)
                options = (length, length + 1) if used < n - base else (length,)
                longer |= {(*lengths, option): p / len(options) for option in options}
            chains = longer
        for lengths, p in chains.items():
            spare = n - base - (sum(lengths) - length * b)
            behind = range(spare + 1) if incoming else range(1)
            for c in behind:
                key = (n, b, lengths, c)
                exact[key] = exact.get(key, Fraction(0)) + p / len(behind)
    return exact


def chains_in(edges: Sequence[Edge], length: int) -> tuple[tuple[int, ...], int]:
    """Lengths of the further chains and of the incoming one; vertex 0 is start, vertex `length` the goal."""
    after = {u: v for u, v in edges if u != 0}
    starts = [v for u, v in edges if u == 0]
    lengths: list[int] = []
    for v in starts:
        steps = 1
        while v in after:
            v = after[v]
            steps += 1
        if v == length:
            assert steps == length, "the main chain has exactly L edges"
        else:
            lengths.append(steps)
    before = {v: u for u, v in edges}
    behind, v = 0, 0
    while v in before:
        v = before[v]
        behind += 1
    assert sum(lengths) + length + behind == len(edges), "every edge belongs to a chain"
    return tuple(lengths), behind


@cache
def some_chains(most: int, length: int, incoming: bool, draws: int) -> Counter[tuple[int, int, tuple[int, ...], int]]:
    sizes, edges = np.zeros((draws, 4), np.int64), np.zeros((draws, most, 2), np.int64)
    work = make_workspace(most, 1)
    draw_many_chains(work, ONE_WORD, np.uint64(13), most, length, int(incoming), sizes, edges)
    found: Counter[tuple[int, int, tuple[int, ...], int]] = Counter()
    for (n, top, branches, behind), slots in zip(sizes.tolist(), edges.tolist(), strict=True):
        lengths, incoming_edges = chains_in([(u, v) for u, v in slots[: top - 1]], length)
        assert (len(lengths), incoming_edges) == (branches, behind)
        found[n, branches, lengths, behind] += 1
    return found


@pytest.mark.parametrize("incoming", [True, False], ids=["incoming", "no-incoming"])
@pytest.mark.parametrize(("most", "length"), [(3, 1), (7, 1), (9, 4), (10, 2), (14, 3), (41, 10)])
def test_chains_of_balanced_graphs(most: int, length: int, incoming: bool):
    found = some_chains(most, length, incoming, 10_000)
    exact = chain_probabilities(most, length, incoming)
    if len(exact) == 1:
        assert set(found) == set(exact)
    else:
        assert goodness(found, exact) > LEAST


def drawn_sets(weight: Mapping[int, int], count: int) -> dict[frozenset[int], Fraction]:
    """Draws one after the other without replacement, each by weight: the probability of each set."""
    found: dict[frozenset[int], Fraction] = {}
    for order in permutations(weight, min(count, len(weight))):
        p, left = Fraction(1), sum(weight.values())
        for v in order:
            p *= Fraction(weight[v], left)
            left -= weight[v]
        found[frozenset(order)] = found.get(frozenset(order), Fraction(0)) + p
    return found


def attachment_probabilities(edges: Sequence[Edge], new: int, extra: int = 1) -> dict[tuple[int, int], Fraction]:
    """Children and parents of a leftover vertex as bit masks; weights are extra + 2·degree for extra/2 + degree."""
    exact: dict[tuple[int, int], Fraction] = {}
    into = {v: extra + 2 * sum(w == v for _, w in edges) for v in range(new)}
    out = {v: extra + 2 * sum(u == v for u, _ in edges) for v in range(new)}
    for a in range(4):
        parent_numbers = range(1 if a == 0 else 0, 4)
        for (children, p), b in product(drawn_sets(into, a).items(), parent_numbers):
            below = set(children)
            while more := {v for u, v in edges if u in below} - below:
                below |= more
            free = {v: weight for v, weight in out.items() if v not in below}
            for parents, q in drawn_sets(free, b).items():
                key = sum(1 << v for v in children), sum(1 << v for v in parents)
                exact[key] = exact.get(key, Fraction(0)) + p * q / 4 / len(parent_numbers)
    return exact


ATTACH_EDGES: tuple[Edge, ...] = ((0, 1), (1, 2), (0, 3), (3, 4), (2, 4))


@cache
def some_attachments(edges: tuple[Edge, ...], new: int) -> Counter[tuple[int, int]]:
    masks = np.zeros((100_000, 3), np.int64)
    source, target = (np.array(ends) for ends in zip(*edges, strict=True))
    attach_many(make_workspace(12, 1), ONE_WORD, np.uint64(14), source, target, new, masks)
    degree = np.bitwise_count(masks[:, :2]).sum(axis=1)
    assert (masks[:, 2] == len(edges) + degree).all()
    return Counter(zip(masks[:, 0].tolist(), masks[:, 1].tolist(), strict=True))


@pytest.mark.parametrize(
    ("edges", "new"), [(ATTACH_EDGES, 5), (((0, 1), (0, 2)), 3)], ids=["five-vertices", "three-vertices"]
)
def test_links_of_leftover_vertices(edges: tuple[Edge, ...], new: int):
    assert goodness(some_attachments(edges, new), attachment_probabilities(edges, new)) > LEAST


def test_controls_proposals():
    """Other numbers of parents and vertices (the published code's, SPEC section 8) or weights are noticed."""
    _, counts, _ = some_graphs(24, 10**6, 20_000)
    other = {1: Fraction(2, 3), 2: Fraction(1, 9), 3: Fraction(1, 9), 4: Fraction(1, 9)}
    assert goodness(Counter(counts[:, 20].tolist()), other) < LEAST
    assert goodness(some_chains(41, 10, True, 10_000), chain_probabilities(41, 10, True, surplus=5)) < LEAST
    assert goodness(some_chains(41, 10, True, 10_000), chain_probabilities(41, 10, True, surplus=7)) < LEAST
    assert goodness(some_chains(41, 10, False, 10_000), chain_probabilities(41, 10, True)) < LEAST
    assert goodness(some_attachments(ATTACH_EDGES, 5), attachment_probabilities(ATTACH_EDGES, 5, extra=2)) < LEAST
