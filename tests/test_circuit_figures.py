"""Figures of many circuits are held against a count: shares by lookahead, maps of directions, distances, trust.

Also here: what figures and the picture of one circuit refuse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
from circuit_samples import EMPTY, TRUST, assert_legible, merging, nothing_kept, untrained, with_operations
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from pathmerge.circuits import figures
from pathmerge.circuits.files import Circuit
from pathmerge.circuits.picture import draw_circuit, path_of, write_picture
from pathmerge.evaluation.accuracy import wilson
from pathmerge.pictures import save


def mixed() -> list[Circuit]:
    """Circuits of several lookaheads whose readings differ."""
    found: list[Circuit] = []
    for lookahead, seeds in ((1, 2), (2, 3), (3, 4)):
        for seed in range(1, seeds + 1):
            circuit = noisy_with(lookahead, seed)
            strict = replace(circuit.strict, explained=seed == 1, maximal=circuit.strict.ranked[:1])
            found.append(replace(circuit, strict=strict, correct=seed != 2))
    return found


@cache
def noisy_with(lookahead: int, seed: int) -> Circuit:
    """Path-merging forwards, and for each of its merges one the other way round."""
    circuit = merging(32, lookahead, 3, seed)
    back = {"forward": "backward", "same": "same"}
    more = [
        op._replace(source=op.target, target=op.source, layer=max(0, op.layer - 1), direction=back[op.direction])
        for op in circuit.operations
    ]
    return with_operations(circuit, more)  # pyright: ignore[reportArgumentType]


FIGURES: dict[str, Callable[[list[Circuit]], Figure]] = {
    "by_lookahead": figures.by_lookahead,
    "directions": figures.directions,
    "distances": figures.distances,
    "trust_figure": figures.trust_figure,
    "model_sheet": lambda circuits: figures.model_sheet(circuits, "A model, $1$"),
}


LISTS: dict[str, Callable[[], list[Circuit]]] = {
    "one": lambda: [merging()],
    "mixed": mixed,
    "untrained": lambda: untrained("one-hot"),
    "nothing kept": lambda: [nothing_kept()] * 3,
    "large": lambda: [merging(128, lookahead, 6) for lookahead in range(1, 13)],
}


@pytest.mark.parametrize(
    ("name", "circuits"),
    [*(("model_sheet", kind) for kind in LISTS if kind != "one"), *((n, "one") for n in FIGURES if n != "model_sheet")],
)
def test_figures_are_legible(name: str, circuits: str):
    assert_legible(FIGURES[name](LISTS[circuits]()))


def points(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    """The marks of an axes by their colour and filling, without those of the legend."""
    found: dict[str, list[tuple[float, float]]] = {}
    for line in axes.lines:
        x, y = (np.asarray(part, float) for part in line.get_data())
        if len(x) == 1:
            key = f"{to_hex(line.get_color())} {to_hex(line.get_markerfacecolor())}"
            found.setdefault(key, []).append((float(x[0]), float(y[0])))
    return found


def bars(axes: Axes) -> list[tuple[float, float, float]]:
    """The intervals of an axes: where, from, to."""
    data = [np.array(line.get_data(), float) for line in axes.lines if len(np.asarray(line.get_data()[0])) == 2]
    return [(x[0], y[0], y[1]) for x, y in data if x[0] == x[1] and (y[0], y[1]) != (0, 1)]


def test_shares_by_lookahead_are_those_of_a_count():
    circuits = mixed()
    left, right = figures.by_lookahead(circuits).axes
    blue, red, black = "#0072b2", "#d55e00", "#3a3a3a"
    found = {
        "correct": points(left)[f"{black} {black}"],
        "strict": points(left)[f"{blue} {blue}"],
        "lenient": points(left)[f"{red} {red}"],
    }
    groups = [[c for c in circuits if c.input.lookahead == lookahead] for lookahead in (1, 2, 3)]
    assert [round(y * len(g)) for (_, y), g in zip(found["correct"], groups, strict=True)] == [1, 2, 3]
    assert [y for _, y in found["strict"]] == pytest.approx([1 / 2, 1 / 3, 1 / 4])
    assert [y for _, y in found["lenient"]] == pytest.approx(
        [sum(c.lenient.explained for c in g) / len(g) for g in groups]
    )
    assert [t.get_text() for t in left.get_xticklabels()] == ["1\n2", "2\n3", "3\n4"]
    wanted = [wilson(1, count) for count in (2, 3, 4)]
    at = [x for x, _ in found["strict"]]
    assert [next(bar[1:] for bar in bars(left) if bar[0] == x) for x in at] == [pytest.approx(ends) for ends in wanted]
    ranked = [sum(len(c.strict.ranked) for c in g) for g in groups]
    strict = [len(g) / count for g, count in zip(groups, ranked, strict=True)]
    assert [y for _, y in points(right)[f"{blue} {blue}"]] == pytest.approx(strict)
    lenient = [sum(len(c.lenient.maximal) for c in g) / sum(len(c.lenient.ranked) for c in g) for g in groups]
    assert [y for _, y in points(right)[f"{red} {red}"]] == pytest.approx(lenient)
    assert {y for _, y in points(right)[f"{red} #ffffff"]} == {1.0}  # `read` calls all of them so
    names = [t.get_text() for t in right.get_xticklabels()]
    assert names == [f"{k}\n{n}\n{n}" for k, n in zip((1, 2, 3), ranked, strict=True)]


def test_the_map_of_directions_is_a_count_and_its_columns_sum_to_one():
    circuits = mixed()
    group = [c for c in circuits if c.input.lookahead == 3]
    assert {len(path_of(c)) for c in group} == {4}
    counts = np.zeros((3, 4, 4))
    for circuit in group:
        graph: Any = networkx.DiGraph(circuit.input.edges)
        path = next(p for p in networkx.all_shortest_paths(graph, circuit.input.start, circuit.input.goal))
        held = {row.position: row.vertices for row in circuit.input.rows}
        for i in circuit.lenient.kept:
            op = circuit.operations[i]
            ends = [v for at in (op.source, op.target) for v in held[at] if v in path]
            if len(ends) == 2:
                counts[op.layer, path.index(ends[0]), path.index(ends[1])] += 1
    places = figures.merge_places(circuits, "lenient")
    assert (places.length, places.circuits, places.of) == (3, 4, 9)
    assert places.counts.tolist() == counts.tolist()
    assert counts.any((1, 2)).all()
    figure = figures.directions(circuits)
    maps = [axes for axes in figure.axes if axes.images]
    assert len(maps) == 3
    for layer, axes in enumerate(maps):
        shown: Any = axes.images[0].get_array()
        sums = counts[layer].sum(0)
        assert shown.mask.all(0).tolist() == (sums == 0).tolist()
        assert shown.sum(0)[sums > 0].tolist() == pytest.approx([1.0] * int((sums > 0).sum()))
        assert (shown.filled(0) * sums).ravel().tolist() == pytest.approx(counts[layer].ravel().tolist())
        source, target = np.indices((4, 4))
        total = counts[layer].sum()
        share = [f"{100 * counts[layer][which].sum() / total:.0f}%" for which in (source > target, source < target)]
        words = [text.get_text() for text in figure.texts]
        assert f"forward {share[0]}, backward {share[1]}" in words
        assert f"{total:.0f} merges, {100 * counts[layer].trace() / total:.0f}% same" in words


def test_paths_of_one_length_are_drawn_the_longest_that_a_third_has():
    longer, shorter = [noisy_with(3, seed) for seed in (1, 2)], [noisy_with(2, seed) for seed in (1, 2)]
    assert figures.merge_places([*longer, *shorter], "strict").length == 3
    assert figures.merge_places([longer[0], *shorter], "strict").length == 3
    assert figures.merge_places([longer[0], *shorter, shorter[0]], "strict").length == 2
    one_each = [noisy_with(1, 1), *shorter, *longer, noisy_with(4, 1), noisy_with(4, 2)]
    assert figures.merge_places(one_each, "strict").length == 4  # nobody has a third: the longest of the commonest
    assert figures.merge_places(one_each, "strict", length=1).circuits == 1


def test_screened_circuits_do_not_know_what_is_largest_of_a_vertex():
    exact = merging()
    screened = replace(exact, strict=replace(exact.strict, maximal_vertex=None))
    shares = figures.lookahead_shares([exact, screened])[3]
    assert shares["strict maximal_vertex"].count == len(exact.strict.ranked)
    assert shares["lenient maximal_vertex"].count == 2 * len(exact.strict.ranked)
    legend = figures.by_lookahead([screened]).axes[1].get_legend()
    assert legend
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["maximal, strict", "maximal, lenient", "largest of its vertex, lenient"]


def test_copies_are_not_merges():
    circuit = merging()
    copies = replace(circuit, operations=tuple(op._replace(kind="copy") for op in circuit.operations))
    assert figures.merge_places([circuit], "strict").counts.sum() > 0
    assert figures.merge_places([copies], "strict").counts.sum() == 0
    assert not any(figures.merge_distances([copies], "strict"))


def test_distances_are_those_of_a_count_and_the_line_is_the_hypothesis():
    circuits = [merging(128, 10, 6, seed) for seed in (1, 2)]
    counts: Counter[tuple[int, int]] = Counter()
    same: Counter[int] = Counter()
    for circuit in circuits:
        for i in circuit.lenient.kept:
            op = circuit.operations[i]
            if op.direction == "same":
                same[op.layer] += 1
            else:
                assert op.distance is not None
                counts[op.layer, op.distance if op.direction == "forward" else -op.distance] += 1
    figure = figures.distances(circuits)
    axes = figure.axes[0]
    texts = {t.get_position(): int(t.get_text()) for t in axes.texts if t.get_text()}
    assert {at: n for at, n in texts.items() if at[1]} == dict(counts)
    assert {x: n for (x, y), n in texts.items() if not y} == dict(same)
    upper, lower = [np.array(line.get_data(), float) for line in axes.lines if len(np.asarray(line.get_data()[0])) > 2]
    assert upper[1][::2].tolist() == [1.5, 1.5, 2.5, 4.5, 8.5, 16.5]
    assert (upper[1] == -lower[1]).all()
    totals = [sum(n for (layer, _), n in counts.items() if layer == at) for at in range(6)]
    assert len(axes.patches) == len(counts) + 1
    for patch in axes.patches:
        corner = patch.get_path().get_extents(patch.get_patch_transform())
        at = round(corner.x0 + 0.5), round(corner.y0 + 0.5)
        if at[1]:  # not the band of merges between equal vertices
            colour = figures.COLOURS(counts[at] / totals[at[0]])
            assert to_hex(patch.get_facecolor()) == to_hex(colour)


def test_backward_distances_stand_below():
    circuits = mixed()
    texts = {t.get_position(): int(t.get_text()) for t in figures.distances(circuits).axes[0].texts if t.get_text()}
    wanted: Counter[tuple[int, int]] = Counter()
    for circuit in circuits:
        for i in circuit.lenient.kept:
            op = circuit.operations[i]
            sign = {"forward": 1, "backward": -1, "same": 0}[op.direction]
            wanted[op.layer, sign * (op.distance or 0)] += 1
    assert texts == dict(wanted)
    assert any(y < 0 for _, y in texts)


def test_trust_is_that_of_the_circuits_with_it():
    values = [(True, 0.2), (True, 0.4), (False, 0.9)]
    circuits = [
        replace(merging(), strict=replace(merging().strict, trust=replace(TRUST, sufficient=is_so, minimal=minimal)))
        for is_so, minimal in values
    ]
    circuits.append(replace(merging(), strict=replace(merging().strict, trust=None)))
    found = figures.trust_estimates(circuits)
    assert found["strict sufficient"].value == pytest.approx(2 / 3)
    assert (found["strict sufficient"].low, found["strict sufficient"].high) == wilson(2, 3)
    assert found["lenient sufficient"].count == 4
    assert found["strict minimal"].value == pytest.approx(0.5)
    # Student's interval by hand: 4.3027 is the 97.5% point for two degrees of freedom; it is cut off at 0 and 1.
    assert (found["strict minimal"].low, found["strict minimal"].high) == (0.0, 1.0)
    close = figures.trust_estimates(
        [
            replace(c, strict=replace(c.strict, trust=replace(TRUST, minimal=m)))
            for c, m in zip(circuits, (0.4, 0.5, 0.6), strict=False)
        ]
    )
    assert close["strict minimal"].high - 0.5 == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-4)
    assert np.isnan(figures.trust_estimates(circuits[-1:])["strict minimal"].value)
    axes = figures.trust_figure(circuits).axes[0]
    blue = [x for x, _ in points(axes)["#0072b2 #0072b2"]]
    assert blue == pytest.approx([2 / 3, 0.0, 0.5])
    assert sorted(x for x, _ in points(axes)["#9a9a9a #ffffff"]) == [0.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    none = [
        replace(
            merging(),
            strict=replace(EMPTY, sets=merging().strict.sets),
            lenient=replace(EMPTY, sets=merging().strict.sets),
        )
    ]
    assert "trust was not computed" in [t.get_text() for t in figures.trust_figure(none).axes[0].texts]


def test_what_was_not_kept_is_said():
    circuits = [nothing_kept()]
    words = [t.get_text() for t in figures.model_sheet(circuits, "x").findobj(Text) if isinstance(t, Text)]
    assert words.count("no merge was kept") == 2
    assert words.count("no merge\nwas kept") == 4


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: draw_circuit(merging(), "loose"), "reading='loose'"),  # pyright: ignore[reportArgumentType]
        (lambda: draw_circuit(merging(), most=-1), "most=-1"),
        (lambda: draw_circuit(merging(), columns=0), "columns=0"),
        (lambda: draw_circuit(replace(merging(), operations=())), r"circuit.operations=\(\)"),
        (lambda: figures.by_lookahead([]), r"circuits=\[\]"),
        (lambda: figures.directions([]), r"circuits=\[\]"),
        (lambda: figures.distances([]), r"circuits=\[\]"),
        (lambda: figures.trust_figure([]), r"circuits=\[\]"),
        (lambda: figures.model_sheet([], "none"), r"circuits=\[\]"),
        (lambda: figures.directions([merging()], "auto"), "reading='auto'"),  # pyright: ignore[reportArgumentType]
        (lambda: figures.distances([merging()], "Strict"), "reading='Strict'"),  # pyright: ignore[reportArgumentType]
        (lambda: figures.directions([merging()], length=9), "length=9"),
        (lambda: figures.by_lookahead([merging(), merging(layers=3)]), "circuits"),
        (lambda: figures.trust_figure([replace(merging(), operations=())]), "circuits"),
    ],
)
def test_bad_input_is_refused_in_one_line(call: Callable[[], Figure], says: str):
    with pytest.raises(ValueError, match=rf"\A{says}: .+\Z"):
        call()


@pytest.mark.parametrize("place", ["a.pdf", "missing/a.png"])
def test_a_bad_place_is_refused_before_anything_is_drawn(place: str, tmp_path: Path):
    nothing: Any = None
    for write in (
        lambda path: write_picture(nothing, path),
        lambda path: figures.write_by_lookahead(nothing, path),
        lambda path: figures.write_directions(nothing, path),
        lambda path: figures.write_distances(nothing, path),
        lambda path: figures.write_trust_figure(nothing, path),
        lambda path: figures.write_model_sheet(nothing, path, ""),
    ):
        with pytest.raises(ValueError, match=r"\Apicture"):
            write(tmp_path / place)
    assert not list(tmp_path.iterdir())


def test_figures_are_written(tmp_path: Path):
    circuits = mixed()
    figures.write_by_lookahead(circuits, tmp_path / "a.png")
    figures.write_directions(circuits, tmp_path / "b.png", "strict", length=2)
    figures.write_distances(circuits, tmp_path / "c.png", "strict")
    figures.write_trust_figure(circuits, tmp_path / "d.png")
    save(figures.directions(circuits, "strict", length=2), tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())
