"""Nothing but the graph tells the answer: ids, atoms and edge order say nothing; labels have their probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from samples import (
    LEAST,
    Edge,
    below_threshold,
    described,
    evenness,
    links,
    paths_to,
    problems_of,
    uniformity,
)
from scipy.stats import binomtest, norm

from pathmerge import DFS, Balanced, Naive, Problem, SelectionInference, Star, oracle
from pathmerge.encodings.language import ATOM_COUNT, Language
from pathmerge.encodings.sentences import LanguageBatch
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import Distribution

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
    several = (batch.answers.sum(axis=1) > 1).tolist()
    for problem, drawn, open_question in zip(problems_of(batch), batch.label.tolist(), several, strict=True):
        if not open_question:
            continue
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
