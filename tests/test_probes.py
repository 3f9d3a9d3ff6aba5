"""Probes against planted knowledge: a model whose residuals hold exactly what the test has put there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from math import isnan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from torch import Tensor

import pathmerge as pm
from pathmerge.circuits import probes
from pathmerge.circuits.probe_labels import ABSENT, OPPOSITE, SELF, UNRELATED, Ask, Parts, distances, row_vertices
from pathmerge.circuits.probe_scores import Kinds, measure
from pathmerge.circuits.probes import ProbeRow, ProbeTable, probe
from pathmerge.models.transformer import Transformer
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import Distribution

N, V = 48, 14
PROBLEM = pm.Balanced(input_size=N)
Plant = Callable[[int, nx.DiGraph, int], set[int]]
"""What the row of a vertex knows after so many layers, given the graph."""


def planted(plant: Plant, layers: int = 2, *, by: str = "vertex") -> Transformer:
    """A model that computes nothing: each row holds its token, its place and what it is said to know.

    It is said to know ids of vertices, or the places of the edges that leave them. Turned and with a little noise.
    """
    model = pm.OneHot(input_size=N, layers=layers).build()
    generator = torch.Generator().manual_seed(5)
    turn = torch.linalg.qr(torch.randn(model.config.width, model.config.width, generator=generator))[0]

    def run(tokens: Tensor, *, record: list[str]) -> Any:
        x = np.zeros((layers + 1, *tokens.shape, model.config.width), np.float32)
        for i, line in enumerate(tokens.tolist()):
            graph = nx.DiGraph((line[j + 1], line[j + 2]) for j in range(N - 5) if line[j] == V + 2)
            for layer in range(layers + 1):
                # The same dimensions hold a row's own vertex and place and those it knows.
                holds = np.eye(V + 5, model.config.width)
                for u in graph:
                    known = plant(layer, graph, u)
                    places = [j for j in range(1, N - 5) if line[j - 1] == V + 2 and line[j] in known]
                    holds[u, list(known) if by == "vertex" else [model.config.width - N + j for j in places]] = 1.0
                x[layer, i] = np.maximum(holds[line], np.eye(N, model.config.width, model.config.width - N))
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(int(tokens.sum())))
        found = (torch.from_numpy(x) + 0.02 * noise) @ turn
        assert record == [
            *(f"blocks.{n}.hook_resid_pre" for n in range(layers)),
            f"blocks.{layers - 1}.hook_resid_post",
        ]
        return SimpleNamespace(record=dict(zip(record, found, strict=True)))

    model.run = run  # type: ignore[method-assign]
    return model


def ball(graph: nx.DiGraph, u: int, steps: int) -> set[int]:
    return set(nx.single_source_shortest_path_length(graph, u, cutoff=steps))


@pytest.fixture(scope="module")
def forward_table() -> ProbeTable:
    """Known: nothing, everything within 2 steps, everything within 4 steps, always forward."""
    model = planted(lambda layer, graph, u: ball(graph, u, 2 * layer))
    return probe(model, PROBLEM, count=600, controls=("shuffled", "elsewhere"))


def cell(table: ProbeTable, *key: Any) -> ProbeRow:
    found = table.find(*key)
    assert found is not None
    return found


def test_what_is_planted_is_found_and_no_more(forward_table: ProbeTable):
    for layer in range(3):
        for distance in range(1, 6):
            row = cell(forward_table, "forward", layer, distance)
            assert row.positives > 100, row
            if distance <= 2 * layer:
                assert row.auc > 0.99, row
                assert row.accuracy > 0.97, row
            else:
                assert abs(row.auc - 0.5) < 0.06, row
                assert abs(row.accuracy - 0.5) < 0.06, row
    assert forward_table.known("forward") == (0, 2, 4)


def test_within_is_sharpest_at_the_planted_radius(forward_table: ProbeTable):
    for layer, radius in ((1, 2), (2, 4)):
        found = {r: cell(forward_table, "forward", layer, r).within for r in range(1, 7)}
        assert found[radius] > 0.97
        assert max(found, key=lambda r: found[r]) == radius
        assert found[1] < 0.95  # one step cannot be told from two: the set says no distances
    assert all(abs(cell(forward_table, "forward", 0, r).within - 0.5) < 0.03 for r in range(1, 7))


def test_forward_knowledge_is_not_taken_for_backward_knowledge(forward_table: ProbeTable):
    for layer in range(3):
        for distance in range(1, 5):
            assert abs(cell(forward_table, "backward", layer, distance).auc - 0.5) < 0.06
    # Against what the row's vertex reaches it helps, which is why that is a column of its own.
    assert cell(forward_table, "backward", 2, 1).opposite > 0.9
    assert forward_table.known("backward") == (0, 0, 0)


def test_controls_stay_below_what_the_row_knows_of_its_own_vertex(forward_table: ProbeTable):
    for layer in range(3):
        for distance in range(1, 6):
            for direction in ("forward", "backward"):
                row = cell(forward_table, direction, layer, distance, "shuffled")
                assert abs(row.auc - 0.5) < 0.03, row
            other = cell(forward_table, "forward", layer, distance, "elsewhere")
            assert abs(other.auc - 0.5) < 0.06, other


def test_elsewhere_shows_what_has_nothing_to_do_with_the_row():
    # Every row knows the same: which vertices have more than one child. Most of all start does, which reaches most.
    model = planted(lambda layer, graph, _: {v for v in graph if layer and graph.out_degree(v) > 1}, layers=1)
    table = probe(model, PROBLEM, count=300, direction="backward", controls=["elsewhere"])
    for distance in (1, 2):
        mine, other = (cell(table, "backward", 1, distance, name) for name in ("model", "elsewhere"))
        assert mine.auc > 0.65
        assert abs(mine.auc - other.auc) < 0.06
        assert abs(cell(table, "backward", 0, distance).auc - 0.5) < 0.05


def test_intervals_cover_what_they_should():
    # At layer 0 the truth is exactly one half, row by row; the intervals must hold it about 19 times in 20.
    model = pm.OneHot(input_size=32, layers=1).build()
    found: list[bool] = []
    widths: list[float] = []
    for seed in range(5):
        table = probe(model, pm.Balanced(input_size=32), count=400, seed=seed, controls=["elsewhere"])
        cells = [row for row in table.rows if row.layer == 0 and not isnan(row.auc)]
        found += [row.low <= 0.5 <= row.high for row in cells]
        widths += [row.high - row.low for row in cells]
    assert len(found) > 45
    assert np.mean(found) > 0.8
    assert max(widths) < 0.2


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


def test_edges_known_by_their_places_are_found():
    # The row of u knows which edges leave the vertices within layer steps of u, but no ids.
    model = planted(lambda layer, graph, u: ball(graph, u, layer) if layer else set[int](), by="edge")
    table = probe(model, PROBLEM, count=300, by="edge", controls=["shuffled"])
    assert {row.by for row in table.rows} == {"edge"}
    for distance in range(1, 5):
        for layer in range(3):
            row = cell(table, "forward", layer, distance)
            if layer and distance <= layer + 1:
                assert row.auc > 0.98, row
            else:
                assert abs(row.auc - 0.5) < 0.06, row
            assert abs(cell(table, "forward", layer, distance, "shuffled").auc - 0.5) < 0.06
    assert table.known("forward") == (0, 2, 3)
    ids = probe(model, PROBLEM, count=300, direction="forward", controls=())
    assert ids.known("forward") == (0, 0, 0)


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


@pytest.mark.parametrize(
    "config",
    [
        pm.OneHot(input_size=20, layers=1, heads=2, hidden=10),
        pm.OneHot(input_size=20, layers=1, causal=True, positions="learned", embedding="learned"),
        pm.OneHot(input_size=20, layers=1, loops=2, positions="none"),
        pm.Rotary(input_size=20, layers=2, heads=1),
        pm.Edges(input_size=20, layers=2),
    ],
    ids=lambda config: f"{config.name}-{config.width}",
)
def test_every_kind_of_model(config: Any):
    problem = pm.Naive(input_size=20)
    table = probe(config.build(seed=2), problem, count=400, controls=("untrained",))
    assert {row.layer for row in table.rows} == set(range(config.layers * config.loops + 1))
    assert {row.control for row in table.rows} == {"model", "untrained"}
    one = cell(table, "forward", 0, 1)
    if config.name == "edges":
        assert one.auc > 0.8  # the row holds the edge's target
    else:
        assert one.low - 0.02 < 0.5 < one.high + 0.02
    assert one.auc == pytest.approx(cell(table, "forward", 0, 1, "untrained").auc, abs=0.1)


def test_numbers_depend_on_the_seed_and_not_on_threads():
    model = pm.OneHot(input_size=20, layers=1, initialisation="matching").build()
    problem = pm.Balanced(input_size=20)
    seen: list[int] = []
    tables = [
        probe(model, problem, count=410, seed=4, threads=threads, progress=progress)
        for threads, progress in ((1, None), (2, seen.append))
    ]
    assert tables[0].to_csv() == tables[1].to_csv()
    assert sum(seen) == 3 * 2 * 410
    other = probe(model, problem, count=410, seed=5, controls=())
    assert [row.auc for row in other.rows] != [row.auc for row in tables[0].rows[: len(other.rows)]]
    configs = {"untrained": replace(model.config, initialisation="default"), "initial": model.config}
    for name, config in configs.items():
        alone = probe(config.build(4), problem, count=410, seed=4, controls=["initial"] if name == "untrained" else ())
        assert {row.control for row in alone.rows} == {"model"}  # the default is no control of itself
        found = [row.auc for row in tables[0].rows if row.control == name]
        assert found == [row.auc for row in alone.rows]
        assert found != [row.auc for row in tables[0].rows if row.control == "model"]


def test_no_test_problem_is_among_the_fitting_ones(monkeypatch: pytest.MonkeyPatch):
    # 504 distinct problems at most for two spokes of length 1 and V = 3: all of the test split was fitted to.
    star = pm.Star(input_size=14, spokes=2, lookahead=1)
    model = pm.OneHot(input_size=14, layers=1).build()
    with pytest.raises(ValueError, match=r"^rows='all': fewer than 100 of 0 test problems"):
        probe(model, star, count=400)


def test_csv_round_trip(tmp_path: Path, forward_table: ProbeTable):
    path = tmp_path / "probes.csv"
    forward_table.write_csv(path)
    again = ProbeTable.read_csv(path)
    assert again.to_csv() == forward_table.to_csv()
    assert path.read_text().splitlines()[0] == (
        "control,rows,by,direction,layer,distance,positives,negatives,auc,low,high,opposite,accuracy,within"
    )
    full = [i for i, row in enumerate(forward_table.rows) if not any(isnan(v) for v in (row.auc, row.opposite))]
    assert len(full) > 50
    assert [again.rows[i] for i in full] == [forward_table.rows[i] for i in full]
    for text, reason in (
        ("a,b\n1,2\n", "has the columns a, b; must have control, rows,"),
        (path.read_text().replace("elsewhere", "elsewere"), "row .*: control='elsewere': must be one of model"),
        (path.read_text() + "model,all,forward,1\n", "row .*"),
        ("", "cannot be read as a table"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=rf"^file=.*probes.csv': {reason}") as caught:
            ProbeTable.read_csv(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="no such file"):
        ProbeTable.read_csv(tmp_path / "none.csv")
    with pytest.raises(ValueError, match=r"^out=.*must end in one of \.csv"):
        forward_table.write_csv(tmp_path / "probes.txt")


def test_the_figure_shows_every_cell_where_it_belongs(tmp_path: Path, forward_table: ProbeTable):
    shown = [replace(row, control="untrained") for row in forward_table.rows if row.control == "shuffled"]
    table = ProbeTable(rows=(*forward_table.rows, *shown))
    figure = table.figure(title="planted")
    FigureCanvasAgg(figure).draw()
    most = max(row.distance for row in table.rows)
    panels = figure.axes[:6]
    assert [axes.get_title(loc="left").splitlines()[-1] for axes in panels[::2]] == [
        "this model",
        "control: another vertex's labels",
        "control: an untrained model",
    ]
    order = [(c, d) for c in ("model", "elsewhere", "untrained") for d in ("forward", "backward")]
    for axes, (control, direction) in zip(panels, order, strict=True):
        words = {text.get_position(): text.get_text() for text in axes.texts}
        assert len(words) == 3 * most
        for layer in range(3):
            for distance in range(1, most + 1):
                auc = cell(table, direction, layer, distance, control).auc
                assert words[layer + 0.5, distance - 0.5] == ("–" if isnan(auc) else f"{auc:.2f}")
        assert axes.yaxis_inverted()
    assert "shuffled labels 0.50 on average" in figure.axes[-1].get_xlabel()
    table.write_figure(tmp_path / "probes.png")
    assert (tmp_path / "probes.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ValueError, match=r"^picture=.*must end in one of \.png, \.svg"):
        table.write_figure(tmp_path / "probes.pdf")
    with pytest.raises(ValueError, match="must hold at least one row"):
        ProbeTable(rows=()).figure()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": 10}, r"^count=10: must be a whole number in 200\.\.10000000$"),
        ({"count": 2.5}, r"^count=2\.5: must be a whole number"),
        ({"seed": -1}, r"^seed=-1: must be a whole number in 0\.\."),
        ({"direction": "sideways"}, r"^direction='sideways': must be one of both, forward, backward$"),
        ({"rows": "sources"}, r"^rows='sources': must be one of all, source, .* \(did you mean source\?\)$"),
        ({"by": "place"}, r"^by='place': must be one of vertex, edge$"),
        (
            {"by": "edge", "model": pm.Edges(input_size=20, layers=1).build()},
            r"^by='edge': a model of edge tokens knows no",
        ),
        (
            {"controls": ["shufled"]},
            r"^controls='shufled': must be one of untrained, initial, shuffled, elsewhere \(did you",
        ),
        ({"controls": "random"}, r"^controls='random': must be one of"),
        ({"threads": 0}, r"^threads=0: must be a whole number"),
        (
            {"problem": pm.Language(input_size=20)},
            r"^problem=language\(input_size=20\): .* must be of symbolic tokens$",
        ),
        (
            {"problem": pm.Naive(input_size=23)},
            r"^naive\(input_size=23\): the model reads symbolic tokens of input_size=20",
        ),
        ({"problem": "balanced"}, r"^problem='balanced': must be a distribution"),
        ({"model": "run"}, r"^model=str: must be a model of pathmerge"),
        ({"rows": "start"}, r"^rows='start': fewer than 100 of \d+ test problems have such a row"),
    ],
)
def test_bad_input_is_one_line(given: dict[str, Any], message: str):
    asked: dict[str, Any] = {
        "model": pm.OneHot(input_size=20, layers=1).build(),
        "problem": pm.Balanced(input_size=20),
        "count": 200,
    }
    options: dict[str, Any] = asked | given
    with pytest.raises(ValueError, match=message) as caught:
        probe(options.pop("model"), options.pop("problem"), **options)
    assert "\n" not in str(caught.value)


def test_known_stops_at_the_first_gap():
    row = ProbeRow(
        control="model", rows="all", by="vertex", direction="forward", layer=0, distance=1, positives=9, negatives=9,
        auc=0.9, low=0.8, high=1.0, opposite=0.5, accuracy=0.5, within=0.5,
    )  # fmt: skip
    table = ProbeTable(rows=tuple(replace(row, distance=d, auc=auc) for d, auc in ((3, 0.9), (1, 0.85), (2, 0.7))))
    both = ProbeTable(rows=(*table.rows, *(replace(row, by="edge", distance=d) for d in (1, 2))))
    assert (both.known("forward"), both.known("forward", by="edge")) == ((1,), (2,))
    assert cell(both, "forward", 0, 1).auc == 0.85
    assert both.find("forward", 0, 3, by="edge") is None
    assert [axes.get_title(loc="left").split()[0] for axes in both.figure().axes[:2]] == ["vertices", "edges"]
    assert table.known("forward") == (1,)
    assert table.known("forward", at_least=0.6) == (3,)
    assert table.known("forward", at_least=0.9) == (0,)
    assert table.known("backward") == (0,)
    with pytest.raises(ValueError, match=r"^direction='up'"):
        table.known("up")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^at_least=2: must be a number in 0\.\.1"):
        table.known("forward", at_least=2)


def test_the_pages_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[1] / "docs" / "probes.md"
    code = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert code
    exec(compile("\n".join(code), "docs/probes.md", "exec"), {})
    assert (tmp_path / "probes.png").is_file()
    assert len(ProbeTable.read_csv(tmp_path / "probes.csv").rows) > 20
