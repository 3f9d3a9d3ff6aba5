"""Steps II and III: which attention operations matter to the prediction (the paper's section 4.1).

Each operation is perturbed twice: its weight to zero (the softmax without it), and to the largest weight of its row
(the row then divided by its sum). In the last layer only operations into the last row can matter, and what counts is
the fall of the prediction's logit. Below, a change of the query-key product of an important last-layer operation counts
too.

Here an operation's target is a row among those of all inputs of the trace, its source one of its input's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from pathmerge.circuits.forward import forward
from pathmerge.circuits.one_head import carry
from pathmerge.circuits.passes import ROUNDING, Outcome, single_rows, watch
from pathmerge.circuits.trace import Trace
from pathmerge.kernels import attention as kernels
from pathmerge.kernels.products import ROWS

ZERO, MAXIMUM = 0, 1
CHUNK = 2**20
"""Numbers in the largest array of a part of the work."""
CARRIED = 2**23
"""The same where passes stay in the cache by themselves, and the array is only in use where few rows change."""
NOTHING = np.empty((0, 3), np.int64)
"""No last-layer operations to watch."""


@dataclass(frozen=True, kw_only=True)
class Effects:
    """What perturbing the operations of one layer does, H x R x n x 2 (the last: to zero, to the maximum)."""

    drop: np.ndarray
    """The fall of the prediction's logit."""
    change: np.ndarray
    """The largest change, up or down, of the product of an important operation of the last layer."""


@dataclass(frozen=True, kw_only=True)
class Important:
    """The important operations of one layer, a row for each: head, target, source (rows without padding)."""

    operations: np.ndarray
    by: np.ndarray
    """Under which of the two perturbations, S x 2."""
    drop: np.ndarray
    change: np.ndarray


def all_operations(trace: Trace, layer: int, targets: np.ndarray | None = None) -> np.ndarray:
    """Every perturbation of a layer (of some target rows) that changes anything, M x 4: head, target, source, kind."""
    targets = np.arange(len(trace.rows)) if targets is None else targets
    pattern, allowed = (part.numpy()[:, targets] for part in (trace.layers[layer].pattern, trace.layers[layer].allowed))
    changes = np.stack([pattern > ROUNDING, pattern < pattern.max(-1, keepdims=True)], -1) & allowed[..., None]
    found = np.argwhere(changes)
    found[:, 1] = targets[found[:, 1]]
    return found


