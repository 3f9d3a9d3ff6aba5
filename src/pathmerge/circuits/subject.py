"""A model as the circuit method sees it: seven methods. Ours have them from here, models from outside in a few lines.

Everything in a transformer but attention treats each row by itself. So a model is given as maps of rows, and the method
mixes rows by attention itself: it can perturb one attention weight and compute only the rows that change.

Choices a reader could not guess:
- The product q·k is the model's own (biases, rotation and all). Queries and keys may have any width; `head_width`, the
  d of the thresholds √d/κ and of the softmax's scale, is that of the real heads.
- `gate` is what the feed-forward's activation multiplies its input with: 0 or 1 for ReLU; another activation f can give
  f(x)/x. Given to `update`, it freezes the activation.
- Models of one head are folded: q·k = x̂ A x̂ᵀ, and v followed by o is one matrix (as in `pathmerge.models.fast`), here
  with all biases: the softmax does not see the key's, but the product does.
- Rows are widened by zeros (`pathmerge.models.fast.ALIGNED`), and a normalised row by a 1 that brings the biases in.
- All of it runs on the CPU in float32; models on other devices are copied.

Shapes: B inputs, T tokens, M rows of any inputs, D width, H heads, K width of a query, W width of a value, F of the
feed-forward, V vocabulary.
"""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathmerge.kernels import rows as kernels
from pathmerge.kernels.products import apart
from pathmerge.models.fast import ALIGNED, widened
from pathmerge.models.rotary import rotate, rotation
from pathmerge.models.sequence_transformer import SequenceTransformer
from pathmerge.models.sites import Sites
from pathmerge.models.transformer import EPSILON, Block, Transformer
from pathmerge.parallel import Workers
from pathmerge.problems.batch import Batch


