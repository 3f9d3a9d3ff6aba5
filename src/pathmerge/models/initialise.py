"""Initial weights from a generator of their own: PyTorch's default, and the additions that make attention match tokens.

PyTorch's default for a Linear layer is uniform within ±1/√fan_in, for weights and biases alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


def uniform_linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """A Linear layer as PyTorch would initialise it, but without the global random state."""
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    bound = inputs**-0.5
    with torch.no_grad():
        for parameter in (layer.weight, layer.bias):
            parameter.uniform_(-bound, bound, generator=generator)
    return layer


def normal_table(rows: int, width: int, generator: torch.Generator, spread: float | None = None) -> nn.Parameter:
    """Learned vectors with normal entries; without `spread`, of length about 1, so that tied logits start near it."""
    return nn.Parameter(torch.randn(rows, width, generator=generator) * (width**-0.5 if spread is None else spread))


@torch.no_grad()
def match(
    queries: nn.Linear,
    keys: nn.Linear,
    row: int,
    query_columns: Sequence[int],
    key_columns: Sequence[int],
    by: float,
) -> None:
    """Add `by` from query_columns of W_q, one after another, and from key_columns of W_k to the rows from `row` on.

    q·k of two rows then grows by by² times the product of those parts: equal vertices attend to each other.
    """
    at = torch.arange(len(query_columns))
    queries.weight[row + at, torch.tensor(list(query_columns))] += by
    keys.weight[row + at, torch.tensor(list(key_columns))] += by
