"""Figures of many circuits of one model: what is explained, which way and how far it merges, whether to trust it.

Choices a reader could not guess:
- Shares have Wilson intervals. Merges of one input are not independent, so those of their shares are too narrow, if
  anything. Means (minimality) have Student's interval over circuits.
- Places of merges are those of their rows' vertices on one path, a shortest from start to goal that begins with the
  prediction if that is right. Paths of different lengths cannot share a map: `directions` draws those of one length.
- Layers are counted from 1 here, as in the paper, and from 0 in files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pathmerge.circuits.counts import (
    READINGS,
    Estimate,
    Places,
    ReadingName,
    lookahead_shares,
    merge_distances,
    merge_places,
    trust_estimates,
)
from pathmerge.circuits.counts import kept_merges as kept_merges
from pathmerge.circuits.files import Circuit, Direction
from pathmerge.disk import check_output
from pathmerge.pictures import save
from pathmerge.pictures.scene import BLUE, FONT, VERMILLION, text_width

GREY, FAINT, EMPTY = "#5F5F5F", "#C8C8C8", "#E9E9E9"
MARKERS = {"correct": ("#3A3A3A", "s"), "strict": (BLUE, "o"), "lenient": (VERMILLION, "^")}
COLOURS = colormaps["Blues"]
ACROSS = 4
"""Heat maps side by side."""
EDGE = 0.2


def by_lookahead(circuits: Sequence[Circuit]) -> Figure:
    """The share of inputs that are explained, and of merges that are maximal, by lookahead (the paper's figure 5)."""
    return _page([[_lookahead_panel(lookahead_shares(circuits))]])


def directions(circuits: Sequence[Circuit], reading: ReadingName = "lenient", *, length: int | None = None) -> Figure:
    """Which way merges go: for each layer the source's place on the path against the target's (figures 18 and 19).

    `length` is the number of steps of the paths to count; without it, the largest that a third of the circuits have.
    """
    return _page([[_directions_panel(merge_places(circuits, reading, length=length))]])


def distances(circuits: Sequence[Circuit], reading: ReadingName = "lenient") -> Figure:
    """How far merges reach: for each layer, the steps between the vertices of their rows, forwards and backwards."""
    return _page([[_distances_panel(merge_distances(circuits, reading), reading)]])


def trust_figure(circuits: Sequence[Circuit]) -> Figure:
    """Sufficiency, completeness and minimality beside those of random circuits, under both readings."""
    return _page([[_trust_panel(trust_estimates(circuits))]])


def model_sheet(circuits: Sequence[Circuit], title: str, reading: ReadingName = "lenient") -> Figure:
    """The four figures on one page; what is counted by layer is of one reading."""
    above = [_lookahead_panel(lookahead_shares(circuits))]
    middle = [_directions_panel(merge_places(circuits, reading))]
    below = [_distances_panel(merge_distances(circuits, reading), reading), _trust_panel(trust_estimates(circuits))]
    return _page([above, middle, below], title)


def write_by_lookahead(circuits: Sequence[Circuit], path: Path | str) -> None:
    """Draw `by_lookahead` into a PNG or SVG file."""
    _write(path, lambda: by_lookahead(circuits))


def write_directions(
    circuits: Sequence[Circuit], path: Path | str, reading: ReadingName = "lenient", *, length: int | None = None
) -> None:
    """Draw `directions` into a PNG or SVG file."""
    _write(path, lambda: directions(circuits, reading, length=length))


def write_distances(circuits: Sequence[Circuit], path: Path | str, reading: ReadingName = "lenient") -> None:
    """Draw `distances` into a PNG or SVG file."""
    _write(path, lambda: distances(circuits, reading))


def write_trust_figure(circuits: Sequence[Circuit], path: Path | str) -> None:
    """Draw `trust_figure` into a PNG or SVG file."""
    _write(path, lambda: trust_figure(circuits))


def write_model_sheet(
    circuits: Sequence[Circuit], path: Path | str, title: str, reading: ReadingName = "lenient"
) -> None:
    """Draw `model_sheet` into a PNG or SVG file."""
    _write(path, lambda: model_sheet(circuits, title, reading))


def _write(path: Path | str, draw: Callable[[], Figure]) -> None:
    path = Path(path)
    check_output("picture", path, (".png", ".svg"))
    save(draw(), path)


@dataclass(frozen=True)
class _Spot:
    """Where a panel stands on a figure; lengths are inches from its upper left corner, y downwards."""

    figure: Figure
    left: float
    top: float

    def axes(self, x: float, y: float, width: float, height: float) -> Any:
        wide, high = self.figure.get_size_inches()
        place = (self.left + x) / wide, 1 - (self.top + y + height) / high, width / wide, height / high
        axes: Any = self.figure.add_axes(place)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        return axes

    def words(self, x: float, y: float, text: str, size: float = 8.5, **style: Any) -> None:
        wide, high = self.figure.get_size_inches()
        look: dict[str, Any] = {"ha": "left", "va": "center", "family": FONT, "parse_math": False, **style}
        self.figure.text((self.left + x) / wide, 1 - (self.top + y) / high, text, fontsize=size, **look)

    def scale(self, x: float, y: float, height: float, text: str) -> None:
        """What the colours mean, upright."""
        bar: Any = self.figure.colorbar(ScalarMappable(Normalize(0, 1), COLOURS), cax=self.axes(x, y, 0.12, height))
        bar.set_ticks([0, 0.5, 1], labels=["0", "0.5", "1"], fontsize=8)
        bar.outline.set_linewidth(0.4)
        self.words(x + 0.5 + 0.07 * len(text.split("\n")), y + height / 2, text, rotation=90, ha="center")


@dataclass(frozen=True)
class _Panel:
    """A figure or a part of one: its heading, its size in inches and what draws it."""

    heading: str
    width: float
    height: float
    draw: Callable[[_Spot], None]


def _page(lines: Sequence[Sequence[_Panel]], title: str = "") -> Figure:
    """Panels beside and below each other."""
    heights = [max(panel.height for panel in line) for line in lines]
    width = max(EDGE + sum(panel.width + EDGE for panel in line) for line in lines)
    if title:
        width = max(width, 2 * EDGE + 1.12 * text_width(title.replace("$", "S"), 13))
    top = EDGE + (0.4 if title else 0.0)
    figure = Figure(figsize=(width, top + sum(heights) + EDGE * len(lines)), facecolor="white")
    if title:
        _Spot(figure, EDGE, EDGE).words(0, 0.1, title, 13, weight="bold")
    for line, height in zip(lines, heights, strict=True):
        left = EDGE
        for panel in line:
            spot = _Spot(figure, left, top)
            spot.words(0, 0.1, panel.heading, 10.5)
            panel.draw(spot)
            left += panel.width + EDGE
        top += height + EDGE
    return figure


def _note(axes: Any, words: str) -> None:
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", fontsize=10, color=GREY, zorder=5)


def _legend(axes: Any, columns: int) -> None:
    axes.legend(fontsize=8, frameon=False, ncols=columns, loc="lower left", bbox_to_anchor=(0, 1), borderpad=0.2)


def _point(axes: Any, at: float, estimate: Estimate, colour: str, marker: str, *, filled: bool, level: bool) -> None:
    """A value with its interval, upright or level."""
    if isnan(estimate.value):
        return
    lines = [([at, at], [estimate.low, estimate.high], "-"), ([at], [estimate.value], marker)]
    for places, values, look in lines[isnan(estimate.low) :]:
        fill = colour if filled else "white"
        ends = (values, places) if level else (places, values)
        axes.plot(*ends, look, color=colour, linewidth=1.3, markersize=6, markerfacecolor=fill, zorder=2)


def _lookahead_panel(shares: Mapping[int, Mapping[str, Estimate]]) -> _Panel:
    explained = [(f"{name} explained", f"explained, {name}", True) for name in READINGS]
    maximal = [(f"{name} maximal", f"maximal, {name}", True) for name in READINGS]
    at_vertex = [
        (f"{name} maximal_vertex", f"largest of its vertex, {name}", False)
        for name in READINGS
        if any(row[f"{name} maximal_vertex"].count for row in shares.values())
    ]
    counts = [[row["correct"].count] for row in shares.values()]
    merges = [[row[f"{name} maximal"].count for name in READINGS] for row in shares.values()]
    wide = max(4.9, 0.42 * len(shares))

    def draw_half(axes: Any, series: Sequence[tuple[str, str, bool]], below: Sequence[Sequence[int]]) -> None:
        for place, (key, label, filled) in enumerate(series):
            colour, marker = MARKERS[key.split(" ")[0]]
            shift = (place - (len(series) - 1) / 2) * 0.62 / len(series)
            for x, row in enumerate(shares.values()):
                _point(axes, x + shift, row[key], colour, marker, filled=filled, level=False)
            axes.plot([], [], marker, color=colour, markerfacecolor=colour if filled else "white", label=label)
        for x in range(1, len(shares)):
            axes.axvline(x - 0.5, color="#EDEDED", linewidth=0.8, zorder=0)
        axes.set(ylim=(-0.03, 1.03), xlim=(-0.6, len(shares) - 0.4), yticks=[0, 0.25, 0.5, 0.75, 1])
        names = ["\n".join(map(str, (lookahead, *row))) for lookahead, row in zip(shares, below, strict=True)]
        axes.set_xticks(range(len(shares)), names)

    def draw(spot: _Spot) -> None:
        left, right = spot.axes(0.55, 0.72, wide, 2.1), spot.axes(1.25 + wide, 0.72, wide, 2.1)
        draw_half(left, [("correct", "correct", True), *explained], counts)
        draw_half(right, [*maximal, *at_vertex], merges)
        _legend(left, 3)
        _legend(right, 2)
        left.set_ylabel("share of inputs", fontsize=8.5)
        right.set_ylabel("share of merges", fontsize=8.5)
        left.set_xlabel("lookahead; below it, inputs", fontsize=8.5)
        right.set_xlabel("lookahead; below it, forward and backward merges, strict and lenient", fontsize=8.5)
        if not any(map(any, merges)):
            _note(right, "no merge was kept")

    return _Panel("What path-merging explains, by lookahead (bars: 95% intervals)", 1.25 + 2 * wide, 3.55, draw)


def _directions_panel(places: Places) -> _Panel:
    layers, size, shares = len(places.counts), places.length + 1, places.shares()
    lines, side, wide, high = -(-layers // ACROSS), 1.9, 2.62, 3.2
    names = ["start 0", *(str(place) for place in range(1, places.length)), f"goal {places.length}"]
    every = -(-size // 12)
    shown = [*range(0, size - every, every), places.length]
    cell = side / size

    def draw_layer(axes: Any, layer: int) -> None:
        axes.set_facecolor(EMPTY)
        axes.spines[:].set_visible(True)
        axes.imshow(np.ma.masked_invalid(shares[layer]), cmap=COLOURS, vmin=0, vmax=1, aspect="auto")
        for place in range(size):
            axes.add_patch(Rectangle((place - 0.5, place - 0.5), 1, 1, fill=False, edgecolor=FAINT, linewidth=0.8))
        for source, target in np.argwhere(places.counts[layer]) if cell > 1.1 * text_width(".88", 7) else ():
            share = shares[layer, source, target]
            colour = "white" if share > 0.55 else "black"
            number = f"{share:.2f}".removeprefix("0").removesuffix(".00")
            axes.text(target, source, number, ha="center", va="center", fontsize=7, color=colour)
        axes.set_xticks(shown, [names[place] for place in shown], rotation=90)
        axes.set_yticks(shown, [names[place] for place in shown])
        axes.tick_params(labelsize=7.5, length=2)
        axes.set_xlabel("target", fontsize=8.5)
        if layer % ACROSS == 0:
            axes.set_ylabel("source", fontsize=8.5)
        if not places.counts[layer].any():
            _note(axes, "no merge\nwas kept")

    def draw(spot: _Spot) -> None:
        for layer in range(layers):
            line, column = divmod(layer, ACROSS)
            x, y = 0.75 + wide * column, 0.3 + high * line
            spot.words(x + side / 2, y + 0.1, f"layer {layer + 1}", 9, ha="center")
            for place, words in enumerate(_ways(places.counts[layer])):
                spot.words(x + side / 2, y + 0.27 + 0.15 * place, words, 8, ha="center", color=GREY)
            draw_layer(spot.axes(x, y + 0.52, side, side), layer)
        right = 0.75 + wide * (min(layers, ACROSS) - 1) + side + 0.25
        spot.scale(right, 0.82, side, "share of the target's merges\n(grey: it has none)")

    steps = f"{places.length} step{'s' if places.length > 1 else ''}"
    which = f"{places.circuits} of {places.of} circuits, those with paths of {steps}"
    heading = f"Where merges on the path lead, {places.reading} reading: {which}"
    width = max(0.75 + wide * min(layers, ACROSS) + 0.3, text_width(heading, 10.5))
    return _Panel(heading, width, 0.3 + high * lines, draw)


def _ways(counts: np.ndarray) -> tuple[str, ...]:
    """Which share of merges comes from where, seen from the target."""
    total = int(counts.sum())
    if not total:
        return ("0 merges",)
    later, earlier = int(np.tril(counts, -1).sum()), int(np.triu(counts, 1).sum())
    forward, backward, same = (f"{100 * part / total:.0f}%" for part in (later, earlier, total - later - earlier))
    return f"{total} merges, {same} same", f"forward {forward}, backward {backward}"


def _distances_panel(found: Sequence[Counter[tuple[Direction, int]]], reading: ReadingName) -> _Panel:
    layers = len(found)
    limits = [max(1, 2**layer // 2) for layer in range(layers)]
    forward, backward = (
        [{steps: n for (way, steps), n in layer.items() if way == wanted} for layer in found]
        for wanted in ("forward", "backward")
    )
    totals = [sum(one.values()) + sum(other.values()) for one, other in zip(forward, backward, strict=True)]
    unconnected = [sum(n for (way, _), n in layer.items() if way in ("across", "none")) for layer in found]
    top, bottom = (max([2, min(max(limits), 4), *(d for row in side for d in row)]) for side in (forward, backward))
    wide, high = max(2.6, min(0.8 * layers, 4.2)), 3.0
    numbered = high / (top + bottom + 1) > 0.115 and wide / layers > text_width("8888", 7)

    def draw(spot: _Spot) -> None:
        axes = spot.axes(0.85, 0.6, wide, high)
        for sign, side in ((1, forward), (-1, backward)):
            for x, row in enumerate(side):
                for steps, count in row.items():
                    share, corner = count / totals[x], (x - 0.5, sign * steps - 0.5)
                    axes.add_patch(Rectangle(corner, 1, 1, facecolor=COLOURS(share), linewidth=0))
                    if numbered:
                        colour, place = "white" if share > 0.55 else "black", {"ha": "center", "va": "center"}
                        axes.text(x, sign * steps, str(count), fontsize=7, color=colour, **place)
            edges = [x + half for x in range(layers) for half in (-0.5, 0.5)]
            levels = [sign * (limit + 0.5) for limit in limits for _ in range(2)]
            label = "farthest that path-merging can reach" if sign > 0 else None
            axes.plot(edges, levels, color="#E0A070", linewidth=1.4, label=label)
        axes.axhspan(-0.5, 0.5, color=EMPTY, linewidth=0, zorder=0)
        for x, layer in enumerate(found):
            same = str(layer["same", 0] or "")
            axes.text(x, 0, same if numbered else "", ha="center", va="center", fontsize=7, color=GREY)
        axes.set(xlim=(-0.5, layers - 0.5), ylim=(-bottom - 0.6, top + 0.6))
        every = -(-(top + bottom) // 16)
        ticks = [*range(-(bottom // every) * every, 0, every), 0, *range(every, top + 1, every)]
        axes.set_yticks(ticks, [str(abs(tick)) if tick else "same" for tick in ticks])
        below = [f"\n{count}" if any(unconnected) else "" for count in unconnected]
        axes.set_xticks(range(layers), [f"{x + 1}{count}" for x, count in enumerate(below)])
        axes.set_xlabel(
            "layer" + ("; below it, merges of unconnected vertices" if any(unconnected) else ""), fontsize=8.5
        )
        middle = 0.6 + high * (top + 0.6) / (top + bottom + 1.2)
        for y, words in (((0.6 + middle) / 2, "steps forward"), ((middle + 0.6 + high) / 2, "steps backward")):
            spot.words(0.2, y, words, rotation=90, ha="center")
        _legend(axes, 1)
        spot.scale(0.85 + wide + 0.2, 0.6, high, "share of the layer's steps")
        if not any(totals):
            _note(axes, "no forward or backward merge\nwas kept" if any(found) else "no merge was kept")

    return _Panel(f"How far merges reach, {reading} reading", 0.85 + wide + 0.95, 4.15, draw)


def _trust_panel(estimates: Mapping[str, Estimate]) -> _Panel:
    names = {
        "sufficient": "sufficiency:\nanswer stays with\nthe circuit alone",
        "complete": "completeness:\nanswer stays without\nthe circuit (low is good)",
        "minimal": "minimality:\noperations the bare\ncircuit cannot spare",
    }

    def draw(spot: _Spot) -> None:
        axes = spot.axes(1.65, 0.6, 3.0, 3.0)
        for place, field in enumerate(names):
            for shift, name in zip((-0.2, 0.2), READINGS, strict=True):
                mine, chance = estimates[f"{name} {field}"], estimates[f"{name} random_{field}"]
                colour, marker = MARKERS[name]
                y = place + shift
                _point(axes, y - 0.07, mine, colour, marker, filled=True, level=True)
                _point(axes, y + 0.07, chance, "#9A9A9A", marker, filled=False, level=True)
                numbers = f"{mine.value:.2f}, random {chance.value:.2f}, n={mine.count}"
                words = "no value" if isnan(mine.value) else numbers
                spot.words(4.75, 0.6 + (y + 0.5), words, 8, color=colour)
        for name in READINGS:
            axes.plot([], [], MARKERS[name][1], color=MARKERS[name][0], label=name)
        axes.plot([], [], "o", color="#9A9A9A", markerfacecolor="white", label="random circuit of equal size")
        axes.set(xlim=(-0.03, 1.03), ylim=(len(names) - 0.5, -0.5), xticks=[0, 0.25, 0.5, 0.75, 1])
        axes.set_yticks(range(len(names)), list(names.values()))
        for y in range(1, len(names)):
            axes.axhline(y - 0.5, color="#EDEDED", linewidth=0.8, zorder=0)
        axes.set_xlabel("share of circuits; minimality: mean share of operations", fontsize=8.5)
        _legend(axes, 3)
        if all(isnan(estimate.value) for estimate in estimates.values()):
            _note(axes, "trust was not computed")

    return _Panel("Is the circuit what the model uses? (bars: 95% intervals)", 6.6, 4.15, draw)
