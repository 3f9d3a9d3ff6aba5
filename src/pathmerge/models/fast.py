"""The training face of a block: the same mathematics with fewer and larger steps.

What is saved, all of it exact:
- LayerNorm's gain and bias are multiplied into the matrices that follow.
- With one head of full width, q·k = x̂ A x̂ᵀ with A = W_qᵀ W_k, and v followed by o is one matrix: four large products
  instead of six. What shifts all scores of a row alike (the key's bias) is left out: the softmax does not see it.
- `last` rows only, where no others are needed.
- The backward pass of a one-head block is written out, so that each product is made once, in place where possible.

The small products A and v·o are made once per step from the separate parameters (`Transformer.prepare`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathmerge.models.rotary import rotate

if TYPE_CHECKING:
    from pathmerge.models.transformer import Block

EPSILON = 1e-5
_ONE_HEAD = ("A", "a", "M", "m", "W1", "b1", "W2", "b2")


def fold_one_head(block: Block) -> dict[str, Tensor]:
    """The matrices of a one-head block, for normalised rows x̂ (before gain and bias) on their left."""
    gain, shift = block.ln1.weight, block.ln1.bias
    keys = block.k.weight * gain / math.sqrt(gain.numel())
    values_out = block.o.weight @ block.v.weight
    return {
        "A": (block.q.weight * gain).t() @ keys,
        "a": F.linear(shift, block.q.weight, block.q.bias) @ keys,
        "M": (values_out * gain).t(),
        "m": values_out @ shift + F.linear(block.v.bias, block.o.weight, block.o.bias),
        **_fold_feed_forward(block),
    }


def fold_heads(block: Block) -> dict[str, Tensor]:
    """The matrices of a block with several heads or rotary positions."""
    joint = torch.cat([block.q.weight, block.k.weight, block.v.weight])
    biases = torch.cat([block.q.bias, block.k.bias, block.v.bias])
    return {
        "QKV": (joint * block.ln1.weight).t(),
        "qkv": F.linear(block.ln1.bias, joint, biases),
        "O": block.o.weight.t(),
        "o": block.o.bias,
        **_fold_feed_forward(block),
    }


def _fold_feed_forward(block: Block) -> dict[str, Tensor]:
    return {
        "W1": (block.ff1.weight * block.ln2.weight).t(),
        "b1": F.linear(block.ln2.bias, block.ff1.weight, block.ff1.bias),
        "W2": block.ff2.weight.t(),
        "b2": block.ff2.bias,
    }


def one_head_block(x: Tensor, weights: Mapping[str, Tensor], at: int, bias: Tensor, last: int | None) -> Tensor:
    """One layer on B x T x D; with `last`, only the last rows come out."""
    given = [weights[f"{at}.{name}"] for name in _ONE_HEAD]
    if last is None:
        return _OneHead.apply(x, bias, *given)  # pyright: ignore[reportReturnType]
    A, a, M, m, W1, b1, W2, b2 = given
    width = (x.shape[-1],)
    h = F.layer_norm(x, width, eps=EPSILON)
    asked = torch.addmm(a, h[:, -last:].flatten(0, 1), A).view(x.shape[0], last, -1)
    scores = torch.baddbmm(bias[:, -last:], asked, h.transpose(1, 2))
    seen = torch.bmm(torch.softmax(scores, -1), h)
    y = x[:, -last:] + torch.matmul(seen, M) + m
    h = F.layer_norm(y, width, eps=EPSILON)
    return y + torch.matmul(torch.relu(torch.matmul(h, W1) + b1), W2) + b2


class _OneHead(torch.autograd.Function):
    """x + attention, then + feed-forward, on all rows, with the backward pass written out."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor,
        A: Tensor,
        a: Tensor,
        M: Tensor,
        m: Tensor,
        W1: Tensor,
        b1: Tensor,
        W2: Tensor,
        b2: Tensor,
    ) -> Tensor:
        count, rows, width = x.shape
        x0 = x.reshape(-1, width)
        h1, mean1, scale1 = torch.native_layer_norm(x0, [width], None, None, EPSILON)
        asked = torch.addmm(a, h1, A)
        h1_BTD = h1.view(x.shape)
        pattern = torch.baddbmm(bias, asked.view(x.shape), h1_BTD.transpose(1, 2))
        pattern = torch.softmax(pattern, -1)
        seen = torch.bmm(pattern, h1_BTD).view(-1, width)
        x1 = torch.addmm(x0, seen, M).add_(m)
        h2, mean2, scale2 = torch.native_layer_norm(x1, [width], None, None, EPSILON)
        active = torch.addmm(b1, h2, W1).relu_()
        x2 = torch.addmm(x1, active, W2).add_(b2)
        ctx.save_for_backward(x0, mean1, scale1, h1, asked, pattern, seen, x1, mean2, scale2, h2, active, A, M, W1, W2)
        return x2.view(count, rows, width)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x0, mean1, scale1, h1, asked, pattern, seen, x1, mean2, scale2, h2, active, A, M, W1, W2 = ctx.saved_tensors
        shape, width = gradients[0].shape, x0.shape[1]
        back = torch.ops.aten
        d_x2 = gradients[0].reshape(-1, width)
        d_active = back.threshold_backward(d_x2 @ W2.t(), active, 0)
        d_W2, d_b2 = active.t() @ d_x2, d_x2.sum(0)
        d_W1, d_b1 = h2.t() @ d_active, d_active.sum(0)
        d_h2 = d_active @ W1.t()
        d_x1 = back.native_layer_norm_backward(d_h2, x1, [width], mean2, scale2, None, None, [True, False, False])[
            0
        ].add_(d_x2)
        d_M, d_m = seen.t() @ d_x1, d_x1.sum(0)
        d_seen = (d_x1 @ M.t()).view(shape)
        h1_BTD = h1.view(shape)
        d_h1 = torch.bmm(pattern.transpose(1, 2), d_seen)
        d_scores = back._softmax_backward_data(torch.bmm(d_seen, h1_BTD.transpose(1, 2)), pattern, -1, x0.dtype)
        d_asked = torch.bmm(d_scores, h1_BTD).view(-1, width)
        d_h1.baddbmm_(d_scores.transpose(1, 2), asked.view(shape))
        d_A, d_a = h1.t() @ d_asked, d_asked.sum(0)
        d_x0 = None
        if ctx.needs_input_grad[0]:
            d_h1 = d_h1.view(-1, width).addmm_(d_asked, A.t())
            d_x0 = back.native_layer_norm_backward(d_h1, x0, [width], mean1, scale1, None, None, [True, False, False])[
                0
            ].add_(d_x1)
            d_x0 = d_x0.view(shape)
        return d_x0, None, d_A, d_a, d_M, d_m, d_W1, d_b1, d_W2, d_b2


