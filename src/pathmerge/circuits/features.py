"""Step IV: why an attention operation happens, that is, which features of the input its query and key depend on.

Each feature (a vertex id, or a position's embedding) is perturbed in the input, and the perturbed input passes through
the layers *frozen*: attention weights and ReLU masks as recorded, LayerNorm computed anew. One frozen pass for each
feature serves the operations of every layer: before layer l nothing above it has been computed.

Shapes: F features, T tokens, n rows of an input, H heads, K width of a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from pathmerge.circuits.frame import Frame
from pathmerge.circuits.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Responses:
    """The products of one layer when a feature is perturbed in one of the two rows, for one input."""

    products: np.ndarray
    """Q_j·K_i, unperturbed, H x n x n (j, i)."""
    target: np.ndarray
    """Q̃_j·K_i, H x F x n x n (j, i)."""
    source: np.ndarray
    """Q_j·K̃_i, H x F x n x n (i, j)."""

    def of(self, operations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How much they change the products of some operations (S x 3: head, target, source), S x F each."""
        head, target, source = operations.T
        was = self.products[head, target, source][:, None]
        return self.target[head, :, target, source] - was, self.source[head, :, source, target] - was


def perturbed_inputs(tokens: Tensor, rows: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
    """One input's tokens with each feature perturbed, F x T, and where to leave positions out, F x T."""
    count, vertices = len(frame.features), torch.tensor(frame.vertices)
    copies = tokens.expand(count, *tokens.shape).clone()
    mine = copies[: len(vertices), ..., :2] if tokens.ndim == 2 else copies[: len(vertices)]
    mine[mine == vertices.view(-1, *[1] * tokens.ndim)] = frame.substitute
    without = torch.zeros(copies.shape[:2], dtype=torch.bool)
    if frame.has_positions:
        without[len(vertices) + torch.arange(frame.rows), rows] = True
    return copies, without


@torch.no_grad()
def responses(trace: Trace, frames: Sequence[Frame]) -> list[list[Responses]]:
    """For each input, for each layer, how all products respond to all features."""
    model = trace.model
    limits = list(pairwise(trace.first.tolist()))
    inputs = [
        perturbed_inputs(tokens, trace.rows[low:high], frame)
        for tokens, frame, (low, high) in zip(trace.tokens, frames, limits, strict=True)
    ]
    copies, without = (torch.cat(parts) for parts in zip(*inputs, strict=True))
    embedded = model.embed(copies, without).split([len(part) for part, _ in inputs])
    own = [x[:, trace.rows[low:high]].flatten(0, 1) for x, (low, high) in zip(embedded, limits, strict=True)]
    x, parts = torch.cat(own), list(pairwise(np.cumsum([0, *map(len, own)]).tolist()))
    base = [torch.arange(low, high).repeat(len(part)) for (part, _), (low, high) in zip(inputs, limits, strict=True)]
    places = torch.cat(base)
    rows = trace.rows[places]
    found: list[list[Responses]] = [[] for _ in frames]
    for at, layer in enumerate(trace.layers):
        q, k, v = model.project(at, x, rows)
        assert q is not None
        for own, (low, high), (begin, end) in zip(found, limits, parts, strict=True):
            own.append(_responses(layer.q[low:high], layer.k[low:high], q[begin:end], k[begin:end]))
        if at + 1 == len(trace.layers):
            break
        mixed = torch.empty(v.shape)
        for (low, high), (begin, end) in zip(limits, parts, strict=True):
            values = v[begin:end].view(-1, high - low, *v.shape[1:]).transpose(1, 2)
            sums = torch.matmul(layer.pattern[:, low:high, : high - low], values)
            mixed[begin:end] = sums.transpose(1, 2).flatten(0, 1)
        x = model.update(at, x, mixed, layer.gate.index_select(0, places))
    return found


def _responses(base_q: Tensor, base_k: Tensor, q: Tensor, k: Tensor) -> Responses:
    """From one input's queries and keys, recorded (n x H x K) and with each feature perturbed (F·n x H x K)."""
    shape = (base_q.shape[1], -1, len(base_q), len(base_q))
    keys, queries = base_k.permute(1, 2, 0), base_q.permute(1, 2, 0)
    return Responses(
        products=torch.matmul(base_q.transpose(0, 1), keys).numpy(),
        target=torch.matmul(q.transpose(0, 1), keys).view(shape).numpy(),
        source=torch.matmul(k.transpose(0, 1), queries).view(shape).numpy(),
    )


def dependencies(change: np.ndarray, falls: np.ndarray, threshold: float) -> np.ndarray:
    """Which changes (S x F) weaken their operation by more than the threshold: it must fall, or else rise."""
    return np.where(falls[:, None], change < -threshold, change > threshold)
