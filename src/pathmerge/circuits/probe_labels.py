"""What a probe is asked: the rows of some problems, and what each candidate, a vertex or an edge, is to each row.

Shapes: B problems, T tokens, M rows, C candidates, W directions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pathmerge.circuits.probe_table import DIRECTIONS, Candidates, Control, Direction, RowKind
from pathmerge.encodings import edges as edge_tokens
from pathmerge.models.transformer import Transformer
from pathmerge.problems.batch import Batch

SELF, UNRELATED, OPPOSITE, ABSENT = 0, -1, -2, -3
"""What a candidate is to a row besides reachable, which is its distance."""
PART_TOKENS = 4096
HELD = 5
"""One part in so many is held back from fitting, to choose the strength of the ridge."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Which rows are asked about which candidates, and with which labels."""

    rows: RowKind
    by: Candidates
    directions: tuple[Direction, ...]
    labels: tuple[Control, ...]
    seed: int
    most: int = 0
    """The largest distance asked for."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """The rows of some problems and what each candidate is to each of them."""

    tokens: Tensor
    problem: np.ndarray
    """Which of the part's problems a row belongs to, M."""
    place: np.ndarray
    """Where it stands, M."""
    own: np.ndarray
    """Which candidate is the row itself, M x C, bool."""
    codes: dict[Control, np.ndarray]
    """W x M x C, for each kind of labels."""


class Parts:
    """A batch cut into parts; each is made when it is asked for and is the same every time."""

    def __init__(self, batch: Batch, model: Transformer, ask: Ask) -> None:
        self.batch, self.model, self.ask = batch, model, ask
        self.size = max(1, min(PART_TOKENS // batch.distribution.width, len(batch) // (2 * HELD)))
        self.starts = range(0, len(batch), self.size)
        layout = batch.distribution.layout
        self.vertices = layout.max_vertices
        self.first_edge = layout.input_size - layout.region_width - 3 - 3 * layout.max_edges

    def __getitem__(self, number: int) -> Part:
        batch = self.batch.take(slice(self.starts[number], self.starts[number] + self.size))
        tokens = self.model.inputs(batch).tokens
        vertices = row_vertices(batch, tokens.cpu().numpy(), self.ask.rows)
        problem, place = np.nonzero(vertices)
        vertex = vertices[problem, place]
        steps, present = distances(batch)
        # For each direction, which vertex a candidate stands for (an edge: the end that is met first); 0 for none.
        if self.ask.by == "vertex":
            near = np.where(present[problem, 1:], np.arange(1, self.vertices + 1), 0)[None].repeat(2, 0)
            own = near[0] == vertex[:, None]
        else:
            near = np.moveaxis(batch.edges[problem], 2, 0)
            own = (place[:, None] - self.first_edge) // 3 == np.arange(near.shape[2])
        key = (self.ask.seed, ("validation", "test").index(self.batch.key.split), number)
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))
        others = present[problem]
        others[np.arange(len(vertex)), vertex] = False
        another = np.where(others, rng.random(others.shape), -1).argmax(1)
        codes, elsewhere = (self._codes(steps, near, problem, of, own) for of in (vertex, another))
        return Part(
            tokens=tokens,
            problem=problem,
            place=place,
            own=own,
            codes={
                **dict.fromkeys(("model", "untrained", "initial"), codes),
                "shuffled": _shuffled(codes, rng),
                "elsewhere": elsewhere,
            },
        )

    def _codes(
        self, steps: np.ndarray, near: np.ndarray, problem: np.ndarray, vertex: np.ndarray, own: np.ndarray
    ) -> np.ndarray:
        found: list[np.ndarray] = []
        for direction in self.ask.directions:
            there = near[DIRECTIONS.index(direction)]
            away, towards = (
                steps[problem[:, None], vertex[:, None], there],
                steps[problem[:, None], there, vertex[:, None]],
            )
            asked, other = (away, towards) if direction == "forward" else (towards, away)
            codes = np.where(other > 0, OPPOSITE, UNRELATED)
            codes = np.where(asked >= 0, asked + (self.ask.by == "edge"), codes)
            codes = np.where(own, SELF, np.where(there == 0, ABSENT, codes))
            found.append(codes.astype(np.int16))
        return np.stack(found)


def distances(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Steps from each vertex to each, B x (V+1) x (V+1), -1 where there is no path; and which vertices there are."""
    edges, size = batch.edges, batch.distribution.layout.max_vertices + 1
    every = np.arange(len(batch))[:, None]
    link = np.zeros((len(batch), size, size), np.float32)
    link[every, edges[:, :, 0], edges[:, :, 1]] = 1.0
    link[:, 0, 0] = 0.0  # where there is no edge
    present = (link.sum(1) + link.sum(2)) > 0
    steps = np.where(np.eye(size, dtype=bool) & present[:, None], 0, -1).astype(np.int16)
    reached, level = link > 0, 1
    while reached.any():
        steps[reached] = level
        following = torch.bmm(torch.from_numpy(reached.astype(np.float32)), torch.from_numpy(link))
        reached = (following.numpy() > 0) & (steps < 0)
        level += 1
    return steps, present


def row_vertices(batch: Batch, tokens: np.ndarray, rows: RowKind) -> np.ndarray:
    """The vertex that each row of a model's tokens stands for, B x T; 0 for rows that are not asked for."""
    layout = batch.distribution.layout
    if tokens.ndim == 3:
        kind = tokens[:, :, 2]
        asked = {"all": kind != edge_tokens.PAD, "source": kind == edge_tokens.EDGE, "target": kind == edge_tokens.EDGE}
        end = 1 if rows in ("target", "start", "last") else 0
        return np.where(asked.get(rows, kind == edge_tokens.QUERY), tokens[:, :, end], 0)
    vertices = np.where((tokens >= 1) & (tokens <= layout.max_vertices), tokens, 0)
    if rows == "all":
        return vertices
    query = layout.input_size - layout.region_width - 3
    chosen = np.zeros(layout.input_size, bool)
    places: dict[RowKind, slice | int] = {
        "source": slice(query - 3 * layout.max_edges + 1, query, 3),
        "target": slice(query - 3 * layout.max_edges + 2, query, 3),
        "start": query + 1,
        "goal": query + 2,
    }
    chosen[places.get(rows, -1)] = True
    if rows == "answer":
        vertices = np.broadcast_to(batch.goal[:, None], tokens.shape)
    return np.where(chosen, vertices, 0)


def _shuffled(codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The codes of candidates, permuted within each row; the others stay where they are."""
    candidate = (codes != SELF) & (codes != ABSENT)
    # Both orders put the candidates first and leave the others as they stand.
    slots = np.argsort(~candidate, axis=2, kind="stable")
    order = np.argsort(np.where(candidate, rng.random(codes.shape), 2.0), axis=2, kind="stable")
    mixed = np.empty_like(codes)
    np.put_along_axis(mixed, slots, np.take_along_axis(codes, order, axis=2), axis=2)
    return mixed
