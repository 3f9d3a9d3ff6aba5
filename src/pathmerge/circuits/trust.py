"""Is the circuit what the model uses? Sufficiency, completeness, minimality, each beside a random circuit's.

Masks are applied before the softmax; a row and head with nothing left reads nothing (its sum is zero). A random circuit
has as many operations in each layer, drawn among all the model allows: in the last layer, those into the last
row, since no others could matter.

All circuits of all inputs are run at once. As in `perturb`, an operation's target is a row among those of all inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from pathmerge.circuits.files import Trust
from pathmerge.circuits.perturb import NOTHING, ZERO, measure
from pathmerge.circuits.trace import Trace, record_masked


@torch.no_grad()
def trust(
    trace: Trace, circuits: Sequence[np.ndarray], alpha: float, seeds: Sequence[Sequence[int]]
) -> list[list[Trust]]:
    """For each circuit and input. A circuit is that of every input: its operations, input by input, S x 4 (layer, head,
    target, source); `seeds`: one for each input's random circuits."""
    every = [*circuits, *(random_circuit(trace, circuit, seeds) for circuit in circuits)]
    masks = [circuit_mask(trace, circuit) for circuit in every]
    alone, rest = record_masked(trace, masks), record_masked(trace, [~mask for mask in masks])
    sufficient, complete = (
        (made.predictions.reshape(len(every), -1) == trace.predictions).tolist() for made in (alone, rest)
    )
    minimal = minimality(trace, alone, every, alpha)
    return [
        [
            Trust(
                sufficient=sufficient[c][g],
                complete=complete[c][g],
                random_sufficient=sufficient[c + len(circuits)][g],
                random_complete=complete[c + len(circuits)][g],
                minimal=minimal[c][g],
                random_minimal=minimal[c + len(circuits)][g],
            )
            for g in range(len(trace))
        ]
        for c in range(len(circuits))
    ]


def minimality(trace: Trace, alone: Trace, circuits: Sequence[np.ndarray], alpha: float) -> list[list[float | None]]:
    """The share of operations whose removal from the bare circuit lowers the logit by more than α, for each circuit and
    input; `alone`: the inputs with the first circuit only, with the second, and so on."""
    operations = np.concatenate(
        [circuit + np.array([0, 0, c * len(trace.rows), 0]) for c, circuit in enumerate(circuits)]
    )
    total = np.bincount(alone.owner[operations[:, 2]], minlength=len(alone))
    tokens = np.tile(trace.predictions, len(circuits))
    whole = alone.logits.numpy()[np.arange(len(alone)), tokens]
    needed = np.zeros(len(alone), np.int64)
    leads = np.zeros(len(alone.rows), bool)
    leads[alone.first[1:] - 1] = True
    for layer in reversed(range(trace.model.layers)):
        # An operation from whose target nothing leads to the last row can be left out.
        removed = operations[(operations[:, 0] == layer) & leads[operations[:, 2]], 1:]
        owner = alone.owner[removed[:, 1]]
        outcome = measure(alone, layer, np.insert(removed, 3, ZERO, axis=1), NOTHING, tokens=tokens)
        needed += np.bincount(owner[whole[owner] - outcome.logit > alpha], minlength=len(alone))
        leads[alone.first[owner] + removed[:, 2]] = True
    shares = [some / of if of else None for some, of in zip(needed.tolist(), total.tolist(), strict=True)]
    return [shares[low : low + len(trace)] for low in range(0, len(shares), len(trace))]


def random_circuit(trace: Trace, circuit: np.ndarray, seeds: Sequence[Sequence[int]]) -> np.ndarray:
    """As many operations of each input in each layer, drawn without repetition among those that exist."""
    heads, layers, allowed = trace.model.heads, trace.model.layers, trace.allowed.numpy()
    sizes = np.zeros((len(trace), layers), np.int64)
    np.add.at(sizes, (trace.owner[circuit[:, 2]], circuit[:, 0]), 1)
    found: list[np.ndarray] = []
    for seed, (low, high), counts in zip(seeds, pairwise(trace.first), sizes.tolist(), strict=True):
        choose = np.random.default_rng(seed)
        there = low * allowed.shape[1] + np.flatnonzero(allowed[low:high])
        every = (np.arange(heads)[:, None] * allowed.size + there).reshape(-1)
        into_last = every[every % allowed.size >= (high - 1) * allowed.shape[1]]
        for layer, count in enumerate(counts):
            among = into_last if layer == layers - 1 else every
            found.append(among[choose.choice(len(among), count, replace=False)])
    drawn = np.stack(np.unravel_index(np.concatenate(found), (heads, *allowed.shape)), 1)
    return np.insert(drawn, 0, np.repeat(np.tile(np.arange(layers), len(trace)), sizes.reshape(-1)), axis=1)


def circuit_mask(trace: Trace, circuit: np.ndarray) -> Tensor:
    """True where an operation belongs to the circuit, L x H x R x n."""
    mask = torch.zeros(trace.model.layers, *trace.layers[0].pattern.shape, dtype=torch.bool)
    mask.numpy()[tuple(circuit.T)] = True
    return mask
