"""Step I: an ordinary pass over one input or several, with everything the later steps compare with.

Choices a reader could not guess:
- Only rows that are not padding are kept: no other row can read a padding row, so it can matter to nothing.
- The rows of several inputs stand one after the other. Inputs of one trace have nothing to do with each other; they are
  together because one operation on many rows takes less time than many on few. What comes out for an input does not
  depend on the others, to the last bit: whatever mixes rows is computed for each input by itself.

Shapes: G inputs, R rows of all inputs, n rows of the longest, D width, H heads, K and W widths of queries and values.
For one input R = n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from pathmerge.circuits.subject import Explainable, TransformerSubject
from pathmerge.errors import NotFiniteError
from pathmerge.kernels import attention as kernels


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What one layer computed. Sources are counted within their input; there are none beyond its rows."""

    x: Tensor
    """The residual stream before the layer, R x D."""
    allowed: Tensor
    """Which rows may read which, H x R x n, bool."""
    q: Tensor
    k: Tensor
    v: Tensor
    scores: Tensor
    """H x R x n, scaled; -inf where a row may not look."""
    pattern: Tensor
    tops: Tensor
    """The largest score of each row, H x R."""
    sums: Tensor
    """The sum of exp(score - top), H x R."""
    mixed: Tensor
    """The weighted sums of values, R x H x W."""
    gate: Tensor

    @cached_property
    def base(self) -> tuple[np.ndarray, ...]:
        """As the kernels want it: scores, pattern, tops, sums, values, mixed, keys."""
        parts = (self.scores, self.pattern, self.tops, self.sums, self.v, self.mixed, self.k)
        return tuple(value.contiguous().numpy() for value in parts)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The ordinary pass of one input, or of several."""

    model: Explainable
    tokens: Tensor
    """G x T, or G x T x 3 for edges."""
    rows: Tensor
    """The positions of the rows that are not padding, R."""
    first: np.ndarray
    """Input g owns rows first[g]..first[g+1]-1."""
    allowed: Tensor
    """R x n, bool."""
    layers: list[Layer]
    last: Tensor
    """The residual stream after the last layer, R x D."""
    logits: Tensor
    """G x V."""

    def __len__(self) -> int:
        return len(self.first) - 1

    @cached_property
    def counts(self) -> np.ndarray:
        """The rows of each input."""
        return np.diff(self.first)

    @cached_property
    def owner(self) -> np.ndarray:
        """The input of each row."""
        return np.repeat(np.arange(len(self)), self.counts)

    @cached_property
    def predictions(self) -> np.ndarray:
        return self.logits.argmax(-1).numpy()

    @cached_property
    def best(self) -> np.ndarray:
        """The logits of the predictions, G."""
        return self.logits.amax(-1).numpy()

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.model.head_width)

    def sees_all(self, layer: int) -> bool:
        """Whether every row may read every row of its input."""
        allowed = self.layers[layer].allowed
        return int(np.count_nonzero(allowed.numpy())) == len(allowed) * int((self.counts**2).sum())

    @cached_property
    def doubles(self) -> bool:
        """Whether the model's rows can be doubled (`TransformerSubject.doubles`)."""
        return isinstance(self.model, TransformerSubject) and self.model.doubles

    @cached_property
    def _doubled(self) -> dict[int, tuple[np.ndarray, ...]]:
        return {}

    def doubled(self, at: int) -> tuple[np.ndarray, ...]:
        """Doubled, of the base rows of a layer: residual rows, weighted sums of values, values; R x 2D each."""
        model = self.model
        assert isinstance(model, TransformerSubject)
        if at not in self._doubled:
            layer = self.layers[at]
            rows, sums = model.double_rows(at, layer.x), model.double_values(at, layer.mixed)
            self._doubled[at] = (rows.numpy(), sums.numpy(), model.double_values(at, layer.v).numpy())
        return self._doubled[at]

    @cached_property
    def stacked(self) -> tuple[np.ndarray, np.ndarray]:
        """Of all layers of a model of one head: the residual rows before them, L x R x D, and which rows may read
        which, L x R x n."""
        return (
            np.stack([layer.x.numpy() for layer in self.layers]),
            np.stack([layer.allowed.numpy()[0] for layer in self.layers]),
        )

    @cached_property
    def attended(self) -> np.ndarray:
        """Doubled, the base rows of the first layer with the attention's output; R x 2D."""
        model, layer = self.model, self.layers[0]
        assert isinstance(model, TransformerSubject)
        return (model.double_rows(0, layer.x) + model.double_values(0, layer.mixed)).numpy()

    @cached_property
    def _read(self) -> dict[int, tuple[np.ndarray, ...]]:
        return {}

    def read(self, at: int) -> tuple[np.ndarray, ...]:
        """Of the base rows of a layer of a model of one head: keys, queries, and what a key gives the product q·k with
        in place of a query; R x K each."""
        model = self.model
        assert isinstance(model, TransformerSubject)
        if at not in self._read:
            layer = self.layers[at]
            parts = (layer.k[:, 0], layer.q[:, 0], model.reads(at, layer.k))
            self._read[at] = tuple(part.contiguous().numpy() for part in parts)
        return self._read[at]


