"""Pictures of problems: who leads to the goal, who only seems to, and what a search has done so far.

Choices a reader could not guess:
- Lengths are inches at natural size. `draw_problems` gives each graph an axes of exactly its natural size, so that
  vertices are equally large in all of them; `draw_problem` shrinks everything, text too, to the axes it is given.
- The layout is the classical layered one: columns so that each arrow points right, bends where an edge passes a column,
  barycentre sweeps and swaps of neighbours against crossings, then heights by least squares. An edge is almost level
  where it passes a column, so it does not run through a vertex. Nothing is random: one problem, one picture.
- Fill and outline say what a vertex is, black says what the search has done, rings are answers, pointers and words the
  rest. No two things differ by colour alone. The colours are those of Okabe and Ito, made paler under ids and darker in
  words and thin lines.
"""

from __future__ import annotations

import os
import uuid
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from math import ceil, log
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.textpath import TextPath

from pathmerge import oracle
from pathmerge.errors import check_choice
from pathmerge.problems.problem import Problem

Edge = tuple[int, int]
Point = tuple[float, float]
Pass = tuple[float, float, float]  # of an edge through a column: x where it enters and leaves, height in the middle
Role = Literal["start", "goal", "path", "distractor", "rest"]

BLACK, BLUE, VERMILLION, GREEN, PURPLE = "#000000", "#0072B2", "#D55E00", "#00795A", "#9B3F75"
FONT = "DejaVu Sans"  # ships with matplotlib, so that a picture has the same bytes everywhere
RADIUS = 0.19
ROOM = 0.12  # between things that stand above one another in a column
LINE_ROOM = 0.06  # what a passing edge takes on either side
HEAD = 0.11
TAG = 0.125
POINTER = 0.15
RING = 0.075
MARGIN = 0.08
MOST_DRIFT = 0.09  # how far an edge may rise or fall on either half of a column that it passes
TALL = 24  # columns with more vertices than this are staggered
ORDER_SWEEPS = 12
HEIGHT_SWEEPS = 40
MOST_PIXELS = 30_000


@dataclass(frozen=True)
class _Look:
    """How the vertices of a role are drawn, and the edges that lead to them."""

    shape: Literal["circle", "square", "diamond"]
    fill: str
    outline: str
    text: str
    line: str
    width: float
    dashes: tuple[float, ...]
    legend: str


LOOKS: dict[Role, _Look] = {
    "start": _Look("square", BLUE, BLUE, "white", BLUE, 1.8, (), "start"),
    "goal": _Look("diamond", VERMILLION, VERMILLION, "white", BLUE, 1.8, (), "goal"),
    "path": _Look("circle", "#C9E6F7", BLUE, BLACK, BLUE, 1.8, (), "on a path from start to goal"),
    "distractor": _Look(
        "circle", "#FDF3CF", "#B07A00", BLACK, "#B07A00", 1.1, (2.6, 1.8), "distractor: never leads to the goal"
    ),
    "rest": _Look("circle", "#F4F4F4", "#BDBDBD", "#6A6A6A", "#C4C4C4", 0.9, (), "not reachable from start"),
}
REACH = {"circle": RADIUS, "square": 0.18, "diamond": 0.275}


@dataclass(frozen=True)
class _Scene:
    """A problem as it is shown: the role of each vertex and edge, and what is marked.

    `reached` and `followed` are what the search has visited; `turn_of_vertex` and `turn_of_edge` say in which order, on
    vertices for depth-first search and on edges for selection and inference.
    """

    role: dict[int, Role]
    edge_role: dict[Edge, Role]
    reached: frozenset[int]
    followed: frozenset[Edge]
    turn_of_vertex: dict[int, int]
    turn_of_edge: dict[Edge, int]
    answers: frozenset[int]
    label: int | None
    current: int | None
    turning: int | None
    start: int
    goal: int

    def tags(self, vertex: int) -> list[tuple[str, str]]:
        """The words under a vertex, each with its colour."""
        marked = (
            ("start", BLUE, self.start),
            ("goal", VERMILLION, self.goal),
            ("label", GREEN, self.label),
            ("current", PURPLE, self.current),
            ("turns back", PURPLE, self.turning),
        )
        return [(word, colour) for word, colour, place in marked if place == vertex]

    def reach(self, vertex: int) -> float:
        """From the middle of a vertex to the tip of the arrows that point at it."""
        return REACH[LOOKS[self.role[vertex]].shape] + (RING if vertex in self.answers else 0)

    def above(self, vertex: int) -> float:
        """Room that a vertex takes from its middle upwards; below() is the same downwards."""
        pointer = POINTER if vertex in (self.current, self.turning) else 0
        return max(self.reach(vertex) + pointer, RADIUS + 0.08 if vertex in self.turn_of_vertex else 0)

    def below(self, vertex: int) -> float:
        tags = len(self.tags(vertex))
        return self.reach(vertex) + tags * TAG + (0.03 if tags else 0)


