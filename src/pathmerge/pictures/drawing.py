"""Pictures of problems: who leads to the goal, who only seems to, and what a search has done so far.

Choices a reader could not guess:
- `draw_problems` gives each graph an axes of exactly its natural size, so that vertices are equally large in all of
  them; `draw_problem` shrinks everything, text too, to the axes it is given.
- One figure, the same bytes: neither the time nor the version of matplotlib is written into it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil, log
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.patheffects import withStroke
from matplotlib.text import Text

from pathmerge import oracle
from pathmerge.disk import written_whole
from pathmerge.errors import check_choice
from pathmerge.pictures.placement import HEAD, Placed, Point, curve, on_curve, place_scene
from pathmerge.pictures.scene import (
    BLACK,
    BLUE,
    FONT,
    GREEN,
    LOOKS,
    POINTER,
    PURPLE,
    REACH,
    RING,
    TAG,
    Edge,
    Role,
    Scene,
    text_width,
)
from pathmerge.problems.problem import Problem

MOST_PIXELS = 30_000


def draw_problem(problem: Problem, axes: Axes, *, label: int | None = None, title: str = "") -> None:
    """Draw one graph into an axes of final size; without a legend, which `draw_problems` adds."""
    _draw(place_scene(_read(problem, label)), axes, title)


def draw_problems(
    problems: Sequence[Problem],
    *,
    labels: Sequence[int | None] | None = None,
    titles: Sequence[str] | None = None,
    predictions: Sequence[int | None] | None = None,
    columns: int | None = None,
) -> Figure:
    """A grid of graphs at natural size with one legend for what occurs in them.

    `predictions` are what a model answers: the vertex says so, right or wrong. Without `columns` the number is the one
    that brings the figure nearest to the shape of a screen.
    """
    count = len(problems)
    if not count:
        raise ValueError("problems=[]: must hold at least one problem")
    labels = [None] * count if labels is None else labels
    titles = [""] * count if titles is None else titles
    predictions = [None] * count if predictions is None else predictions
    for field, given in (("labels", labels), ("titles", titles), ("predictions", predictions)):
        if len(given) != count:
            raise ValueError(f"{field}: {len(given)} given; must be one for each of the {count} problems")
    if columns is not None and columns < 1:
        raise ValueError(f"columns={columns}: must be at least 1")
    scenes = [_read(*given) for given in zip(problems, labels, predictions, strict=True)]
    placed = [place_scene(scene) for scene in scenes]
    cells = [(max(p.width, _title_width(t)), p.height) for p, t in zip(placed, titles, strict=True)]
    grids = [_grid(cells, c) for c in ([min(columns, count)] if columns else range(1, count + 1))]
    widths, heights = min(grids, key=lambda grid: abs(log(sum(grid[0]) / sum(grid[1]) / 1.5)))

    figure = Figure(facecolor="white")
    title_height = max(0.2 * len(title.splitlines()) for title in titles)
    edge, between = 0.15, 0.3
    wide = sum(widths) + between * (len(widths) - 1)
    high = sum(heights) + between * (len(heights) - 1) + title_height * len(heights)
    beside = high > 1.5 * max(wide, 4.0)
    legend_width, legend_height = _add_legend(figure, [p.scene for p in placed], beside, max(wide, 5.0))
    if beside:
        full_width, full_height = wide + between + legend_width + 2 * edge, max(high, legend_height) + 2 * edge
        left, top = edge, full_height - edge
    else:
        full_width, full_height = max(wide, legend_width) + 2 * edge, high + between + legend_height + 2 * edge
        left, top = (full_width - wide) / 2, full_height - edge
    figure.set_size_inches(full_width, full_height)
    for place, (p, title) in enumerate(zip(placed, titles, strict=True)):
        row, column = divmod(place, len(widths))
        x = left + sum(widths[:column]) + between * column
        y = top - sum(heights[:row]) - between * row - title_height * (row + 1) - p.height
        size = (widths[column] / full_width, p.height / full_height)
        _draw(p, figure.add_axes((x / full_width, y / full_height, *size)), title)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a PNG or SVG file, by the suffix; the same figure gives the same bytes, and never half a file."""
    kind = path.suffix.lower().removeprefix(".")
    check_choice("suffix", kind, ("png", "svg"))
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    dpi = min(150.0, MOST_PIXELS / max(figure.get_size_inches()))
    with (
        written_whole(path, "picture") as temporary,
        matplotlib.rc_context({"svg.hashsalt": "pathmerge", "svg.fonttype": "path"}),
    ):
        figure.savefig(temporary, format=kind, dpi=dpi, metadata=metadata)


