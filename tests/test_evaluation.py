"""Evaluation: intervals against scipy, files against what was written, reports and heat maps against their tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import combinations
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from rich.console import Console
from samples import SEARCH_RULES
from scipy.stats import binomtest

import pathmerge as pm
from pathmerge.evaluation.accuracy import (
    ALL,
    CONVERGED,
    MODEL,
    Row,
    Table,
    cells_of,
    converged,
    evaluate_cells,
    mean_over_cells,
    name_cell,
    wilson,
)
from pathmerge.evaluation.curves import log_scale
from pathmerge.evaluation.heatmap import heat_map, trained_on, write_heat_map
from pathmerge.evaluation.heuristics import Judge, heuristics_for
from pathmerge.evaluation.report import baselines_path, print_report, read_table, write_table
from pathmerge.heldout import HeldOut, hold_out
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import Distribution

COLUMNS = ["distribution", "difficulty", "examples", "correct", "accuracy", "low", "high", "loss"]


def perfect(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    return batch.answers[np.arange(len(batch)), batch.label], np.zeros(len(batch), np.float32)


def hopeless(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(len(batch), np.bool_), np.full(len(batch), 9.0, np.float32)


def half(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Right on half of the problems, whichever way they are put into batches; a loss for those alone."""
    right = batch.identity % 2 == 0
    return right, np.where(right, 0.25, np.nan).astype(np.float32)


@pytest.fixture(scope="module")
def search() -> HeldOut:
    return hold_out([pm.Naive(input_size=32), pm.Star(input_size=32), pm.Balanced(input_size=32)], 300, threads=1)


@pytest.fixture(scope="module")
def steps() -> HeldOut:
    return hold_out([pm.SelectionInference(input_size=32)], 60, threads=1)


def row(distribution: str, difficulty: str, correct: int, examples: int) -> Row:
    low, high = wilson(correct, examples)
    share = correct / examples if examples else nan
    given = {"distribution": distribution, "difficulty": difficulty, "examples": examples, "correct": correct}
    return Row(**given, accuracy=share, low=low, high=high, loss=nan)  # pyright: ignore[reportArgumentType]


# Rows.