@dataclass(frozen=True)
class _Placed:
    """Where everything stands.

    Vertices by their middle; an edge by the columns that it passes, the first and the last being those of its ends.
    """

    scene: _Scene
    at: dict[int, Point]
    passes: dict[Edge, list[Pass]]
    left: float
    bottom: float
    width: float
    height: float


def draw_problem(problem: Problem, axes: Axes, *, label: int | None = None, title: str = "") -> None:
    """Draw one graph into an axes of final size; without a legend, which `draw_problems` adds."""
    _draw(_place(_read(problem, label)), axes, title)


def draw_problems(
    problems: Sequence[Problem],
    *,
    labels: Sequence[int | None] | None = None,
    titles: Sequence[str] | None = None,
    columns: int | None = None,
) -> Figure:
    """A grid of graphs at natural size with one legend for what occurs in them.

    Without `columns` the number is the one that brings the figure nearest to the shape of a screen.
    """
    count = len(problems)
    if not count:
        raise ValueError("problems=[]: must hold at least one problem")
    labels = [None] * count if labels is None else labels
    titles = [""] * count if titles is None else titles
    for field, given in (("labels", labels), ("titles", titles)):
        if len(given) != count:
            raise ValueError(f"{field}: {len(given)} given; must be one for each of the {count} problems")
    if columns is not None and columns < 1:
        raise ValueError(f"columns={columns}: must be at least 1")
    placed = [_place(_read(problem, label)) for problem, label in zip(problems, labels, strict=True)]
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
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with matplotlib.rc_context({"svg.hashsalt": "pathmerge", "svg.fonttype": "path"}):
            figure.savefig(draft, format=kind, dpi=dpi, metadata=metadata)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _read(problem: Problem, label: int | None) -> _Scene:
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
    return _Scene(
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
    )


def _closure(edges: Collection[Edge], vertex: int) -> set[int]:
    """The vertex and all that can be reached from it."""
    found, new = {vertex}, {vertex}
    while new:
        new = {target for source, target in edges if source in new} - found
        found |= new
    return found


def _layers(scene: _Scene) -> dict[int, int]:
    """The column of each vertex: longest distance from a source, then moved where that makes edges shorter."""
    parents: dict[int, list[int]] = {vertex: [] for vertex in scene.role}
    children: dict[int, list[int]] = {vertex: [] for vertex in scene.role}
    for source, target in scene.edge_role:
        children[source].append(target)
        parents[target].append(source)
    try:
        order = list(TopologicalSorter(parents).static_order())
    except CycleError as error:
        raise ValueError(f"edges: {error.args[1]} is a cycle; the graph must be acyclic") from None
    layer: dict[int, int] = {}
    for vertex in order:
        layer[vertex] = 1 + max((layer[parent] for parent in parents[vertex]), default=-1)
    moved = True
    while moved:
        moved = False
        for vertex in [*reversed(order), *order]:
            pull = len(children[vertex]) - len(parents[vertex])
            to = layer[vertex]
            # Where it makes no difference, what start reaches stays near it, and what it does not reach comes along.
            if pull > 0 or (pull == 0 and scene.role[vertex] == "rest"):
                to = min(layer[child] for child in children[vertex]) - 1
            elif pull < 0:
                to = max(layer[parent] for parent in parents[vertex]) + 1
            if to != layer[vertex]:
                layer[vertex] = to
                moved = True
    used = {column: place for place, column in enumerate(sorted(set(layer.values())))}
    return {vertex: used[column] for vertex, column in layer.items()}


