"""Step IV: why an attention operation happens, that is, which features of the input its query and key depend on.

Each feature (a vertex id, or a position's embedding) is perturbed in the input, and the perturbed input passes through
the layers *frozen*: attention weights and ReLU masks as recorded, LayerNorm computed anew. One frozen pass for each
feature serves the operations of every layer: before layer l nothing above it has been computed.

Shapes: F features, T tokens, n rows of an input, H heads, K width of a query.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pathmerge.circuits.frame import Frame
from pathmerge.circuits.one_head import room_for
from pathmerge.circuits.subject import TransformerSubject
from pathmerge.circuits.trace import Trace
from pathmerge.kernels import frozen as kernels
from pathmerge.kernels.products import LANES, ROWS
from pathmerge.models.transformer import EPSILON

EPSILON_32 = np.float32(EPSILON)


@dataclass(frozen=True, kw_only=True)
class Responses:
    """The products of one layer when a feature is perturbed in one of the two rows, for one input.

    Targets j are counted from `begin` on: in the last layer only the last row's queries can matter. The arrays may have
    room for more rows, which hold anything.
    """

    begin: int
    products: np.ndarray
    """Q_j·K_i, unperturbed, H x j x i."""
    target: np.ndarray
    """Q̃_j·K_i, H x j x F x i."""
    source: np.ndarray
    """Q_j·K̃_i, H x i x F x j."""

    def of(self, operations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How much they change the products of some operations (S x 3: head, target, source), S x F each."""
        head, target, source = operations.T
        target = target - self.begin
        was = self.products[head, target, source][:, None]
        return self.target[head, target, :, source] - was, self.source[head, source, :, target] - was


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
def responses(trace: Trace, g: int, frame: Frame) -> list[Responses]:
    """For each layer, how all products of input g respond to all features."""
    return _short(trace, g, frame) if trace.doubles else _general(trace, g, frame)


def _general(trace: Trace, g: int, frame: Frame) -> list[Responses]:
    """Row by row, and for each row feature by feature, so that one product with the weights mixes all of them."""
    model, last = trace.model, trace.model.layers - 1
    own = slice(trace.first[g], trace.first[g + 1])
    rows = trace.rows[own]
    n, count = len(rows), len(frame.features)
    x = model.embed(*perturbed_inputs(trace.tokens[g], rows, frame)).transpose(0, 1)[rows].flatten(0, 1)
    each = torch.arange(n).repeat_interleave(count)
    places = rows[each]
    found: list[Responses] = []
    for at, layer in enumerate(trace.layers[:-1]):
        q, k, v = model.project(at, x, places)
        assert q is not None
        found.append(_responses(layer.q[own], layer.k[own], q, k))
        values = v.view(n, count, *v.shape[1:]).permute(2, 0, 1, 3).flatten(2)
        mixed = torch.matmul(layer.pattern[:, own, :n], values).view(-1, n, count, v.shape[2])
        x = model.update(at, x, mixed.permute(1, 2, 0, 3).flatten(0, 1), layer.gate[own].index_select(0, each))
    _, k, _ = model.project(last, x, places, queries=False)
    q, _, _ = model.project(last, x[-count:], places[-count:])
    assert q is not None
    layer = trace.layers[last]
    return [*found, _responses(layer.q[own][-1:], layer.k[own], q, k)]


def _responses(base_q: Tensor, base_k: Tensor, q: Tensor, k: Tensor) -> Responses:
    """From queries and keys, recorded (j or i x H x K) and with each feature perturbed (j·F or i·F x H x K);
    the queries may be of the last rows only."""
    targets, sources, heads = len(base_q), len(base_k), base_q.shape[1]
    keys, queries = base_k.permute(1, 2, 0), base_q.permute(1, 2, 0)
    return Responses(
        begin=sources - targets,
        products=torch.matmul(base_q.transpose(0, 1), keys).numpy(),
        target=torch.matmul(q.transpose(0, 1), keys).view(heads, targets, -1, sources).numpy(),
        source=torch.matmul(k.transpose(0, 1), queries).view(heads, sources, -1, targets).numpy(),
    )


def _short(trace: Trace, g: int, frame: Frame) -> list[Responses]:
    """For models of one head: feature by feature, so that the rows stay in the cache through a layer."""
    model = trace.model
    assert isinstance(model, TransformerSubject)
    zero, n, count = int(trace.first[g]), int(trace.counts[g]), len(frame.features)
    x = np.empty((count, n + ROWS, trace.layers[0].x.shape[1]), np.float32)
    _perturbed_rows(trace, g, frame, x)
    size, wide = trace.layers[0].k.shape[2], n + -n % LANES
    found: list[Responses] = []
    for at, layer in enumerate(trace.layers[:-1]):
        weights = model.folded(at)
        products = np.empty((1, n + ROWS, wide), np.float32)
        target, source = (np.empty((1, n + ROWS, count, wide), np.float32) for _ in range(2))
        scratch = (
            *(room_for(n, size), room_for(n, size), *(np.zeros((size, wide), np.float32) for _ in range(2))),
            *(room_for(n, wide), room_for(n, len(weights.second))),
        )
        kernels.frozen(
            zero, n, (*trace.read(at), layer.pattern.numpy()[0], layer.gate.numpy()), weights, model.width, EPSILON_32,
            scratch, x, products[0], target[0], source[0],
        )  # fmt: skip
        found.append(Responses(begin=0, products=products, target=target, source=source))
    products, target, source = (np.empty((1, *shape), np.float32) for shape in ((1, n), (1, count, n), (n, count, 1)))
    read = trace.read(len(trace.layers) - 1)
    h = room_for(n, size)
    kernels.frozen_last(zero, n, *read, model.width, EPSILON_32, h, x, products[0], target[0], source[0])
    return [*found, Responses(begin=n - 1, products=products, target=target, source=source)]


def _perturbed_rows(trace: Trace, g: int, frame: Frame, out: np.ndarray) -> None:
    """The residual rows before the first layer with each feature perturbed, F x (n + room) x D."""
    model, tokens, rows = trace.model, trace.tokens[g], trace.rows[trace.first[g] : trace.first[g + 1]]
    assert isinstance(model, TransformerSubject)
    if not model.embeds_rows:
        out[:, : len(rows)] = model.embed(*perturbed_inputs(tokens, rows, frame))[:, rows].numpy()
        return
    # A row's embedding depends on its own token and position only: two inputs hold all that can become of the rows.
    both, without = tokens.expand(2, -1).clone(), torch.zeros(2, len(tokens), dtype=torch.bool)
    both[0].fill_(frame.substitute)
    without[1] = True
    other, bare = model.embed(both, without)[:, rows].numpy()
    own = trace.layers[0].x.numpy()[trace.first[g] : trace.first[g + 1]]
    kernels.begin(own, other, bare, frame.holding, out)


def dependencies(change: np.ndarray, falls: np.ndarray, threshold: float) -> np.ndarray:
    """Which changes (S x F) weaken their operation by more than the threshold: it must fall, or else rise."""
    return np.where(falls[:, None], change < -threshold, change > threshold)
