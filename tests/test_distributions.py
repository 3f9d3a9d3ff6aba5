"""Probabilities: proposals against exact ones, emitted examples against the slow generators of `oracles.py`.

All draws have fixed keys, so a run gives the same p-values each time. The threshold LEAST is there for the day the
order of drawing changes and every p-value with it: about a thousand comparisons then stay clear of it with
probability 0.99, while a wrong probability, at these sample sizes, gives far less (see the controls at the end).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
import oracles
import pytest
from scipy.stats import binomtest, chi2_contingency, chisquare, norm

from pathmerge import DFS, Balanced, Naive, Problem, SelectionInference, Star, oracle
from pathmerge.encodings.language import ATOM_COUNT, Language
from pathmerge.encodings.sentences import LanguageBatch
from pathmerge.kernels.compile import kernel
from pathmerge.kernels.graph import add_edge, clear
from pathmerge.kernels.random import set_index, set_stream
from pathmerge.kernels.search import _attach, draw_chains, draw_ends, draw_parent_counts, draw_parents
from pathmerge.kernels.workspace import make_workspace
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import Distribution
from pathmerge.problems.selection_inference import STEPS
from pathmerge.stats import acceptance

LEAST = 1e-5
ONE_WORD = (0,)
Edge = tuple[int, int]
Probabilities = Mapping[Any, Fraction]


# -- chi-square, with rare bins put together ---------------------------------------------------------------------------


def merge_rare(table: np.ndarray, weight: np.ndarray, least: float) -> np.ndarray:
    """Columns of `table` with `weight` below `least` become one, together with the next lightest if still too light."""
    order = np.argsort(weight, kind="stable")
    total = np.cumsum(weight[order])
    rare = int((weight < least).sum())
    if rare:
        rare = max(rare, int(np.searchsorted(total, least)) + 1)
    kept = order[rare:]
    columns = [table[:, order[:rare]].sum(axis=1, keepdims=True)] if rare else []
    return np.concatenate([*columns, table[:, kept]], axis=1)


def goodness(counts: Mapping[Any, int], probabilities: Mapping[Any, Fraction | float]) -> float:
    """p-value of counts against exact probabilities; 0 if something impossible was met."""
    assert abs(float(sum(probabilities.values())) - 1) < 1e-9
    if set(counts) - {value for value, p in probabilities.items() if p > 0}:
        return 0.0
    draws = sum(counts.values())
    table = np.array([[counts.get(v, 0), float(p) * draws] for v, p in probabilities.items() if p > 0]).T
    merged = merge_rare(table, table[1], 5)
    assert merged.shape[1] > 1, "too few draws: only one bin is left"
    result: Any = chisquare(merged[0], merged[1])
    return float(result.pvalue)


def uniformity(values: np.ndarray | Iterable[Hashable], possible: Iterable[Hashable]) -> float:
    """p-value of values against the uniform distribution over all that is possible."""
    bins = list(possible)
    found = Counter(values.tolist() if isinstance(values, np.ndarray) else values)
    return goodness(found, dict.fromkeys(bins, Fraction(1, len(bins))))


def evenness(shares: np.ndarray) -> float:
    """p-value of numbers in [0, 1) against the uniform distribution."""
    return uniformity((shares * 20).astype(np.int64), range(20))


def homogeneity(first: Mapping[Any, int], second: Mapping[Any, int]) -> float:
    """p-value of two samples against one common distribution; 1 if there is only one value that is not rare."""
    values = [*first, *(value for value in second if value not in first)]
    if len(values) == 1:
        return 1.0
    table = np.array([[sample.get(value, 0) for value in values] for sample in (first, second)])
    merged = merge_rare(table, table.sum(axis=0), 10)
    if merged.shape[1] == 1:
        return 1.0
    result: Any = chi2_contingency(merged, correction=False)
    return float(result.pvalue)


# -- problems as the generators emit them, fast and slow ---------------------------------------------------------------


def problems_of(batch: Batch) -> Iterator[Problem]:
    """The problems of a symbolic batch, read off the tokens without judging them."""
    layout = batch.distribution.layout
    regions = batch.tokens[:, -layout.region_width :].tolist()
    rows = zip(batch.edges.tolist(), batch.start.tolist(), batch.goal.tolist(), batch.current.tolist(), strict=True)
    for row, (slots, start, goal, current) in enumerate(rows):
        graph = tuple((u, v) for u, v in slots if u)
        seen = [t for t in regions[row] if t != layout.path]
        if layout.task == "search":
            yield Problem("search", graph, start, goal)
        elif layout.task == "dfs":
            yield Problem("dfs", graph, start, goal, visited=tuple(seen))
        else:
            visited = tuple(zip(seen[0::2], seen[1::2], strict=False))
            yield Problem(STEPS[batch.difficulty[row, 2]], graph, start, goal, visited_edges=visited, current=current)


def draw_slowly(rng: random.Random, distribution: Distribution) -> Problem:
    """One problem of a distribution of one cell, from the slow generator."""
    size = distribution.input_size
    first, second, step = distribution.cells()[0]
    match distribution:
        case Naive():
            drawn = oracles.naive(rng, size)
        case Balanced():
            drawn = oracles.balanced(rng, size, first, distribution.incoming)
        case Star():
            drawn = oracles.star(rng, size, second, first)
        case DFS(mode="naive"):
            drawn = oracles.dfs_naive(rng, size)
        case DFS():
            drawn = oracles.dfs_balanced(rng, size, first, distribution.prefix)
        case SelectionInference():
            drawn = oracles.selection_inference(rng, size, first, second, STEPS[step])
        case _:
            raise AssertionError(f"{distribution}: has no slow generator")
    return drawn.problem


def links(problem: Problem) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Children and parents of each vertex."""
    children: dict[int, list[int]] = {v: [] for v in problem.vertices}
    parents: dict[int, list[int]] = {v: [] for v in problem.vertices}
    for u, v in problem.edges:
        children[u].append(v)
        parents[v].append(u)
    return children, parents


