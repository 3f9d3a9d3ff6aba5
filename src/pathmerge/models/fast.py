"""The training face of a block: the same mathematics with fewer and larger steps.

What is saved, all of it exact:
- LayerNorm's gain and bias are multiplied into the matrices that follow.
- With one head of full width, q·k = x̂ A x̂ᵀ with A = W_qᵀ W_k, and v followed by o is one matrix: four large products
  instead of six. What shifts all scores of a row alike (the key's bias) is left out: the softmax does not see it.
- `last` rows only, where no others are needed.
- The first layer of a one-hot model looks two of its products up in tables, and needs no norm and no input gradient.
- Backward passes are written out, so that each product is made once, in place where possible.
- Rows are widened by zeros to a multiple of ALIGNED: a product of 64 columns takes two thirds of the time of one of 62.

The small products A and v·o are made once per step from the separate parameters (`Transformer.prepare`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pathmerge.kernels import rows as kernels
from pathmerge.models.rotary import rotate

if TYPE_CHECKING:
    from pathmerge.models.transformer import Block

ALIGNED = 8
"""The numbers in a vector register."""
EPSILON = 1e-5
_EPSILON_32 = np.float32(EPSILON)


def fold_one_head(block: Block) -> dict[str, Tensor]:
    """The matrices of a one-head block, for normalised rows x̂ (before gain and bias) on their left."""
    gain, shift = block.ln1.weight, block.ln1.bias
    keys = block.k.weight * gain / math.sqrt(gain.numel())
    values_out = block.o.weight @ block.v.weight
    return {
        "A": widened((block.q.weight * gain).t() @ keys, 2),
        "a": widened(F.linear(shift, block.q.weight, block.q.bias) @ keys),
        "M": widened((values_out * gain).t(), 2),
        "m": widened(values_out @ shift + F.linear(block.v.bias, block.o.weight, block.o.bias)),
        **_fold_feed_forward(block),
    }


def fold_heads(block: Block, heads: int, *, rotary: bool) -> dict[str, Tensor]:
    """The matrices of a block with several heads or rotary positions."""
    scale = (block.q.weight.shape[0] // heads) ** -0.5
    joint = torch.cat([block.q.weight * scale, block.k.weight, block.v.weight])
    # Only rotation makes the key's bias visible: without it, it shifts all scores of a row alike.
    key_bias = block.k.bias if rotary else torch.zeros_like(block.k.bias)
    biases = torch.cat([block.q.bias * scale, key_bias, block.v.bias])
    return {
        "QKV": widened(joint * block.ln1.weight).t(),
        "qkv": F.linear(block.ln1.bias, joint, biases),
        "O": widened(block.o.weight.t()),
        "o": widened(block.o.bias),
        **_fold_feed_forward(block),
    }


def _fold_feed_forward(block: Block) -> dict[str, Tensor]:
    return {
        "W1": widened((block.ff1.weight * block.ln2.weight).t(), 2),
        "b1": widened(F.linear(block.ln2.bias, block.ff1.weight, block.ff1.bias)),
        "W2": widened(block.ff2.weight.t(), 2),
        "b2": widened(block.ff2.bias),
    }


def widened(weight: Tensor, dims: int = 1) -> Tensor:
    """Zeros after the last `dims` dimensions."""
    more = [by for size in reversed(weight.shape[-dims:]) for by in (0, -size % ALIGNED)]
    return F.pad(weight, more) if any(more) else weight


def fold_first(weights: Mapping[str, Tensor], width: int, tokens: int, places: int) -> dict[str, Tensor]:
    """Tables that take the place of A and M in the first layer of a one-hot model (`first_block`).

    A row of its input is two ones among zeros, so its mean and variance are known, and a product of the normalised row
    with a matrix is a row for the token plus a row for the place.
    """
    mean = 2 / width
    scale = (mean - mean**2 + EPSILON) ** -0.5
    found: dict[str, Tensor] = {}
    for name, start, factor in (("A", weights["0.a"], scale), ("M", weights["0.m"], 1.0)):
        matrix = weights[f"0.{name}"] * (scale * factor)
        found[f"first.{name}.tokens"] = matrix[:tokens]
        found[f"first.{name}.places"] = matrix[width - places : width] + start * factor - mean * matrix.sum(0)
    return found


def first_block(
    x: Tensor, tokens: Tensor, weights: Mapping[str, Tensor], bias: Tensor, columns: slice | Tensor, width: int
) -> Tensor:
    """The first layer of a one-hot model: `x` holds one-hot tokens and places and needs no gradient."""
    asked = F.embedding(tokens, weights["first.A.tokens"]) + weights["first.A.places"][columns]
    # The mean of x and the key's part of the norm shift all scores of a row alike, but for the scale (in the tables).
    pattern = torch.softmax(torch.baddbmm(bias, asked, x.transpose(1, 2)), -1)
    told = F.embedding(tokens, weights["first.M.tokens"]) + weights["first.M.places"][columns]
    return _FeedForward.apply(x + torch.bmm(pattern, told), width, *_feed_forward(weights, 0))  # pyright: ignore[reportReturnType]


def one_head_block(
    x: Tensor, weights: Mapping[str, Tensor], at: int, bias: Tensor, last: int | None, width: int
) -> Tensor:
    """One layer on B x T x D, of which the first `width` columns are real; with `last`, only the last rows come out."""
    A, a, M, m = (weights[f"{at}.{name}"] for name in ("A", "a", "M", "m"))
    if last is None:
        x1 = _Attention.apply(x, width, bias, A, a, M, m)
    else:
        h = widened(F.layer_norm(x[..., :width], (width,), eps=EPSILON))
        asked = torch.addmm(a, h[:, -last:].flatten(0, 1), A).view(x.shape[0], last, -1)
        pattern = torch.softmax(torch.baddbmm(bias[:, -last:], asked, h.transpose(1, 2)), -1)
        x1 = x[:, -last:] + torch.matmul(torch.bmm(pattern, h), M) + m
    return _FeedForward.apply(x1, width, *_feed_forward(weights, at))  # pyright: ignore[reportReturnType]


def _feed_forward(weights: Mapping[str, Tensor], at: int) -> tuple[Tensor, ...]:
    return tuple(weights[f"{at}.{name}"] for name in ("W1", "b1", "W2", "b2"))


class _Attention(torch.autograd.Function):
    """x + attention of one head on all rows, with the backward pass written out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, width: int, bias: Tensor, A: Tensor, a: Tensor, M: Tensor, m: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[2])
        h, scale = _normalise(rows, width)
        ctx.width = width
        asked = torch.addmm(a, h, A)
        h_BTD = h.view(x.shape)
        pattern = torch.softmax(torch.baddbmm(bias, asked.view(x.shape), h_BTD.transpose(1, 2)), -1)
        seen = torch.bmm(pattern, h_BTD).view(rows.shape)
        ctx.save_for_backward(scale, h, asked, pattern, seen, A, M)
        return torch.addmm(rows, seen, M).add_(m).view(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale, h, asked, pattern, seen, A, M = ctx.saved_tensors
        shape = gradients[0].shape
        d_out = gradients[0].reshape(h.shape)
        d_M, d_m = seen.t() @ d_out, d_out.sum(0)
        d_seen = (d_out @ M.t()).view(shape)
        h_BTD = h.view(shape)
        d_h = torch.bmm(pattern.transpose(1, 2), d_seen)
        d_pattern = torch.bmm(d_seen, h_BTD.transpose(1, 2))
        d_scores = torch.ops.aten._softmax_backward_data(d_pattern, pattern, -1, h.dtype)
        d_asked = torch.bmm(d_scores, h_BTD).view(h.shape)
        d_A, d_a = h.t() @ d_asked, d_asked.sum(0)
        d_x = None
        if ctx.needs_input_grad[0]:
            d_h.baddbmm_(d_scores.transpose(1, 2), asked.view(shape))
            d_h = d_h.view(h.shape).addmm_(d_asked, A.t())
            d_x = _normalise_backward(d_h, h, scale, d_out, ctx.width).view(shape)
        return d_x, None, None, d_A, d_a, d_M, d_m


class _FeedForward(torch.autograd.Function):
    """x + feed-forward, with the backward pass written out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, width: int, W1: Tensor, b1: Tensor, W2: Tensor, b2: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[2])
        h, scale = _normalise(rows, width)
        ctx.width = width
        active = torch.addmm(b1, h, W1).relu_()
        ctx.save_for_backward(scale, h, active, W1, W2)
        return torch.addmm(rows, active, W2).add_(b2).view(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale, h, active, W1, W2 = ctx.saved_tensors
        d_out = gradients[0].reshape(h.shape)
        d_active = torch.ops.aten.threshold_backward(d_out @ W2.t(), active, 0)
        d_W2, d_b2 = active.t() @ d_out, d_out.sum(0)
        d_W1, d_b1 = h.t() @ d_active, d_active.sum(0)
        d_x = _normalise_backward(d_active @ W1.t(), h, scale, d_out, ctx.width).view(gradients[0].shape)
        return d_x, None, d_W1, d_b1, d_W2, d_b2


def _normalise(rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """LayerNorm of each row's first `width` numbers without gain and bias, and the factor each row was scaled by."""
    if rows.device.type == "cpu" and rows.dtype == torch.float32:
        h, scale = torch.empty_like(rows), rows.new_empty(len(rows))
        kernels.normalise(rows.detach().numpy(), width, _EPSILON_32, h.numpy(), scale.numpy())
        return h, scale
    real = rows[:, :width]
    variance, mean = torch.var_mean(real, 1, correction=0, keepdim=True)
    scale = torch.rsqrt(variance + EPSILON)
    return F.pad((real - mean) * scale, (0, rows.shape[1] - width)), scale[:, 0]


def _normalise_backward(d_h: Tensor, h: Tensor, scale: Tensor, d_out: Tensor, width: int) -> Tensor:
    """The gradient of x, from those of h = norm(x) and (d_out) of what x was added to."""
    if h.device.type == "cpu" and h.dtype == torch.float32:
        d_x = torch.empty_like(h)
        kernels.normalise_backward(d_h.numpy(), h.numpy(), scale.numpy(), d_out.detach().numpy(), width, d_x.numpy())
        return d_x
    real = slice(None), slice(width)
    along = (d_h[real] * h[real]).mean(1, keepdim=True)
    d_x = d_out[real] + scale[:, None] * (d_h[real] - d_h[real].mean(1, keepdim=True) - h[real] * along)
    return F.pad(d_x, (0, h.shape[1] - width))


def heads_block(
    x: Tensor,
    weights: Mapping[str, Tensor],
    at: int,
    bias: Tensor,
    last: int | None,
    width: int,
    heads: int,
    rotation: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """One layer with any number of heads, rotary or not; `bias` is repeated for each head."""
    matrices = [weights[f"{at}.{name}"] for name in ("QKV", "qkv", "O", "o")]
    if last is None:
        x1 = _HeadsAttention.apply(x, width, heads, rotation, bias, *matrices)
    else:
        QKV, qkv, Out, out = matrices
        h = widened(F.layer_norm(x[..., :width], (width,), eps=EPSILON))
        q, k, v = _apart(torch.addmm(qkv, h.flatten(0, 1), QKV), len(x), heads, rotation)
        seen = torch.bmm(torch.softmax(torch.baddbmm(bias[:, -last:], q[:, -last:], k.transpose(1, 2)), -1), v)
        x1 = x[:, -last:] + torch.matmul(_together(seen[None], len(x)).view(len(x), last, -1), Out) + out
    return _FeedForward.apply(x1, width, *_feed_forward(weights, at))  # pyright: ignore[reportReturnType]


def _apart(joint: Tensor, examples: int, heads: int, turn: tuple[Tensor, Tensor] | None) -> tuple[Tensor, ...]:
    """Queries, keys and values of each example's heads, BH x T x K, from rows that hold all of them; q and k turned."""
    parts = joint.view(examples, -1, 3, heads, joint.shape[1] // 3 // heads).permute(2, 0, 3, 1, 4)
    q, k, v = parts.reshape(3, examples * heads, *parts.shape[3:]).unbind(0)
    return (q, k, v) if turn is None else (rotate(q, turn), rotate(k, turn), v)


def _together(parts: Tensor, examples: int) -> Tensor:
    """The inverse of `_apart` but for the turn: rows from S x BH x T x K."""
    kinds, _, rows, width = parts.shape
    return parts.view(kinds, examples, -1, rows, width).permute(1, 3, 0, 2, 4).reshape(examples * rows, -1)


class _HeadsAttention(torch.autograd.Function):
    """x + attention of several heads on all rows, with the backward pass written out."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, width: int, heads: int, turn: tuple[Tensor, Tensor] | None, bias: Tensor, *given: Tensor
    ) -> Tensor:
        QKV, qkv, Out, out = given
        rows = x.reshape(-1, x.shape[2])
        h, scale = _normalise(rows, width)
        ctx.width, ctx.heads, ctx.turn = width, heads, turn
        q, k, v = _apart(torch.addmm(qkv, h, QKV), len(x), heads, turn)
        pattern = torch.softmax(torch.baddbmm(bias, q, k.transpose(1, 2)), -1)
        seen = _together(torch.bmm(pattern, v)[None], len(x))
        ctx.save_for_backward(scale, h, q, k, v, pattern, seen, QKV, Out)
        return torch.addmm(rows, seen, Out).add_(out).view(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale, h, q, k, v, pattern, seen, QKV, Out = ctx.saved_tensors
        shape = gradients[0].shape
        d_out = gradients[0].reshape(h.shape)
        d_Out, d_o = seen.t() @ d_out, d_out.sum(0)
        d_seen = (d_out @ Out.t()).view(shape[0], shape[1], ctx.heads, -1).transpose(1, 2).reshape(v.shape)
        d_pattern = torch.bmm(d_seen, v.transpose(1, 2))
        d_scores = torch.ops.aten._softmax_backward_data(d_pattern, pattern, -1, h.dtype)
        d_q, d_k = torch.bmm(d_scores, k), torch.bmm(d_scores.transpose(1, 2), q)
        if ctx.turn is not None:
            back = ctx.turn[0], -ctx.turn[1]
            d_q, d_k = rotate(d_q, back), rotate(d_k, back)
        d_joint = _together(torch.stack([d_q, d_k, torch.bmm(pattern.transpose(1, 2), d_seen)]), shape[0])
        d_QKV, d_qkv = h.t() @ d_joint, d_joint.sum(0)
        d_x = None
        if ctx.needs_input_grad[0]:
            d_x = _normalise_backward(d_joint @ QKV.t(), h, scale, d_out, ctx.width).view(shape)
        return d_x, None, None, None, None, d_QKV, d_qkv, d_Out, d_o
