"""Step V: from important operations and their features to the circuit (the paper's Algorithm 1, with residuals).

Sets of features travel upwards: each row begins with its own token and position, keeps what it has, and takes over the
whole set of a row it merges with or copies from. Then, from the last row downwards, what leads nowhere is dropped.

Two readings. Strict: an operation counts if *all* the features it depends on are contained in its rows' sets. Lenient,
the published code's: dependencies beyond those that make it a merge or a copy do not matter.

Shapes: G inputs, R rows of all inputs, S important operations of all layers and inputs, F features, L layers, V the
largest vertex id, E edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pathmerge.circuits.frame import Frames
from pathmerge.circuits.options import SetRule
from pathmerge.kernels import links as kernels

TOKEN, POSITION, COPY, OTHER = range(4)
KINDS = ("token", "position", "copy", "other")


@dataclass(frozen=True, kw_only=True)
class Found:
    """The important operations of some inputs and why they happen: an input's in a row, layer after layer."""

    operations: np.ndarray
    """S x 4: layer, head, target (among the rows of all inputs), source."""
    begin: np.ndarray
    """Input g owns operations begin[g]..begin[g+1]-1."""
    in_target: np.ndarray
    """The features each depends on in its target row, S x F."""
    in_source: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """What became of the important operations, in their order."""

    kind: np.ndarray
    links: np.ndarray
    """Which carry their source's set over to their target."""
    kept: np.ndarray
    """Which of these lead on to the last row."""
    by_token: np.ndarray
    """The vertices (by number) that make an operation a merge by token, S x V."""
    by_edge: np.ndarray
    """The edges (by number) that make it a merge by position, S x E."""
    sets: np.ndarray
    """N(0) .. N(L), L+1 x R x F."""
    reached: np.ndarray
    """The rows before the first layer from which a chain of links leads to the last row after the last, R."""


def reconstruct(
    frames: Frames, found: Found, layers: int, *, lenient: bool = False, rule: SetRule = "whole"
) -> Reconstruction:
    """Algorithm 1 over the important operations of all layers.

    Strict: an operation counts only if all its features are contained in its rows' sets. Lenient: features that are not
    contained are left aside.
    """
    count, rules = len(found.operations), frames.rules
    sets = np.zeros((layers + 1, *frames.initial.shape), bool)
    sets[0] = frames.initial
    kind, linked = np.empty(count, np.int64), np.empty(count, bool)
    by_token, by_edge = (np.zeros((count, width), bool) for width in (frames.most, frames.slots.shape[1]))
    kernels.carry(
        rules, found.begin, found.operations, found.in_target, found.in_source, lenient, rule == "whole", sets, kind,
        linked, by_token, by_edge,
    )  # fmt: skip
    kept, reached = downwards(frames, found, linked, layers)
    return Reconstruction(
        kind=kind, links=linked, kept=kept, by_token=by_token, by_edge=by_edge, sets=sets, reached=reached
    )


def downwards(frames: Frames, found: Found, linked: np.ndarray, layers: int) -> tuple[np.ndarray, np.ndarray]:
    """Which of the linked operations (S, bool) lead on to the last row after the last layer, and from which rows before
    the first layer a chain of them does (rows also pass on to themselves)."""
    kept, reached = np.empty(len(linked), bool), np.empty(len(frames.held), bool)
    kernels.downwards(frames.rules, found.begin, found.operations, linked, layers, kept, reached)
    return kept, reached


def lead(frames: Frames, reached: np.ndarray, second: np.ndarray | None = None) -> np.ndarray:
    """For each input, whether a path from start to goal, with vertex second[g] after start if given, has all its
    vertices held by reached rows."""
    room, out = np.empty((2, frames.most + 1), bool), np.empty(len(frames), bool)
    second = np.zeros(len(frames), np.int64) if second is None else second
    kernels.leads(
        frames.rules, frames.held, reached, frames.edges, frames.start, frames.goal, second, *room, out
    )  # fmt: skip
    return out