class _Columns:
    """The layered drawing while it is made.

    Nodes are numbers: first the vertices in increasing order, then a bend for each column that an edge passes. Links
    join nodes of neighbouring columns.
    """

    def __init__(self, scene: _Scene) -> None:
        self.scene = scene
        self.vertices = sorted(scene.role)
        layer = _layers(scene)
        node_of = {vertex: node for node, vertex in enumerate(self.vertices)}
        column_of = [layer[vertex] for vertex in self.vertices]
        self.chains: dict[Edge, list[int]] = {}
        for source, target in scene.edge_role:
            passed = range(layer[source] + 1, layer[target])
            bends = range(len(column_of), len(column_of) + len(passed))
            column_of += passed
            self.chains[source, target] = [node_of[source], *bends, node_of[target]]
        self.left: list[list[int]] = [[] for _ in column_of]
        self.right: list[list[int]] = [[] for _ in column_of]
        self.weight: dict[Edge, int] = {}
        for edge, chain in self.chains.items():
            for a, b in pairwise(chain):
                self.right[a].append(b)
                self.left[b].append(a)
                # Bends in a long edge and detours on the way to the goal disturb most, so they are pulled straight.
                straightness = (1, 4, 16)[self.is_bend(a) + self.is_bend(b)]
                self.weight[a, b] = straightness * (3 if scene.edge_role[edge] == "path" else 1)
        self.rooms = self.find_rooms()
        self.columns: list[list[int]] = [[] for _ in range(1 + max(column_of))]
        for node in self.depth_first(node_of[scene.start], column_of):
            self.columns[column_of[node]].append(node)

    def is_bend(self, node: int) -> bool:
        return node >= len(self.vertices)

    def find_rooms(self) -> list[Point]:
        """Room above and below each node; in a chain all take as much as one, or marks would make it crooked."""
        rooms = [(self.scene.above(vertex), self.scene.below(vertex)) for vertex in self.vertices]
        rooms += [(LINE_ROOM, LINE_ROOM)] * (len(self.left) - len(self.vertices))
        for first in range(len(self.vertices)):
            chain = [first]
            while len(self.right[chain[-1]]) == 1 and len(self.left[self.right[chain[-1]][0]]) == 1:
                chain += self.right[chain[-1]]
            vertices = [node for node in chain if not self.is_bend(node)]
            most = max(rooms[node][0] for node in vertices), max(rooms[node][1] for node in vertices)
            for node in vertices:
                rooms[node] = most
        return rooms

    def depth_first(self, start: int, column_of: Sequence[int]) -> list[int]:
        """All nodes, what leads to the goal first: for trees an order without crossings, the goal's branch on top."""
        to_goal = [chain for edge, chain in self.chains.items() if self.scene.edge_role[edge] == "path"]
        goal_link = {link for chain in to_goal for link in pairwise(chain)}
        seen: dict[int, None] = {}
        others = sorted(range(len(column_of)), key=lambda node: (column_of[node], node))
        stack = [*reversed(others), start]
        while stack:
            node = stack.pop()
            if node not in seen:
                seen[node] = None
                stack += sorted(self.right[node], key=lambda child: ((node, child) in goal_link, -child))
        return list(seen)

    def order(self) -> None:
        """Fewer crossings: the best order that a few sweeps to the right and back come across."""
        best, fewest = [list(column) for column in self.columns], self.crossings()
        for sweep in range(ORDER_SWEEPS):
            if not fewest:
                break
            rightwards = sweep % 2 == 0
            for place in range(len(self.columns)) if rightwards else reversed(range(len(self.columns))):
                self.sort_column(place, self.left if rightwards else self.right)
            self.swap_neighbours()
            crossings = self.crossings()
            if crossings < fewest:
                best, fewest = [list(column) for column in self.columns], crossings
        self.columns = best

    def places(self) -> dict[int, int]:
        return {node: place for column in self.columns for place, node in enumerate(column)}

    def sort_column(self, place: int, near: Sequence[Sequence[int]]) -> None:
        size = {node: len(column) for column in self.columns for node in column}
        at = {node: (place + 0.5) / size[node] for node, place in self.places().items()}
        barycentre = {n: sum(at[m] for m in near[n]) / len(near[n]) if near[n] else at[n] for n in self.columns[place]}
        self.columns[place].sort(key=lambda node: barycentre[node])

    def swap_neighbours(self) -> None:
        at = self.places()

        def crossings(a: int, b: int) -> int:
            total = 0
            for near in (self.left, self.right):
                below = sorted(at[m] for m in near[b])
                total += sum(bisect_left(below, at[m]) for m in near[a])
            return total

        for _ in range(len(self.columns) + 10):
            swapped = False
            for column in self.columns:
                for i in range(len(column) - 1):
                    a, b = column[i], column[i + 1]
                    if crossings(b, a) < crossings(a, b):
                        column[i], column[i + 1] = b, a
                        at[a], at[b] = at[b], at[a]
                        swapped = True
            if not swapped:
                return

    def crossings(self) -> int:
        at = self.places()
        total = 0
        for column in self.columns:
            ends: list[int] = []
            for node in column:
                here = [at[child] for child in self.right[node]]
                total += sum(len(ends) - bisect_right(ends, end) for end in here)
                for end in here:
                    insort(ends, end)
        return total

    def staggered(self, column: Sequence[int]) -> bool:
        return sum(not self.is_bend(node) for node in column) > TALL

    def gap(self, upper: int, lower: int, staggered: bool) -> float:
        """How far apart the middles of two neighbours in a column have to be."""
        below, above = self.rooms[upper][1], self.rooms[lower][0]
        if staggered and not self.is_bend(upper) and not self.is_bend(lower):
            # They stand side by side; only the level edge of the one has to pass the other.
            return max(below, above) + LINE_ROOM
        return below + above + ROOM

    def heights(self) -> dict[int, float]:
        """Heights, downwards, that bring linked nodes close to the same level."""
        gaps = [[self.gap(a, b, self.staggered(column)) for a, b in pairwise(column)] for column in self.columns]
        at: dict[int, float] = {}
        for column, between in zip(self.columns, gaps, strict=True):
            height = -sum(between) / 2
            for node, gap in zip(column, [*between, 0.0], strict=True):
                at[node] = height
                height += gap
        for sweep in range(HEIGHT_SWEEPS):
            # First one-sided, which carries changes through the whole graph; then both sides, which settles it.
            sides = (True, True) if sweep >= HEIGHT_SWEEPS // 4 else (sweep % 2 == 0, sweep % 2 == 1)
            places = range(len(self.columns))
            for place in places if sweep % 2 == 0 else reversed(places):
                column = self.columns[place]
                wanted: list[float] = []
                weights: list[float] = []
                for node in column:
                    pulls = [(at[m], self.weight[m, node]) for m in self.left[node] if sides[0]]
                    pulls += [(at[m], self.weight[node, m]) for m in self.right[node] if sides[1]]
                    pulls = pulls or [(at[node], 1)]
                    weights.append(sum(weight for _, weight in pulls))
                    wanted.append(sum(height * weight for height, weight in pulls) / weights[-1])
                at.update(zip(column, _spread(wanted, weights, gaps[place]), strict=True))
        return at


