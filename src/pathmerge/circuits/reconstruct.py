"""Step V: from important operations and their features to the circuit (the paper's Algorithm 1, with residuals).

Sets of features travel upwards: each row begins with its own token and position, keeps what it has, and takes over the
whole set of a row it merges with or copies from. Then, from the last row downwards, what leads nowhere is dropped.

Two readings. Strict: an operation counts if *all* the features it depends on are contained in its rows' sets. Lenient,
the published code's: dependencies beyond those that make it a merge or a copy do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from pathmerge.circuits.frame import Frame
from pathmerge.circuits.options import SetRule
from pathmerge.kernels.links import carry

TOKEN, POSITION, COPY, OTHER = range(4)
KINDS = ("token", "position", "copy", "other")


@dataclass(frozen=True, kw_only=True)
class Found:
    """The important operations of one layer and why they happen."""

    operations: np.ndarray
    """S x 3: head, target, source."""
    in_target: np.ndarray
    """The features each depends on in its target row, S x F."""
    in_source: np.ndarray
    target_change: np.ndarray
    """How much each feature, perturbed in the target row, changes the product, S x F."""
    source_change: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """For each layer, what became of its important operations, in their order."""

    kind: list[np.ndarray]
    links: list[np.ndarray]
    """Which carry their source's set over to their target."""
    kept: list[np.ndarray]
    """Which of these lead on to the last row."""
    sets: list[np.ndarray]
    """N(0) .. N(L), rows x features."""
    arrived: frozenset[int]
    """The vertices from one of whose rows a chain of links leads to the last row after the last layer."""


def position_matches(frame: Frame, in_target: np.ndarray, in_source: np.ndarray) -> np.ndarray:
    """Which edges have their two positions among an operation's features, one in each row, S x edges."""
    one, other = frame.edge_features.T
    return (in_target[:, one] & in_source[:, other]) | (in_target[:, other] & in_source[:, one])


def reconstruct(
    frame: Frame, layers: Sequence[Found], *, lenient: bool = False, rule: SetRule = "whole"
) -> Reconstruction:
    """Algorithm 1 over the important operations of all layers.

    Strict: an operation counts only if all its features are contained in its rows' sets. Lenient: features that are not
    contained are left aside.
    """
    sets = [frame.initial]
    kinds: list[np.ndarray] = []
    links: list[np.ndarray] = []
    for found in layers:
        kind, linked = np.empty(len(found.operations), np.int64), np.empty(len(found.operations), bool)
        following = np.empty_like(frame.initial)
        carry(
            found.operations, found.in_target, found.in_source, sets[-1], len(frame.vertices), frame.edge_features,
            frame.query_features, lenient, rule == "whole", kind, linked, following,
        )  # fmt: skip
        sets.append(following)
        kinds.append(kind)
        links.append(linked)
    chain = downwards(frame.rows, [found.operations[linked] for found, linked in zip(layers, links, strict=True)])
    kept = [
        linked & chain[layer + 1][found.operations[:, 1]]
        for layer, (found, linked) in enumerate(zip(layers, links, strict=True))
    ]
    return Reconstruction(kind=kinds, links=links, kept=kept, sets=sets, arrived=holders(frame, chain[0]))


def downwards(rows: int, linked: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Which rows, before each layer and after the last, have a chain of operations (or themselves) to the last row."""
    reached = [np.zeros(rows, bool) for _ in range(len(linked) + 1)]
    reached[-1][-1] = True
    for layer in reversed(range(len(linked))):
        reached[layer] |= reached[layer + 1]
        _, target, source = linked[layer].T
        reached[layer][source[reached[layer + 1][target]]] = True
    return reached


def holders(frame: Frame, rows: np.ndarray) -> frozenset[int]:
    """The vertices held by at least one of these rows in the input."""
    return frozenset(compress(frame.vertices, frame.holding.dot(rows).tolist()))