def named_vertices(problem: Problem) -> list[int]:
    """The vertices that the problem tells apart, in a fixed order."""
    current = [] if problem.current is None else [problem.current]
    visited = [*problem.visited, *(v for _, v in problem.visited_edges)]
    return list(dict.fromkeys([problem.start, problem.goal, *visited, *current]))


@cache
def exact_form(problem: Problem) -> Hashable:
    """The same for two problems if and only if they differ in nothing but vertex ids and the order of edges."""
    named = named_vertices(problem)
    others = [v for v in problem.vertices if v not in named]
    graphs: list[tuple[Edge, ...]] = []
    for order in permutations(others):
        number = {v: i for i, v in enumerate([*named, *order])}
        graphs.append(tuple(sorted((number[u], number[v]) for u, v in problem.edges)))
    number = {v: i for i, v in enumerate(named)}
    visited = tuple(number[v] for v in problem.visited)
    visited_edges = tuple((number[u], number[v]) for u, v in problem.visited_edges)
    return min(graphs), visited, visited_edges, number.get(problem.current or 0)


def rough_form(problem: Problem) -> int:
    """The same for problems of the same form, and mostly different for others: colours refined by neighbours."""
    children, parents = links(problem)
    colour = dict.fromkeys(problem.vertices, 0)
    for i, v in enumerate(named_vertices(problem)):
        colour[v] = i + 1
    for _ in range(3):
        colour = {
            v: hash(
                (
                    colour[v],
                    tuple(sorted(colour[u] for u in children[v])),
                    tuple(sorted(colour[u] for u in parents[v])),
                )
            )
            for v in colour
        }
    return hash(tuple(sorted(colour.values())))


def distance(children: Mapping[int, list[int]], start: int, goal: int) -> int:
    level, steps = {start}, 0
    while goal not in level:
        level = {v for u in level for v in children[u]}
        steps += 1
    return steps


def paths_to(children: Mapping[int, list[int]], goal: int) -> dict[int, int]:
    """For each vertex the number of paths to the goal."""
    counts = {goal: 1}

    def count(v: int) -> int:
        if v not in counts:
            counts[v] = sum(map(count, children[v]))
        return counts[v]

    return {v: count(v) for v in children}


