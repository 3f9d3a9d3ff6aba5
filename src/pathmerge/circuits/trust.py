"""Is the circuit what the model uses? Sufficiency, completeness, minimality, each beside a random circuit's.

Masks are applied before the softmax; a row and head with nothing left reads nothing (its sum is zero). A random circuit
has as many operations in each layer, drawn among all the model allows: in the last layer, those into the last
row, since no others could matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pathmerge.circuits.files import Trust
from pathmerge.circuits.perturb import NOTHING, ZERO, measure
from pathmerge.circuits.trace import Trace, record_masked


@torch.no_grad()
def trust(trace: Trace, circuit: list[np.ndarray], alpha: float, seed: Sequence[int]) -> Trust:
    """`circuit`: the kept operations of each layer, S x 3 (head, target, source)."""
    chance = random_circuit(trace, circuit, seed)
    mask, random_mask = circuit_mask(trace, circuit), circuit_mask(trace, chance)
    alone, random_alone = record_masked(trace, mask), record_masked(trace, random_mask)
    return Trust(
        sufficient=alone.prediction == trace.prediction,
        complete=record_masked(trace, ~mask).prediction == trace.prediction,
        random_sufficient=random_alone.prediction == trace.prediction,
        random_complete=record_masked(trace, ~random_mask).prediction == trace.prediction,
        minimal=minimality(trace, alone, circuit, alpha),
        random_minimal=minimality(trace, random_alone, chance, alpha),
    )


def minimality(trace: Trace, alone: Trace, circuit: list[np.ndarray], alpha: float) -> float | None:
    """The share of operations whose removal from the bare circuit (`alone`) lowers the logit by more than α."""
    total = sum(map(len, circuit))
    if not total:
        return None
    needed = 0
    for layer, operations in enumerate(circuit):
        if layer == len(circuit) - 1:
            operations = operations[operations[:, 1] == len(trace.rows) - 1]
        outcome = measure(alone, layer, np.insert(operations, 3, ZERO, axis=1), NOTHING, token=trace.prediction)
        needed += int((float(alone.logits[0, trace.prediction]) - outcome.logit > alpha).sum())
    return needed / total


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
