"""The parts of a probe, each against a slow version: distances, labels, rows, measures and the ridge."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from planted import PROBLEM, N, V

import pathmerge as pm
from pathmerge.circuits import probes
from pathmerge.circuits.probe_labels import ABSENT, OPPOSITE, SELF, UNRELATED, Ask, Parts, distances, row_vertices
from pathmerge.circuits.probe_scores import Kinds, measure
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import Distribution


@pytest.mark.parametrize(
    "problem",
    [
        pm.Naive(input_size=48),
        pm.Balanced(input_size=48),
        pm.DFS(input_size=48),
        pm.SelectionInference(input_size=48),
    ],
    ids=lambda problem: problem.name,
)
def test_distances_are_those_of_networkx(problem: Distribution):
    batch = problem.sample(200)
    steps, present = distances(batch)
    for i in range(len(batch)):
        graph = nx.DiGraph((int(u), int(v)) for u, v in batch.edges[i] if u)
        expected = np.full(steps.shape[1:], -1)
        for u, lengths in nx.all_pairs_shortest_path_length(graph):
            expected[u, list(lengths)] = list(lengths.values())
        assert (steps[i] == expected).all()
        assert set(np.nonzero(present[i])[0]) == set(graph)


def test_codes_say_what_a_vertex_is_to_a_row():
    batch = PROBLEM.sample(40, split="test")
    ask = Ask(rows="all", by="vertex", directions=("forward", "backward"), labels=("model",), seed=3)
    parts = Parts(batch, pm.OneHot(input_size=N, layers=1).build(), ask)
    checked = 0
    for number, first in enumerate(parts.starts):
        part = parts[number]
        for row, (problem, place) in enumerate(zip(part.problem, part.place, strict=True)):
            i = first + problem
            u = int(batch.tokens[i, place])
            assert part.own[row].tolist() == [v == u for v in range(1, V + 1)]
            graph = nx.DiGraph((int(a), int(b)) for a, b in batch.edges[i] if a)
            for v in range(1, V + 1):
                forward, backward = part.codes["model"][:, row, v - 1]
                if v not in graph:
                    assert forward == backward == ABSENT
                elif v == u:
                    assert forward == backward == SELF
                elif nx.has_path(graph, u, v):
                    assert (forward, backward) == (nx.shortest_path_length(graph, u, v), OPPOSITE)
                elif nx.has_path(graph, v, u):
                    assert (forward, backward) == (OPPOSITE, nx.shortest_path_length(graph, v, u))
                else:
                    assert forward == backward == UNRELATED
                checked += 1
            other = part.codes["elsewhere"][0, row]
            assert other[u - 1] == SELF
            assert (other == SELF).sum() == 2
        codes, shuffled = part.codes["model"], part.codes["shuffled"]
        assert (np.sort(shuffled, 2) == np.sort(codes, 2)).all()
        fixed = (codes == SELF) | (codes == ABSENT)
        assert ((shuffled == codes) | ~fixed).all()
        assert (shuffled != codes).mean() > 0.2
    assert checked > 8_000


def test_an_edge_is_as_far_away_as_the_walk_over_it_is_long():
    batch = PROBLEM.sample(30, split="test")
    ask = Ask(rows="all", by="edge", directions=("backward", "forward"), labels=("model",), seed=3)
    parts = Parts(batch, pm.OneHot(input_size=N, layers=1).build(), ask)
    seen: set[int] = set()
    for number, first in enumerate(parts.starts):
        part = parts[number]
        for row, (problem, place) in enumerate(zip(part.problem, part.place, strict=True)):
            i = first + problem
            u, edges = int(batch.tokens[i, place]), batch.edges[i].tolist()
            graph = nx.DiGraph((a, b) for a, b in edges if a)
            for k, (source, target) in enumerate(edges):
                backward, forward = part.codes["model"][:, row, k].tolist()
                seen |= {backward, forward}
                if place in (N - 5 - 3 * (V - k) + 1, N - 5 - 3 * (V - k) + 2):
                    assert forward == backward == SELF
                elif not source:
                    assert forward == backward == ABSENT
                else:
                    for code, here, there, end in ((forward, u, source, source), (backward, target, u, target)):
                        if nx.has_path(graph, here, there):
                            assert code == 1 + nx.shortest_path_length(graph, here, there)
                        else:
                            related = nx.has_path(graph, end, u) or nx.has_path(graph, u, end)
                            assert code == (OPPOSITE if related else UNRELATED)
    assert {ABSENT, OPPOSITE, UNRELATED, SELF, 1, 2, 3, 4} <= seen


def rows_held(batch: Batch, tokens: np.ndarray, rows: Any) -> list[list[tuple[int, int]]]:
    """(place, vertex) of each row asked for."""
    found = row_vertices(batch, tokens, rows)
    return [[(int(t), int(line[t])) for t in np.nonzero(line)[0]] for line in found]


def test_rows_stand_where_the_input_puts_them():
    batch = PROBLEM.sample(50)
    for end, rows in enumerate(("source", "target")):
        for i, found in enumerate(rows_held(batch, batch.tokens, rows)):
            assert [v for _, v in found] == [int(edge[end]) for edge in batch.edges[i] if edge[0]]
            assert all(batch.tokens[i, place - 1 - end] == V + 2 for place, _ in found)
    for rows, place, vertices in (
        ("start", N - 4, batch.start),
        ("goal", N - 3, batch.goal),
        ("last", N - 1, batch.start),
        ("answer", N - 1, batch.goal),
    ):
        for i, found in enumerate(rows_held(batch, batch.tokens, rows)):
            assert found == [(place, vertices[i])]
    for i, found in enumerate(rows_held(batch, batch.tokens, "all")):
        assert found == [(t, v) for t, v in enumerate(batch.tokens[i].tolist()) if v <= V]


def test_a_row_of_edges_stands_for_its_source_unless_asked_otherwise():
    batch = PROBLEM.sample(50)
    tokens = pm.Edges(input_size=N, layers=1).build().inputs(batch).tokens.numpy()
    last = tokens.shape[1] - 1
    for i in range(len(batch)):
        edges = [(int(u), int(v)) for u, v in batch.edges[i] if u]
        start, goal = int(batch.start[i]), int(batch.goal[i])
        held = {rows: rows_held(batch, tokens, rows)[i] for rows in probes.ROW_KINDS}
        assert [v for _, v in held["source"]] == [u for u, _ in edges]
        assert [v for _, v in held["target"]] == [v for _, v in edges]
        assert [v for _, v in held["all"]] == [*(u for u, _ in edges), goal]
        assert held["start"] == held["last"] == [(last, start)]
        assert held["goal"] == held["answer"] == [(last, goal)]


def test_measures_are_what_their_names_say():
    """Against loops over pairs, ties included."""
    rng = np.random.default_rng(0)
    rows, most = 200, 3
    codes = rng.integers(ABSENT, most + 2, (rows, 8))
    numbers = rng.integers(-2, 3, (rows, 1 + most, 8)).astype(float)
    measured = measure(torch.from_numpy(numbers), Kinds.of(codes, most)).numpy()
    assert np.isnan(measured).any()

    def auc(positives: Any, negatives: Any) -> float:
        pairs = [float(p > n) + 0.5 * float(p == n) for p in positives for n in negatives]
        return float(np.mean(pairs)) if pairs else np.nan

    def balanced(positives: Any, negatives: Any) -> float:
        if not len(positives) or not len(negatives):
            return np.nan
        return float(np.mean(positives > 0) + np.mean(negatives <= 0)) / 2

    for m in range(rows):
        reached, unrelated = numbers[m, 0], numbers[m, 0, codes[m] == UNRELATED]
        for r in range(1, most + 1):
            at = reached[codes[m] == r]
            near = (codes[m] >= 1) & (codes[m] <= r)
            far = (codes[m] > r) | (codes[m] == UNRELATED)
            expected = [
                auc(at, unrelated),
                auc(at, reached[codes[m] == OPPOSITE]),
                balanced(at, unrelated),
                balanced(numbers[m, r, near], numbers[m, r, far]),
            ]
            np.testing.assert_allclose(measured[:4, m, r - 1], expected, rtol=1e-12)


def test_targets_are_relative_to_the_row():
    codes = np.array([[1, 2, UNRELATED, OPPOSITE, ABSENT, SELF], [UNRELATED, UNRELATED, ABSENT, SELF, OPPOSITE, 1]])
    found = probes._targets(codes, 2)
    np.testing.assert_allclose(found[0, 0], [0.5, 0.5, -0.5, -0.5, 0, 0])
    np.testing.assert_allclose(found[0, 1], [0.75, -0.25, -0.25, -0.25, 0, 0])
    np.testing.assert_allclose(found[1, 2], [-0.25, -0.25, 0, 0, -0.25, 0.75])


def test_the_ridge_is_the_textbooks():
    """Standardised features, a constant that is not shrunk, one that does not vary left out; the best strength."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 6)) @ rng.normal(size=(6, 6)) + 3
    x[:, 2] = 7.0
    x = np.concatenate([x, np.ones((400, 1))], 1)
    y = np.stack([x[:, 0] - x[:, 1] + 0.1 * rng.normal(size=400), rng.normal(size=400) + 5], 1)
    weights = probes._ridge(torch.from_numpy(x.T @ x), torch.from_numpy(x.T @ y)).numpy()
    keep = [0, 1, 3, 4, 5]
    z = (x[:, keep] - x[:, keep].mean(0)) / x[:, keep].std(0)
    for strength, found in zip(probes.STRENGTHS, weights, strict=True):
        slope = np.linalg.solve(z.T @ z / 400 + strength * np.eye(5), z.T @ (y - y.mean(0)) / 400)
        np.testing.assert_allclose(x @ found, z @ slope + y.mean(0), atol=1e-8)

    held = np.concatenate([rng.normal(size=(300, 6)), np.ones((300, 1))], 1)
    target = np.stack([held[:, 0] - held[:, 1], rng.normal(size=300) + 5], 1)
    moments = [torch.from_numpy(a) for a in (x.T @ x, x.T @ y, held.T @ held, held.T @ target)]
    chosen = probes._solve(*moments, groups=2).numpy()
    both = probes._ridge(moments[0] + moments[2], moments[1] + moments[3]).numpy()
    for group in range(2):
        errors = [((held @ w[:, group] - target[:, group]) ** 2).mean() for w in weights]
        np.testing.assert_allclose(chosen[:, group], both[int(np.argmin(errors))][:, group])
    assert int(np.argmin([((held @ w[:, 0] - target[:, 0]) ** 2).mean() for w in weights])) != len(weights) - 1
