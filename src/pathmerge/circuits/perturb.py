"""Steps II and III: which attention operations matter to the prediction (the paper's section 4.1).

Each operation is perturbed twice: its weight to zero (the softmax without it), and to the largest weight of its row
(the row then divided by its sum). In the last layer only operations into the last row can matter, and what counts is
the fall of the prediction's logit. Below, a change of the query-key product of an important last-layer operation counts
too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from pathmerge.circuits.passes import ROUNDING, Outcome, forward, single_rows
from pathmerge.circuits.trace import Trace
from pathmerge.kernels import attention as kernels

ZERO, MAXIMUM = 0, 1
CHUNK = 2**21
"""Numbers in the largest array of a part of the work."""
NOTHING = np.empty((0, 2), np.int64)
"""No last-layer operations to watch."""


@dataclass(frozen=True, kw_only=True)
class Effects:
    """What perturbing the operations of one layer does, H x n x n x 2 (the last: to zero, to the maximum)."""

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
    """Every perturbation of a layer that changes anything, M x 4: head, target, source, kind."""
    pattern = trace.layers[layer].pattern.numpy()
    allowed = trace.layers[layer].allowed.numpy()
    changes = np.stack([pattern > ROUNDING, pattern < pattern.max(-1, keepdims=True)], -1) & allowed[..., None]
    if targets is not None:
        mask = np.zeros(pattern.shape[1], bool)
        mask[targets] = True
        changes &= mask[None, :, None, None]
    return np.argwhere(changes)


@torch.no_grad()
def measure(
    trace: Trace,
    layer: int,
    operations: np.ndarray,
    watched: np.ndarray,
    skip: float = 0.0,
    token: int | None = None,
) -> Outcome:
    """The outcome of each perturbation, by passes through the rest of the model.

    `token`: whose logit to report; none: the prediction's.
    """
    token = trace.prediction if token is None else token
    at, model = trace.layers[layer], trace.model
    n, heads, width = at.v.shape
    size = max(16, CHUNK // (n * heads * width))
    logits, products = [], []
    for low in range(0, len(operations), size):
        part = operations[low : low + size]
        mixed = torch.empty(len(part), heads, width)
        kernels.perturb(*(at.base[i] for i in (0, 1, 4, 5)), part, mixed.numpy())
        targets = torch.from_numpy(part[:, 1])
        after = model.update(layer, at.x[targets], mixed)
        if layer == model.layers - 1:
            logits.append(model.logits(after)[:, token])
            continue
        outcome = forward(trace, single_rows(part[:, 1], after), layer + 1, watched, token, skip)
        logits.append(outcome.logit)
        products.append(outcome.products)
    if not logits:
        return Outcome(torch.empty(0), torch.empty(0, len(watched)))
    return Outcome(torch.cat(logits), torch.cat(products) if products else torch.empty(len(operations), 0))


def effects(trace: Trace, layer: int, operations: np.ndarray, watched: np.ndarray, skip: float = 0.0) -> Effects:
    """The outcome of the given perturbations as arrays over all; what was not given counts as no change."""
    outcome = measure(trace, layer, operations, watched, skip)
    shape = (*trace.layers[layer].pattern.shape, 2)
    drop, change = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    where = tuple(operations.T)
    drop[where] = trace.logit - outcome.logit.numpy()
    if len(watched):
        was = products_of(trace, watched)
        change[where] = np.abs(outcome.products.numpy() - was).max(1) if len(operations) else 0
    return Effects(drop=drop, change=change)


def products_of(trace: Trace, watched: np.ndarray) -> np.ndarray:
    """The products of last-layer operations (head, source) into the last row, unperturbed."""
    layer = trace.layers[-1]
    heads, sources = torch.from_numpy(watched[:, 0]), torch.from_numpy(watched[:, 1])
    return (layer.q[-1, heads] * layer.k[sources, heads]).sum(-1).numpy()


def important_last(trace: Trace, alpha: float) -> Important:
    """Step II."""
    layer = trace.model.layers - 1
    last = np.array([len(trace.rows) - 1])
    found = effects(trace, layer, all_operations(trace, layer, last), NOTHING)
    return decide_last(trace, found, alpha)


def decide_last(trace: Trace, found: Effects, alpha: float) -> Important:
    """The operations whose fall exceeds α, or those with the largest fall if none does."""
    by = found.drop > alpha
    if not by.any():
        there = trace.layers[-1].allowed.numpy()[:, -1]
        by = np.zeros_like(by)
        by[:, -1] = (found.drop[:, -1] == found.drop[:, -1][there].max()) & there[..., None]
    return select(found, by)


def decide(found: Effects, alpha: float, threshold: float) -> Important:
    """Step III: the logit falls by more than α, or a product changes by more than the threshold √d/κ1."""
    return select(found, (found.drop > alpha) | (found.change > threshold))


def select(found: Effects, by: np.ndarray) -> Important:
    chosen = by.any(-1)
    return Important(
        operations=np.argwhere(chosen), by=by[chosen], drop=found.drop[chosen], change=found.change[chosen]
    )


def limit(trace: Trace, kappa: float) -> float:
    """√d/κ, the threshold on a product."""
    return math.sqrt(trace.model.head_width) / kappa
