"""What a picture of a circuit shows: the path, the rows used, the operations highlighted, and the words."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from math import inf, sqrt
from typing import Literal

from pathmerge.circuits.files import Circuit, Input, Reading
from pathmerge.pictures.scene import Role

Choice = Literal["strict", "lenient", "auto"]
Node = tuple[int, int]
"""A level (before a layer, or after the last) and a row, by its place among the rows."""
Slot = tuple[int, ...]
"""Rows that belong together: an edge with its marker, the query, or the answer's row."""

MARKS = {"EDGE": "E", "QUERY": "Q", "PATH": "P"}


def path_of(circuit: Circuit, through: Collection[int] = ()) -> tuple[int, ...]:
    """A shortest path from start to goal, with the prediction after start if it is right; of several, the smallest ids.

    If there is one within the vertices `through`, whether it begins with the prediction or not, it is one of those.
    """
    everything = {vertex for edge in circuit.input.edges for vertex in edge}
    for vertices in (set(through), everything):
        for second in (circuit.prediction, None):
            if found := _shortest(circuit.input, vertices, second):
                return found
    raise ValueError(f"circuit.input: no path leads from {circuit.input.start} to {circuit.input.goal}")


def _shortest(given: Input, through: set[int], second: int | None) -> tuple[int, ...]:
    """A shortest path within these vertices; empty if there is none."""
    paths = [(given.start,)] if given.start in through else []
    seen = {given.start}
    while paths:
        longer: list[tuple[int, ...]] = []
        for path in paths:
            if path[-1] == given.goal:
                return path
            for vertex in sorted(v for u, v in set(given.edges) if u == path[-1] and v in through - seen):
                if len(path) > 1 or second in (None, vertex):
                    seen.add(vertex)
                    longer.append((*path, vertex))
        paths = longer
    return ()


