"""Step IV: why an attention operation happens, that is, which features of the input its query and key depend on.

Each feature (a vertex id, or a position's embedding) is perturbed in the input, and the perturbed input passes through
the layers *frozen*: attention weights and ReLU masks as recorded, LayerNorm computed anew. One frozen pass for each
feature serves the operations of every layer: before layer l nothing above it has been computed.

Shapes: G inputs, F features, T tokens, n rows of an input, R rows of all inputs, H heads, K width of a query.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from pathmerge.circuits.frame import Frames
from pathmerge.circuits.one_head import room_for
from pathmerge.circuits.subject import TransformerSubject
from pathmerge.circuits.trace import Trace
from pathmerge.kernels import frozen as kernels
from pathmerge.kernels.products import LANES, ROWS, apart
from pathmerge.models.transformer import EPSILON


@dataclass(frozen=True)
class Responses:
    """The products of one layer when a feature is perturbed in one of the two rows.

    Targets j of input g are those from after[g] on: in the last layer only the last row's queries can matter. They
    stand at j + shift[g] where rows come first, at j - after[g] where they come last. The arrays may have room for more
    rows and features, which hold anything.
    """

    after: np.ndarray
    shift: np.ndarray
    products: np.ndarray
    """Q_j·K_i, unperturbed, H x j x i."""
    target: np.ndarray
    """Q̃_j·K_i, H x j x F x i."""
    source: np.ndarray
    """Q_j·K̃_i, H x R x F x j."""


def _room(trace: Trace, frames: Frames, at: int, more: int, columns: int) -> Responses:
    """For the responses of a layer, `more` rows than there are and so many columns."""
    heads, count, rows = trace.model.heads, int(frames.features.max()), len(trace.rows) + more
    if at == trace.model.layers - 1:
        after, targets, wide = trace.counts - 1, len(trace), 1
        shift = np.arange(len(trace)) - after
    else:
        after, shift, targets, wide = np.zeros(len(trace), np.int64), trace.first[:-1], rows, columns
    shapes = ((targets,), (targets, count), (rows, count))
    widths = (columns, columns, wide)
    parts = (np.empty((heads, *shape, width), np.float32) for shape, width in zip(shapes, widths, strict=True))
    return Responses(after, shift, *parts)


def perturbed_inputs(trace: Trace, frames: Frames, g: int) -> tuple[Tensor, Tensor]:
    """The tokens of input g with each feature perturbed, F x T, and where to leave positions out, F x T."""
    tokens, vertices = trace.tokens[g], torch.from_numpy(frames.vertices[g, : frames.counts[g]])
    copies = tokens.expand(int(frames.features[g]), *tokens.shape).clone()
    mine = copies[: len(vertices), ..., :2] if tokens.ndim == 2 else copies[: len(vertices)]
    mine[mine == vertices.view(-1, *[1] * tokens.ndim)] = int(frames.substitutes[g])
    without = torch.zeros(copies.shape[:2], dtype=torch.bool)
    if frames.has_positions:
        rows = trace.rows[trace.first[g] : trace.first[g + 1]]
        without[len(vertices) + torch.arange(len(rows)), rows] = True
    return copies, without


@torch.no_grad()
def responses(trace: Trace, frames: Frames, final: np.ndarray) -> list[Responses]:
    """For each layer, how all products respond to all features; in the last layer at least those of the operations
    `final`, S x 3 (head, target, source)."""
    return _short(trace, frames, final) if trace.doubles else _general(trace, frames)


def _general(trace: Trace, frames: Frames) -> list[Responses]:
    """Row by row, and for each row feature by feature, so that one product with the weights mixes all of them."""
    model, last = trace.model, trace.model.layers - 1
    found = [_room(trace, frames, at, 0, trace.allowed.shape[1]) for at in range(model.layers)]
    for g, (low, high) in enumerate(pairwise(trace.first.tolist())):
        own, rows = slice(low, high), trace.rows[low:high]
        n, count = high - low, int(frames.features[g])
        x = model.embed(*perturbed_inputs(trace, frames, g)).transpose(0, 1)[rows].flatten(0, 1)
        each = torch.arange(n).repeat_interleave(count)
        places = rows[each]
        for at, layer in enumerate(trace.layers[:-1]):
            q, k, v = model.project(at, x, places)
            assert q is not None
            _respond(found[at], own, own, layer.q[own], layer.k[own], q, k)
            values = v.view(n, count, *v.shape[1:]).permute(2, 0, 1, 3).flatten(2)
            mixed = torch.matmul(layer.pattern[:, own, :n], values).view(-1, n, count, v.shape[2])
            x = model.update(at, x, mixed.permute(1, 2, 0, 3).flatten(0, 1), layer.gate[own].index_select(0, each))
        _, k, _ = model.project(last, x, places, queries=False)
        q, _, _ = model.project(last, x[-count:], places[-count:])
        assert q is not None
        layer = trace.layers[last]
        _respond(found[last], slice(g, g + 1), own, layer.q[own][-1:], layer.k[own], q, k)
    return found


def _respond(
    out: Responses, targets: slice, sources: slice, base_q: Tensor, base_k: Tensor, q: Tensor, k: Tensor
) -> None:
    """From queries and keys of one input, recorded (j or i x H x K) and with each feature perturbed (j·F or i·F x H x
    K); the queries may be of the last row only."""
    j, i, heads = len(base_q), len(base_k), base_q.shape[1]
    count = len(k) // i
    keys, queries = base_k.permute(1, 2, 0), base_q.permute(1, 2, 0)
    out.products[:, targets, :i] = torch.matmul(base_q.transpose(0, 1), keys).numpy()
    out.target[:, targets, :count, :i] = torch.matmul(q.transpose(0, 1), keys).view(heads, j, count, i).numpy()
    out.source[:, sources, :count, :j] = torch.matmul(k.transpose(0, 1), queries).view(heads, i, count, j).numpy()


def _short(trace: Trace, frames: Frames, final: np.ndarray) -> list[Responses]:
    """For models of one head: input by input and feature by feature, so that the rows stay in the cache."""
    model, last = trace.model, trace.model.layers - 1
    assert isinstance(model, TransformerSubject)
    size, active = trace.layers[0].k.shape[2], len(model.folded(0).second)
    longest, real, width = int(trace.counts.max()), (model.width, np.float32(EPSILON)), trace.layers[0].x.shape[1]
    columns = longest + -longest % LANES
    found = [_room(trace, frames, at, ROWS, columns) for at in range(model.layers)]
    turned = [apart(np.zeros((size, columns), np.float32)) for _ in range(2)]
    scratch = (*(room_for(longest, wide) for wide in (size, size, columns, active)), *turned)
    base = [
        (*trace.read(at), layer.pattern.numpy()[0], layer.gate.numpy()) for at, layer in enumerate(trace.layers[:-1])
    ]
    x = np.empty((int(frames.features.max()), longest + ROWS, width), np.float32)
    embedded = trace.layers[0].x.numpy()
    first, features, rows, changed = _changed_rows(trace, frames)
    most = int(np.diff(first).max())
    more = (np.empty(2 * width, np.float32), *(room_for(most, wide) for wide in (size, 2 * width, 2 * width, columns)))
    wanted = np.zeros(len(embedded), bool)
    wanted[trace.first[trace.owner[final[:, 1]]] + final[:, 2]] = True
    wanted[trace.first[1:] - 1] = True
    limits = zip(pairwise(trace.first.tolist()), frames.features.tolist(), pairwise(first.tolist()), strict=True)
    for g, ((zero, end), count, places) in enumerate(limits):
        n, now, own = end - zero, x[:count], slice(*places)
        every = kept = np.arange(n)
        given = (features[own], rows[own], changed[own])
        if not base:
            kernels.begin(embedded[zero:end], *given, now)
        for at, (recorded, made) in enumerate(zip(base, found, strict=False)):
            out = (made.products[0], made.target[0], made.source[0])
            if at == 0:
                kernels.first_layer(
                    zero, n, (*recorded, embedded), trace.attended, model.folded(0), model.doubling(0), *real, *given,
                    (*scratch, *more), now, *out,
                )  # fmt: skip
            else:
                kept = np.flatnonzero(wanted[zero:end]) if at == last - 1 else every
                kernels.frozen(zero, n, kept, recorded, model.folded(at), *real, scratch, now, *out)
        made = found[last]
        out = (made.products[0], made.target[0], made.source[0])
        kernels.frozen_last(zero, n, kept, g, *trace.read(last), *real, scratch[0], now, *out)
    return found


def _changed_rows(trace: Trace, frames: Frames) -> tuple[np.ndarray, ...]:
    """The residual rows before the first layer that perturbed features change: where each input's begin, the feature
    and row (of its input) of each, and the rows themselves, with room for a few more. An input's are in the order of
    their features."""
    model, own = trace.model, trace.layers[0].x.numpy()
    assert isinstance(model, TransformerSubject)
    if model.embeds_rows:
        # What depends on a row's own token and position only has two ways to change: two more inputs hold all of them.
        replaced = torch.from_numpy(frames.substitutes)[:, None].expand_as(trace.tokens)
        without = torch.zeros(2, *trace.tokens.shape, dtype=torch.bool)
        without[1] = True
        both = model.embed(torch.cat([replaced, trace.tokens]), without.flatten(0, 1)).unflatten(0, (2, -1))
        other, bare = both[:, torch.from_numpy(trace.owner), trace.rows].numpy()
        holding = np.flatnonzero(frames.held[:, 0])
        features, rows = frames.number[frames.owner[holding], frames.held[holding, 0]], holding
        parts = [other[holding]]
        if frames.has_positions:
            local = np.arange(len(own)) - trace.first[frames.owner]
            features = np.concatenate([features, frames.counts[frames.owner] + local])
            rows, parts = np.concatenate([rows, np.arange(len(own))]), [*parts, bare]
        changed = np.concatenate(parts)
        order = np.lexsort((rows, features, frames.owner[rows]))
        features, rows, changed = features[order], rows[order], changed[order]
    else:
        found = list(_compared(trace, frames))
        features, rows, changed = (np.concatenate(part) for part in zip(*found, strict=True))
    owner = frames.owner[rows]
    limits = np.searchsorted(owner, np.arange(len(trace) + 1))
    return (
        limits,
        features,
        rows - trace.first[owner],
        np.concatenate([changed, np.zeros((ROWS, own.shape[1]), np.float32)]),
    )


def _compared(trace: Trace, frames: Frames) -> Iterator[tuple[np.ndarray, ...]]:
    """For each input, all rows that embedding its perturbed copies changes: feature, row among all, and the row."""
    for g, (low, high) in enumerate(pairwise(trace.first.tolist())):
        x = trace.model.embed(*perturbed_inputs(trace, frames, g))[:, trace.rows[low:high]].numpy()
        features, rows = np.nonzero((x != trace.layers[0].x[low:high].numpy()).any(-1))
        yield features, rows + low, x[features, rows]
