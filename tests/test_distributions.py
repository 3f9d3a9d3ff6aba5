"""Emitted examples against the slow generators of `oracles.py`; difficulties, acceptance, lookahead and filler."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import permutations

import numpy as np
import pytest
from samples import (
    LEAST,
    below_threshold,
    compare,
    described,
    draw_slowly,
    exact_form,
    goodness,
    graph_probabilities,
    homogeneity,
    problems_of,
    uniformity,
)

from pathmerge import DFS, Balanced, Naive, Problem, SelectionInference, Star, Tangled
from pathmerge.encodings.language import Language
from pathmerge.problems.distribution import Distribution
from pathmerge.stats import acceptance


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
    *(Balanced(input_size=n, lookahead=1, incoming=incoming) for n in (14, 17) for incoming in (True, False)),
    *(Balanced(input_size=20, lookahead=lookahead) for lookahead in (1, 2)),
    *(Tangled(input_size=n, lookahead=1) for n in (17, 20)),
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
    *(Balanced(input_size=n, lookahead=lookahead) for n, lookahead in ((26, 3), (32, 1), (32, 2), (32, 4))),
    Balanced(input_size=32, lookahead=2, incoming=False),
    Balanced(input_size=44, lookahead=3),
    Tangled(input_size=32, lookahead=3),
    Star(input_size=32, spokes=2, lookahead=3),
    *(DFS(input_size=n, mode="naive") for n in (26, 32)),
    *(DFS(input_size=n, backtrack=b) for n, b in ((32, 0), (32, 3), (32, 6), (44, 4))),
    *(DFS(input_size=n, backtrack=b, prefix=True) for n, b in ((26, 1), (32, 0), (32, 2), (44, 3))),
    *(
        SelectionInference(input_size=n, frontier=f, branch=b, step="inference")
        for n, f, b in ((32, 3, 3), (32, 2, 4), (50, 2, 3), (50, 4, 2), (50, 4, 5), (74, 3, 4))
    ),
]


@described(SMALL)
def test_small_problems_have_the_slow_generators_distribution(distribution: Distribution):
    assert not below_threshold(compare(distribution, fast=2000, slow=1200))


@pytest.mark.long
@described([*TINY, *SMALL])
def test_small_problems_have_the_slow_generators_distribution_at_length(distribution: Distribution):
    assert not below_threshold(compare(distribution, fast=40_000, slow=20_000))


@described(
    [
        *(Balanced(input_size=n) for n in (32, 128, 512)),
        Balanced(input_size=128, max_lookahead=12),
        Tangled(input_size=128),
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


FAMILIES: dict[str, Callable[..., Distribution]] = {
    "naive": Naive,
    "balanced": Balanced,
    "balanced-no-incoming": partial(Balanced, incoming=False),
    "tangled": Tangled,
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
