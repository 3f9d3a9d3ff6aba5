"""What a picture shows and how each part of it looks: what placing and drawing have in common.

Choices a reader could not guess:
- Fill and outline say what a vertex is, black says what the search has done, rings are answers, pointers and words the
  rest. No two things differ by colour alone. The colours are those of Okabe and Ito, made paler under ids and darker in
  words and thin lines.
- Lengths are inches at natural size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

Edge = tuple[int, int]
Role = Literal["start", "goal", "path", "distractor", "rest"]

BLACK, BLUE, VERMILLION, GREEN, PURPLE = "#000000", "#0072B2", "#D55E00", "#00795A", "#9B3F75"
FONT = "DejaVu Sans"  # ships with matplotlib, so that a picture has the same bytes everywhere
RADIUS = 0.19
TAG = 0.125
POINTER = 0.15
RING = 0.075


@dataclass(frozen=True)
class Look:
    """How the vertices of a role are drawn, and the edges that lead to them."""

    shape: Literal["circle", "square", "diamond"]
    fill: str
    outline: str
    text: str
    line: str
    width: float
    dashes: tuple[float, ...]
    legend: str


LOOKS: dict[Role, Look] = {
    "start": Look("square", BLUE, BLUE, "white", BLUE, 1.8, (), "start"),
    "goal": Look("diamond", VERMILLION, VERMILLION, "white", BLUE, 1.8, (), "goal"),
    "path": Look("circle", "#C9E6F7", BLUE, BLACK, BLUE, 1.8, (), "on a path from start to goal"),
    "distractor": Look(
        "circle", "#FDF3CF", "#B07A00", BLACK, "#B07A00", 1.1, (2.6, 1.8), "distractor: never leads to the goal"
    ),
    "rest": Look("circle", "#F4F4F4", "#BDBDBD", "#6A6A6A", "#C4C4C4", 0.9, (), "not reachable from start"),
}
REACH = {"circle": RADIUS, "square": 0.18, "diamond": 0.275}


@dataclass(frozen=True)
class Scene:
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
    prediction: int | None = None
    """What a model answers."""

    def tags(self, vertex: int) -> list[tuple[str, str]]:
        """The words under a vertex, each with its colour."""
        marked = (
            ("start", BLUE, self.start),
            ("goal", VERMILLION, self.goal),
            ("label", GREEN, self.label),
            ("current", PURPLE, self.current),
            ("turns back", PURPLE, self.turning),
            ("model", BLACK, self.prediction),
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


@cache
def text_width(text: str, size: float) -> float:
    path = TextPath((0, 0), text, size=size, prop=FontProperties(family=FONT), usetex=False)
    return path.get_extents().width / 72 if text.strip() else 0.0
