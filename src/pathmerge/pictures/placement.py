"""Where vertices and edges go: the classical layered layout.

Choices a reader could not guess:
- Columns so that each arrow points right, bends where an edge passes a column, barycentre sweeps and swaps of
  neighbours against crossings, then heights by least squares. Nothing is random: one problem, one picture.
- An edge is almost level where it passes a column, so it does not run through a vertex.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from pathmerge.pictures.scene import RADIUS, Edge, Scene, text_width

Point = tuple[float, float]
Pass = tuple[float, float, float]  # of an edge through a column: x where it enters and leaves, height in the middle

ROOM = 0.12  # between things that stand above one another in a column
LINE_ROOM = 0.06  # what a passing edge takes on either side
HEAD = 0.11
MARGIN = 0.08
MOST_DRIFT = 0.09  # how far an edge may rise or fall on either half of a column that it passes
TALL = 24  # columns with more vertices than this are staggered
ORDER_SWEEPS = 12
HEIGHT_SWEEPS = 40


@dataclass(frozen=True)
class Placed:
    """Where everything stands.

    Vertices by their middle; an edge by the columns that it passes, the first and the last being those of its ends.
    """

    scene: Scene
    at: dict[int, Point]
    passes: dict[Edge, list[Pass]]
    left: float
    bottom: float
    width: float
    height: float


def place_scene(scene: Scene) -> Placed:
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
    return Placed(scene, at, passes, left, bottom, right - left, top - bottom)


def _layers(scene: Scene) -> dict[int, int]:
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

    def __init__(self, scene: Scene) -> None:
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


def _tag_width(scene: Scene, vertex: int) -> float:
    return max((text_width(word, 7.0) for word, _ in scene.tags(vertex)), default=0.0)


def curve(passes: Sequence[Pass]) -> list[list[Point]]:
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


def on_curve(piece: Sequence[Point], t: float) -> Point:
    weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
    x, y = (sum(w * point[axis] for w, point in zip(weights, piece, strict=True)) for axis in (0, 1))
    return x, y
