"""A sheet of coloured cells, text and frames: what a heat map is drawn on.

Everything is placed in inches from the upper left corner, y downwards, on one axes as large as the figure, so that
arithmetic alone keeps text from overlapping.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pathmerge.pictures.scene import FONT, text_width

COLOURS = colormaps["viridis"]
EMPTY = "#DDDDDD"
FRAME = "#D4006A"
GREY = "#555555"
EDGE = 0.15
SMALLEST_TEXT = 5.8
Box = tuple[float, float, float, float]
"""Left, top, width and height."""


@dataclass
class Sheet:
    """What is to be drawn, in inches from the upper left corner; its size follows from it."""

    cells: list[tuple[float, float, float, float, float]] = field(default_factory=list[Any])
    texts: list[tuple[float, float, str, float, dict[str, Any]]] = field(default_factory=list[Any])
    lines: list[list[tuple[float, float]]] = field(default_factory=list[Any])
    right: float = 0.0
    bottom: float = 0.0

    def text(self, x: float, y: float, words: str, size: float, **style: Any) -> None:
        self.texts.append((x, y, words, size, style))
        lines = words.split("\n")
        width = max(text_width(line, size) for line in lines) * (1.1 if style.get("weight") == "bold" else 1.0)
        share = {"left": 1.0, "right": 0.0}.get(style.get("ha", "center"), 0.5)
        self.right = max(self.right, x + (0.0 if style.get("rotation") else share * width))

    def cell(self, x: float, y: float, width: float, height: float, accuracy: float) -> None:
        self.cells.append((x, y, width, height, accuracy))
        self.right, self.bottom = max(self.right, x + width), max(self.bottom, y + height)
        size = min(8.5, (width - 0.07) * 72 / 2.25, height * 72 / 1.4)
        if size < SMALLEST_TEXT:
            return
        number, colour = "–", GREY
        if not isnan(accuracy):
            luminance = np.dot(np.power(COLOURS(accuracy)[:3], 2.2), (0.21, 0.72, 0.07))
            number, colour = f"{accuracy:.2f}", "black" if luminance > 0.18 else "white"
        self.texts.append((x + width / 2, y + height / 2, number, size, {"color": colour}))

    def frame(self, boxes: Mapping[tuple[int, int], Box]) -> None:
        """Lines around cells, given by row and column, where they do not touch another of them."""
        for (row, column), (x, y, width, height) in boxes.items():
            sides = {
                (row - 1, column): [(x, y), (x + width, y)],
                (row + 1, column): [(x, y + height), (x + width, y + height)],
                (row, column - 1): [(x, y), (x, y + height)],
                (row, column + 1): [(x + width, y), (x + width, y + height)],
            }
            self.lines += [side for neighbour, side in sides.items() if neighbour not in boxes]

    def figure(self, *, framed: bool) -> Figure:
        """Draw it all, with the meaning of the colours at the bottom."""
        bar = self.bottom + 0.32
        self.text(EDGE, bar + 0.07, "accuracy", 9, ha="left")
        after = EDGE + 0.75 + 2.4 + 0.25
        if any(isnan(accuracy) for *_, accuracy in self.cells):
            self.cells.append((after, bar, 0.22, 0.14, nan))
            self.text(after + 0.28, bar + 0.07, "no examples", 9, ha="left")
            after += 0.28 + text_width("no examples", 9) + 0.25
        if framed:
            self.frame({(0, 0): (after, bar, 0.22, 0.14)})
            self.text(after + 0.28, bar + 0.07, "trained on", 9, ha="left")
        width, height = max(self.right + EDGE, 4.2), bar + 0.14 + 0.25 + EDGE
        figure = Figure(figsize=(width, height), facecolor="white")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        patches = [Rectangle((x, y), w, h) for x, y, w, h, _ in self.cells]
        colours = [EMPTY if isnan(accuracy) else COLOURS(accuracy) for *_, accuracy in self.cells]
        gaps = [min(0.6, 2.5 * min(w, h)) for _, _, w, h, _ in self.cells]
        axes.add_collection(PatchCollection(patches, facecolors=colours, edgecolors="white", linewidths=gaps))
        axes.add_collection(LineCollection(self.lines, colors=FRAME, linewidths=1.8, capstyle="projecting", zorder=3))
        for x, y, words, size, style in self.texts:
            look: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 4, **style}
            axes.text(x, y, words, fontsize=size, family=FONT, parse_math=False, **look)
        place = ((EDGE + 0.75) / width, 1 - (bar + 0.14) / height, 2.4 / width, 0.14 / height)
        scale = figure.colorbar(
            ScalarMappable(Normalize(0, 1), COLOURS), cax=figure.add_axes(place), orientation="horizontal"
        )
        scale.set_ticks([0, 0.25, 0.5, 0.75, 1], labels=["0", "0.25", "0.5", "0.75", "1"], family=FONT, fontsize=8)
        scale.outline.set_linewidth(0.4)
        return figure
