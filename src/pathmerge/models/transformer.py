"""A pre-LN transformer with two faces on one set of weights: `forward` to train fast, `run` to read and overwrite.

Choices a reader could not guess:
- Blocks hold separate q, k, v, o and two feed-forward matrices of width d, with biases, in the shapes of the published
  models. `forward` multiplies some of them together first (`pathmerge.models.fast`); the mathematics is the same.
- Only the rows of the answer (the last one; four for text) are needed of the last block: `forward` computes no others.
- For text, rows of the answer see each other only backwards and no other row sees them: each word is predicted from
  those before it in one pass. A single answer row needs no such mask.
- "Layer" counts applied blocks: with `loops`, layer i uses the weights of block i mod `layers`.
- A subclass with a `gate` or `apply_block` of its own is trained in the plain steps of `run`, since the fast ones are
  written for ReLU. They take the weights from the module, and training gives weights to compute with; so the module is
  copied with those in the place of its own (`_holding`), which leaves the threads that share it alone.

Shapes: B batch, T rows (tokens), R rows of the answer, D width, H heads, K width of a head, Q and S rows as queries and
as sources, V vocabulary.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathmerge.errors import check_range
from pathmerge.models import fast
from pathmerge.models.config import ModelConfig
from pathmerge.models.initialise import uniform_linear
from pathmerge.models.rotary import rotate, rotation
from pathmerge.models.sites import BLOCK_SITES, FINAL_SITES, Edit, Sites
from pathmerge.problems.batch import Batch

EPSILON = 1e-5
Columns = slice | Tensor
"""Columns of an input, counted from its end (negative numbers): inputs may lack columns on the left."""


class Run(NamedTuple):
    """What `Transformer.run` gives: logits (none if it stopped before the end) and the recorded values by site."""

    logits: Tensor | None
    record: dict[str, Tensor]


class Inputs(NamedTuple):
    """A batch as a model reads it."""

    tokens: Tensor
    targets: Tensor
    """The answer's tokens, B x R: the label, or the words of its atom."""


class Block(nn.Module):
    """The weights of one layer."""

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(width, EPSILON)
        self.q, self.k, self.v, self.o = (uniform_linear(width, width, generator) for _ in range(4))
        self.ln2 = nn.LayerNorm(width, EPSILON)
        self.ff1, self.ff2 = (uniform_linear(width, width, generator) for _ in range(2))