def _read(problem: Problem, label: int | None, prediction: int | None = None) -> Scene:
    edges = sorted(set(problem.edges))
    answers = oracle.answers(problem)
    if label is not None and label not in answers:
        raise ValueError(f"label={label}: must be an answer, one of {sorted(answers)}")
    from_start = _closure(edges, problem.start)
    to_goal = _closure([(target, source) for source, target in edges], problem.goal)

    def role(reachable: bool, reaches_goal: bool) -> Role:
        return "rest" if not reachable else "path" if reaches_goal else "distractor"

    roles: dict[int, Role] = {vertex: role(vertex in from_start, vertex in to_goal) for vertex in problem.vertices}
    roles[problem.start] = "start"
    roles[problem.goal] = "goal"
    trace = problem.visited
    if problem.task == "dfs":
        # The search came to a vertex from its most recently visited parent: no later one had a child left to visit.
        known = set(edges)
        parents = [[u for u in trace[:i] if (u, v) in known] for i, v in enumerate(trace)]
        followed = frozenset((above[-1], vertex) for above, vertex in zip(parents, trace, strict=True) if above)
        turning = trace[-1 - oracle.backtrack(problem)] if answers else None
        current = trace[-1] if trace else None
        reached = frozenset(trace)
    else:
        followed = frozenset(problem.visited_edges) & frozenset(edges)
        turning, current = None, problem.current
        visits = problem.task in ("selection", "inference")
        reached = frozenset({problem.start, *(target for _, target in followed)} if visits else ())
    return Scene(
        role=roles,
        edge_role={(u, v): role(u in from_start, v in to_goal) for u, v in edges},
        reached=reached,
        followed=followed,
        turn_of_vertex={vertex: turn for turn, vertex in enumerate(trace, 1)},
        turn_of_edge={edge: turn for turn, edge in enumerate(problem.visited_edges, 1)},
        answers=answers,
        label=label,
        current=current,
        turning=None if turning == current else turning,
        start=problem.start,
        goal=problem.goal,
        prediction=prediction,
    )


def _closure(edges: Collection[Edge], vertex: int) -> set[int]:
    """The vertex and all that can be reached from it."""
    found, new = {vertex}, {vertex}
    while new:
        new = {target for source, target in edges if source in new} - found
        found |= new
    return found


def _title_width(title: str) -> float:
    return max((text_width(line.replace("$", "S"), 10.0) for line in title.splitlines()), default=0.0)


def _grid(cells: Sequence[tuple[float, float]], columns: int) -> tuple[list[float], list[float]]:
    """Widths of the columns and heights of the rows if so many columns are filled row by row."""
    widths = [max(width for width, _ in cells[column::columns]) for column in range(columns)]
    rows = range(ceil(len(cells) / columns))
    heights = [max(height for _, height in cells[row * columns : (row + 1) * columns]) for row in rows]
    return widths, heights


def _shape(kind: str, x: float, y: float, reach: float) -> Outline:
    if kind == "circle":
        return Outline.circle((x, y), reach)
    corners = ((-1, -1), (1, -1), (1, 1), (-1, 1)) if kind == "square" else ((-1, 0), (0, -1), (1, 0), (0, 1))
    return _polygon(*((x + reach * dx, y + reach * dy) for dx, dy in corners))


def _polygon(*corners: Point) -> Outline:
    return Outline([*corners, corners[0]], closed=True)