class Explainable(Protocol):
    """What `pathmerge.explain` asks of a model. `check_model` tries all of it."""

    layers: int
    heads: int
    head_width: int
    """d in the thresholds √d/κ; scores are products divided by √head_width."""
    has_positions: bool
    """Whether a position embedding is added, which `embed` can leave out."""

    def tokens(self, batch: Batch) -> Tensor:
        """A batch as the model reads it: B x T vertex and marker tokens, or B x T x 3 edges (source, target, kind)."""
        ...

    def allowed(self, tokens: Tensor) -> Tensor:
        """Which rows may read which, B x T x T, bool: row j reads row i where [.., j, i]. The last row answers."""
        ...

    def embed(self, tokens: Tensor, without: Tensor | None = None) -> Tensor:
        """The residual stream before layer 0, B x T x D; where `without` (B x T, bool), the position's part is zero."""
        ...

    def project(
        self, layer: int, x: Tensor, rows: Tensor, queries: bool = True
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Queries and keys (M x H x K) and values (M x H x W) of residual rows (M x D) that stand at positions `rows`
        (M); no queries where they are not asked for."""
        ...

    def update(self, layer: int, x: Tensor, mixed: Tensor, gate: Tensor | None = None) -> Tensor:
        """The residual rows after the layer (M x D), from the rows before it and the attention's weighted sums of
        values (M x H x W); with `gate` (M x F), the activation is replaced by a multiplication with it."""
        ...

    def gate(self, layer: int, x: Tensor, mixed: Tensor) -> Tensor:
        """What the feed-forward's activation multiplies its input with, M x F, in the same situation."""
        ...

    def logits(self, x: Tensor) -> Tensor:
        """The model's output, M x V, from rows after the last layer."""
        ...


REQUIRED = (
    *("layers", "heads", "head_width", "has_positions"),
    *("tokens", "allowed", "embed", "project", "update", "gate", "logits"),
)


def as_explainable(model: Any) -> Explainable:
    """The model itself if it has the seven methods, an adapter for one of ours; an error of one line for others."""
    if isinstance(model, Transformer):
        return TransformerSubject(model)
    missing = [name for name in REQUIRED if not hasattr(model, name)]
    if missing:
        raise ValueError(
            f"model={type(model).__name__}: has no attention weights to perturb: must be a model of pathmerge or have "
            f"{', '.join(REQUIRED)} (missing: {', '.join(missing)})"
        )
    return model


class Folded(NamedTuple):
    """A layer of a model of one head, as matrices that normalised rows and a 1 are multiplied with from the left; their
    rows stand apart (`kernels.products`)."""

    mix: np.ndarray
    """From keys to queries, K x K."""
    move: np.ndarray
    """From weighted sums of keys to what is added to the residual stream, K x D."""
    first: np.ndarray
    """Of the feed-forward, K x F."""
    second: np.ndarray
    """From the activation to what is added to the residual stream, F x D."""
    bias: np.ndarray
    """Of the attention's output."""
    inner: np.ndarray
    """Of the activation's input: the row of `first` for the 1."""
    after: np.ndarray
    """Of the feed-forward's output."""


class TransformerSubject:
    """Our transformers as `Explainable`."""

    def __init__(self, model: Transformer) -> None:
        if model.own_block:
            raise ValueError(
                f"model={type(model).__name__}: computes its layers in its own way; to be explained it must be given "
                f"as an object with {', '.join(REQUIRED)}"
            )
        if model.answer_width > 1:
            raise ValueError("model: reads and writes text; circuits explain models that answer one vertex")
        if model.ln_final.weight.device.type != "cpu" or model.ln_final.weight.dtype != torch.float32:
            model = copy.deepcopy(model).to("cpu", torch.float32)
        self.model = model
        self.layers, self.heads = model.layers, model.heads
        self.width = model.config.width
        self._normal_width = self.width + 1 + -(self.width + 1) % ALIGNED
        self.head_width = self.width // model.heads
        self.has_positions = "hook_pos_embed" in model.input_sites
        with torch.no_grad(), Workers(1):
            self._blocks = [self._fold(block) for block in model.blocks if isinstance(block, Block)]
        self._folded = [self._as_matrices(block) for block in self._blocks] if model.folds else []
        if model.rotary:
            tokens: int = model.config.tokens  # pyright: ignore[reportAttributeAccessIssue]
            self._rotation = rotation(tokens, self.head_width, model.ln_final.weight)
        final = model.ln_final
        self._final = (final.weight.detach(), final.bias.detach())
        # Column by column: what `unembed` multiplies with are their transposes, and with a small matrix the other way
        # round, too, the rounding depends on the number of rows (see `_product`).
        outer = {name: value.detach() for name, value in model.outer_weights().items()}
        self._outer = {name: value.t().contiguous().t() if value.ndim == 2 else value for name, value in outer.items()}

    def tokens(self, batch: Batch) -> Tensor:
        return self.model.inputs(batch).tokens

    def allowed(self, tokens: Tensor) -> Tensor:
        bias = self.model._bias(self.model.padding(tokens))  # pyright: ignore[reportPrivateUsage]
        return (bias == 0).expand(tokens.shape[0], tokens.shape[1], tokens.shape[1])

    def embed(self, tokens: Tensor, without: Tensor | None = None) -> Tensor:
        edits = {}
        if without is not None and self.has_positions:
            edits = {"hook_pos_embed": lambda places: places.masked_fill(without[:, :, None], 0.0)}
        return widened(self.model.embed(tokens, self._outer, Sites(self.model.input_sites, edits, ())).detach())

    def project(
        self, layer: int, x: Tensor, rows: Tensor, queries: bool = True
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        weights = self._blocks[layer % len(self._blocks)]
        h = torch.empty(len(x), self._normal_width)
        kernels.normalise_one(x.contiguous().numpy(), self.width, _EPSILON, h.numpy())
        if self.model.folds:
            h_MHK = h[:, None]
            return _product(h, weights["A"])[:, None] if queries else None, h_MHK, h_MHK
        k, v = _product(h, weights["KV"]).view(len(x), 2, self.heads, self.head_width).unbind(1)
        q = _product(h, weights["Q"]).view(len(x), self.heads, self.head_width) if queries else None
        return None if q is None else self._turned(q, rows), self._turned(k, rows), v

    def _turned(self, x: Tensor, rows: Tensor) -> Tensor:
        if not self.model.rotary:
            return x
        cosine, sine = self._rotation
        return rotate(x, (cosine[rows][:, None], sine[rows][:, None]))

    def update(self, layer: int, x: Tensor, mixed: Tensor, gate: Tensor | None = None) -> Tensor:
        x_MD, before_MF, h_MD = self._halfway(layer, x, mixed)
        if gate is None and self.model.own_gate:
            gate = self._own_gate(layer, before_MF, h_MD)
        after_MF = before_MF.relu_() if gate is None else before_MF.mul_(gate)
        return _product(after_MF, self._blocks[layer % len(self._blocks)]["W2"], onto=x_MD)

    @property
    def doubles(self) -> bool:
        """Whether rows can be doubled: what the feed-forward reads of a row, but for the norm's scale, stands beside
        it, M x 2D, and sums of rows are then sums of both. Asks for one head, and that no subclass changes a step."""
        return self.model.folds and not self.model.own_gate and type(self) is TransformerSubject

    def double_rows(self, layer: int, x: Tensor) -> Tensor:
        """Residual rows before the layer, with the bias of the attention's output, doubled."""
        weights = self._blocks[layer % len(self._blocks)]
        return _product(x + weights["bias"], weights["double"])

    def double_values(self, layer: int, values: Tensor) -> Tensor:
        """Values or weighted sums of them (M x 1 x W) as they are added to the residual stream, doubled."""
        return _product(values[:, 0], self._blocks[layer % len(self._blocks)]["M double"])

    def doubling(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """The matrices of `double_rows` and `double_values`."""
        return self._doubling[layer % len(self._blocks)]

    @cached_property
    def _doubling(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(apart(block["double"].numpy()), apart(block["M double"].numpy())) for block in self._blocks]

    @property
    def embeds_rows(self) -> bool:
        """Whether a row's embedding depends on its own token and position only, one token to a row."""
        return isinstance(self.model, SequenceTransformer) and type(self.model).embed is SequenceTransformer.embed

    def reads(self, layer: int, keys: Tensor) -> Tensor:
        """q·k is also a product of q's own key with this, of k (M x 1 x K): M x K."""
        return _product(keys[:, 0], self._blocks[layer % len(self._blocks)]["A back"])

    def folded(self, layer: int) -> Folded:
        """The matrices of a layer, for kernels; of models that can be doubled."""
        return self._folded[layer % len(self._blocks)]

    @cached_property
    def all_folded(self) -> Folded:
        """The same of all layers, one above the other."""
        stacked = (np.stack(parts) for parts in zip(*map(self.folded, range(self.layers)), strict=True))
        return Folded(*(apart(parts) if parts.ndim == 3 else parts for parts in stacked))

    def gate(self, layer: int, x: Tensor, mixed: Tensor) -> Tensor:
        _, before_MF, h_MD = self._halfway(layer, x, mixed)
        return self._own_gate(layer, before_MF, h_MD) if self.model.own_gate else (before_MF > 0).float()

    @torch.no_grad()
    def _own_gate(self, layer: int, before: Tensor, h: Tensor) -> Tensor:
        """The gate of a subclass, from the activation's input and the normalised rows without gain and bias."""
        if 0 < len(h) < COMPANY:
            return self._own_gate(layer, _in_company(before), _in_company(h))[: len(h)]
        block = self.model.blocks[layer % len(self._blocks)]
        assert isinstance(block, Block)
        rows_MD = h[:, : self.width] * block.ln2.weight + block.ln2.bias
        return widened(self.model.gate(block, before[None, :, : self.width], rows_MD[None])[0])

    def _halfway(self, layer: int, x: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The residual rows with the attention's output and the second bias added, the activation's input, and the
        normalised rows it comes from, with a column of ones."""
        weights = self._blocks[layer % len(self._blocks)]
        x_MD = _product(mixed.flatten(1), weights["M"])
        h_MD = torch.empty(len(x), self._normal_width)
        biases = (weights["bias"].numpy(), weights["b2"].numpy())
        kernels.add_normalise(x.contiguous().numpy(), self.width, *biases, _EPSILON, x_MD.numpy(), h_MD.numpy())
        return x_MD, _product(h_MD, weights["W1"]), h_MD

    def logits(self, x: Tensor) -> Tensor:
        x = x[:, : self.width]
        normal = F.layer_norm(_in_company(x), (self.width,), *self._final, EPSILON)
        return self.model.unembed(normal, self._outer)[: len(x)]

    def _as_matrices(self, block: dict[str, Tensor]) -> Folded:
        mix, move, first, second = (apart(block[name].numpy()) for name in ("A", "M", "W1", "W2"))
        bias, inner, after = (part.numpy() for part in (block["bias"], block["W1"][self.width], block["b2"]))
        return Folded(mix=mix, move=move, first=first, second=second, bias=bias, inner=inner, after=after)

    def _fold(self, block: Block) -> dict[str, Tensor]:
        """The block's matrices for normalised rows without gain and bias, multiplied in float64."""
        q, k, v = (_with_bias(layer, block.ln1) for layer in (block.q, block.k, block.v))
        out = widened(block.o.weight.double().t())
        weights = {
            "W1": widened(_with_bias(block.ff1, block.ln2).t(), 2),
            "W2": widened(block.ff2.weight.double().t(), 2),
            "b2": widened(block.ff2.bias),
            "bias": widened(block.o.bias),
        }
        if self.model.folds:
            weights |= {"A": widened(q.t() @ k, 2), "M": widened(v.t() @ out, 2)}
            weights["A back"] = weights["A"].t()
            read = weights["W1"][: self.width]
            read = widened((read - read.mean(0)).t()).t()  # of a row that is not centred yet
            weights["double"] = torch.cat([torch.eye(len(read), dtype=read.dtype), read], 1)
            weights["M double"] = weights["M"] @ weights["double"]
        else:
            weights |= {"Q": widened(q).t(), "KV": widened(torch.cat([k, v])).t(), "M": out}
        return {name: value.detach().float().contiguous() for name, value in weights.items()}


COMPANY = 8
"""Rows that are multiplied at the least: libraries multiply fewer (one, on some processors up to three) in another way,
which rounds differently, and a result would depend on what else is computed with it."""


def _in_company(x: Tensor) -> Tensor:
    """Rows, and copies of them where they are few."""
    return x.repeat(-(-COMPANY // len(x)), 1) if 0 < len(x) < COMPANY else x


def _product(x: Tensor, weight: Tensor, onto: Tensor | None = None) -> Tensor:
    """x @ weight, added to `onto` in place if given."""
    if 0 < len(x) < COMPANY:
        return _product(_in_company(x), weight, None if onto is None else _in_company(onto))[: len(x)]
    return torch.mm(x, weight) if onto is None else onto.addmm_(x, weight)


def _with_bias(layer: nn.Linear, norm: nn.LayerNorm) -> Tensor:
    """The matrix that takes a normalised row and a 1, before the norm's gain and bias, to the layer's output."""
    weight = layer.weight.double()
    bias = weight @ norm.bias.double() + layer.bias.double()
    return torch.cat([weight * norm.weight.double(), bias[:, None]], 1)


_EPSILON = np.float32(EPSILON)
