"""A picture of one circuit: rows of the input side by side, layers from top to bottom (paper, figures 3 and 4).

Choices a reader could not guess:
- A circuit may hold hundreds of operations, so few of them are highlighted: those that carry vertices of one path from
  start to goal, and if those too are many, a tree: for each vertex of the path one chain to the answer from a row that
  holds it. Each chain joins what is there already at the least cost; an operation costs more the less important it is,
  and more if it leads straight to the answer's row, so that merges on the way are seen where there are any.
- Importance is measured against the method's thresholds, and shown relative to the most important kept operation of the
  layer: falls of the logit, which decide in the last layer, and changes of products are not comparable across layers.
- A row is drawn after a layer only as long as something leads on from it to the answer.
- Layers are counted from 1 here, as in the paper, and from 0 in files.
- Lengths are inches; y grows downwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline

from pathmerge.circuits.files import Circuit, Kind
from pathmerge.circuits.view import MARKS, Choice, Node, View
from pathmerge.circuits.view import path_of as path_of
from pathmerge.disk import check_output
from pathmerge.errors import check_choice, check_range
from pathmerge.pictures import save
from pathmerge.pictures.scene import BLACK, FONT, GREEN, LOOKS, PURPLE, Role, text_width

COLOURS: dict[Kind, str] = {"token": PURPLE, "position": "#C77700", "copy": GREEN, "other": "#777777"}
DASHES: dict[Kind, Any] = {"token": "-", "position": (0, (4, 1.2)), "copy": (0, (1.3, 1.0)), "other": "-"}
WORDS: dict[Kind, str] = {"token": "merge by token", "position": "merge by position", "copy": "copy", "other": "other"}
GREY, PALE, FAINT = "#5F5F5F", "#B0B0B0", "#D8D8D8"

EDGE, LEFT, GAP, MARK, CHIP = 0.2, 1.05, 0.12, 0.15, 0.2
"""Margin; room for the names of the levels; between slots; width of a marker's column; height of a row's box."""
SET_SIZE, SET_LINE, MOST_MEMBERS = 7.0, 0.125, 9
BETWEEN = 0.95
"""From the sets of one level to the boxes of the next."""


def write_picture(
    circuit: Circuit, path: Path | str, reading: Choice = "auto", *, most: int = 24, columns: int = 40
) -> None:
    """Draw `draw_circuit` into a PNG or SVG file."""
    path = Path(path)
    check_output("picture", path, (".png", ".svg"))
    save(draw_circuit(circuit, reading, most=most, columns=columns), path)


def draw_circuit(circuit: Circuit, reading: Choice = "auto", *, most: int = 24, columns: int = 40) -> Figure:
    """The kept operations of a circuit between the rows of its input, layer after layer.

    `auto` shows the strict reading if it explains the prediction, otherwise the lenient one. Up to `most` operations
    are highlighted if they carry the path's vertices; if there are more, only a tree of them is. Inputs of more than
    `columns` rows are drawn without the edges that the circuit does not use.
    """
    check_choice("reading", reading, ("strict", "lenient", "auto"))
    check_range("most", most, 0, 10**6)
    check_range("columns", columns, 1, 10**6)
    if not circuit.operations:
        raise ValueError("circuit.operations=(): must hold at least one operation, or there is nothing to draw")
    name = ("strict" if circuit.strict.explained else "lenient") if reading == "auto" else reading
    return _Page(View(circuit, name, most), columns).figure()


class _Page:
    """The drawing while it is made; everything is placed on one axes as large as the figure."""

    axes: Axes

    def __init__(self, view: View, columns: int) -> None:
        self.view = view
        self.slots = view.chosen_slots(columns)
        digits = max(len(str(v)) for edge in view.circuit.input.edges for v in edge)
        self.step = text_width("8" * digits, SET_SIZE) + 0.06
        self.per_line = max(1, int(0.36 / self.step))
        labels = max(text_width(row.text, 8) for row in view.rows if row.vertices) + 0.14
        self.wide = max(0.3, labels, self.per_line * self.step + 0.05)
        self.members = {node: members for node in view.nodes if (members := self.listed(node))}
        self.has_set = {row for _, row in self.members}
        self.x: dict[int, float] = {}
        self.gaps: list[tuple[float, int]] = []
        self.right = max(self.place_columns(), 8.0)
        shown = [i for i in view.kept if view.source[i][1] in self.x and view.target[i][1] in self.x]
        self.shown = sorted(shown, key=lambda i: (i in view.lit, view.weight[i], i))
        touched = {node[1] for i in view.kept for node in (view.source[i], view.target[i])}
        last = len(view.rows) - 1
        self.boxes = {node for node in view.live if node[1] in self.x and node[1] in touched | {last}}

    def place_columns(self) -> float:
        """Where each column stands, and where rows are left out; returns the right edge."""
        x, following = EDGE + LEFT, 0
        for slot in self.slots:
            if slot[0] != following:
                self.gaps.append((x + 0.1, slot[0] - following))
                x += 0.2 + GAP
            following = slot[-1] + 1
            for row in slot:
                self.x[row] = x + self.width(row) / 2
                x += self.width(row)
            x += GAP
        return x - GAP + EDGE

    def width(self, row: int) -> float:
        return self.wide if self.view.rows[row].vertices or row in self.has_set else MARK

    def listed(self, node: Node) -> list[str]:
        """The set of a row where it grew, the path's vertices first and in the path's order."""
        (level, row), view = node, self.view
        found = view.reading.sets[level][row]
        if level == 0 or found == view.reading.sets[level - 1][row]:
            return []
        first = [str(v) for v in view.path if v in found]
        rest = [str(v) for v in found if v not in view.path]
        if len(first) + len(rest) > MOST_MEMBERS:
            room = max(0, MOST_MEMBERS - 1 - len(first))
            rest = [*rest[:room], *([f"+{len(rest) - room}"] if len(rest) > room else [])]
        return [*first, *rest]

    def lines(self, node: Node) -> int:
        return -(-len(self.members.get(node, ())) // self.per_line)

    def figure(self) -> Figure:
        view, wide = self.view, self.right - 2 * EDGE
        title = list(_wrapped(view.title(), 11.5, wide / 1.13))
        omitted = len(view.kept) - len(self.shown)
        words = [line for part in view.caption(omitted) for line in _wrapped(part, 8.5, wide)]
        y = EDGE + 0.24 * len(title) + 0.165 * len(words) + 0.3
        layers = {view.operations[i].layer for i in view.kept}
        self.top: list[float] = []
        self.bottom: list[float] = []
        for level in range(view.layers + 1):
            lines = max((self.lines(node) for node in self.boxes if node[0] == level), default=0)
            self.top.append(y)
            self.bottom.append(y + CHIP + (0.03 + SET_LINE * lines if lines else 0.0))
            y = self.bottom[-1] + (BETWEEN if level in layers else 0.42)
        entries = self.legend_lines()
        height = self.bottom[-1] + 0.6 + 0.24 * len(entries) + EDGE
        figure = Figure(figsize=(self.right, height), facecolor="white")
        self.axes = figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, self.right), ylim=(height, 0))
        self.axes.set_axis_off()
        for place, line in enumerate(title):
            self.text(EDGE, EDGE + 0.24 * place + 0.1, line, 11.5, ha="left", weight="bold")
        for place, line in enumerate(words):
            self.text(EDGE, EDGE + 0.24 * len(title) + 0.165 * place + 0.1, line, 8.5, ha="left", color=GREY)
        self.draw_frame()
        for row in self.x:
            for level in range(view.layers + 1):
                self.draw_node((level, row))
        for i in self.shown:
            self.draw_operation(i)
        self.draw_answer()
        self.draw_legend(entries, self.bottom[-1] + 0.6)
        return figure

    def draw_frame(self) -> None:
        """Bands behind slots, the names of levels and layers, marks for what is left out."""
        view = self.view
        for slot in self.slots:
            low = self.x[slot[0]] - self.width(slot[0]) / 2 - 0.02
            high = self.x[slot[-1]] + self.width(slot[-1]) / 2 + 0.02
            fill = "#EAF3FA" if view.on_path(slot) else "#F6F6F6"
            self.patch(_box(low, self.top[0] - 0.08, high, self.bottom[-1] + 0.08), 0, fc=fill)
        for level, top in enumerate(self.top):
            name = f"after layer {level}" if level else "input"
            self.text(EDGE, top + CHIP / 2, name, 8.5, ha="left")
        for x, rows in self.gaps:
            self.text(x, self.top[0] + CHIP / 2, "…", 9, color=GREY)
            self.text(x, self.top[0] + CHIP + 0.07, str(rows), 6.5, color=GREY)
        for layer in range(view.layers):
            kept = sum(view.operations[i].layer == layer for i in view.kept)
            middle = (self.bottom[layer] + self.top[layer + 1]) / 2
            self.text(EDGE, middle - 0.07, f"layer {layer + 1}", 8.5, ha="left", color=GREY)
            self.text(EDGE, middle + 0.08, f"{kept:,} kept", 7, ha="left", color=GREY)
        if not view.kept:
            middle = (self.top[0] + self.bottom[-1]) / 2
            self.text((LEFT + self.right) / 2, middle, "no operation was kept", 13, color=GREY)

    def draw_node(self, node: Node) -> None:
        """A row's box, its set, and the line on which it passes on to itself."""
        (level, row), view = node, self.view
        here, following, x = node in self.boxes, (level + 1, row), self.x[row]
        if level == 0 or here:
            self.draw_box(node)
        foot = self.top[level] + CHIP
        for place, member in enumerate(self.members.get(node, ())):
            line, column = divmod(place, self.per_line)
            count = min(self.per_line, len(self.members[node]) - line * self.per_line)
            at = x + (column - (count - 1) / 2) * self.step, foot + 0.03 + (line + 0.5) * SET_LINE
            on_path = member.isdigit() and int(member) in view.path
            colour, weight = (BLACK, "bold") if on_path else ("#858585", "normal")
            self.text(*at, member, SET_SIZE, color=colour, weight=weight)
        foot += 0.04 + SET_LINE * self.lines(node) if self.lines(node) else 0.0
        end = self.top[level + 1] if following in self.boxes else self.bottom[level]
        if here and level < view.layers and end > foot:
            strong = node in view.nodes and following in view.nodes
            self.patch(Outline([(x, foot), (x, end)]), 2, ec=GREY if strong else FAINT, lw=1.3 if strong else 0.7)

    def draw_box(self, node: Node) -> None:
        (level, row), view = node, self.view
        x, top, role, lit = self.x[row], self.top[level], view.role(row), node in view.nodes
        name, is_mark = view.rows[row].text, not view.rows[row].vertices
        words = MARKS.get(name, name)
        if is_mark and node not in self.boxes:
            self.text(x, top + CHIP / 2, words, 6.5, color=PALE)
            return
        look = LOOKS[role]
        fill, line, colour = "white", "#CCCCCC", "#757575"
        if lit:
            fill, line, colour = ("white", GREY, BLACK) if role == "rest" else (look.fill, look.outline, look.text)
        elif level == 0 and role != "rest":
            fill, line, colour = (*(_lighter(part, 0.35) for part in (look.fill, look.outline)), "#303030")
        self.patch(_shape(role, x, top, self.width(row) / 2 - 0.025), 4, fc=fill, ec=line, lw=1.3 if lit else 0.7)
        size = 6.5 if is_mark else 8
        self.text(x, top + CHIP / 2, words, size, color=colour, weight="bold" if lit else "normal")

    def draw_operation(self, i: int) -> None:
        view, kind, weight = self.view, self.view.operations[i].kind, self.view.weight[i]
        (level, source), (below, target) = view.source[i], view.target[i]
        (x0, y0), (x1, y1) = (self.x[source], self.bottom[level]), (self.x[target], self.top[below])
        lit, reach = i in view.lit, 0.42 * (y1 - y0)
        bow = 0.1 if source == target else 0.0
        points = [(x0, y0), (x0 + bow, y0 + reach), (x1 + bow, y1 - reach), (x1, y1 - (0.05 if lit else 0.0))]
        curve = Outline(points, [Outline.MOVETO, *[Outline.CURVE4] * 3])
        if not lit:
            self.patch(curve, 1, ec=COLOURS[kind], lw=0.4 + 0.9 * weight, alpha=0.12 + 0.2 * weight)
            return
        width = 1.4 + 1.8 * weight
        self.patch(curve, 3, ec="white", lw=width + 1.6)
        self.patch(curve, 3.1, ec=COLOURS[kind], lw=width, ls=DASHES[kind])
        self.patch(_polygon((x1, y1), (x1 - 0.05, y1 - 0.1), (x1 + 0.05, y1 - 0.1)), 3.2, fc=COLOURS[kind])

    def draw_answer(self) -> None:
        view = self.view
        x, y = self.x[len(view.rows) - 1], self.bottom[-1] + 0.02
        verdict, colour = ("right", GREEN) if view.circuit.correct else ("wrong", "#B00000")
        self.patch(Outline([(x, y), (x, y + 0.2)]), 3, ec=BLACK, lw=1.3)
        self.patch(_polygon((x, y + 0.26), (x - 0.05, y + 0.16), (x + 0.05, y + 0.16)), 3, fc=BLACK)
        words = f"answer {view.circuit.prediction}: {verdict}"
        end = min(self.right - EDGE, x + 0.55 * text_width(words, 9.5))
        self.text(end, y + 0.36, words, 9.5, ha="right", weight="bold", color=colour)

    def legend_lines(self) -> list[list[tuple[str, str, float]]]:
        """What each entry shows, its words and where it begins, line by line."""
        view = self.view
        kinds = {view.operations[i].kind for i in self.shown}
        entries: list[tuple[str, str]] = [(kind, WORDS[kind]) for kind in COLOURS if kind in kinds]
        entries += [("thick", "more important in its layer")] if self.shown else []
        entries += [("pale", "kept, not highlighted")] if len(self.shown) > len(view.lit) else []
        roles = {view.role(row) for row in self.x}
        names: dict[Role, str] = {"start": "start", "path": "on the path", "goal": "goal"}
        entries += [("self", "row passes on to itself"), *((role, names[role]) for role in names if role in roles)]
        if self.members:
            entries.append(("set", "a row's vertices where they grew, the path's in black"))
        if any(not view.rows[row].vertices for row in self.x):
            entries.append(("E Q P", "edge, query, path"))
        if self.gaps:
            entries.append(("… 6", "rows left out"))
        lines: list[list[tuple[str, str, float]]] = [[]]
        x = EDGE
        for kind, words in entries:
            width = 0.45 + text_width(words, 8) + 0.25
            if x + width > self.right - EDGE + 0.25 and lines[-1]:
                lines.append([])
                x = EDGE
            lines[-1].append((kind, words, x))
            x += width
        return lines

    def draw_legend(self, lines: Sequence[Sequence[tuple[str, str, float]]], top: float) -> None:
        for (kind, words, x), y in ((entry, top + 0.24 * n + 0.12) for n, line in enumerate(lines) for entry in line):
            self.text(x + 0.45, y, words, 8, ha="left", color=GREY)
            match kind:
                case "token" | "position" | "copy" | "other":
                    self.patch(_level(x, y), 3, ec=COLOURS[kind], lw=2.4, ls=DASHES[kind])
                case "thick":
                    self.patch(_polygon((x, y), (x + 0.36, y - 0.022), (x + 0.36, y + 0.022)), 3, fc=GREY)
                case "pale":
                    for shift, colour in zip((-0.04, 0.0, 0.04), COLOURS.values(), strict=False):
                        self.patch(_level(x, y + shift), 3, ec=colour, lw=0.9, alpha=0.32)
                case "self":
                    self.patch(Outline([(x + 0.2, y - 0.09), (x + 0.2, y + 0.09)]), 3, ec=GREY, lw=1.3)
                case "start" | "path" | "goal":
                    look = LOOKS[kind]
                    self.patch(_shape(kind, x + 0.2, y - CHIP / 2, 0.14), 3, fc=look.fill, ec=look.outline, lw=1.3)
                case "set":
                    self.text(x + 0.13, y, "3 8", SET_SIZE, weight="bold")
                    self.text(x + 0.32, y, "5", SET_SIZE, color="#858585")
                case mark:
                    self.text(x + 0.2, y, mark, 7, color=GREY)

    def patch(self, outline: Outline, zorder: float, **style: Any) -> None:
        """Filled if a face colour is given, otherwise a line."""
        look = {"fill": "fc" in style, "ec": "none", "capstyle": "butt", **style}
        self.axes.add_artist(PathPatch(outline, zorder=zorder, **look))

    def text(self, x: float, y: float, words: str, size: float, **style: Any) -> None:
        look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "zorder": 6, "parse_math": False, **style}
        self.axes.text(x, y, words, fontsize=size, family=FONT, **look)