def _draw(placed: Placed, axes: Axes, title: str) -> None:
    """Limits are set so that one unit is `scale` inches both ways, with the graph in the middle of the axes."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    wide, high = axes.bbox.width / figure.dpi, axes.bbox.height / figure.dpi
    scale = min(wide / placed.width, high / placed.height, 1.5)
    middle_x, middle_y = placed.left + placed.width / 2, placed.bottom + placed.height / 2
    axes.set_xlim(middle_x - wide / scale / 2, middle_x + wide / scale / 2)
    axes.set_ylim(middle_y - high / scale / 2, middle_y + high / scale / 2)
    axes.set_aspect("equal")
    axes.set_axis_off()
    if title:
        axes.set_title(title, fontsize=10, family=FONT, pad=4, parse_math=False)
    pen = _Pen(axes, scale)
    scene = placed.scene
    bottom_up = ("rest", "distractor", "path")
    for edge in sorted(scene.edge_role, key=lambda e: (e in scene.followed, bottom_up.index(scene.edge_role[e]), e)):
        pen.edge(placed, edge)
    for vertex in placed.at:
        pen.vertex(scene, vertex, *placed.at[vertex])


@dataclass(frozen=True)
class _Pen:
    """Draws into an axes; sizes of text and widths of lines, which matplotlib counts in points, follow the scale."""

    axes: Axes
    scale: float

    def edge(self, placed: Placed, edge: Edge) -> None:
        scene, (source, target) = placed.scene, edge
        look = LOOKS[scene.edge_role[edge]]
        followed = edge in scene.followed
        colour, width = (BLACK, 2.6) if followed else (look.line, look.width)
        (x, y), (end, level) = placed.at[source], placed.at[target]
        tip = end - scene.reach(target) - 0.01
        points, codes = [(x + scene.reach(source), y)], [Outline.MOVETO]
        pieces = curve(placed.passes[edge])
        for piece in pieces:
            points += piece
            codes += [Outline.LINETO, *[Outline.CURVE4] * 3]
        points.append((tip - HEAD / 2, level))
        codes.append(Outline.LINETO)
        dashes = (0, look.dashes) if look.dashes and not followed else "-"
        z = 2.0 if followed else 1.0
        self.patch(Outline(points, codes), z, fill=False, edgecolor=colour, linewidth=width, linestyle=dashes)
        half = 0.035 + 0.011 * width
        head = _polygon((tip, level), (tip - HEAD, level + half), (tip - HEAD, level - half))
        self.patch(head, z, facecolor=colour, linewidth=0)
        if edge in scene.turn_of_edge:
            # Past the middle of the last piece: there each followed edge is by itself, since no two share a target.
            self.badge(*on_curve(pieces[-1], 0.78), scene.turn_of_edge[edge])

    def vertex(self, scene: Scene, vertex: int, x: float, y: float) -> None:
        look = LOOKS[scene.role[vertex]]
        size = REACH[look.shape]
        if vertex in scene.answers:
            ring, fill, width = size + RING - 0.02, *((GREEN, 2.2) if vertex == scene.label else ("white", 1.5))
            self.patch(_shape(look.shape, x, y, ring), 3, facecolor=fill, edgecolor=GREEN, linewidth=width)
        reached = vertex in scene.reached
        self.patch(
            _shape(look.shape, x, y, size - 0.01),
            4,
            facecolor=look.fill,
            edgecolor=BLACK if reached else look.outline,
            linewidth=2.2 if reached else 1.1,
            linestyle=(0, look.dashes) if look.dashes and not reached else "-",
        )
        name = str(vertex)
        self.text(x, y, name, 9.0 if len(name) < 3 else 7.5, look.text, zorder=5)
        if vertex in (scene.current, scene.turning):
            low, high = y + scene.reach(vertex) + 0.02, y + scene.reach(vertex) + POINTER - 0.02
            fill = PURPLE if vertex == scene.current else "white"
            pointer = _polygon((x, low), (x + 0.07, high), (x - 0.07, high))
            self.patch(pointer, 6, facecolor=fill, edgecolor=PURPLE, linewidth=1.2)
        if vertex in scene.turn_of_vertex:
            self.badge(x - 0.165, y + 0.165, scene.turn_of_vertex[vertex])
        for line, (word, colour) in enumerate(scene.tags(vertex)):
            level = y - scene.reach(vertex) - 0.03 - (line + 0.5) * TAG
            text = self.text(x, level, word, 7.0, colour, zorder=7)
            text.set_path_effects([withStroke(linewidth=2.4 * self.scale, foreground="white")])

    def badge(self, x: float, y: float, turn: int) -> None:
        text = self.text(x, y, str(turn), 6.3, "white", zorder=6)
        text.set_bbox({"boxstyle": "round,pad=0.18", "fc": BLACK, "ec": "white", "lw": 0.6 * self.scale})

    def patch(self, outline: Outline, zorder: float, *, linewidth: float, **style: Any) -> None:
        width = linewidth * self.scale
        self.axes.add_artist(PathPatch(outline, zorder=zorder, linewidth=width, joinstyle="miter", **style))

    def text(self, x: float, y: float, words: str, size: float, colour: str, *, zorder: float) -> Text:
        place: dict[str, Any] = {"ha": "center", "va": "center_baseline", "zorder": zorder}
        return self.axes.text(x, y, words, fontsize=size * self.scale, family=FONT, color=colour, **place)


def _add_legend(figure: Figure, scenes: Sequence[Scene], beside: bool, width: float) -> tuple[float, float]:
    """Add the legend for what occurs in the scenes, in as few lines as the width allows; its size in inches."""
    entries = _entries(scenes)
    handles: list[Any] = [handle for handle, _ in entries]
    renderer = FigureCanvasAgg(figure).get_renderer()
    lines = range(len(entries) if beside else 1, len(entries) + 1)
    for columns in [ceil(len(entries) / count) for count in lines]:
        legend = figure.legend(
            handles,
            [text for _, text in entries],
            loc="upper right" if beside else "lower center",
            ncols=columns,
            prop={"family": FONT, "size": 8},
            handler_map={tuple: HandlerTuple(ndivide=1, pad=0)},
            handlelength=3.0,
            handleheight=1.6,
            labelspacing=0.7,
            borderaxespad=0.6,
            edgecolor="#BDBDBD",
            fancybox=False,
        )
        box = legend.get_window_extent(renderer)
        if columns == 1 or box.width / figure.dpi <= width:
            return box.width / figure.dpi, box.height / figure.dpi
        legend.remove()
    raise AssertionError("one column always fits")


def _entries(scenes: Sequence[Scene]) -> list[tuple[tuple[Line2D, ...], str]]:
    """What stands in the legend: a symbol, made of lines and markers on top of one another, and its meaning."""

    def mark(marker: str, size: float, fill: str, outline: str, width: float = 1.0) -> Line2D:
        return Line2D([], [], ls="", marker=marker, ms=size, mfc=fill, mec=outline, mew=width)

    plain = LOOKS["path"].fill
    markers = {"circle": "o", "square": "s", "diamond": "D"}
    entries: list[tuple[tuple[Line2D, ...], str]] = []
    shown = {role for scene in scenes for role in [*scene.role.values(), *scene.edge_role.values()]}
    for role, look in LOOKS.items():
        if role in shown:
            line = Line2D([], [], color=look.line, lw=look.width, ls=(0, look.dashes) if look.dashes else "-")
            symbol = mark(markers[look.shape], 10, look.fill, look.outline)
            entries.append(((symbol,) if role in ("start", "goal") else (line, symbol), look.legend))
    if any(scene.answers - {scene.label} for scene in scenes):
        entries.append(((mark("o", 13, "white", GREEN, 1.4), mark("o", 8, plain, BLUE)), "answer"))
    if any(scene.label is not None for scene in scenes):
        entries.append(((mark("o", 13, GREEN, GREEN, 1.4), mark("o", 8, plain, BLUE)), "label, one of the answers"))
    if any(scene.reached for scene in scenes):
        line = Line2D([], [], color=BLACK, linewidth=2.6)
        entries.append(((line, mark("o", 10, "white", BLACK, 2.0)), "visited"))
    if any(scene.turn_of_vertex or scene.turn_of_edge for scene in scenes):
        entries.append(((mark("o", 9, BLACK, BLACK), mark("$1$", 4.5, "white", "white", 0.4)), "order of the visits"))
    if any(scene.current is not None for scene in scenes):
        entries.append(((mark("v", 7, PURPLE, PURPLE),), "current vertex"))
    if any(scene.turning is not None for scene in scenes):
        entries.append(((mark("v", 7, "white", PURPLE, 1.2),), "where the search turns back to"))
    return entries