@pytest.mark.parametrize("examples", [1, 3, 40, 1000, 4000])
def test_intervals_are_wilsons(examples: int):
    for correct in {0, 1, examples // 3, examples - 1, examples}:
        known: Any = binomtest(correct, examples).proportion_ci(0.95, method="wilson")
        assert wilson(correct, examples) == pytest.approx((known.low, known.high), abs=1e-12)
    assert wilson(0, examples)[0] == 0.0
    assert wilson(examples, examples)[1] == 1.0
    assert all(isnan(bound) for bound in wilson(0, 0))


def test_a_perfect_judge_is_perfect_and_a_hopeless_one_is_not(search: HeldOut):
    seen: list[int] = []
    table = evaluate_cells(perfect, search.cells, progress=seen.append)
    assert sum(seen) == sum(len(cell.batch) for cell in search.cells)
    assert all(row.accuracy == row.high == 1.0 and row.low < 1.0 and row.loss == 0.0 for row in table.rows)
    assert converged(table.rows).converged
    assert converged(table.rows).converged_each
    table = evaluate_cells(hopeless, search.cells, heuristics=False)
    assert all(row.accuracy == row.low == 0.0 and row.high > 0.0 and row.loss == 9.0 for row in table.rows)
    assert not converged(table.rows).converged
    assert not converged(table.rows).converged_each
    assert table.judges == (MODEL,)


def test_rows_are_the_cells_and_a_mean_for_each_distribution_with_several(search: HeldOut):
    table = evaluate_cells(half, search.cells)
    stars = [f"spokes={k},lookahead={length}" for length, k, _ in pm.Star(input_size=32).cells()]
    expected = [("naive", ALL), *(("star", s) for s in [*stars, ALL])]
    expected += [("balanced", d) for d in ("lookahead=1", "lookahead=2", "lookahead=3", "lookahead=4", ALL)]
    assert table.judges == (MODEL, *SEARCH_RULES)
    for judge in table.judges:
        assert [(row.distribution, row.difficulty) for row in table[judge]] == expected
    for cell in search.cells:
        row = table.find(*name_cell(cell.distribution))
        assert row is not None
        right = int((cell.batch.identity % 2 == 0).sum())
        assert (row.examples, row.correct, row.accuracy) == (len(cell.batch), right, right / len(cell.batch))
        assert (row.low, row.high) == wilson(right, len(cell.batch))
        assert row.loss == (0.25 if right else nan)
    cells = cells_of(table.rows, "star")
    mean = table.find("star", ALL)
    assert mean is not None
    assert mean.accuracy == pytest.approx(np.mean([row.accuracy for row in cells]))
    assert mean.accuracy != mean.correct / mean.examples
    assert mean.examples == sum(row.examples for row in cells)
    assert evaluate_cells(half, search.cells, batch_size=77) == table


def test_the_interval_of_a_mean_covers_as_often_as_it_says():
    rng = np.random.default_rng(5)
    shares, sizes = np.array([0.5, 0.9, 0.97, 1.0]), np.array([50, 100, 400, 400])
    covered = 0
    for right in rng.binomial(sizes, shares, (2000, 4)):
        mean = mean_over_cells([row("star", "x=1", int(k), int(n)) for k, n in zip(right, sizes, strict=True)])
        covered += mean.low <= shares.mean() <= mean.high
    assert 0.94 < covered / 2000 < 0.98
    certain = mean_over_cells([row("star", "x=1", 300, 300)] * 4)
    assert certain.high == 1.0
    assert 0.99 < certain.low < 1.0


def test_selection_and_inference_stand_apart(steps: HeldOut):
    table = evaluate_cells(half, steps.cells)
    pairs = [f"frontier={f},branch={b}" for f, b, step in pm.SelectionInference(input_size=32).cells() if step == 0]
    expected = [(step, d) for step in ("selection", "inference") for d in [*pairs, ALL]]
    assert [(r.distribution, r.difficulty) for r in table.rows] == expected
    assert {r.distribution for r in table["most recent"]} == {"selection"}
    assert {r.distribution for r in table["random child"]} == {"inference"}
    with pytest.raises(ValueError, match="judge='nearest id': must be one of model, most recent, random child"):
        _ = table["nearest id"]


@pytest.mark.parametrize(
    ("distribution", "name"),
    [
        (pm.DFS(input_size=32, mode="naive"), ("dfs-naive", ALL)),
        (pm.DFS(input_size=32, backtrack=5, prefix=True), ("dfs", "backtrack=5")),
        (pm.Language(input_size=32, lookahead=2), ("language", "lookahead=2")),
        (pm.Language(input_size=32, graph="star", spokes=2, lookahead=3), ("language-star", "spokes=2,lookahead=3")),
        (pm.Language(input_size=32, graph="naive"), ("language-naive", ALL)),
    ],
)
def test_rows_have_names(distribution: Distribution, name: tuple[str, str]):
    assert name_cell(distribution) == name
    table = evaluate_cells(perfect, hold_out([distribution], 20, threads=1).cells)
    assert [(r.distribution, r.difficulty, r.accuracy) for r in table.rows] == [(*name, 1.0)]
    assert table.baselines


def test_cells_without_examples_are_rows_without_accuracy():
    held = hold_out([pm.Star(input_size=17)], 50, threads=1)
    assert [len(cell.batch) for cell in held.cells] == [1, 0]
    table = evaluate_cells(perfect, held.cells)
    full, empty, mean = table.rows
    assert (full.examples, empty.examples, mean.examples) == (1, 0, 1)
    assert (full.accuracy, mean.accuracy) == (1.0, 1.0)
    assert all(isnan(value) for value in (empty.accuracy, empty.low, empty.high, empty.loss))
    nothing = evaluate_cells(perfect, hold_out([pm.Balanced(input_size=14)], 50, threads=1).cells)
    assert [r.examples for r in nothing.rows] == [0]
    assert not converged(nothing.rows).converged
    assert not converged(nothing.rows).converged_each
    assert isnan(mean_over_cells(nothing.rows * 2).accuracy)
    assert "–" in printed(nothing)
    assert "no examples" in texts(heat_map({"model": nothing}))
    assert evaluate_cells(perfect, []) == Table(rows=())


def test_convergence_is_judged_together_and_at_each_difficulty():
    rows = [row("balanced", f"lookahead={i}", 1000, 1000) for i in range(1, 10)]
    weak = row("balanced", "lookahead=10", 960, 1000)
    verdict = converged([*rows, weak, row("naive", ALL, 0, 1000)])
    assert (verdict.converged, verdict.converged_each) == (True, False)
    assert CONVERGED == 0.995
    at_the_threshold = converged([row("dfs", "backtrack=0", 199, 200), row("dfs", "backtrack=1", 995, 1000)])
    assert (at_the_threshold.converged, at_the_threshold.converged_each) == (True, True)
    large_and_bad = [row("language", "lookahead=1", 10, 10), row("language", "lookahead=2", 900, 1000)]
    assert not converged([*large_and_bad, row("language", ALL, 1000, 1000)]).converged
    steps = [row("selection", "frontier=1,branch=1", 10, 10), row("inference", "frontier=1,branch=1", 0, 10)]
    assert not converged(steps).converged
    assert converged([steps[0], row("inference", "frontier=1,branch=1", 0, 0)]).converged_each
    with pytest.raises(ValueError, match=r"rows: of naive, star; must hold rows of one of balanced, dfs, selection"):
        converged([row("naive", ALL, 1, 1), row("star", ALL, 1, 1)])


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        (lambda b: (np.ones(len(b)), np.zeros(len(b))), "judge: correct has type float64, must be bool"),
        (lambda b: (b.answers, np.zeros(len(b))), r"judge: correct has shape \(100, 14\), must be \(100,\)"),
        (lambda b: (b.answers[:, 0], np.zeros(1)), r"judge: loss has shape \(1,\), must be \(100,\)"),
    ],
)
def test_judges_are_checked(judge: Judge, message: str, search: HeldOut):
    with pytest.raises(ValueError, match=message):
        evaluate_cells(judge, search.cells, batch_size=100)


