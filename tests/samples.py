"""Samples of problems and how to compare them: chi-square tests, forms and summaries, shared by the statistical tests.

All draws have fixed keys, so a run gives the same p-values each time. The threshold LEAST is there for the day the
order of drawing changes and every p-value with it: about a thousand comparisons then stay clear of it with
probability 0.99, while a wrong probability, at these sample sizes, gives far less (the tests named controls show it).

Also here: the layout and the difficulty of a problem, as tests of single examples ask for them, and its baselines.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations, permutations
from typing import Any

import numpy as np
import oracles
import pytest
from scipy.stats import chi2_contingency, chisquare

from pathmerge import DFS, Balanced, Layout, Naive, Problem, SelectionInference, Star, Tangled, oracle
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import Distribution
from pathmerge.problems.selection_inference import STEPS

LEAST = 1e-5
ONE_WORD = (0,)
PARENTS: dict[int, Fraction] = {1: Fraction(5, 8), 2: Fraction(1, 8), 3: Fraction(1, 8), 4: Fraction(1, 8)}
Edge = tuple[int, int]
Case = Callable[..., Distribution]
Probabilities = Mapping[Any, Fraction]
SEARCH_RULES = ["first edge", "random child", "highest degree", "nearest id"]
"""The baselines of search problems, in their order."""


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
    """p-value of two samples against one common distribution; 1 if both always have the same value, nan if all other
    values are too rare to compare."""
    values = [*first, *(value for value in second if value not in first)]
    if len(values) == 1:
        return 1.0
    table = np.array([[sample.get(value, 0) for value in values] for sample in (first, second)])
    merged = merge_rare(table, table.sum(axis=0), 10)
    if merged.shape[1] == 1:
        return float("nan")
    result: Any = chi2_contingency(merged, correction=False)
    return float(result.pvalue)


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


def layout_of(problem: Problem, input_size: int) -> Layout:
    return Layout(input_size, problem.task)


def children(problem: Problem, vertex: int) -> set[int]:
    return {v for u, v in problem.edges if u == vertex}


def difficulty_of(problem: Problem, distribution: Distribution) -> tuple[int, int, int]:
    """The cell that the oracle puts the problem into."""
    if problem.task == "search":
        spokes = len(children(problem, problem.start)) if "spokes" in distribution.columns else 0
        return oracle.lookahead(problem), spokes, 0
    if problem.task == "dfs":
        return oracle.backtrack(problem), 0, 0
    return oracle.frontier(problem), oracle.branch(problem), STEPS.index(problem.task)


def draw_slowly(rng: random.Random, distribution: Distribution) -> Problem:
    """One problem of a distribution of one cell, from the slow generator."""
    size = distribution.input_size
    first, second, step = distribution.cells()[0]
    match distribution:
        case Naive():
            drawn = oracles.naive(rng, size)
        case Tangled():
            drawn = oracles.balanced(rng, size, first, distribution.incoming)
            while len({v for _, v in drawn.problem.edges}) == len(drawn.problem.edges):
                drawn = oracles.balanced(rng, size, first, distribution.incoming)
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
    compared = {name: p for name, p in p_values.items() if not np.isnan(p)}
    assert 2 * len(compared) > len(p_values), f"too little is compared: {sorted(compared)}"
    return compared


def below_threshold(p_values: Mapping[str, float]) -> dict[str, float]:
    return {name: p for name, p in p_values.items() if p < LEAST}


def described(distributions: Sequence[Distribution]) -> Any:
    return pytest.mark.parametrize("distribution", distributions, ids=[d.describe() for d in distributions])


def capped(probabilities: Mapping[int, Fraction], most: int) -> dict[int, Fraction]:
    found: dict[int, Fraction] = {}
    for k, p in probabilities.items():
        found[min(k, most)] = found.get(min(k, most), Fraction(0)) + p
    return found


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
