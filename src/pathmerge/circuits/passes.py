"""Many perturbed passes at once: their changed rows, what is looked at in the end, and what came out.

A pass begins as one changed row; `pathmerge.circuits.forward` carries it on through the layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pathmerge.circuits.trace import Trace

ROUNDING = 2e-8
"""A weight that cannot be seen beside 1 in float32."""
DENSE = 0.3
"""Where more than this share of a pass's rows has changed, computing all of them is faster."""


@dataclass(frozen=True)
class Passes:
    """The changed rows of some passes before a layer: pass b owns first[b]..first[b+1]-1, and is one of input owner[b].
    Passes of one input stand together; rows are counted within their input."""

    owner: np.ndarray
    first: np.ndarray
    rows: np.ndarray
    x: Tensor

    def __len__(self) -> int:
        return len(self.owner)

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.first)

    def each(self, values: np.ndarray) -> np.ndarray:
        """Of one value for each input, that of each changed row."""
        return np.repeat(values[self.owner], self.sizes)

    def inputs(self) -> Iterator[tuple[int, int, int]]:
        """The inputs that have passes: number, and where their changed rows begin and end."""
        starts = np.flatnonzero(np.diff(self.owner, prepend=-1))
        limits = self.first[np.append(starts, len(self))].tolist()
        return zip(self.owner[starts].tolist(), limits[:-1], limits[1:], strict=True)

    def only(self, chosen: np.ndarray) -> Passes:
        """Some of the passes."""
        rows = np.repeat(chosen, self.sizes)
        first = np.concatenate([[0], np.cumsum(self.sizes[chosen])])
        return Passes(self.owner[chosen], first, self.rows[rows], self.x[torch.from_numpy(rows)])


@dataclass(frozen=True)
class Outcome:
    """What became of each pass: a logit, and the largest change of the products of watched last-layer operations."""

    logit: np.ndarray
    change: np.ndarray


@dataclass(frozen=True)
class Watched:
    """Last-layer operations whose products are compared: (head, source) pairs, those of input g from first[g] on."""

    pairs: np.ndarray
    first: np.ndarray
    was: np.ndarray
    """Their products, unperturbed."""


def watch(trace: Trace, operations: np.ndarray) -> Watched:
    """Operations of the last layer into last rows, S x 3: head, target, source."""
    head, target, source = operations[np.argsort(operations[:, 1], kind="stable")].T
    layer, owner = trace.layers[-1], trace.owner[target]
    was = (layer.q.numpy()[target, head] * layer.k.numpy()[trace.first[owner] + source, head]).sum(-1)
    return Watched(np.stack([head, source], 1), np.searchsorted(owner, np.arange(len(trace) + 1)), was)


def single_rows(owner: np.ndarray, rows: np.ndarray, x: Tensor) -> Passes:
    """Passes with one changed row each."""
    return Passes(owner, np.arange(len(rows) + 1), rows, x)


def positions(trace: Trace, passes: Passes) -> Tensor:
    """Where each changed row stands in its input, padding counted."""
    return trace.rows.index_select(0, torch.from_numpy(places(trace, passes)))


def places(trace: Trace, passes: Passes) -> np.ndarray:
    """Each changed row's place among the base rows."""
    return passes.rows + passes.each(trace.first)