def heads_block(
    x: Tensor,
    weights: Mapping[str, Tensor],
    at: int,
    bias: Tensor,
    last: int | None,
    heads: int,
    rotation: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """One layer with any number of heads, rotary or not."""
    QKV, qkv, Out, out, W1, b1, W2, b2 = (
        weights[f"{at}.{name}"] for name in ("QKV", "qkv", "O", "o", "W1", "b1", "W2", "b2")
    )
    width = x.shape[-1]
    h = F.layer_norm(x, (width,), eps=EPSILON)
    q, k, v = (
        part.view(*x.shape[:2], heads, -1).transpose(1, 2) for part in (torch.matmul(h, QKV) + qkv).chunk(3, dim=-1)
    )
    if rotation is not None:
        q, k = rotate(q, rotation), rotate(k, rotation)
    seen_by = bias[:, None]
    if last is not None:
        q, seen_by, x = q[:, :, -last:], seen_by[:, :, -last:], x[:, -last:]
    z = F.scaled_dot_product_attention(q, k, v, attn_mask=seen_by)
    y = x + torch.matmul(z.transpose(1, 2).flatten(2), Out) + out
    h = F.layer_norm(y, (width,), eps=EPSILON)
    return y + torch.matmul(torch.relu(torch.matmul(h, W1) + b1), W2) + b2
