"""Pictures of circuits are read back from their artists and held against the circuit.

What an artist is follows from how it looks: operations are the curves, white ones the halo of a highlighted one; rows'
boxes are what is filled and begins at the height of a level.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
from circuit_samples import EMPTY, assert_legible, merging, nothing_kept, operation, untrained, with_operations
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.path import Path as Outline
from matplotlib.text import Text

from pathmerge.circuits import figures
from pathmerge.circuits.files import Circuit, Reading, load_circuit
from pathmerge.circuits.picture import COLOURS, draw_circuit, path_of, write_picture


@cache
def noisy(size: int, lookahead: int, layers: int) -> Circuit:
    """Path-merging among operations drawn at random."""
    circuit, rng = merging(size, lookahead, layers), random.Random(0)
    rows = [row.position for row in circuit.input.rows if row.vertices]
    kinds = ["token", "position"]
    more = [
        operation(layer, rng.choice(rows), rng.choice(rows), kind=rng.choice(kinds), drop=(rng.uniform(0.4, 1.5), 0.0))
        for layer in range(layers - 1)
        for _ in range(4 * size // layers)
    ]
    more += [operation(layers - 1, rng.choice(rows), rows[-1], kind="copy") for _ in range(6)]
    return with_operations(circuit, more)


def by_markers() -> Circuit:
    """Merges into and out of the rows of markers, which have sets too then."""
    circuit = replace(merging(), operations=())
    rows, path = circuit.input.rows, path_of(circuit)
    edges = [place for place, row in enumerate(rows[:-5]) if not row.vertices and rows[place + 1].vertices[0] in path]
    last = rows[-1].position
    ends = [(rows[place].position, rows[place + 1].position) for place in edges]
    more = [operation(1, vertex, mark) for mark, vertex in ends]
    more += [operation(2, end, last, kind="copy") for both in ends for end in both]
    full = (tuple(range(1, 10)),) * len(rows)
    reading = replace(circuit.strict, sets=(*circuit.strict.sets[:1] * 2, full, full, full))
    return with_operations(replace(circuit, strict=reading), more)


DRAWN: dict[str, Callable[[], tuple[Circuit, Any]]] = {
    "one-hot, few": lambda: (untrained("one-hot")[0], "strict"),
    "one-hot, lenient": lambda: (untrained("one-hot")[1], "lenient"),
    "one-hot, wrong": lambda: (untrained("one-hot")[2], "auto"),
    "edge tokens": lambda: (untrained("edges")[0], "lenient"),
    "ideal": lambda: (merging(), "auto"),
    "ideal, large": lambda: (merging(128, 10, 6), "auto"),
    "tree": lambda: (noisy(32, 4, 4), "strict"),
    "tree, large": lambda: (noisy(128, 8, 5), "lenient"),
    "markers": lambda: (by_markers(), "auto"),
    "nothing kept": lambda: (nothing_kept(), "auto"),
    "many words": lambda: (replace(merging(), model={"name": "with a $ and many words " * 30}), "auto"),
}


@dataclass(frozen=True)
class Line:
    """An operation as drawn."""

    start: tuple[float, float]
    end: tuple[float, float]
    colour: str
    width: float
    lit: bool


@dataclass(frozen=True)
class Picture:
    """What is in a picture; `levels` are the upper edges of the boxes."""

    texts: list[Text]
    lines: list[Line]
    boxes: list[Patch]
    levels: list[float]
    passes: int
    """How often a highlighted row passes on to itself."""


def look(figure: Figure) -> Picture:
    (axes,) = figure.axes
    patches = [patch for patch in axes.patches if isinstance(patch, Patch)]
    lines: list[Line] = []
    for patch in patches:
        codes: Any = patch.get_path().codes
        if codes is None or Outline.CURVE4 not in codes or to_hex(patch.get_edgecolor()) == "#ffffff":
            continue
        points = np.array(patch.get_path().vertices)
        lines.append(
            Line(
                start=(float(points[0, 0]), float(points[0, 1])),
                end=(float(points[-1, 0]), float(points[-1, 1])),
                colour=to_hex(patch.get_edgecolor()),
                width=float(patch.get_linewidth()),
                lit=patch.get_alpha() is None,
            )
        )
    names = [t for t in axes.texts if re.fullmatch(r"input|after layer \d+", t.get_text())]
    levels = [t.get_position()[1] - 0.1 for t in names]
    tops = {round(level, 6) for level in levels}
    filled = [patch for patch in patches if patch.get_fill()]
    boxes = [patch for patch in filled if round(float(patch.get_path().get_extents().y0), 6) in tops]
    straight = [patch for patch in patches if patch.get_path().codes is None and patch.get_linewidth() > 1]
    return Picture(texts=list(axes.texts), lines=lines, boxes=boxes, levels=levels, passes=passes(straight))


def passes(straight: list[Patch]) -> int:
    """Lines from row to row: but for those in the legend, which are level or black or short."""
    ends = [np.array(patch.get_path().vertices) for patch in straight if to_hex(patch.get_edgecolor()) == "#5f5f5f"]
    return sum(x0 == x1 and y1 - y0 > 0.2 for (x0, y0), (x1, y1) in ends)


def at_level(picture: Picture, level: int) -> list[tuple[float, str]]:
    """What stands in the boxes of a level, and markers, from left to right."""
    height = picture.levels[level] + 0.1
    found = [t for t in picture.texts if abs(t.get_position()[1] - height) < 1e-6 and t.get_position()[0] > 1.2]
    return sorted(
        (t.get_position()[0], t.get_text()) for t in found if t.get_text() not in ("…", "no operation was kept")
    )


def columns(picture: Picture, circuit: Circuit) -> dict[float, int]:
    """Which row (by its place) stands at which x: rows that are left out are found by the numbers at the gaps."""
    gaps = [(t.get_position()[0], 0) for t in picture.texts if t.get_text() == "…"]
    left_out = {
        t.get_position()[0]: int(t.get_text())
        for t in picture.texts
        if t.get_position()[0] in {x for x, _ in gaps} and t.get_text().isdigit()
    }
    place, found = 0, dict[float, int]()
    marks = {"EDGE": "E", "QUERY": "Q", "PATH": "P"}
    for x, words in sorted([*at_level(picture, 0), *((x, "…") for x in left_out)]):
        if words == "…":
            place += left_out[x]
            continue
        row = circuit.input.rows[place]
        assert words == marks.get(row.text, row.text)
        found[round(x, 6)] = place
        place += 1
    assert place == len(circuit.input.rows)
    return found


def operations_drawn(picture: Picture, circuit: Circuit, *, lit: bool) -> Counter[tuple[int, int, int]]:
    """Layer, source and target (places of rows) of the lines."""
    row_at = columns(picture, circuit)
    found: Counter[tuple[int, int, int]] = Counter()
    for line in picture.lines:
        if line.lit == lit:
            level = max(i for i, top in enumerate(picture.levels) if top < line.start[1])
            assert picture.levels[level + 1] - 0.06 < line.end[1] <= picture.levels[level + 1]
            found[level, row_at[round(line.start[0], 6)], row_at[round(line.end[0], 6)]] += 1
    return found


def kept_operations(circuit: Circuit, reading: Reading) -> Counter[tuple[int, int, int]]:
    at = {row.position: place for place, row in enumerate(circuit.input.rows)}
    kept = [circuit.operations[i] for i in reading.kept]
    return Counter((op.layer, at[op.source], at[op.target]) for op in kept)


def leading(circuit: Circuit, operations: Any) -> set[tuple[int, int]]:
    """The rows, by level and place, from which these operations lead to the answer."""
    rows, layers = circuit.input.rows, len(circuit.strict.sets) - 1
    graph: Any = networkx.DiGraph()
    graph.add_edges_from(((level, row), (level + 1, row)) for level in range(layers) for row in range(len(rows)))
    graph.add_edges_from(((layer, source), (layer + 1, target)) for layer, source, target in operations)
    answer = layers, len(rows) - 1
    return {answer} | networkx.ancestors(graph, answer)


def carrying(circuit: Circuit, path: list[int], operations: Any) -> set[tuple[int, int]]:
    """The rows, by level and place, to which these operations lead from a row that holds a vertex of the path."""
    rows, layers = circuit.input.rows, len(circuit.strict.sets) - 1
    found = {(0, place) for place, row in enumerate(rows) if set(row.vertices) & set(path)}
    for level in range(layers):
        found |= {(level + 1, row) for at, row in found if at == level}
        here = [(source, target) for layer, source, target in operations if layer == level]
        found |= {(level + 1, target) for source, target in here if (level, source) in found}
    return found


def arriving(circuit: Circuit, operations: Any) -> set[int]:
    """The vertices from one of whose rows these operations lead to the answer."""
    first = [row for level, row in leading(circuit, operations) if level == 0]
    return {vertex for row in first for vertex in circuit.input.rows[row].vertices}


def reading_of(circuit: Circuit, reading: str) -> Reading:
    name = ("strict" if circuit.strict.explained else "lenient") if reading == "auto" else reading
    return getattr(circuit, name)


def words_of(picture: Picture) -> str:
    return " ".join(text.get_text() for text in picture.texts)


@cache
def drawn(kind: str) -> Figure:
    circuit, reading = DRAWN[kind]()
    return draw_circuit(circuit, reading)


@pytest.mark.parametrize("kind", DRAWN)
def test_text_never_overlaps_nor_leaves_the_picture(kind: str):
    assert_legible(drawn(kind))


@pytest.mark.parametrize("kind", DRAWN)
def test_every_kept_operation_is_drawn_once_between_its_rows(kind: str):
    circuit, reading = DRAWN[kind]()
    picture = look(draw_circuit(circuit, reading, columns=1000))
    lines = operations_drawn(picture, circuit, lit=True) + operations_drawn(picture, circuit, lit=False)
    kept = kept_operations(circuit, reading_of(circuit, reading))
    assert lines == kept
    assert len(set(COLOURS.values())) == 4
    kinds = Counter(COLOURS[circuit.operations[i].kind] for i in reading_of(circuit, reading).kept)
    assert Counter(line.colour for line in picture.lines) == Counter({k.lower(): n for k, n in kinds.items()})


@pytest.mark.parametrize("kind", DRAWN)
def test_what_is_highlighted_connects_the_path_with_the_answer(kind: str):
    circuit, reading = DRAWN[kind]()
    picture = look(drawn(kind))
    kept = kept_operations(circuit, reading_of(circuit, reading))
    lit = operations_drawn(picture, circuit, lit=True)
    words = words_of(picture)
    path = [int(v) for v in re.search(r"path ([\d →]+):", words)[1].split(" → ")]  # pyright: ignore[reportOptionalSubscript]
    assert path[0] == circuit.input.start
    assert path[-1] == circuit.input.goal
    assert set(pairwise(path)) <= set(circuit.input.edges)
    can = set(path) & arriving(circuit, kept)
    assert set(path) & arriving(circuit, lit) == can
    if kept:
        assert (
            f"{len(reading_of(circuit, reading).kept):,} of {len(circuit.operations):,} important operations" in words
        )
        assert f" are kept and {lit.total()} highlighted: " in words
    missing = sorted(set(path) - can)
    said = re.search(r"No chain leads to the answer from ([\d, and]+)\.", words)
    assert sorted(int(v) for v in re.findall(r"\d+", said[1] if said else "")) == (missing if kept else [])
    if "one chain to the answer" not in words:
        assert lit == Counter({op: n for op, n in kept.items() if op[:2] in carrying(circuit, path, kept)})
    else:
        for operation in lit:  # a tree: without any one of them, a vertex would be cut off
            assert set(path) & arriving(circuit, lit - Counter([operation])) < can


@pytest.mark.parametrize("kind", DRAWN)
def test_rows_are_drawn_as_long_as_something_leads_on_from_them(kind: str):
    circuit, reading = DRAWN[kind]()
    picture = look(draw_circuit(circuit, reading, columns=1000))
    row_at, at = columns(picture, circuit), {round(top, 6): level for level, top in enumerate(picture.levels)}
    boxes: dict[tuple[int, int], str] = {}
    for box in picture.boxes:
        outline = box.get_path().get_extents()
        x = (outline.x0 + outline.x1) / 2
        row = row_at[min(row_at, key=lambda known, x=x: abs(known - x))]
        boxes[at[round(float(outline.y0), 6)], row] = to_hex(box.get_facecolor())
    assert len(boxes) == len(picture.boxes)
    kept = kept_operations(circuit, reading_of(circuit, reading))
    live, rows = leading(circuit, kept), circuit.input.rows
    assert {node for node in boxes if node[0]} == {node for node in live if node[0]}
    used = {row for level, row in live if level == 0}
    assert {row for level, row in boxes if level == 0} == used | {row for row in range(len(rows)) if rows[row].vertices}
    # Strong colours are only for what is highlighted: from the path, and on to the answer.
    lit = operations_drawn(picture, circuit, lit=True)
    strong = {node for node, colour in boxes.items() if colour in ("#0072b2", "#d55e00", "#c9e6f7")}
    assert (len(picture.levels) - 1, len(rows) - 1) in strong or kind == "edge tokens"
    assert strong <= leading(circuit, lit)
    path = [int(v) for v in re.findall(r"\d+", words_of(picture).split(", path ")[1].split(":")[0])]
    nodes = leading(circuit, lit) & carrying(circuit, path, lit)
    assert picture.passes == len([1 for level, row in nodes if (level + 1, row) in nodes])


def test_few_operations_are_all_highlighted_if_they_carry_the_path_and_many_are_not():
    circuit = merging()
    path = set(path_of(circuit))
    carriers = [i for i in circuit.strict.kept if path & set(sets_of_source(circuit, i))]
    assert 0 < len(carriers) <= 24
    some = look(draw_circuit(circuit, most=len(carriers)))
    assert sum(line.lit for line in some.lines) == len(carriers)
    fewer = look(draw_circuit(circuit, most=len(carriers) - 1))
    assert 0 < sum(line.lit for line in fewer.lines) < len(carriers)


def sets_of_source(circuit: Circuit, i: int) -> tuple[int, ...]:
    op = circuit.operations[i]
    at = {row.position: place for place, row in enumerate(circuit.input.rows)}
    return circuit.strict.sets[op.layer][at[op.source]]


def test_a_line_is_thicker_the_more_important_its_operation_is():
    circuit = merging()
    picture = look(draw_circuit(circuit))
    row_at = columns(picture, circuit)
    at = {row.position: place for place, row in enumerate(circuit.input.rows)}
    fall = {(op.layer, at[op.source], at[op.target]): op.drop[0] or 0.0 for op in circuit.operations}
    for level in range(len(picture.levels) - 1):
        here = [line for line in picture.lines if picture.levels[level] < line.start[1] < picture.levels[level + 1]]
        falls = [fall[level, row_at[round(line.start[0], 6)], row_at[round(line.end[0], 6)]] for line in here]
        assert np.argsort([line.width for line in here]).tolist() == np.argsort(falls).tolist()
    # Against the thresholds: a change of the product by √d/κ1 = 0.2 is as important as a fall of the logit by α = 0.4.
    mixed = [(op, op._replace(drop=(0.0, 9.0), change=((op.drop[0] or 0.0) / 2, 9.0))) for op in circuit.operations]
    bent = replace(
        circuit,
        operations=tuple(pair[place % 2] for place, pair in enumerate(mixed)),
        model={**circuit.model, "head_width": 16},
    )
    assert [line.width for line in look(draw_circuit(bent)).lines] == pytest.approx(
        [line.width for line in picture.lines]
    )


@pytest.mark.parametrize("kind", ["ideal", "tree", "one-hot, lenient", "edge tokens"])
def test_sets_are_listed_where_they_grow(kind: str):
    circuit, reading = DRAWN[kind]()
    picture, sets = look(drawn(kind)), reading_of(circuit, reading).sets
    row_at = columns(picture, circuit)
    legend = next(text.get_position()[1] for text in picture.texts if text.get_text().startswith("merge by"))
    found: dict[tuple[int, int], dict[int, str]] = {}
    for text in picture.texts:
        (x, y), words = text.get_position(), text.get_text()
        level = max((i for i, top in enumerate(picture.levels) if top < y), default=0)
        if words.isdigit() and y < legend - 0.1 and y > picture.levels[level] + 0.15:
            nearest = min(row_at, key=lambda at, x=x: abs(at - x))
            found.setdefault((level, row_at[nearest]), {})[int(words)] = str(text.get_fontweight())
    assert found
    path = re.search(r"path ([\d →]+):", words_of(picture))
    assert path
    for (level, row), members in found.items():
        assert set(members) == set(sets[level][row])
        assert set(members) > set(sets[level - 1][row])
        bold = {vertex for vertex, weight in members.items() if weight == "bold"}
        assert bold == set(members) & {int(v) for v in path[1].split(" → ")}
    last = len(sets) - 1, len(sets[0]) - 1
    assert (last in found) == (sets[-1][-1] != sets[-2][-1])


def test_rows_that_are_not_used_are_left_out_of_large_inputs_only():
    large, small = merging(128, 4, 5), merging()
    used = {end for i in large.strict.kept for end in (large.operations[i].source, large.operations[i].target)}
    picture = look(draw_circuit(large, most=0))
    shown = {large.input.rows[row].position for row in columns(picture, large).values()}
    assert not all(line.lit for line in picture.lines)
    assert used < shown
    assert len(shown) <= 40 < len(large.input.rows)
    assert len(picture.lines) == len(large.strict.kept)
    assert "not drawn" not in words_of(picture)
    assert "rows left out" in words_of(picture)
    everything = look(draw_circuit(large, columns=128))
    assert len(columns(everything, large)) == len(large.input.rows)
    assert "rows left out" not in words_of(everything)
    assert len(columns(look(draw_circuit(small)), small)) == len(small.input.rows)
    assert len(columns(look(draw_circuit(small, columns=20)), small)) < len(small.input.rows)


def test_operations_of_rows_that_are_left_out_are_counted():
    circuit = noisy(128, 8, 5)
    picture = look(draw_circuit(circuit))
    said = re.search(r"([\d,]+) kept operations between rows", words_of(picture))
    assert said
    assert int(said[1].replace(",", "")) == len(circuit.strict.kept) - len(picture.lines) > 0


def test_the_rows_of_an_edge_stand_together():
    circuit = merging()
    at = {row: x for x, row in columns(look(draw_circuit(circuit)), circuit).items()}
    steps = {row: at[row + 1] - at[row] for row in range(len(at) - 1)}
    within = {steps[row] for row in steps if circuit.input.rows[row].vertices and circuit.input.rows[row + 1].vertices}
    across = {
        steps[row] + steps[row + 1] for row in range(2, len(steps) - 1) if not circuit.input.rows[row + 1].vertices
    }
    assert max(within) == pytest.approx(min(within), abs=1e-4)
    mark = 2 * (at[1] - at[0]) - max(within)  # the width of a marker's column
    assert min(across) > max(within) + mark + 0.05


@pytest.mark.parametrize("lookahead", [1, 3])
def test_the_edges_of_the_path_are_tinted(lookahead: int):
    circuit = merging(32, lookahead)
    figure = draw_circuit(circuit)
    row_at, places = columns(look(figure), circuit), list[tuple[int, ...]]()
    for patch in figure.axes[0].patches:
        if to_hex(patch.get_facecolor()) == "#eaf3fa":
            band = patch.get_path().get_extents()
            places.append(tuple(row for x, row in row_at.items() if band.x0 < x < band.x1))
    found = [tuple(v for row in rows for v in circuit.input.rows[row].vertices) for rows in places]
    assert sorted(found) == sorted(pairwise(path_of(circuit)))


def test_words_say_what_is_shown():
    circuit = merging()
    path = " → ".join(map(str, path_of(circuit)))
    ends = f"From {circuit.input.start} to {circuit.input.goal}"
    words = words_of(look(draw_circuit(circuit)))
    assert f"{ends}, path {path}: the model answers {circuit.prediction}, right" in words
    assert f"answer {circuit.prediction}: right" in words
    assert "strictly yes, leniently yes. Shown: strict reading." in words
    assert "balanced, lookahead 3; ideal, layers 4, heads 1; α=0.4, κ1=20, κ2=10, whole sets, exact: every" in words
    method = replace(circuit.method, mode="screened", alpha=0.25)
    other = replace(nothing_kept(), method=method, audited=50, missed=2)
    words = words_of(look(draw_circuit(other)))
    right = circuit.input.answers[0]
    assert f"{ends}, path {path}: the model answers {other.prediction}, wrong ({right} would be right)" in words
    assert f"answer {other.prediction}: wrong" in words
    assert "strictly no, leniently no. Shown: lenient reading." in words
    assert f"No operation was kept of {len(circuit.operations)} important." in words
    assert "no operation was kept" in words
    assert "α=0.25" in words
    assert "screened: only candidates measured (of 50 others, 2 would have been kept)." in words


def test_auto_is_strict_where_that_explains():
    circuit = merging()
    unexplained = replace(circuit.strict, explained=False)
    shown = {
        (strict, lenient): re.search(r"Shown: (\w+) reading", words_of(look(draw_circuit(found))))[1]  # pyright: ignore[reportOptionalSubscript]
        for strict, found in ((True, circuit), (False, replace(circuit, strict=unexplained)))
        for lenient in (True,)
    }
    assert shown == {(True, True): "strict", (False, True): "lenient"}


def test_the_path_is_shortest_begins_with_the_answer_and_keeps_to_what_arrives():
    edges = ((1, 2), (2, 9), (1, 3), (3, 4), (4, 9), (1, 5), (5, 9), (3, 6))
    given = replace(merging().input, edges=edges, start=1, goal=9, answers=(2, 3, 5))
    circuit = replace(merging(), input=given, prediction=3)
    assert path_of(circuit) == (1, 3, 4, 9)
    assert path_of(replace(circuit, prediction=5)) == (1, 5, 9)
    assert path_of(replace(circuit, prediction=6)) == (1, 2, 9)
    assert path_of(circuit, {1, 5, 9}) == (1, 5, 9)
    assert path_of(circuit, {1, 3, 4, 5, 9}) == (1, 3, 4, 9)
    assert path_of(circuit, {1, 4, 9}) == (1, 3, 4, 9)


def test_a_path_that_arrives_without_the_answer_is_said_to():
    circuit = merging()
    start, goal = circuit.input.start, circuit.input.goal
    other = replace(circuit, input=replace(circuit.input, edges=(*circuit.input.edges, (start, goal))))
    reading = replace(EMPTY, explained=True, kept=(0,), sets=circuit.strict.sets)
    goal_row = next(row.position for row in circuit.input.rows if goal in row.vertices)
    straight = operation(3, goal_row, circuit.input.rows[-1].position, kind="copy")
    words = words_of(look(draw_circuit(replace(other, operations=(straight,), lenient=reading), "lenient")))
    assert f"path {start} → {goal}:" in words
    assert "not the one that begins with the answer" in words
    assert "not the one" not in words_of(look(draw_circuit(circuit)))


def test_a_circuit_has_the_same_bytes_always(tmp_path: Path):
    circuit = noisy(32, 4, 4)
    circuit.save(tmp_path / "circuit.json")
    loaded = load_circuit(tmp_path / "circuit.json")
    for kind in ("png", "svg"):
        write_picture(circuit, tmp_path / f"one.{kind}")
        write_picture(loaded, tmp_path / f"two.{kind}")
        assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()
        assert b"matplotlib" not in (tmp_path / f"one.{kind}").read_bytes().lower()
    figures.write_model_sheet([circuit], tmp_path / "one.svg", "sheet")
    figures.write_model_sheet([loaded], tmp_path / "two.svg", "sheet")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