def _spread(wanted: Sequence[float], weights: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """The positions nearest to the wanted ones (weighted squares) that keep order and gaps: isotonic regression."""
    offsets = [0.0]
    for gap in gaps:
        offsets.append(offsets[-1] + gap)
    blocks: list[tuple[float, float, int]] = []
    for want, weight, offset in zip(wanted, weights, offsets, strict=True):
        mean, total, size = want - offset, weight, 1
        while blocks and blocks[-1][0] >= mean:
            other, other_total, other_size = blocks.pop()
            mean = (mean * total + other * other_total) / (total + other_total)
            total, size = total + other_total, size + other_size
        blocks.append((mean, total, size))
    means = [mean for mean, _, size in blocks for _ in range(size)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]


def _place(scene: _Scene) -> _Placed:
    """Columns get as much width as their words need, and the more between them the further edges rise or fall there."""
    grid = _Columns(scene)
    grid.order()
    y = {node: -height for node, height in grid.heights().items()}
    x: dict[int, float] = {}
    enter: dict[int, float] = {}
    leave: dict[int, float] = {}
    edge_end = words_end = 0.0
    for place, column in enumerate(grid.columns):
        nodes = [node for node in column if not grid.is_bend(node)]
        reach = max(scene.reach(grid.vertices[node]) for node in nodes)
        words = max(_tag_width(scene, grid.vertices[node]) for node in nodes) / 2
        shift = reach + 0.03 if grid.staggered(column) else 0.0
        middle = 0.0
        if place:
            rise = max((abs(y[a] - y[b]) for b in column for a in grid.left[b]), default=0.0)
            swing = min(0.32 + 0.1 * rise, 1.6) + (0.15 if scene.turn_of_edge else 0.0)
            middle = max(edge_end + swing + HEAD + reach, words_end + 0.08 + words) + shift
        for i, node in enumerate(nodes):
            x[node] = middle + (shift if i % 2 else -shift)
        for node in column:
            enter[node] = middle - shift - reach - HEAD
            leave[node] = middle + shift + reach
        edge_end, words_end = middle + shift + reach, middle + shift + words
    at = {vertex: (x[node], y[node]) for node, vertex in enumerate(grid.vertices)}
    passes: dict[Edge, list[Pass]] = {}
    for edge, (first, *bends, last) in grid.chains.items():
        between = [(enter[bend], leave[bend], y[bend]) for bend in bends]
        passes[edge] = [(leave[first], leave[first], y[first]), *between, (enter[last], enter[last], y[last])]
    half = {vertex: max(scene.reach(vertex), _tag_width(scene, vertex) / 2, RADIUS + 0.08) for vertex in at}
    left = min(at[v][0] - half[v] for v in at) - MARGIN
    right = max(at[v][0] + half[v] for v in at) + MARGIN
    bottom = min([at[v][1] - scene.below(v) for v in at] + [level - LINE_ROOM for level in y.values()]) - MARGIN
    top = max([at[v][1] + scene.above(v) for v in at] + [level + LINE_ROOM for level in y.values()]) + MARGIN
    return _Placed(scene, at, passes, left, bottom, right - left, top - bottom)


@cache
def _text_width(text: str, size: float) -> float:
    path = TextPath((0, 0), text, size=size, prop=FontProperties(family=FONT), usetex=False)
    return path.get_extents().width / 72 if text.strip() else 0.0


def _tag_width(scene: _Scene, vertex: int) -> float:
    return max((_text_width(word, 7.0) for word, _ in scene.tags(vertex)), default=0.0)


def _title_width(title: str) -> float:
    return max((_text_width(line.replace("$", "S"), 10.0) for line in title.splitlines()), default=0.0)


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


def _curve(passes: Sequence[Pass]) -> list[list[Point]]:
    """Bézier pieces from one column to the next; through the columns they are joined by straight lines."""
    middles = [((enter + leave) / 2, y) for enter, leave, y in passes]
    rises = [(y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in pairwise(middles)]
    slopes = [0.0]
    for (enter, leave, _), (before, after) in zip(passes[1:-1], pairwise(rises), strict=True):
        # The flatter of the ways there and on, so that it does not overshoot; never so steep as to touch a vertex.
        slope = min(before, after, key=abs) if before * after > 0 else 0.0
        most = 2 * MOST_DRIFT / (leave - enter)
        slopes.append(max(-most, min(most, slope)))
    slopes.append(0.0)
    pieces: list[list[Point]] = []
    for ((enter, x0, here), slope0), ((x1, leave, there), slope1) in pairwise(zip(passes, slopes, strict=True)):
        y0, y1 = here + slope0 * (x0 - enter) / 2, there - slope1 * (leave - x1) / 2
        reach = 0.48 * (x1 - x0)
        pieces.append([(x0, y0), (x0 + reach, y0 + reach * slope0), (x1 - reach, y1 - reach * slope1), (x1, y1)])
    return pieces


def _on_curve(piece: Sequence[Point], t: float) -> Point:
    weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
    x, y = (sum(w * point[axis] for w, point in zip(weights, piece, strict=True)) for axis in (0, 1))
    return x, y


def _draw(placed: _Placed, axes: Axes, title: str) -> None:
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

    def edge(self, placed: _Placed, edge: Edge) -> None:
        scene, (source, target) = placed.scene, edge
        look = LOOKS[scene.edge_role[edge]]
        followed = edge in scene.followed
        colour, width = (BLACK, 2.6) if followed else (look.line, look.width)
        (x, y), (end, level) = placed.at[source], placed.at[target]
        tip = end - scene.reach(target) - 0.01
        points, codes = [(x + scene.reach(source), y)], [Outline.MOVETO]
        pieces = _curve(placed.passes[edge])
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
            self.badge(*_on_curve(pieces[-1], 0.78), scene.turn_of_edge[edge])

    def vertex(self, scene: _Scene, vertex: int, x: float, y: float) -> None:
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


def _add_legend(figure: Figure, scenes: Sequence[_Scene], beside: bool, width: float) -> tuple[float, float]:
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


def _entries(scenes: Sequence[_Scene]) -> list[tuple[tuple[Line2D, ...], str]]:
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