def summaries(problem: Problem) -> dict[str, Hashable]:
    """What is compared between fast and slow examples."""
    children, parents = links(problem)
    start, goal = problem.start, problem.goal
    paths = paths_to(children, goal)
    useful = frozenset(v for v in children[start] if paths[v])
    answers = useful if problem.task == "search" else oracle.answers(problem)
    found: dict[str, Hashable] = {
        "vertices": len(children),
        "edges": len(problem.edges),
        "children of start": len(children[start]),
        "parents of start": len(parents[start]),
        "degrees": tuple(sorted((len(parents[v]), len(children[v])) for v in children)),
        "distance": distance(children, start, goal),
        "answers": (len(answers), goal in answers),
        "paths": paths[start],
        "form": rough_form(problem) % 101,  # mixed into bins, as most forms are met only once
    }
    if problem.task == "dfs":
        place = {v: i for i, v in enumerate(problem.visited)}
        found["trace"] = (len(problem.visited), oracle.backtrack(problem))
        found["parents in trace"] = tuple(sorted(place[u] for u in parents[problem.visited[-1]] if u in place))
    elif problem.task != "search":
        place = {v: i for i, v in enumerate([start, *(v for _, v in problem.visited_edges)])}
        found["visited"] = len(problem.visited_edges)
        found["order of visiting"] = tuple(place[u] for u, _ in problem.visited_edges)
        found["current"] = place[problem.current or 0]
        found["edges among the visited"] = sum(u in place and v in place for u, v in problem.edges)
    return found


def compare(distribution: Distribution, fast: int, slow: int, against: Distribution | None = None) -> dict[str, float]:
    """p-value by summary, for `fast` examples of the generator and `slow` ones of the slow generator."""
    rng = random.Random(1)
    ours: dict[str, Counter[Hashable]] = {}
    theirs: dict[str, Counter[Hashable]] = {}
    batch = distribution.sample(fast, seed=1, threads=1)
    for problem in problems_of(batch):
        for name, value in summaries(problem).items():
            ours.setdefault(name, Counter())[value] += 1
    for _ in range(slow):
        for name, value in summaries(draw_slowly(rng, against or distribution)).items():
            theirs.setdefault(name, Counter())[value] += 1
    p_values = {name: homogeneity(ours[name], theirs[name]) for name in ours}
    if isinstance(distribution, Naive):
        lookaheads = Counter(oracle.lookahead(draw_slowly(rng, distribution)) for _ in range(slow))
        p_values["lookahead"] = homogeneity(Counter(batch.lookahead.tolist()), lookaheads)
    return p_values


def below_threshold(p_values: Mapping[str, float]) -> dict[str, float]:
    return {name: p for name, p in p_values.items() if p < LEAST}


def described(distributions: Sequence[Distribution]) -> Any:
    return pytest.mark.parametrize("distribution", distributions, ids=[d.describe() for d in distributions])


# -- 1. proposals, by their exact probabilities ------------------------------------------------------------------------

PARENTS: dict[int, Fraction] = {1: Fraction(5, 8), 2: Fraction(1, 8), 3: Fraction(1, 8), 4: Fraction(1, 8)}


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


def capped(probabilities: Mapping[int, Fraction], most: int) -> dict[int, Fraction]:
    found: dict[int, Fraction] = {}
    for k, p in probabilities.items():
        found[min(k, most)] = found.get(min(k, most), Fraction(0)) + p
    return found


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


def graph_probabilities(n: int) -> dict[tuple[int, ...], Fraction]:
    """Every naive graph of n vertices as the bit masks of the parents of vertices 1.. (numbered from 0)."""
    exact: dict[tuple[int, ...], Fraction] = {(): Fraction(1)}
    for v in range(1, n):
        choices: dict[int, Fraction] = {}
        for k, p in capped(PARENTS, v).items():
            sets = list(combinations(range(v), k))
            for members in sets:
                choices[sum(1 << u for u in members)] = p / len(sets)
        exact = {(*graph, mask): p * q for graph, p in exact.items() for mask, q in choices.items()}
    return exact


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


def some_attachments(edges: Sequence[Edge], new: int) -> Counter[tuple[int, int]]:
    masks = np.zeros((100_000, 3), np.int64)
    source, target = (np.array(ends) for ends in zip(*edges, strict=True))
    attach_many(make_workspace(12, 1), ONE_WORD, np.uint64(14), source, target, new, masks)
    degree = np.bitwise_count(masks[:, :2]).sum(axis=1)
    assert (masks[:, 2] == len(edges) + degree).all()
    return Counter(zip(masks[:, 0].tolist(), masks[:, 1].tolist(), strict=True))


@pytest.mark.parametrize(
    ("edges", "new"), [(ATTACH_EDGES, 5), (((0, 1), (0, 2)), 3)], ids=["five-vertices", "three-vertices"]
)
def test_links_of_leftover_vertices(edges: Sequence[Edge], new: int):
    assert goodness(some_attachments(edges, new), attachment_probabilities(edges, new)) > LEAST