@torch.no_grad()
def measure(
    trace: Trace,
    layer: int,
    operations: np.ndarray,
    watched: np.ndarray,
    skip: float = 0.0,
    tokens: np.ndarray | None = None,
) -> Outcome:
    """The outcome of each perturbation, by passes through the rest of the model.

    `watched`: important operations of the last layer, S x 3; `tokens`: whose logits to report, one for each input;
    none: the predictions'.
    """
    tokens = trace.predictions if tokens is None else tokens
    at, model = trace.layers[layer], trace.model
    heads, width = at.v.shape[1:]
    watching = watch(trace, watched)
    logit, change = np.empty(len(operations), np.float32), np.zeros(len(operations), np.float32)
    alone = trace.doubles and layer < model.layers - 1
    for places in _parts(trace, operations, (CARRIED if alone else CHUNK) // (heads * width)):
        part = operations[places]
        owner = trace.owner[part[:, 1]]
        begin, mixed = trace.first[owner], _mixed(trace, layer, part)
        if alone:
            outcome = carry(trace, layer, part[:, 1], mixed[:, 0], watching, tokens, skip)
            logit[places], change[places] = outcome.logit, outcome.change
            continue
        after = model.update(layer, at.x.index_select(0, torch.from_numpy(part[:, 1])), mixed[: len(part)])
        if layer == model.layers - 1:
            logit[places] = model.logits(after).numpy()[np.arange(len(part)), tokens[owner]]
            continue
        outcome = forward(trace, single_rows(owner, part[:, 1] - begin, after), layer + 1, watching, tokens, skip)
        logit[places], change[places] = outcome.logit, outcome.change
    return Outcome(logit, change)


def _mixed(trace: Trace, layer: int, operations: np.ndarray) -> torch.Tensor:
    """The weighted sums of values of the perturbed rows, with room for ROWS rows more."""
    at, owner = trace.layers[layer], trace.owner[operations[:, 1]]
    mixed = torch.empty(len(operations) + ROWS, *at.v.shape[1:])
    limits = (trace.first[owner], trace.counts[owner])
    # In one order of memory, so that one kernel is compiled and not one for each.
    given = np.ascontiguousarray(operations)
    kernels.perturb(*(at.base[i] for i in (0, 1, 4, 5)), given, *limits, mixed.numpy())
    return mixed


@torch.no_grad()
def shifts(trace: Trace, layer: int, operations: np.ndarray) -> np.ndarray:
    """How far each perturbation moves its row by the end of its layer, below the last, against the size of the row."""
    targets, mixed = torch.from_numpy(operations[:, 1]), _mixed(trace, layer, operations)[: len(operations)]
    before = trace.layers[layer + 1].x.index_select(0, targets)
    after = trace.model.update(layer, trace.layers[layer].x.index_select(0, targets), mixed)
    return ((after - before).norm(dim=1) / before.norm(dim=1)).numpy()


def _parts(trace: Trace, operations: np.ndarray, rows: int) -> Iterator[np.ndarray]:
    """Which operations to perturb together: those of one input in a row, cut where only their own number says so, and
    so many that their passes have about so many rows."""
    owner = trace.owner[operations[:, 1]]
    order = np.argsort(owner, kind="stable")
    limits = np.searchsorted(owner[order], np.arange(len(trace) + 1)).tolist()
    waiting: list[np.ndarray] = []
    filled = 0.0
    for n, (low, high) in zip(trace.counts.tolist(), pairwise(limits), strict=True):
        size = max(16, rows // n)
        for begin in range(low, high, size):
            piece = order[begin : min(begin + size, high)]
            if waiting and filled + len(piece) / size > 1:
                yield np.concatenate(waiting)
                waiting, filled = [], 0.0
            waiting.append(piece)
            filled += len(piece) / size
    if waiting:
        yield np.concatenate(waiting)


def effects(trace: Trace, layer: int, operations: np.ndarray, watched: np.ndarray, skip: float = 0.0) -> Effects:
    """The outcome of the given perturbations as arrays over all; what was not given counts as no change."""
    outcome = measure(trace, layer, operations, watched, skip)
    shape = (*trace.layers[layer].pattern.shape, 2)
    drop, change = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    where = tuple(operations.T)
    drop[where] = trace.best[trace.owner[operations[:, 1]]] - outcome.logit
    change[where] = outcome.change
    return Effects(drop=drop, change=change)


def important_last(trace: Trace, alpha: float) -> Important:
    """Step II."""
    layer = trace.model.layers - 1
    found = effects(trace, layer, all_operations(trace, layer, trace.first[1:] - 1), NOTHING)
    return decide_last(trace, found, alpha)


def decide_last(trace: Trace, found: Effects, alpha: float) -> Important:
    """The operations whose fall exceeds α, or those with the largest fall of their input if none does."""
    by = found.drop > alpha
    for row in (trace.first[1:] - 1).tolist():
        if not by[:, row].any():
            there, drop = trace.layers[-1].allowed.numpy()[:, row], found.drop[:, row]
            by[:, row] = (drop == drop[there].max()) & there[..., None]
    return select(found, by)


def decide(found: Effects, alpha: float, threshold: float) -> Important:
    """Step III: the logit falls by more than α, or a product changes by more than the threshold √d/κ1."""
    return select(found, (found.drop > alpha) | (found.change > threshold))


def select(found: Effects, by: np.ndarray) -> Important:
    chosen = by.any(-1)
    return Important(
        operations=np.argwhere(chosen), by=by[chosen], drop=found.drop[chosen], change=found.change[chosen]
    )


def passes_of(trace: Trace, operations: np.ndarray) -> np.ndarray:
    """How many operations each input has."""
    return np.bincount(trace.owner[operations[:, 1]], minlength=len(trace))


def by_input(trace: Trace, layers: Sequence[Important]) -> tuple[Important, np.ndarray]:
    """The operations of all layers, S x 4 with the layer first, input by input; those of input g begin at begin[g]."""
    names = ("by", "drop", "change")
    operations = np.concatenate([np.insert(found.operations, 0, at, axis=1) for at, found in enumerate(layers)])
    owner = trace.owner[operations[:, 2]]
    order = np.argsort(owner, kind="stable")
    rest = {name: np.concatenate([getattr(found, name) for found in layers])[order] for name in names}
    begin = np.searchsorted(owner[order], np.arange(len(trace) + 1))
    return Important(operations=operations[order], **rest), begin


def limit(trace: Trace, kappa: float) -> float:
    """√d/κ, the threshold on a product."""
    return math.sqrt(trace.model.head_width) / kappa
