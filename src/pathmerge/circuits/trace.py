"""Step I: an ordinary pass over one input, with everything the later steps compare with.

Only rows that are not padding are kept: no other row can read a padding row, so it can matter to nothing.

Shapes: n rows, D width, H heads, K and W widths of queries and values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from pathmerge.circuits.subject import Explainable
from pathmerge.errors import NotFiniteError


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What one layer computed."""

    x: Tensor
    """The residual stream before the layer, n x D."""
    allowed: Tensor
    """Which rows may read which, H x n x n, bool."""
    q: Tensor
    k: Tensor
    v: Tensor
    scores: Tensor
    """H x n x n, scaled; -inf where a row may not look."""
    pattern: Tensor
    mixed: Tensor
    """The weighted sums of values, n x H x W."""
    gate: Tensor

    @cached_property
    def sees_all(self) -> bool:
        """Whether every row may read every row."""
        return bool(self.allowed.all())

    @cached_property
    def base(self) -> tuple[np.ndarray, ...]:
        """As the kernels want it: scores, pattern, tops and sums of exp(score - top), values, mixed."""
        tops = self.scores.amax(-1)
        sums = torch.exp(self.scores - tops.clamp(min=-1e30)[..., None]).sum(-1)
        both = (self.scores, self.pattern, tops, sums, self.v, self.mixed)
        return tuple(value.contiguous().numpy() for value in both)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One input's ordinary pass."""

    model: Explainable
    tokens: Tensor
    """T, or T x 3 for edges."""
    rows: Tensor
    """The positions of the rows that are not padding."""
    allowed: Tensor
    """n x n, bool."""
    layers: list[Layer]
    last: Tensor
    """The residual stream after the last layer, n x D."""
    logits: Tensor

    def at(self, rows: np.ndarray) -> Tensor:
        """The positions of some rows."""
        return self.rows.index_select(0, torch.from_numpy(rows))

    @property
    def prediction(self) -> int:
        return int(self.logits.argmax())

    @property
    def logit(self) -> float:
        return float(self.logits.max())

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.model.head_width)


@torch.no_grad()
def record(model: Explainable, tokens: Tensor) -> Trace:
    """Run the model on one input (T tokens)."""
    allowed = model.allowed(tokens[None])[0]
    rows = allowed[-1].nonzero()[:, 0]
    if not len(rows):
        raise ValueError("tokens: the last row may read no row; there is nothing to explain")
    allowed = allowed[rows][:, rows].contiguous()
    x = model.embed(tokens[None])[0, rows].contiguous()
    each = allowed.expand(model.heads, *allowed.shape).contiguous()
    layers, last = _pass(model, x, rows, [each] * model.layers)
    logits = model.logits(last[-1:])[0]
    if not bool(torch.isfinite(logits).all()):
        raise NotFiniteError("model: its logits are infinite or not numbers; there is nothing to explain")
    return Trace(model=model, tokens=tokens, rows=rows, allowed=allowed, layers=layers, last=last, logits=logits)


@torch.no_grad()
def record_masked(trace: Trace, masks: Tensor) -> Trace:
    """The same input with only the operations of a mask (L x H x n x n) left; a row with none reads nothing."""
    allowed = list((masks & trace.allowed).unbind(0))
    layers, last = _pass(trace.model, trace.layers[0].x, trace.rows, allowed)
    return replace(trace, layers=layers, last=last, logits=trace.model.logits(last[-1:])[0])


def _pass(model: Explainable, x: Tensor, rows: Tensor, allowed: Sequence[Tensor]) -> tuple[list[Layer], Tensor]:
    layers: list[Layer] = []
    for at, seen in enumerate(allowed):
        q, k, v = model.project(at, x, rows)
        assert q is not None
        scores = torch.matmul(q.transpose(0, 1), k.permute(1, 2, 0)).div_(math.sqrt(model.head_width))
        scores.masked_fill_(~seen, -math.inf)
        pattern = attention(scores)
        mixed = torch.matmul(pattern, v.transpose(0, 1)).transpose(0, 1).contiguous()
        after, gate = model.update(at, x, mixed), model.gate(at, x, mixed)
        layers.append(Layer(x=x, allowed=seen, q=q, k=k, v=v, scores=scores, pattern=pattern, mixed=mixed, gate=gate))
        x = after
    return layers, x


def attention(scores: Tensor) -> Tensor:
    """Softmax over the last dimension; a row with every source masked reads nothing."""
    nothing = (scores == -math.inf).all(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)