# -- 2. emitted examples -----------------------------------------------------------------------------------------------


def naive_form_probabilities(most: int) -> dict[Hashable, Fraction]:
    """Every naive problem of at most `most` vertices and edges, by its form."""
    weights: dict[Hashable, Fraction] = {}
    for n in range(3, most + 1):
        for graph, p in graph_probabilities(n).items():
            edges = [(u, v) for v, mask in enumerate(graph, start=1) for u in range(n) if mask >> u & 1]
            for start, goal in permutations(range(n), 2):
                reached = {start}
                for u, v in sorted(edges, key=lambda edge: edge[1]):
                    reached |= {v} if u in reached else set()
                if goal in reached and len(edges) <= most:
                    problem = Problem("search", tuple((u + 1, v + 1) for u, v in edges), start + 1, goal + 1)
                    form = exact_form(problem)
                    weights[form] = weights.get(form, Fraction(0)) + p / (most - 2) / (n * (n - 1))
    total = sum(weights.values())
    return {form: weight / total for form, weight in weights.items()}


def forms(problems: Iterable[Problem]) -> Counter[Hashable]:
    return Counter(exact_form(sorted_edges(problem)) for problem in problems)


def sorted_edges(problem: Problem) -> Problem:
    return replace(problem, edges=tuple(sorted(problem.edges)))


@pytest.mark.parametrize("input_size", [14, 17, 20])
def test_naive_forms_have_their_exact_probabilities(input_size: int):
    batch = Naive(input_size=input_size).sample(20_000, seed=2, threads=1)
    exact = naive_form_probabilities((input_size - 5) // 3)
    assert goodness(forms(problems_of(batch)), exact) > LEAST


TINY: Sequence[Distribution] = [
    *(Naive(input_size=n) for n in (14, 17)),
    *(Balanced(input_size=n, lookahead=1, incoming=incoming) for n in (14, 17) for incoming in (True, False)),
    *(Balanced(input_size=20, lookahead=lookahead) for lookahead in (1, 2)),
    *(Star(input_size=17, spokes=k, lookahead=1) for k in (2, 3)),
    *(DFS(input_size=n, mode="naive") for n in (14, 17, 20)),
    *(DFS(input_size=n, backtrack=b, prefix=True) for n, b in ((14, 0), (14, 1), (17, 0), (17, 1), (17, 2))),
    *(DFS(input_size=20, backtrack=b) for b in range(4)),
    *(
        SelectionInference(input_size=20, frontier=f, branch=b, step="selection")
        for f, b in [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]
    ),
    *(
        SelectionInference(input_size=26, frontier=f, branch=b, step="inference")
        for f, b in [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3)]
    ),
]


@described(TINY)
def test_tiny_problems_have_the_slow_generators_distribution(distribution: Distribution):
    """The whole distribution, not a summary of it: problems that differ only in ids and order are one value."""
    rng = random.Random(2)
    fast = forms(problems_of(distribution.sample(6000, seed=2, threads=1)))
    slow = forms(draw_slowly(rng, distribution) for _ in range(1500))
    assert homogeneity(fast, slow) > LEAST


SMALL: Sequence[Distribution] = [
    *(Naive(input_size=n) for n in (20, 26, 32)),
    *(Balanced(input_size=n, lookahead=lookahead) for n, lookahead in ((26, 1), (26, 3), (32, 1), (32, 2), (32, 4))),
    Balanced(input_size=32, lookahead=2, incoming=False),
    Balanced(input_size=44, lookahead=3),
    Star(input_size=32, spokes=2, lookahead=3),
    *(DFS(input_size=n, mode="naive") for n in (26, 32)),
    *(DFS(input_size=n, backtrack=b) for n, b in ((26, 2), (32, 0), (32, 3), (32, 6), (44, 4))),
    *(DFS(input_size=n, backtrack=b, prefix=True) for n, b in ((26, 1), (32, 0), (32, 2), (44, 3))),
    *(
        SelectionInference(input_size=n, frontier=f, branch=b, step="inference")
        for n, f, b in ((32, 1, 1), (32, 3, 3), (32, 2, 4), (50, 2, 3), (50, 4, 2), (50, 4, 5), (74, 3, 4))
    ),
]


@described(SMALL)
def test_small_problems_have_the_slow_generators_distribution(distribution: Distribution):
    assert not below_threshold(compare(distribution, fast=2000, slow=1200))


