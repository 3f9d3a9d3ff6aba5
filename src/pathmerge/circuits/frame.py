"""What the rows of some inputs stand for: vertices, positions, and the graphs they state.

Choices a reader could not guess:
- Features are numbered: first the vertex ids that occur, in increasing order, then the positions of the rows, if the
  model has position embeddings. Sets of features are rows of a bool array over these.
- A row of edge tokens holds both ends of its edge; for direction and distance it stands for the source.
- All inputs that are worked on together have one frame, in arrays: what is small for one input is worked out for all of
  them at once.

Shapes: G inputs, R rows of all inputs, F features of the input that has most, V the largest vertex id.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from pathmerge.circuits.trace import Trace
from pathmerge.kernels import frames as kernels
from pathmerge.kernels.frames import Rules
from pathmerge.problems.batch import Batch

FeatureKind = Literal["vertex", "position"]


@dataclass(frozen=True, kw_only=True)
class Frames:
    """Some search problems as rows of tokens; rows are those that are not padding, one input's after the other's."""

    first: np.ndarray
    """Input g owns rows first[g]..first[g+1]-1."""
    positions: np.ndarray
    """Where each row stands in its input, R."""
    held: np.ndarray
    """The vertices each row holds, R x 2, 0 where there is none."""
    vertices: np.ndarray
    """The vertex ids that occur in each input, G x V, zeros after them."""
    counts: np.ndarray
    """How many these are, G."""
    edges: np.ndarray
    """G x E x 2, (0, 0) where there is none."""
    start: np.ndarray
    goal: np.ndarray
    answers: np.ndarray
    """Which tokens are correct, G x vocabulary."""
    initial: np.ndarray
    """N(0, j): what each row holds before the first layer, R x F."""
    number: np.ndarray
    """Of each vertex id among those that occur, or -1, G x (V + 1)."""
    slots: np.ndarray
    """The row of its input before an edge's two vertices, G x E, where the model has positions."""
    slot_counts: np.ndarray
    width: int
    """Tokens of an input, padding included."""
    has_positions: bool

    def __len__(self) -> int:
        return len(self.start)

    @property
    def most(self) -> int:
        """V, the largest id there could be."""
        return self.vertices.shape[1]

    @property
    def rows(self) -> np.ndarray:
        """How many each input has."""
        return np.diff(self.first)

    @property
    def features(self) -> np.ndarray:
        """How many each input has."""
        return self.counts + self.rows * self.has_positions

    @property
    def rules(self) -> Rules:
        return Rules(self.first, self.counts, self.features, self.slots, self.slot_counts)

    @cached_property
    def substitutes(self) -> np.ndarray:
        """The smallest vertex id that does not occur in each input, or token 0 if all do."""
        absent = self.number < 0
        absent[:, 0] = False
        return absent.argmax(1)

    @cached_property
    def owner(self) -> np.ndarray:
        """The input of each row."""
        return np.repeat(np.arange(len(self)), self.rows)

    @cached_property
    def distance(self) -> np.ndarray:
        """Steps from each vertex id to each, G x (V + 1) x (V + 1); -1 where there is no path."""
        steps = np.empty((len(self), self.most + 1, self.most + 1), np.int64)
        kernels.distances(self.edges, self.vertices, self.counts, steps)
        return steps

    @cached_property
    def reach(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps from each row's vertex to each of its input's, and the other way round, R x V; -1 beyond them."""
        own, here, there = self.owner[:, None], self.held[:, :1], self.vertices[self.owner]
        return self.distance[own, here, there], self.distance[own, there, here]

    def names(self, g: int) -> tuple[list[int], list[int]]:
        """The vertices of input g, and the positions of its rows."""
        return self.vertices[g, : self.counts[g]].tolist(), self.positions[self.first[g] : self.first[g + 1]].tolist()


def frames_of(batch: Batch, own: np.ndarray, trace: Trace, has_positions: bool) -> Frames:
    """The frames of the inputs of a trace, which are numbers `own` of a batch."""
    most, count, first, positions = batch.distribution.layout.max_vertices, len(trace), trace.first, trace.rows.numpy()
    there = trace.tokens.numpy()[trace.owner, positions]
    held = np.zeros((len(positions), 2), np.int64)
    if there.ndim == 2:
        held[:] = there[:, :2]
        held[held[:, 0] == held[:, 1], 1] = 0
    else:
        held[:, 0] = np.where(there <= most, there, 0)
    edges, start, goal = batch.edges[own], batch.start[own], batch.goal[own]
    vertices, counts = np.zeros((count, most), np.int64), np.empty(count, np.int64)
    number = np.empty((count, most + 1), np.int64)
    sets = np.zeros((len(positions), most + int(trace.counts.max()) * has_positions), bool)
    slots, slot_counts = np.zeros(edges.shape[:2], np.int64), np.empty(count, np.int64)
    kernels.present(first, held, edges, start, goal, has_positions, vertices, counts, number, sets, slots, slot_counts)
    return Frames(
        first=first,
        positions=positions,
        held=held,
        vertices=vertices,
        counts=counts,
        edges=edges,
        start=start,
        goal=goal,
        answers=batch.answers[own],
        initial=sets,
        number=number,
        slots=slots,
        slot_counts=slot_counts,
        width=trace.tokens.shape[1],
        has_positions=has_positions,
    )