def test_cells_are_checked(search: HeldOut):
    with pytest.raises(ValueError, match="cells: naive all is there 2 times; evaluate them apart"):
        evaluate_cells(perfect, [search.cells[0]] * 2)
    several = replace(search.cells[0], batch=pm.Balanced(input_size=32).sample(5))
    with pytest.raises(ValueError, match=r"cells: balanced\(input_size=32\) has 4 difficulties, must have one"):
        evaluate_cells(perfect, [several])
    with pytest.raises(ValueError, match="batch_size=0"):
        evaluate_cells(perfect, search.cells, batch_size=0)


# Files.


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables_go_through_files(suffix: str, search: HeldOut, tmp_path: Path):
    small = hold_out([pm.DFS(input_size=32, backtrack=1)], 20, threads=1)
    table = evaluate_cells(half, [*search.cells, *small.cells])
    path = tmp_path / f"test.set{suffix}"
    write_table(table, path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"test.set.baselines{suffix}", f"test.set{suffix}"]
    assert repr(read_table(path)) == repr(table)  # nan differs from nan, but reads the same
    write_table(replace(table, baselines={}), path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert repr(read_table(path)) == repr(replace(table, baselines={}))
    write_table(Table(rows=()), path)
    assert read_table(path) == Table(rows=())


def test_files_have_exactly_the_promised_columns(search: HeldOut, tmp_path: Path):
    table = evaluate_cells(half, search.cells)
    path = tmp_path / "results.csv"
    write_table(table, path)
    lines = path.read_text().splitlines()
    assert lines[0] == ",".join(COLUMNS)
    assert len(lines) == 1 + len(table.rows)
    with baselines_path(path).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["heuristic", *COLUMNS]
    assert [r["heuristic"] for r in rows] == [name for name in SEARCH_RULES for _ in table.rows]
    write_table(table, tmp_path / "results.parquet")
    assert pq.read_schema(tmp_path / "results.parquet").names == COLUMNS
    assert pq.read_schema(tmp_path / "results.baselines.parquet").names == ["heuristic", *COLUMNS]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", "must end in one of .csv, .parquet"),
        ("a.csv", None, "no such file"),
        ("a.csv", "", "cannot be read as a table"),
        ("a.parquet", "x", "cannot be read as a table"),
        ("a.csv", "distribution,loss\n", "has the columns distribution, loss; must have distribution, difficulty"),
        ("a.csv", ",".join(COLUMNS) + "\nnaive,all,x,1,1,1,1,0\n", "row 1: invalid literal"),
        ("a.csv", ",".join(COLUMNS) + "\nnaive,all,1,1,1,1,1,0\nnaive,all\n", "row 2: "),
    ],
)
def test_foreign_files_are_named(name: str, content: str | None, message: str, tmp_path: Path):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_table(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert f"file={str(tmp_path / name)!r}" in str(caught.value)


def test_tables_are_not_written_where_they_cannot_be(tmp_path: Path):
    with pytest.raises(ValueError, match=r"out=.*must end in one of \.csv, \.parquet"):
        write_table(Table(rows=()), tmp_path / "a.npz")
    with pytest.raises(ValueError, match="out: no such directory"):
        write_table(Table(rows=()), tmp_path / "none" / "a.csv")
    with pytest.raises(ValueError, match=r"picture=.*must end in one of \.png, \.svg"):
        write_heat_map({}, tmp_path / "a.pdf")


# Reports and heat maps.


def printed(table: Table, width: int = 160) -> str:
    file = io.StringIO()
    print_report(table, title="a title", console=Console(file=file, width=width))
    return file.getvalue()


def test_the_report_has_every_row_or_a_grid_of_them(search: HeldOut, capsys: pytest.CaptureFixture[str]):
    table = evaluate_cells(half, search.cells)
    lines = [line.split() for line in printed(table).splitlines()]
    assert ["a", "title"] in lines
    for difficulty in ("lookahead=1", "lookahead=4"):
        found, first = table.find("balanced", difficulty), table.find("balanced", difficulty, "first edge")
        assert found is not None
        assert first is not None
        (line,) = [words for words in lines if difficulty in words]
        assert line[:3] == ["balanced", difficulty, f"{found.accuracy:.3f}"]
        assert f"{found.low:.3f}..{found.high:.3f}" in line
        assert line[-4] == f"{first.accuracy:.3f}"
    assert any(words[:4] == ["star", "mean", "of", "12"] for words in lines)
    grid = lines.index(["spokes", "1", "2", "3", "4"])
    two = [f"{r.accuracy:.2f}" for r in cells_of(table.rows, "star") if r.parameters["spokes"] == 2]
    assert lines[grid + 2] == ["2", *two]
    print_report(table)
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("width", [78, 100, 160])
def test_the_report_is_whole_at_any_width(width: int, search: HeldOut):
    many = [row("star", f"spokes=2,lookahead={i}", i, 84) for i in range(1, 85)]
    wide = Table(rows=(*many, row("star", ALL, 1, 2)))
    for table in (evaluate_cells(half, search.cells), wide):
        text = printed(table, width)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width
    assert [w for line in text.splitlines() if line.startswith(" spokes") for w in line.split() if w.isdigit()] == [
        str(i) for i in range(1, 85)
    ]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def made_up(distributions: Iterable[Distribution], accuracy: Callable[[Distribution], float] = lambda _: 0.5) -> Table:
    """A table without any examples drawn."""
    cells = [cell for distribution in distributions for cell in distribution.fixed()]
    rows = [row(*name_cell(cell), round(1000 * accuracy(cell)), 1000) for cell in cells]
    names = list(dict.fromkeys(r.distribution for r in rows))
    means = [mean_over_cells(cells_of(rows, name)) for name in names if len(cells_of(rows, name)) > 1]
    rules = dict.fromkeys(h.name for cell in cells for h in heuristics_for(cell))
    return Table(rows=(*rows, *means), baselines=dict.fromkeys(rules, (*rows, *means)))


def search_of(size: int) -> list[Distribution]:
    return [pm.Naive(input_size=size), pm.Star(input_size=size), pm.Balanced(input_size=size)]


@pytest.mark.parametrize(
    ("distributions", "numbered"),
    [
        (search_of(14), 3),
        (search_of(32), 1 + 1 + 4),
        (search_of(128), 1 + 1 + 20),
        (search_of(512), 1 + 1),
        ([pm.Naive(input_size=32)], 1),
        ([pm.Star(input_size=32)], 12),
        ([pm.Star(input_size=128)], 0),
        ([pm.DFS(input_size=64), pm.DFS(input_size=64, mode="naive")], 15 + 1),
        ([pm.DFS(input_size=512)], 0),
        ([pm.SelectionInference(input_size=48)], 44),
        ([pm.SelectionInference(input_size=128)], 0),
        ([pm.SelectionInference(input_size=64, frontier=3, branch=2)], 2),
        ([pm.Language(input_size=64)], 9),
    ],
)
def test_no_label_of_a_heat_map_touches_another(distributions: list[Distribution], numbered: int):
    """`numbered` cells of each judge are large enough for their number."""
    table = made_up(distributions, lambda _: 0.123)
    name = "a model with quite a long name"
    figure = heat_map({name: table, "$x$": table}, trained={name: trained_on(distributions[0])}, title="A title")
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [text.get_window_extent(renderer) for text in figure.axes[0].texts]
    width, height = figure.get_size_inches() * figure.dpi
    for box in boxes:
        assert box.x0 >= 0
        assert box.x1 <= width
        assert box.y0 >= 0
        assert box.y1 <= height
    overlapping = [
        (texts(figure)[i], texts(figure)[j])
        for (i, a), (j, b) in combinations(enumerate(boxes), 2)
        if a.x0 < b.x1 and b.x0 < a.x1 and a.y0 < b.y1 - 1 and b.y0 < a.y1 - 1
    ]
    assert overlapping == []
    assert texts(figure).count("0.12") == numbered * (2 + len(table.baselines))


def test_a_heat_map_shows_models_baselines_and_what_was_trained_on(tmp_path: Path):
    distributions = search_of(32)
    good, bad = made_up(distributions, lambda _: 0.98), made_up(distributions, lambda _: 0.21)
    tables = {"L ≤ 2": good, "on stars": replace(bad, baselines={})}
    trained = {
        "L ≤ 2": trained_on(pm.Balanced(input_size=32, max_lookahead=2)),
        "on stars": trained_on(pm.Star(input_size=32)),
    }
    figure = heat_map(tables, trained=trained, title="A title")
    found = texts(figure)
    expected = ["A title", "L ≤ 2", "on stars", *SEARCH_RULES, "naive", "star\nmean", "balanced, by lookahead"]
    assert set(expected) | {"1", "2", "3", "4", "accuracy", "trained on"} <= set(found)
    assert found.count("0.98") == 6 * 5  # one model and four baselines, from the only table that has them
    assert found.count("0.21") == 6
    (frames,) = [c for c in figure.axes[0].collections if isinstance(c, LineCollection)]
    # two cells side by side have six outer sides; the mean over stars and the sign in the legend have four each
    assert len(frames.get_segments()) == 6 + 4 + 4
    assert "trained on" not in texts(heat_map(tables))
    for suffix in (".svg", ".png"):
        write_heat_map(tables, tmp_path / f"map{suffix}", trained=trained)
    drawing = (tmp_path / "map.svg").read_text()
    for label in ("L ≤ 2", "on stars", *SEARCH_RULES, "naive", "balanced, by lookahead", "0.98"):
        assert f"<!-- {label} -->" in drawing
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_selection_and_inference_are_grids(steps: HeldOut):
    table = evaluate_cells(half, steps.cells)
    name = "inference frontier=1,branch=1"
    figure = heat_map({"model": table}, trained={"model": {name}})
    found = texts(figure)
    titles = ["model: selection", "model: inference", "most recent: selection", "random child: inference"]
    assert [text for text in found if ": " in text] == titles
    assert found.count("frontier") == found.count("branch") == 4
    (frames,) = [c for c in figure.axes[0].collections if isinstance(c, LineCollection)]
    assert len(frames.get_segments()) == 4 + 4
    cells = pm.SelectionInference(input_size=32).cells()
    assert sum("." in text for text in found) == 2 * len(cells)


def test_heat_maps_say_what_is_wrong(search: HeldOut):
    with pytest.raises(ValueError, match=r"tables=\['a'\]: must hold at least one table with rows"):
        heat_map({"a": Table(rows=())})
    with pytest.raises(ValueError, match="trained='b': must be one of a"):
        heat_map({"a": evaluate_cells(perfect, search.cells[:1])}, trained={"b": set()})


@pytest.mark.parametrize("values", [(0.9, 1.07), (0.4, 2.1), (0.06, 1.9), (0.0004, 16.0)])
def test_losses_have_plain_numbers_beside_them(values: tuple[float, float]):
    """Whatever the range: at least two numbers to read, at most nine, none of them as a power."""
    figure = Figure()
    axes = figure.subplots()
    axes.plot([0, 1], values)
    log_scale(axes)
    FigureCanvasAgg(figure).draw()
    low, high = axes.get_ylim()
    shown = [float(label.get_text()) for label in axes.get_yticklabels() if low <= label.get_position()[1] <= high]
    assert 2 <= len(shown) <= 9
    assert not any(label.get_text() for label in axes.get_yticklabels(minor=True))
    places = [tick for tick in axes.get_yticks() if low <= tick <= high]
    assert shown == pytest.approx(places)