@pytest.mark.long
@described([*TINY, *SMALL])
def test_small_problems_have_the_slow_generators_distribution_at_length(distribution: Distribution):
    assert not below_threshold(compare(distribution, fast=40_000, slow=20_000))


# -- 3. requested difficulties -----------------------------------------------------------------------------------------


@described(
    [
        *(Balanced(input_size=n) for n in (32, 128, 512)),
        Balanced(input_size=128, max_lookahead=12),
        *(Star(input_size=n) for n in (32, 128)),
        Star(input_size=64, spokes=3),
        *(DFS(input_size=n) for n in (32, 128)),
        DFS(input_size=64, prefix=True, padding="random"),
        *(SelectionInference(input_size=n) for n in (32, 128)),
        SelectionInference(input_size=64, frontier=2),
        Language(input_size=32),
        Language(input_size=32, graph="star"),
    ]
)
def test_difficulties_are_uniform(distribution: Distribution):
    batch = distribution.sample(10_000, seed=3, threads=1)
    assert uniformity(map(tuple, batch.difficulty.tolist()), distribution.cells()) > LEAST


# -- 4. ids ------------------------------------------------------------------------------------------------------------

EVERY_KIND: Sequence[Distribution] = [
    Naive(input_size=32),
    Balanced(input_size=32),
    Balanced(input_size=32, incoming=False, label="vertex"),
    Star(input_size=32),
    DFS(input_size=32, mode="naive"),
    DFS(input_size=32),
    DFS(input_size=32, prefix=True, padding="random"),
    SelectionInference(input_size=32, step="selection"),
    SelectionInference(input_size=32, step="inference"),
]


def one_of(rng: np.random.Generator, allowed: np.ndarray) -> np.ndarray:
    """A random column of each row that allows any."""
    some = allowed[allowed.any(axis=1)]
    return np.where(some, rng.random(some.shape), -1.0).argmax(axis=1)


@described(EVERY_KIND)
def test_ids_say_nothing(distribution: Distribution):
    """Every id plays every role equally often; one vertex per example and role, so that draws are independent."""
    batch = distribution.sample(20_000, seed=4, threads=1)
    most = distribution.layout.max_vertices
    rng = np.random.default_rng(4)
    present = np.zeros((len(batch), most + 1), np.bool_)
    for end in range(2):
        present[np.arange(len(batch))[:, None], batch.edges[:, :, end]] = True
    absent = ~present
    present[:, 0] = absent[:, 0] = False
    other = present & ~batch.answers[:, : most + 1]
    for special in (batch.start, batch.goal, batch.current):
        other[np.arange(len(batch)), special] = False
    roles = {
        "start": batch.start,
        "goal": batch.goal,
        "current": batch.current,
        "label": batch.label,
        "answer": one_of(rng, batch.answers[:, : most + 1]),
        "other": one_of(rng, other),
        "absent": one_of(rng, absent),
    }
    ids = range(1, most + 1)
    p_values = {name: uniformity(found, ids) for name, found in roles.items()}
    pairs = zip(batch.start.tolist(), batch.goal.tolist(), strict=True)
    p_values["start and goal"] = uniformity(pairs, permutations(ids, 2))
    last = batch.edges[:, -1]
    p_values["direction of an edge"] = float(binomtest(int((last[:, 0] < last[:, 1]).sum()), len(batch)).pvalue)
    assert not below_threshold(p_values)


@pytest.mark.parametrize("graph", ["balanced", "naive", "star"])
def test_atoms_say_nothing(graph: str):
    batch = Language(input_size=14, graph=graph).sample(30_000, seed=5, threads=1)  # pyright: ignore[reportArgumentType]
    assert isinstance(batch, LanguageBatch)
    rows = np.arange(len(batch))
    roles = {"start": batch.start, "goal": batch.goal, "label": batch.label, "vertex 1": np.ones_like(batch.label)}
    atoms = {name: batch.atoms[rows, vertex] for name, vertex in roles.items()}
    assert not below_threshold({name: uniformity(found, range(ATOM_COUNT)) for name, found in atoms.items()})
    order = batch.atoms[rows, batch.start] < batch.atoms[rows, batch.goal]
    assert binomtest(int(order.sum()), len(batch)).pvalue > LEAST


# -- 5. edge order -----------------------------------------------------------------------------------------------------


