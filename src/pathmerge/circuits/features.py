"""Step IV: why an attention operation happens, that is, which features of the input its query and key depend on.

Each feature (a vertex id, or a position's embedding) is perturbed in the input, and the perturbed input passes through
the layers *frozen*: attention weights and ReLU masks as recorded, LayerNorm computed anew. One frozen pass for each
feature serves the operations of every layer: before layer l nothing above it has been computed.

Shapes: F features, n rows, D width, H heads, K width of a query.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pathmerge.circuits.frame import Frame
from pathmerge.circuits.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Responses:
    """How the products of one layer change when a feature is perturbed in one of the two rows, F x H x n x n."""

    target: np.ndarray
    """Q̃_j·K_i - Q_j·K_i."""
    source: np.ndarray
    """Q_j·K̃_i - Q_j·K_i."""

    def of(self, operations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The changes for some operations (S x 3: head, target, source), S x F each."""
        head, target, source = operations.T
        return self.target[:, head, target, source].T, self.source[:, head, target, source].T


def perturbed_inputs(trace: Trace, frame: Frame) -> Tensor:
    """The residual stream before layer 0 with each feature perturbed, F x n x D."""
    tokens, model = trace.tokens, trace.model
    count = len(frame.features)
    copies = tokens.expand(count, *tokens.shape).clone()
    for f, vertex in enumerate(frame.vertices):
        mine = copies[f, ..., :2] if tokens.ndim == 2 else copies[f]
        mine[mine == vertex] = frame.substitute
    without = torch.zeros(copies.shape[:2], dtype=torch.bool)
    if frame.has_positions:
        at = torch.arange(frame.rows)
        without[len(frame.vertices) + at, trace.rows] = True
    return model.embed(copies, without)[:, trace.rows]


@torch.no_grad()
def responses(trace: Trace, frame: Frame) -> list[Responses]:
    """For each layer, how all products respond to all features."""
    x = perturbed_inputs(trace, frame)
    count, n, width = x.shape
    rows = trace.rows.repeat(count)
    found: list[Responses] = []
    for at, layer in enumerate(trace.layers):
        flat = x.reshape(count * n, width)
        every = trace.model.project(at, flat, rows)
        q, k, v = (value.view(count, n, *value.shape[1:]) for value in every if value is not None)
        products = torch.einsum("qhk,shk->hqs", layer.q, layer.k)
        target = torch.einsum("fqhk,shk->fhqs", q, layer.k).sub_(products)
        source = torch.einsum("qhk,fshk->fhqs", layer.q, k).sub_(products)
        found.append(Responses(target=target.numpy(), source=source.numpy()))
        if at + 1 == len(trace.layers):
            break
        mixed = torch.einsum("hqs,fshw->fqhw", layer.pattern, v).reshape(count * n, *v.shape[2:])
        gate = layer.gate.expand(count, *layer.gate.shape).reshape(count * n, -1)
        x = trace.model.update(at, flat, mixed, gate).view(count, n, width)
    return found


def dependencies(change: np.ndarray, falls: np.ndarray, threshold: float) -> np.ndarray:
    """Which changes (S x F) weaken their operation by more than the threshold: it must fall, or else rise."""
    return np.where(falls[:, None], change < -threshold, change > threshold)