@torch.no_grad()
def record(model: Explainable, tokens: Tensor) -> Trace:
    """Run the model on some inputs (G x T tokens, or G x T x 3)."""
    may = model.allowed(tokens).expand(len(tokens), -1, -1)
    count, width = may.shape[:2]
    rows = [np.flatnonzero(reads) for reads in may[:, -1].numpy()]
    if not all(map(len, rows)):
        raise ValueError("tokens: the last row may read no row; there is nothing to explain")
    first = np.cumsum([0, *map(len, rows)])
    allowed = torch.zeros(int(first[-1]), max(map(len, rows)), dtype=torch.bool)
    for own, here, (low, high) in zip(rows, may.numpy(), pairwise(first), strict=True):
        allowed.numpy()[low:high, : high - low] = here[np.ix_(own, own)]
    places = torch.from_numpy(np.concatenate([g * width + own for g, own in enumerate(rows)]))
    x = model.embed(tokens).reshape(count * width, -1).index_select(0, places)
    each = allowed.expand(model.heads, *allowed.shape).contiguous()
    positions = torch.from_numpy(np.concatenate(rows))
    layers, last = _pass(model, x, positions, first, [each] * model.layers)
    logits = model.logits(last.index_select(0, torch.from_numpy(first[1:] - 1)))
    if not bool(torch.isfinite(logits).all()):
        raise NotFiniteError("model: its logits are infinite or not numbers; there is nothing to explain")
    return Trace(
        model=model,
        tokens=tokens,
        rows=positions,
        first=first,
        allowed=allowed,
        layers=layers,
        last=last,
        logits=logits,
    )


@torch.no_grad()
def record_masked(trace: Trace, masks: Sequence[Tensor]) -> Trace:
    """The same inputs with only the operations of a mask (L x H x R x n) left, once for each mask: all inputs with the
    first, then all with the second; a row with none reads nothing. Of gates nothing is kept."""
    count, rows = len(masks), len(trace.rows)
    allowed = [torch.cat([mask[at] & trace.allowed for mask in masks], 1) for at in range(trace.model.layers)]
    first = np.concatenate([[0], (np.arange(count)[:, None] * rows + trace.first[1:]).reshape(-1)])
    positions = trace.rows.repeat(count)
    layers, last = _pass(trace.model, trace.layers[0].x.repeat(count, 1), positions, first, allowed, gates=False)
    return Trace(
        model=trace.model,
        tokens=torch.cat([trace.tokens] * count),
        rows=positions,
        first=first,
        allowed=trace.allowed.repeat(count, 1),
        layers=layers,
        last=last,
        logits=trace.model.logits(last.index_select(0, torch.from_numpy(first[1:] - 1))),
    )


def _pass(
    model: Explainable, x: Tensor, rows: Tensor, first: np.ndarray, allowed: Sequence[Tensor], gates: bool = True
) -> tuple[list[Layer], Tensor]:
    layers: list[Layer] = []
    scale = np.float32(1 / math.sqrt(model.head_width))
    for at, seen in enumerate(allowed):
        q, k, v = model.project(at, x, rows)
        assert q is not None
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        scores, mixed = torch.empty(seen.shape), torch.empty(v.shape)
        pattern, tops, sums = torch.empty(seen.shape), torch.empty(seen.shape[:2]), torch.empty(seen.shape[:2])
        given = (value.numpy() for value in (q, k, v, seen.contiguous()))
        made = (value.numpy() for value in (scores, pattern, tops, sums, mixed))
        kernels.attend_all(*given, first, scale, *made)
        after, gate = model.update(at, x, mixed), model.gate(at, x, mixed) if gates else x[:0]
        layers.append(
            Layer(
                x=x,
                allowed=seen,
                q=q,
                k=k,
                v=v,
                scores=scores,
                pattern=pattern,
                tops=tops,
                sums=sums,
                mixed=mixed,
                gate=gate,
            )
        )
        x = after
    return layers, x


def attention(scores: Tensor) -> Tensor:
    """Softmax over the last dimension; a row with every source masked reads nothing."""
    nothing = (scores == -math.inf).all(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)