def first_edge_rule(batch: Batch, edges: np.ndarray) -> float:
    """p-value of "the first edge out of start leads to an answer" against the success of a random child."""
    rows = np.arange(len(batch))
    from_start = edges[:, :, 0] == batch.start[:, None]
    right = batch.answers[rows, edges[rows, from_start.argmax(axis=1), 1]]
    chance = batch.answers.sum(axis=1) / from_start.sum(axis=1)
    spread = np.sqrt((chance * (1 - chance)).sum())
    assert spread > 10
    return float(2 * norm.sf(abs(right.sum() - chance.sum()) / spread))


@described(
    [
        Naive(input_size=64),
        *(Balanced(input_size=n) for n in (32, 128)),
        Balanced(input_size=64, lookahead=3, incoming=False),
        *(Star(input_size=n) for n in (32, 128)),
        Star(input_size=32, spokes=2, lookahead=4),
    ]
)
def test_first_edge_out_of_start_is_no_better_than_a_random_child(distribution: Distribution):
    batch = distribution.sample(20_000, seed=6, threads=1)
    assert first_edge_rule(batch, batch.edges) > LEAST


def telling_edge(problem: Problem, label: int) -> Edge | None:
    """The edge whose place would give the answer away, or (selection) the one visited last."""
    if problem.task == "search":
        return problem.start, label
    if problem.task == "dfs":
        return problem.visited[len(problem.visited) - 1 - oracle.backtrack(problem)], label
    if problem.task == "inference":
        return problem.current or 0, label
    return problem.visited_edges[-1] if problem.visited_edges else None


def places(problems: Iterable[Problem], labels: Iterable[int]) -> np.ndarray:
    """Where the telling edge stands among all edges, from 0 to 1, spread evenly over its own place."""
    rng = np.random.default_rng(7)
    found: list[float] = []
    for problem, label in zip(problems, labels, strict=True):
        edge = telling_edge(problem, label)
        if edge is not None:
            found.append((problem.edges.index(edge) + rng.random()) / len(problem.edges))
    return np.array(found)


@described(EVERY_KIND)
def test_place_of_the_telling_edge_is_uniform(distribution: Distribution):
    batch = distribution.sample(5000, seed=7, threads=1)
    assert evenness(places(problems_of(batch), batch.label.tolist())) > LEAST


# -- 6. labels ---------------------------------------------------------------------------------------------------------


def label_p_values(batch: Batch, label: oracle.Label, most: int) -> dict[str, float]:
    """p-values of labels against their problems' exact distributions, over the first `most` problems that tell.

    Only problems with several answers do; of search problems only those whose answers differ in their number of paths.
    "shares": where the label falls in the cumulative distribution, answers ordered by paths. The others: whether
    labels have more paths to the goal, more children or larger ids than they should have.
    """
    rng = np.random.default_rng(8)
    shares: list[float] = []
    excess = dict.fromkeys(("paths", "children", "id"), 0.0)
    spread = dict.fromkeys(excess, 0.0)
    several = batch.take(np.flatnonzero(batch.answers.sum(axis=1) > 1))
    for problem, drawn in zip(problems_of(several), several.label.tolist(), strict=True):
        children, _ = links(problem)
        paths = paths_to(children, problem.goal)
        if problem.task == "search" and len({paths[v] for v in children[problem.start]} - {0}) == 1:
            continue
        probability = {v: float(p) for v, p in oracle.next_vertex_probabilities(problem, label).items()}
        before = sum(p for v, p in probability.items() if (paths[v], v) < (paths[drawn], drawn))
        shares.append(before + probability[drawn] * rng.random())
        total = sum(paths[v] for v in probability) or 1
        for name in excess:
            value = {v: {"paths": paths[v] / total, "children": len(children[v]), "id": v}[name] for v in probability}
            mean = sum(p * value[v] for v, p in probability.items())
            excess[name] += value[drawn] - mean
            spread[name] += sum(p * (value[v] - mean) ** 2 for v, p in probability.items())
        if len(shares) == most:
            break
    assert len(shares) == most, "too few problems with several answers"
    found = {name: float(2 * norm.sf(abs(excess[name]) / np.sqrt(spread[name]))) for name in excess if spread[name] > 0}
    return {"shares": evenness(np.array(shares)), **found}