class View:
    """What there is to show of a circuit under one reading; operations are named by their number."""

    def __init__(self, circuit: Circuit, name: str, most: int) -> None:
        self.circuit, self.name = circuit, name
        self.reading: Reading = getattr(circuit, name)
        self.layers = len(self.reading.sets) - 1
        self.rows, self.operations, self.kept = circuit.input.rows, circuit.operations, self.reading.kept
        at = {row.position: place for place, row in enumerate(self.rows)}
        self.source: dict[int, Node] = {i: (self.operations[i].layer, at[self.operations[i].source]) for i in self.kept}
        self.target = {i: (self.operations[i].layer + 1, at[self.operations[i].target]) for i in self.kept}
        self.weight = self.weigh()
        self.live = self.leading(self.kept)
        arrived = {vertex for level, row in self.live if level == 0 for vertex in self.rows[row].vertices}
        self.path = path_of(circuit, arrived if self.reading.explained else ())
        self.missing = [vertex for vertex in self.path if vertex not in arrived]
        carrying = self.carrying(self.kept)
        carriers = {i for i in self.kept if self.source[i] in carrying}
        self.is_tree = len(carriers) > most
        self.lit = self.tree() if self.is_tree else carriers
        self.nodes = self.carrying(self.lit) & self.leading(self.lit)

    def holding(self, vertex: int) -> list[int]:
        return [place for place, row in enumerate(self.rows) if vertex in row.vertices]

    def leading(self, operations: Collection[int]) -> set[Node]:
        """The nodes from which these operations (and rows passing on to themselves) lead to the answer."""
        found = {(level, len(self.rows) - 1) for level in range(self.layers + 1)}
        for layer in reversed(range(self.layers)):
            found |= {(layer, row) for level, row in found if level == layer + 1}
            found |= {self.source[i] for i in operations if self.target[i] in found and self.source[i][0] == layer}
        return found

    def carrying(self, operations: Collection[int]) -> set[Node]:
        """The nodes that vertices of the path get to by these operations and by rows passing on to themselves."""
        found = {(0, row) for vertex in self.path for row in self.holding(vertex)}
        for level in range(1, self.layers + 1):
            found |= {(level, row) for above, row in found if above == level - 1}
            found |= {self.target[i] for i in operations if self.source[i] in found and self.target[i][0] == level}
        return found

    def weigh(self) -> dict[int, float]:
        """Importance relative to the layer's most important kept operation, 0..1."""
        method, width = self.circuit.method, float(self.circuit.model.get("head_width", 1))
        alpha, limit = max(method.alpha, 1e-9), sqrt(width) / method.kappa1
        found: dict[int, float] = {}
        largest = [0.0] * self.layers
        for i in self.kept:
            op = self.operations[i]
            under = [("zero", "maximum").index(name) for name in op.by]
            found[i] = max([0.0, *(max((op.drop[k] or 0) / alpha, (op.change[k] or 0) / limit) for k in under)])
            largest[op.layer] = max(largest[op.layer], found[i])
        return {i: sqrt(value / (largest[self.operations[i].layer] or 1.0)) for i, value in found.items()}

    def tree(self) -> set[int]:
        """Operations that make a chain to the answer for each vertex of the path that has one, and no more."""
        last = len(self.rows) - 1
        price = {i: 2.0 - self.weight[i] + (self.target[i][1] == last) for i in self.kept}
        leaving: dict[Node, list[int]] = {}
        for i in self.kept:
            leaving.setdefault(self.source[i], []).append(i)
        chosen: set[int] = set()
        nodes = {(level, last) for level in range(self.layers + 1)}
        waiting = [vertex for vertex in self.path if vertex not in self.missing]
        while waiting:
            cost: dict[Node, float] = {}
            way: dict[Node, int | None] = {}
            for level in reversed(range(self.layers + 1)):
                for row in range(last + 1):
                    node = level, row
                    cost[node], way[node] = 0.0 if node in nodes else cost.get((level + 1, row), inf), None
                    for i in leaving.get(node, ()):
                        if price[i] + cost[self.target[i]] < cost[node]:
                            cost[node], way[node] = price[i] + cost[self.target[i]], i
            ends = [(cost[0, row], place, row) for place, v in enumerate(waiting) for row in self.holding(v)]
            _, place, row = min(ends)
            del waiting[place]
            node = 0, row
            while node not in nodes:
                nodes.add(node)
                i = way[node]
                chosen |= set() if i is None else {i}
                node = (node[0] + 1, node[1]) if i is None else self.target[i]
        # A later chain may have made a part of an earlier one superfluous.
        for i in sorted(chosen, key=lambda i: (-price[i], i)):
            leading = self.leading(chosen - {i})
            if all(any((0, row) in leading for row in self.holding(v)) for v in self.path if v not in self.missing):
                chosen.remove(i)
        return chosen

    def role(self, row: int) -> Role:
        vertices = self.rows[row].vertices
        if len(vertices) > 1:
            return "path" if vertices in list(pairwise(self.path)) else "rest"
        vertex = vertices[0] if vertices else None
        ends: dict[int | None, Role] = {self.circuit.input.start: "start", self.circuit.input.goal: "goal"}
        return ends.get(vertex, "path" if vertex in self.path else "rest")

    def slots(self) -> list[Slot]:
        """A marker begins a slot; so does every edge token."""
        found: list[Slot] = []
        for place, row in enumerate(self.rows):
            alone = not found or len(row.vertices) != 1
            found = [*found, (place,)] if alone else [*found[:-1], (*found[-1], place)]
        return found

    def on_path(self, slot: Slot) -> bool:
        """Whether it is an edge of the path; the query of a path of one step looks like one."""
        vertices = tuple(vertex for row in slot for vertex in self.rows[row].vertices)
        return vertices in list(pairwise(self.path)) and self.rows[slot[0]].text != "QUERY"

    def chosen_slots(self, columns: int) -> list[Slot]:
        """The slots that are drawn: all, or those in use, or those of highlighted operations; always the query's."""
        slots = self.slots()
        chosen = slots
        for ends in (self.kept, self.lit):
            if sum(map(len, chosen)) > columns:
                used = {node[1] for i in ends for node in (self.source[i], self.target[i])}
                chosen = [slot for slot in slots if used & set(slot) or slot in slots[-2:]]
        return chosen

    def title(self) -> str:
        given, answer = self.circuit.input, self.circuit.prediction
        verdict = "right" if self.circuit.correct else f"wrong ({_listed(given.answers, 'or')} would be right)"
        path = " → ".join(map(str, self.path))
        return f"From {given.start} to {given.goal}, path {path}: the model answers {answer}, {verdict}"

    def caption(self, omitted: int) -> Iterator[str]:
        strict, lenient = (_yes(getattr(self.circuit, name).explained) for name in ("strict", "lenient"))
        yield f"Path-merging explains the answer: strictly {strict}, leniently {lenient}. Shown: {self.name} reading."
        kept, lit = len(self.kept), len(self.lit)
        which = (
            "for each vertex of the path one chain to the answer" if self.is_tree else "they carry the path's vertices"
        )
        found = [
            f"{kept:,} of {len(self.operations):,} important operations are kept and {lit} highlighted: {which}."
            if kept
            else f"No operation was kept of {len(self.operations):,} important.",
        ]
        if omitted:
            found.append(f"{omitted:,} kept operations between rows that are left out are not drawn.")
        if kept and self.missing:
            found.append(f"No chain leads to the answer from {_listed(self.missing, 'and')}.")
        if self.circuit.correct and self.path[1] != self.circuit.prediction:
            found.append("The path whose vertices arrive is not the one that begins with the answer.")
        yield " ".join(found)
        method, model, given = self.circuit.method, self.circuit.model, self.circuit.input
        mode = "every operation measured"
        if method.mode == "screened":
            mode = "only candidates measured"
            if self.circuit.audited:
                mode += f" (of {self.circuit.audited:,} others, {self.circuit.missed:,} would have been kept)"
        yield (
            f"{given.problem.get('name', 'problem')}, lookahead {given.lookahead}; {model.get('name', 'model')}, "
            f"layers {self.layers}, heads {model.get('heads', '?')}; α={method.alpha:g}, κ1={method.kappa1:g}, "
            f"κ2={method.kappa2:g}, {method.sets} sets, {method.mode}: {mode}."
        )


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _listed(values: Sequence[int], last: str) -> str:
    words = [str(value) for value in values]
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
