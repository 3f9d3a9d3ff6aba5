"""Probes against planted knowledge: a model whose residuals hold exactly what the test has put there."""

from __future__ import annotations

import re
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from planted import PROBLEM, ball, planted

import pathmerge as pm
from pathmerge.circuits.probes import ProbeRow, ProbeTable, probe


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


@pytest.mark.parametrize(
    "config",
    [
        pm.OneHot(input_size=20, layers=1, heads=2, hidden=10),
        pm.OneHot(input_size=20, layers=1, causal=True, positions="learned", embedding="learned"),
        pm.OneHot(input_size=20, layers=1, loops=2, positions="none"),
        pm.Rotary(input_size=20, layers=2, heads=1),
        pm.Edges(input_size=20, layers=2),
        pm.OneHot(input_size=20, layers=2, initialisation="matching", joining=20.0, following=1.0, asking=1.0),
    ],
    ids=lambda config: f"{config.name}-{config.width}-{config.layers}",
)
def test_every_kind_of_model(config: Any):
    problem = pm.Naive(input_size=20)
    table = probe(config.build(seed=2), problem, count=400, controls=("untrained",))
    assert {row.layer for row in table.rows} == set(range(config.layers * config.loops + 1))
    assert {row.control for row in table.rows} == {"model", "untrained"}
    one = cell(table, "forward", 0, 1)
    if config.name == "edges":
        assert one.auc > 0.8  # the row holds the edge's target
    elif config.initialisation == "matching":
        assert cell(table, "forward", 1, 1).auc > cell(table, "forward", 1, 1, "untrained").auc + 0.1  # joined
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
    with pytest.raises(ValueError, match=r"^problem=star\(.*: has so few problems that only 0 of 400"):
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