LABELLED: Sequence[tuple[Distribution, oracle.Label, int, int]] = [
    (Naive(input_size=98), "path", 1500, 20_000),
    (Naive(input_size=98, label="vertex"), "vertex", 1500, 20_000),
    (Naive(input_size=98, label="soft"), "soft", 1500, 20_000),
    (Naive(input_size=512), "path", 200, 2500),
    (Balanced(input_size=98, lookahead=2), "path", 400, 40_000),
    (Balanced(input_size=98, lookahead=2, label="vertex"), "vertex", 400, 40_000),
    (DFS(input_size=44, mode="naive"), "path", 2000, 10_000),
    (DFS(input_size=44), "path", 2000, 10_000),
    (DFS(input_size=44, prefix=True), "path", 2000, 10_000),
    (SelectionInference(input_size=62, step="selection"), "path", 1500, 5000),
    (SelectionInference(input_size=62, step="inference"), "path", 1500, 5000),
]


@pytest.mark.parametrize(("distribution", "label", "most", "draws"), LABELLED, ids=[c[0].describe() for c in LABELLED])
def test_labels_follow_their_probabilities(distribution: Distribution, label: oracle.Label, most: int, draws: int):
    batch = distribution.sample(draws, seed=8, threads=1)
    assert not below_threshold(label_p_values(batch, label, most))


# -- 7. acceptance -----------------------------------------------------------------------------------------------------

FAMILIES: dict[str, Callable[..., Distribution]] = {
    "naive": Naive,
    "balanced": Balanced,
    "balanced-no-incoming": partial(Balanced, incoming=False),
    "star": Star,
    "dfs-naive": partial(DFS, mode="naive"),
    "dfs": DFS,
    "dfs-prefix": partial(DFS, prefix=True),
    "selection-inference": partial(SelectionInference, step="inference"),
}


@pytest.mark.parametrize("input_size", [32, 64, 128, 256])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_cell_is_accepted_less_than_once_in_a_hundred(family: str, input_size: int):
    rates: dict[tuple[int, ...], float] = {}
    for cell in FAMILIES[family](input_size=input_size).fixed():
        batch = cell.sample(100, seed=9, threads=1)
        if "naive" in family:
            rates[0, 0, 0] = len(batch) / int(batch.attempts.sum())
        else:
            rates |= acceptance(batch)
    assert len(rates) == len(FAMILIES[family](input_size=input_size).cells())
    assert {cell: rate for cell, rate in rates.items() if rate < 0.01} == {}


def test_the_tightest_cells_of_selection_inference_are_tried():
    """F + max(F, B) - 1 = E leaves no edge to spare; the test above goes through these too."""
    cells = SelectionInference(input_size=256, step="inference").cells()
    tight = [(f, b) for f, b, _ in cells if f + max(f, b) - 1 == 42]
    assert len(tight) == 21
    assert (1, 42) in tight


# -- 8. the naive distribution's lookahead -----------------------------------------------------------------------------


def test_lookahead_of_naive_graphs_falls_off_as_in_figure_8():
    """One million graphs of at most 41 vertices; each step from 1 to 5 costs a factor of about 3 or (ever) more."""
    counts = np.zeros(64, np.int64)
    for part in range(20):
        batch = Naive(input_size=128).sample(50_000, seed=10, first=part * 50_000, threads=1)
        counts += np.bincount(batch.lookahead, minlength=64)
    assert counts.sum() == 10**6
    assert counts[5] > 0
    for lookahead in range(2, 6):
        assert counts[lookahead] * 2.9 < counts[lookahead - 1], lookahead
    assert counts[1] > 1000 * counts[5]
    assert counts[7:].sum() < 1e-4 * counts.sum()


# -- 9. filler of depth-first traces -----------------------------------------------------------------------------------


def filler_probabilities(length: int, slots: int) -> dict[tuple[int, ...], Fraction]:
    """Filler slots to the right of each vertex, the last vertex first: each uniform over 0..what is left."""
    exact: dict[tuple[int, ...], Fraction] = {(): Fraction(1)}
    for _ in range(length):
        exact = {
            (*gaps, k): p / (slots - length - sum(gaps) + 1)
            for gaps, p in exact.items()
            for k in range(slots - length - sum(gaps) + 1)
        }
    return exact


def gaps_of(slots: Sequence[bool]) -> tuple[int, ...]:
    """Filler to the right of each vertex, the last vertex first; `slots` is true where there is filler."""
    gaps: list[int] = []
    run = 0
    for filler in reversed(slots):
        if filler:
            run += 1
        else:
            gaps.append(run)
            run = 0
    return tuple(gaps)