class Transformer(nn.Module):
    """The blocks and the final norm; subclasses embed the input and read the answer."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        self.heads = config.heads
        self.layers = config.layers * config.loops
        self.blocks = nn.ModuleList(self.block_type(config.width, generator) for _ in range(config.layers))
        for block in self.blocks:
            assert isinstance(block, Block)
            for parameter in block.ff2.parameters():
                parameter.data.mul_(config.feed_forward_scale)
        self.ln_final = nn.LayerNorm(config.width, EPSILON)
        self.reach = uniform_linear(config.width, 1, generator) if config.reach else None

    # What a subclass provides.

    block_type: ClassVar[type[Block]] = Block
    """The weights of a layer; a subclass of `Block` may have more of them."""
    answer_width: int = 1
    causal: bool = False
    rotary: bool = False
    input_sites: tuple[str, ...] = ()
    one_hot: tuple[int, int] | None = None
    """How many tokens and places there are, if a row of the input is one of each, one-hot, and nothing else."""

    def inputs(self, batch: Batch) -> Inputs:
        """A batch of problems as this model reads it; raises if it cannot."""
        raise NotImplementedError

    def padding(self, tokens: Tensor) -> Tensor:
        """Which rows are padding, B x T."""
        raise NotImplementedError

    def vertices_of(self, tokens: Tensor) -> Tensor:
        """The vertex that each row is about, B x T; 0 where none."""
        raise NotImplementedError

    def embed(
        self,
        tokens: Tensor,
        weights: Mapping[str, Tensor],
        sites: Sites | None = None,
        columns: Columns | None = None,
    ) -> Tensor:
        """The residual stream before the first layer, B x T x D; `tokens` are these columns of the input (none: the
        last ones)."""
        raise NotImplementedError

    def unembed(self, x_BRD: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Logits from the normalised rows of the answer."""
        raise NotImplementedError

    def outer_weights(self) -> dict[str, Tensor]:
        """The parameters outside the blocks, by name, as `embed` and `unembed` want them."""
        raise NotImplementedError

    def gate(self, block: Block, before: Tensor, h: Tensor, /) -> Tensor:
        """What the feed-forward's units, `block.ff1(h)`, are multiplied with before `block.ff2`: 0 or 1 for ReLU.

        Other feed-forwards give something else here (for SiLU the sigmoid of `before`), and that is all: training,
        `run` and circuits follow. `h` is the normalised residual stream.
        """
        return (before > 0).to(before.dtype)

    def looped(self, loops: int) -> Self:
        """A copy whose stack of blocks is applied so many times: the same weights, another depth."""
        model = copy.deepcopy(self)
        model.config = replace(self.config, loops=loops)
        model.layers = model.config.layers * loops
        return model

    # The two faces.

    @property
    def own_gate(self) -> bool:
        """Whether a subclass has a feed-forward of its own."""
        return type(self).gate is not Transformer.gate

    @property
    def own_block(self) -> bool:
        """Whether a subclass computes whole layers in its own way."""
        return type(self).apply_block is not Transformer.apply_block

    @property
    def folds(self) -> bool:
        """Whether q·k and v·o can be multiplied together: one head of full width, nothing between q and k."""
        return self.heads == 1 and not self.rotary

    def prepare(self) -> dict[str, Tensor]:
        """The weights as `forward` uses them, computed once for all parts of a batch; differentiable."""
        if self.own_gate or self.own_block:
            return dict(self.named_parameters())
        weights: dict[str, Tensor] = {}
        for i, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            folded = fast.fold_one_head(block) if self.folds else fast.fold_heads(block, self.heads, rotary=self.rotary)
            weights |= {f"{i}.{name}": weight for name, weight in folded.items()}
        if self.folds and self.one_hot:
            weights |= fast.fold_first(weights, self.config.width, *self.one_hot)
        return {**weights, **self._outside()}

    def _outside(self) -> dict[str, Tensor]:
        """The parameters outside the blocks."""
        final = {"final.weight": self.ln_final.weight, "final.bias": self.ln_final.bias}
        if self.reach is not None:
            final |= {"reach.weight": self.reach.weight, "reach.bias": self.reach.bias}
        return {**final, **self.outer_weights()}

    def _holding(self, weights: Mapping[str, Tensor]) -> Transformer:
        """This model with these tensors in the place of its parameters."""
        return copy.deepcopy(self, {id(own): weights[name] for name, own in self.named_parameters()})

    def forward(self, tokens: Tensor, weights: Mapping[str, Tensor] | None = None) -> Tensor:
        """Logits of the answer, B x V (B x R x V for text); columns that are padding in every row are dropped."""
        return self.forward_both(tokens, weights)[0]

    def forward_both(self, tokens: Tensor, weights: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tensor | None]:
        """The same, and with `reach` the logits of "this row's vertex leads to the goal", B x T, -inf where dropped."""
        plain = self.own_gate or self.own_block
        if plain and weights is not None:
            return self._holding(weights).forward_both(tokens)
        weights = self._outside() if plain else self.prepare() if weights is None else weights
        padding = self.padding(tokens)
        columns = slice(-tokens.shape[1], None) if plain and self.rotary else used(padding, self.answer_width)
        bias = self._bias(padding[:, columns])
        turn = None
        if self.rotary:
            cosine, sine = rotation(tokens.shape[1], self.config.width // self.heads, self.ln_final.weight)
            turn = cosine[columns], sine[columns]
        width, tokens = tokens.shape[1], tokens[:, columns]
        x_BTD = self.embed(tokens, weights, columns=columns)
        real = self.config.width
        if not plain:
            x_BTD = fast.widened(x_BTD)
            bias = bias if self.folds else bias.repeat_interleave(self.heads, 0)
        reach_BT = None
        for layer in range(self.layers):
            last = self.answer_width if layer == self.layers - 1 else None
            at = layer % self.config.layers
            if self.reach is not None and layer == self.layers - 1:
                read = torch.matmul(F.layer_norm(x_BTD[..., :real], (real,)), weights["reach.weight"][0])
                reach_BT = read.new_full((len(read), width), -math.inf)
                reach_BT[:, columns] = read + weights["reach.bias"]
            if plain:
                x_BTD = self.apply_block(layer, x_BTD, bias, Sites(self.sites, None, ()))
            elif self.folds and self.one_hot and layer == 0 and last is None:
                x_BTD = fast.first_block(x_BTD, tokens, weights, bias, columns, real)
            elif self.folds:
                x_BTD = fast.one_head_block(x_BTD, weights, at, bias, last, real)
            else:
                x_BTD = fast.heads_block(x_BTD, weights, at, bias, last, real, self.heads, turn)
        x_BRD = x_BTD[:, -self.answer_width :, :real]
        x_BRD = F.layer_norm(x_BRD, (real,), weights["final.weight"], weights["final.bias"], EPSILON)
        logits = self.unembed(x_BRD, weights)
        return (logits[:, 0] if self.answer_width == 1 else logits), reach_BT

    def run(
        self,
        tokens: Tensor,
        *,
        edits: Mapping[str, Edit] | None = None,
        record: Iterable[str] = (),
        start_layer: int = 0,
        stop_layer: int | None = None,
    ) -> Run:
        """The same computation in plain steps, each value passing through its site (`self.sites` lists them).

        `start_layer=l` begins at layer l with the residual stream given as the edit of `blocks.l.hook_resid_pre`.
        `stop_layer=l` ends before layer l, without logits.
        """
        stop = self.layers if stop_layer is None else check_range("stop_layer", stop_layer, 0, self.layers)
        start = check_range("start_layer", start_layer, 0, min(stop, self.layers - 1))
        sites = Sites(self.sites, edits, record)
        weights = self.outer_weights()
        padding = self.padding(tokens)
        bias = self._bias(padding)
        if start == 0:
            x_BTD = self.embed(tokens, weights, sites)
        else:
            given = sites.edits.get(f"blocks.{start}.hook_resid_pre")
            shape = (*padding.shape, self.config.width)
            if not isinstance(given, Tensor):
                raise ValueError(f"start_layer={start}: edits must give the tensor 'blocks.{start}.hook_resid_pre'")
            x_BTD = self.ln_final.weight.new_zeros(shape)
        for layer in range(start, stop):
            x_BTD = self.apply_block(layer, x_BTD, bias, sites)
        if stop < self.layers:
            return Run(None, sites.finish())
        normal_BTD = _norm(self.ln_final, "ln_final", x_BTD, sites)
        logits = self.unembed(normal_BTD[:, -self.answer_width :], weights)
        return Run(logits[:, 0] if self.answer_width == 1 else logits, sites.finish())

    @property
    def sites(self) -> tuple[str, ...]:
        """The names that `run` knows."""
        rotary = ("attn.hook_rot_q", "attn.hook_rot_k")
        inner = [name for name in BLOCK_SITES if self.rotary or name not in rotary]
        blocks = [f"blocks.{layer}.{name}" for layer in range(self.layers) for name in inner]
        return (*self.input_sites, *blocks, *FINAL_SITES)

    def _bias(self, padding: Tensor) -> Tensor:
        """0 where a row may look, -inf where not: B x 1 x S, or B x Q x S if rows differ."""
        hidden = padding[:, None, :]
        rows = padding.shape[1]
        if self.causal or self.answer_width > 1:
            at = torch.arange(rows, device=padding.device)
            later = at[None, :] > at[:, None]
            if not self.causal:
                later = later & (at >= rows - self.answer_width)[None, :]
            # A row of padding may look at itself, so that no row is left without any.
            hidden = (hidden | later) & ~torch.eye(rows, dtype=torch.bool, device=padding.device)
        zero = self.ln_final.weight.new_zeros(())
        return torch.where(hidden, zero - math.inf, zero)

    def apply_block(self, layer: int, x_BTD: Tensor, bias: Tensor, sites: Sites, /) -> Tensor:
        """One layer in plain steps. `bias` is added to the scores: B x 1 x S, or B x Q x S if rows differ."""
        block = self.blocks[layer % self.config.layers]
        assert isinstance(block, Block)
        prefix = f"blocks.{layer}."

        def site(name: str, value: Tensor) -> Tensor:
            return sites(prefix + name, value)

        x_BTD = site("hook_resid_pre", x_BTD)
        h_BTD = _norm(block.ln1, prefix + "ln1", x_BTD, sites)
        split = (*h_BTD.shape[:2], self.heads, -1)
        q_BTHK = site("attn.hook_q", block.q(h_BTD).view(split))
        k_BTHK = site("attn.hook_k", block.k(h_BTD).view(split))
        v_BTHK = site("attn.hook_v", block.v(h_BTD).view(split))
        if self.rotary:
            turn = rotation(split[1], q_BTHK.shape[-1], q_BTHK)
            q_BTHK = site("attn.hook_rot_q", rotate(q_BTHK.transpose(1, 2), turn).transpose(1, 2))
            k_BTHK = site("attn.hook_rot_k", rotate(k_BTHK.transpose(1, 2), turn).transpose(1, 2))
        scores_BHQS = torch.einsum("bqhk,bshk->bhqs", q_BTHK, k_BTHK) / math.sqrt(q_BTHK.shape[-1])
        scores_BHQS = site("attn.hook_attn_scores", scores_BHQS + bias[:, None])
        # A row whose every source was masked by an edit attends to nothing: softmax would give nan.
        nothing = (scores_BHQS == -math.inf).all(-1, keepdim=True)
        pattern_BHQS = torch.softmax(scores_BHQS.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)
        pattern_BHQS = site("attn.hook_pattern", pattern_BHQS)
        z_BTHK = site("attn.hook_z", torch.einsum("bhqs,bshk->bqhk", pattern_BHQS, v_BTHK))
        if sites.asked(prefix + "attn.hook_result"):
            o_DHK = block.o.weight.view(-1, self.heads, z_BTHK.shape[-1])
            result_BTHD = site("attn.hook_result", torch.einsum("bthk,dhk->bthd", z_BTHK, o_DHK))
            out_BTD = result_BTHD.sum(2) + block.o.bias
        else:
            out_BTD = block.o(z_BTHK.flatten(2))
        x_BTD = site("hook_resid_mid", x_BTD + site("hook_attn_out", out_BTD))
        h_BTD = _norm(block.ln2, prefix + "ln2", x_BTD, sites)
        before_BTD = site("mlp.hook_pre", block.ff1(h_BTD))
        mask_BTD = site("mlp.hook_mask", self.gate(block, before_BTD, h_BTD))
        after_BTD = site("mlp.hook_post", before_BTD * mask_BTD)
        return site("hook_resid_post", x_BTD + site("hook_mlp_out", block.ff2(after_BTD)))


def used(padding: Tensor, answer: int) -> Columns:
    """The columns that are not padding in every row, and those of the answer, which may hold the same word."""
    width = padding.shape[1]
    dropped = padding.all(0)
    dropped[-answer:] = False
    kept = (~dropped).nonzero()[:, 0] - width
    first = int(kept[0])
    return slice(first, None) if len(kept) == -first else kept


def _norm(norm: nn.LayerNorm, name: str, x_BTD: Tensor, sites: Sites) -> Tensor:
    """LayerNorm with sites for its scale and for its output before the affine map."""
    centred = x_BTD - x_BTD.mean(-1, keepdim=True)
    scale = sites(f"{name}.hook_scale", (centred.square().mean(-1, keepdim=True) + EPSILON).sqrt())
    return sites(f"{name}.hook_normalized", centred / scale) * norm.weight + norm.bias


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """An array as a tensor, sharing its memory on the CPU."""
    return torch.from_numpy(array).to(device)
