"""Is the circuit what the model uses? Sufficiency, completeness, minimality, each beside a random circuit's.

Masks are applied before the softmax; a row and head with nothing left reads nothing (its sum is zero). A random circuit
has as many operations in each layer, drawn among all the model allows: in the last layer, those into the last
row, since no others could matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pathmerge.circuits.files import Trust
from pathmerge.circuits.trace import Trace, attention

PART = 2**22
"""Numbers in the largest array of a part of the work."""


@torch.no_grad()
def trust(trace: Trace, circuit: list[np.ndarray], alpha: float, seed: Sequence[int]) -> Trust:
    """`circuit`: the kept operations of each layer, S x 3 (head, target, source)."""
    chance = random_circuit(trace, circuit, seed)
    inside, random_inside = circuit_mask(trace, circuit), circuit_mask(trace, chance)
    logits = masked(trace, torch.stack([inside, ~inside, random_inside, ~random_inside]))
    stays = (logits.argmax(1) == trace.prediction).tolist()
    return Trust(
        sufficient=stays[0],
        complete=stays[1],
        random_sufficient=stays[2],
        random_complete=stays[3],
        minimal=minimality(trace, circuit, inside, float(logits[0, trace.prediction]), alpha),
        random_minimal=minimality(trace, chance, random_inside, float(logits[2, trace.prediction]), alpha),
    )


def minimality(trace: Trace, circuit: list[np.ndarray], inside: Tensor, logit: float, alpha: float) -> float | None:
    """The share of operations whose removal from the bare circuit lowers the logit by more than α."""
    operations = [(layer, *op) for layer, ops in enumerate(circuit) for op in ops.tolist()]
    if not operations:
        return None
    needed = 0
    size = max(1, PART // inside.numel())
    for low in range(0, len(operations), size):
        part = operations[low : low + size]
        masks = inside.expand(len(part), *inside.shape).clone()
        at = torch.tensor(part).t()
        masks[torch.arange(len(part)), at[0], at[1], at[2], at[3]] = False
        needed += int((logit - masked(trace, masks)[:, trace.prediction] > alpha).sum())
    return needed / len(operations)


def random_circuit(trace: Trace, circuit: list[np.ndarray], seed: Sequence[int]) -> list[np.ndarray]:
    """As many operations in each layer, drawn without repetition among those that exist."""
    choose = np.random.default_rng(seed)
    found: list[np.ndarray] = []
    for layer, operations in enumerate(circuit):
        there = np.broadcast_to(trace.allowed.numpy(), trace.layers[layer].pattern.shape).copy()
        if layer == len(circuit) - 1:
            there[:, :-1] = False
        every = np.argwhere(there)
        found.append(every[choose.choice(len(every), len(operations), replace=False)])
    return found


def circuit_mask(trace: Trace, circuit: list[np.ndarray]) -> Tensor:
    """True where an operation belongs to the circuit, L x H x n x n."""
    mask = torch.zeros(len(circuit), *trace.layers[0].pattern.shape, dtype=torch.bool)
    for layer, operations in enumerate(circuit):
        head, target, source = torch.from_numpy(operations).t()
        mask[layer, head, target, source] = True
    return mask


@torch.no_grad()
def masked(trace: Trace, masks: Tensor) -> Tensor:
    """The logits with only the operations of each mask (P x L x H x n x n) left, P x V."""
    model, count, n = trace.model, len(masks), len(trace.rows)
    x = trace.layers[0].x.repeat(count, 1)
    rows = trace.rows.repeat(count)
    for at in range(model.layers):
        every = model.project(at, x, rows)
        q, k, v = (value.view(count, n, *value.shape[1:]) for value in every if value is not None)
        scores = torch.einsum("pqhk,pshk->phqs", q, k).mul_(trace.scale)
        scores.masked_fill_(~(masks[:, at] & trace.allowed), -math.inf)
        mixed = torch.einsum("phqs,pshw->pqhw", attention(scores), v)
        x = model.update(at, x, mixed.reshape(count * n, *v.shape[2:]))
    return model.logits(x.view(count, n, -1)[:, -1])