@described(
    [
        DFS(input_size=24, mode="naive", padding="random"),
        DFS(input_size=32, mode="naive", padding="random"),
        DFS(input_size=32, padding="random"),
        DFS(input_size=32, padding="random", prefix=True),
    ]
)
def test_random_filler_has_its_exact_probabilities(distribution: Distribution):
    batch = distribution.sample(20_000, seed=11, threads=1)
    layout = distribution.layout
    by_length: dict[int, Counter[tuple[int, ...]]] = {}
    filler = batch.tokens[:, -layout.region_width :] == layout.path
    assert filler[:, 0].all()
    for slots in filler[:, 1:].tolist():
        gaps = gaps_of(slots)
        by_length.setdefault(len(gaps), Counter())[gaps] += 1
    compared = 0
    for length, found in by_length.items():
        if length < layout.max_edges and sum(found.values()) > 100:
            assert goodness(found, filler_probabilities(length, layout.max_edges)) > LEAST, length
            compared += 1
    assert compared > 2


@described([DFS(input_size=32, mode="naive"), DFS(input_size=32), DFS(input_size=32, prefix=True)])
def test_standard_filler_stands_before_the_trace(distribution: Distribution):
    batch = distribution.sample(5000, seed=11, threads=1)
    for slots in (batch.tokens[:, -distribution.layout.max_edges :] == distribution.layout.path).tolist():
        assert not any(gaps_of(slots))


# -- controls: the same comparisons with something wrong must fail -----------------------------------------------------


def test_controls_proposals():
    """Other numbers of parents and vertices (the published code's, SPEC section 8) or weights are noticed."""
    _, counts, _ = some_graphs(24, 10**6, 20_000)
    other = {1: Fraction(2, 3), 2: Fraction(1, 9), 3: Fraction(1, 9), 4: Fraction(1, 9)}
    assert goodness(Counter(counts[:, 20].tolist()), other) < LEAST
    assert goodness(some_chains(41, 10, True, 20_000), chain_probabilities(41, 10, True, surplus=5)) < LEAST
    assert goodness(some_chains(41, 10, True, 20_000), chain_probabilities(41, 10, True, surplus=7)) < LEAST
    assert goodness(some_chains(41, 10, False, 20_000), chain_probabilities(41, 10, True)) < LEAST
    assert goodness(some_attachments(ATTACH_EDGES, 5), attachment_probabilities(ATTACH_EDGES, 5, extra=2)) < LEAST


@pytest.mark.parametrize(
    ("distribution", "other"),
    [
        (Balanced(input_size=32, lookahead=2), Balanced(input_size=32, lookahead=2, incoming=False)),
        (DFS(input_size=32, backtrack=2), DFS(input_size=32, backtrack=2, prefix=True)),
        (
            SelectionInference(input_size=32, frontier=2, branch=2, step="inference"),
            SelectionInference(input_size=32, frontier=2, branch=3, step="inference"),
        ),
    ],
    ids=["balanced", "dfs", "selection-inference"],
)
def test_controls_emitted_examples(distribution: Distribution, other: Distribution):
    assert below_threshold(compare(distribution, fast=2000, slow=1200, against=other))


@pytest.mark.parametrize(("label", "other"), [("path", "vertex"), ("vertex", "path")])
def test_controls_labels(label: oracle.Label, other: oracle.Label):
    """Labels by paths are not labels by vertices, and the other way round."""
    batch = Naive(input_size=98, label=label).sample(30_000, seed=8, threads=1)
    assert set(below_threshold(label_p_values(batch, other, 1500))) >= {"shares", "paths"}


def test_controls_order():
    """The right branch first, as in the published data (SPEC section 8)."""
    batch = Star(input_size=32).sample(5000, seed=7, threads=1)
    right = batch.answers[np.arange(len(batch))[:, None], batch.edges[:, :, 1]]
    order = np.argsort(~right, axis=1, kind="stable")
    assert first_edge_rule(batch, np.take_along_axis(batch.edges, order[:, :, None], axis=1)) < LEAST
    right_first: list[Problem] = []
    for problem, label in zip(problems_of(batch), batch.label.tolist(), strict=True):
        right_edge = (problem.start, label)
        right_first.append(replace(problem, edges=(right_edge, *(e for e in problem.edges if e != right_edge))))
    assert evenness(places(right_first, batch.label.tolist())) < LEAST