def _lighter(colour: str, share: float) -> tuple[float, float, float]:
    """So much of a colour, the rest white."""
    red, green, blue = (1 - share + share * part for part in to_rgb(colour))
    return red, green, blue


def _level(x: float, y: float) -> Outline:
    return Outline([(x, y), (x + 0.36, y)])


def _wrapped(text: str, size: float, width: float) -> Iterator[str]:
    """Lines no wider than this; words are measured one by one, which is remembered."""
    line: list[str] = []
    room = width
    for word in text.split():
        # Between two letters, since the width alone leaves out the room around it; rendering rounds a little upwards.
        own = text_width(f"n{word}n".replace("$", "S"), size) - text_width("nn", size)
        needed = 1.03 * (own + 0.32 * size / 72)
        if line and needed > room:
            yield " ".join(line)
            line, room = [], width
        line.append(word)
        room -= needed
    yield " ".join(line)


def _polygon(*corners: tuple[float, float]) -> Outline:
    return Outline([*corners, corners[0]], closed=True)


def _box(left: float, top: float, right: float, bottom: float) -> Outline:
    return _polygon((left, top), (right, top), (right, bottom), (left, bottom))


def _shape(role: Role, x: float, top: float, half: float) -> Outline:
    """A row's box: the start's has square corners, the goal's is pointed at both sides, others' are cut at corners."""
    low, high, bottom = x - half, x + half, top + CHIP
    if role == "start":
        return _box(low, top, high, bottom)
    cut = CHIP / 2 if role == "goal" else 0.045
    slant = 0.06 if role == "goal" else 0.045
    return _polygon(
        (low + slant, top),
        (high - slant, top),
        (high, top + cut),
        (high, bottom - cut),
        (high - slant, bottom),
        (low + slant, bottom),
        (low, bottom - cut),
        (low, top + cut),
    )
