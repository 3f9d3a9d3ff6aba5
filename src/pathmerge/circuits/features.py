"""Step IV: why an attention operation happens, that is, which features of the input its query and key depend on.

Each feature (a vertex id, or a position's embedding) is perturbed in the input, and the perturbed input passes through
the layers *frozen*: attention weights and ReLU masks as recorded, LayerNorm computed anew. One frozen pass for each
feature serves the operations of every layer: before layer l nothing above it has been computed.

Shapes: F features, T tokens, n rows of an input, H heads, K width of a query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

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


@dataclass(frozen=True)
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
    """For each input and layer, how all products respond to all features."""
    if trace.doubles:
        return list(_short(trace, frames))
    return [_general(trace, g, frame) for g, frame in enumerate(frames)]


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


def _short(trace: Trace, frames: Sequence[Frame]) -> Iterator[list[Responses]]:
    """For models of one head: feature by feature, so that the rows stay in the cache through a layer."""
    model, last = trace.model, trace.model.layers - 1
    assert isinstance(model, TransformerSubject)
    size, active = trace.layers[0].k.shape[2], len(model.folded(0).second)
    longest, real = int(trace.counts.max()), (model.width, np.float32(EPSILON))
    turned = [np.zeros((size, longest + -longest % LANES), np.float32) for _ in range(2)]
    scratch = (*(room_for(longest, width) for width in (size, size, turned[0].shape[1], active)), *turned)
    base = [
        (*trace.read(at), layer.pattern.numpy()[0], layer.gate.numpy()) for at, layer in enumerate(trace.layers[:-1])
    ]
    for frame, x, zero in zip(frames, _perturbed_rows(trace, frames), trace.first[:-1].tolist(), strict=True):
        n, count = frame.rows, len(frame.features)
        found: list[Responses] = []
        for at, recorded in enumerate(base):
            shapes = ((n + ROWS,), (n + ROWS, count), (n + ROWS, count))
            parts = [np.empty((1, *shape, turned[0].shape[1]), np.float32) for shape in shapes]
            kernels.frozen(zero, n, recorded, model.folded(at), *real, scratch, x, *(part[0] for part in parts))
            found.append(Responses(0, *parts))
        parts = [np.empty((1, *shape), np.float32) for shape in ((1, n), (1, count, n), (n, count, 1))]
        kernels.frozen_last(zero, n, *trace.read(last), *real, scratch[0], x, *(part[0] for part in parts))
        yield [*found, Responses(n - 1, *parts)]


def _perturbed_rows(trace: Trace, frames: Sequence[Frame]) -> Iterator[np.ndarray]:
    """For each input, the residual rows before the first layer with each feature perturbed, F x (n + room) x D."""
    model, limits = trace.model, list(pairwise(trace.first.tolist()))
    assert isinstance(model, TransformerSubject)
    width = trace.layers[0].x.shape[1]
    rooms = (np.empty((len(frame.features), frame.rows + ROWS, width), np.float32) for frame in frames)
    if not model.embeds_rows:
        for tokens, frame, (low, high), x in zip(trace.tokens, frames, limits, rooms, strict=True):
            rows = trace.rows[low:high]
            x[:, : frame.rows] = model.embed(*perturbed_inputs(tokens, rows, frame))[:, rows].numpy()
            yield x
        return
    # What depends on a row's own token and position only has two ways to change: two more inputs hold all of them.
    replaced = torch.tensor([frame.substitute for frame in frames])[:, None].expand_as(trace.tokens)
    without = torch.zeros(2, *trace.tokens.shape, dtype=torch.bool)
    without[1] = True
    both = model.embed(torch.cat([replaced, trace.tokens]), without.flatten(0, 1)).unflatten(0, (2, -1))
    other, bare = both[:, torch.from_numpy(trace.owner), trace.rows].numpy()
    own = trace.layers[0].x.numpy()
    for frame, (low, high), x in zip(frames, limits, rooms, strict=True):
        kernels.begin(own[low:high], other[low:high], bare[low:high], frame.holding, x)
        yield x
