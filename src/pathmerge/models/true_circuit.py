"""What the compiled model does on one input, told from its construction, without running it: the true circuit.

An operation is *on the path* if what it brings reaches the reading of the prediction, and *redundant* if zeroing its
weight changes neither the answer nor the scores of that reading, because a parallel operation brings the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from torch import Tensor

from pathmerge.encodings.symbolic import parse, render
from pathmerge.errors import check_choice, check_range
from pathmerge.layout import Layout
from pathmerge.models.compiled import HINT, NO_ANSWER
from pathmerge.models.transformer import Transformer
from pathmerge.problems.problem import Problem

Kind = Literal["join", "copy", "merge", "read"]


@dataclass(frozen=True)
class TrueOperation:
    """An attention operation of the compiled model that carries something. Rows are positions in the input."""

    layer: int
    target: int
    """The row that attends."""
    source: int
    """The row it attends to."""
    kind: Kind
    """join: an edge's source to its target; copy: the last row to the goal; merge; read: the last row to an edge."""
    vertex: int
    """join: the child; copy: the goal; merge: the vertex on which the rows match; read: start."""
    weight: float
    """The attention weight."""
    on_path: bool = False
    """Whether what it carries is used: over further operations and the rows' own memory it leads to the goal in the
    front of the edge start → prediction when that is read, or to the last row."""
    redundant: bool = False
    """On the path, but the prediction is the same without it alone: other operations bring the same vertex."""

    @property
    def needed(self) -> bool:
        return self.on_path and not self.redundant


@dataclass(frozen=True)
class TrueCircuit:
    """All operations that carry something, by layer, target and source; every other row attends to the sinks."""

    prediction: int
    """The smallest right answer within reach; 0 if there is none."""
    operations: tuple[TrueOperation, ...]

    @property
    def solved(self) -> bool:
        return self.prediction != NO_ANSWER

    @property
    def path(self) -> tuple[TrueOperation, ...]:
        return tuple(operation for operation in self.operations if operation.on_path)

    @property
    def needed(self) -> tuple[TrueOperation, ...]:
        return tuple(operation for operation in self.operations if operation.needed)


def true_circuit(problem: Problem | Iterable[int] | Tensor, model: Transformer | tuple[int, int]) -> TrueCircuit:
    """What a compiled model without noise does on a problem or a row of tokens, from the graph alone.

    `model` is the model, or its input size and number of merges.
    """
    input_size, merges = (model.config.input_size, model.layers - 2) if isinstance(model, Transformer) else model
    layout = Layout(input_size)
    check_range("merges", merges, 0, 100)
    if isinstance(problem, Problem):
        check_choice("task", problem.task, ("search",))
    tokens = render(problem, layout) if isinstance(problem, Problem) else problem
    given = parse((int(token) for token in tokens), layout)
    search = _Search(given, input_size, merges)
    path = search.path()

    def judged(operation: TrueOperation) -> TrueOperation:
        if operation not in path:
            return operation
        alone = _Search(given, input_size, merges, without=operation)
        return replace(operation, on_path=True, redundant=alone.prediction == search.prediction)

    made = sorted(search.operations, key=lambda operation: (operation.layer, operation.target, operation.source))
    return TrueCircuit(search.prediction, tuple(map(judged, made)))


class _Row(NamedTuple):
    """What an edge's row, or the goal's, holds besides its child."""

    own: int
    front: frozenset[int]
    reach: Mapping[int, float]


class _Search:
    """The algorithm of the module's docstring on sets; `without` leaves one operation out."""

    def __init__(self, problem: Problem, input_size: int, merges: int, without: TrueOperation | None = None) -> None:
        self.start, self.goal, self.merges = problem.start, problem.goal, merges
        self.goal_row, self.last_row = input_size - 3, input_size - 1
        first = input_size - 4 - 3 * len(problem.edges)
        self.edges = {first + 3 * i: edge for i, edge in enumerate(problem.edges)}
        self.removed = without and (without.layer, without.target, without.source)
        self.operations: list[TrueOperation] = []
        self.rows: list[dict[int, _Row]] = []
        """After layers 0..k."""
        self._join()
        for _ in range(merges):
            self._merge()
        self.prediction = self._read()

    def _attend(self, target: int, kind: Kind, sources: Iterable[tuple[int, int, float]]) -> list[TrueOperation]:
        """The operations of a row to sources, given as (row, vertex, score), by a softmax."""
        layer = {"join": 0, "copy": 0, "merge": len(self.rows), "read": self.merges + 1}[kind]
        left = [source for source in sources if (layer, target, source[0]) != self.removed]
        total = sum(math.exp(score) for *_, score in left)
        found = [TrueOperation(layer, target, s, kind, vertex, math.exp(score) / total) for s, vertex, score in left]
        self.operations += found
        return found

    def _join(self) -> None:
        rows = {self.goal_row: _Row(self.goal, frozenset({self.goal}), {})}
        for row, (own, child) in self.edges.items():
            if self._attend(row, "join", [(row + 1, child, 0.0)]):
                rows[row] = _Row(own, frozenset({child}), {child: 1.0})
        self.rows.append(rows)
        self.knows_goal = bool(self._attend(self.last_row, "copy", [(self.goal_row, self.goal, 0.0)]))

    def _merge(self) -> None:
        before = self.rows[-1]
        after = {self.goal_row: before[self.goal_row]}
        for row in before.keys() - after.keys():
            own, front, reach = before[row]
            matches = [(s, r.own, HINT * reach.get(r.own, 0.0)) for s, r in before.items() if r.own in front]
            merges = self._attend(row, "merge", matches)
            fronts = (before[operation.source].front for operation in merges)
            more = _mean([(before[operation.source].reach, operation.weight) for operation in merges])
            total = {vertex: reach.get(vertex, 0.0) + more.get(vertex, 0.0) for vertex in reach.keys() | more.keys()}
            after[row] = _Row(own, frozenset[int]().union(*fronts), total)
        self.rows.append(after)

    def _read(self) -> int:
        """The prediction."""
        rows = self.rows[-1] if self.knows_goal else {}
        right = [(s, r.own, 0.0) for s, r in rows.items() if r.own == self.start and self.goal in r.front]
        read = self._attend(self.last_row, "read", right)
        return min((self.edges[operation.source][1] for operation in read), default=NO_ANSWER)

    def path(self) -> set[TrueOperation]:
        """The operations that the prediction uses: back from the goal in the front of its edge's row."""
        read = {o for o in self.operations if o.kind == "read" and self.edges[o.source][1] == self.prediction}
        path = read | {o for o in self.operations if o.kind == "copy" and read}
        used = {(operation.source, self.goal) for operation in read}
        for layer in range(self.merges, 0, -1):
            before = self.rows[layer - 1]
            merges = [operation for operation in self.operations if operation.layer == layer]
            brought = [(o, v) for o in merges for v in before[o.source].front if (o.target, v) in used]
            path |= {operation for operation, _ in brought}
            used = {(row, vertex) for row, vertex in used if row == self.goal_row}
            used |= {(o.target, o.vertex) for o, _ in brought} | {(o.source, vertex) for o, vertex in brought}
        return path | {o for o in self.operations if o.kind == "join" and (o.target, o.vertex) in used}


def _mean(parts: Iterable[tuple[Mapping[int, float], float]]) -> dict[int, float]:
    """The mean of vectors with weights."""
    found: dict[int, float] = {}
    for vector, weight in parts:
        for vertex, amount in vector.items():
            found[vertex] = found.get(vertex, 0.0) + weight * amount
    return found
