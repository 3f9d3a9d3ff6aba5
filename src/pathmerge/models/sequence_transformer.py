"""The paper's model: one-hot token and one-hot position side by side, free dimensions between them (SPEC section 3).

Choices a reader could not guess:
- The residual stream is [vocabulary | hidden | positions]; the input sets one token and one position dimension to 1.
- Logits are the first coordinates of the answer's row after the final norm: a fixed embedding, tied.
- Learned embeddings, learned, rotary or no positions, a causal mask and text are options of the same class; the rotary
  decoder is a set of them under a name of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathmerge.layout import Layout
from pathmerge.models.config import OneHot
from pathmerge.models.initialise import match, normal_table
from pathmerge.models.sites import Sites
from pathmerge.models.transformer import Block, Columns, Inputs, Transformer, to_device
from pathmerge.problems.batch import Batch


class SequenceTransformer(Transformer):
    """A transformer over a row of tokens, symbolic or text."""

    config: OneHot
    input_sites = ("hook_embed", "hook_pos_embed")

    def __init__(self, config: OneHot, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        super().__init__(config, generator)
        self.answer_width = config.answer_width
        self.causal = config.causal
        self.rotary = config.positions == "rotary"
        if config.embedding == "onehot" and config.positions == "onehot":
            self.one_hot = (config.vocabulary, config.tokens)
        self.embedding: nn.Parameter | None = None
        self.positions: nn.Parameter | None = None
        if config.embedding == "learned":
            self.embedding = normal_table(config.vocabulary, config.width, generator)
        if config.positions == "learned":
            self.positions = normal_table(config.tokens, config.width, generator)
        if config.positions in ("rotary", "none"):
            self.input_sites = ("hook_embed",)
        if config.legible:
            self._make_legible(config)
        if config.initialisation == "matching":
            self._match(config)

    @torch.no_grad()
    def _make_legible(self, config: OneHot) -> None:
        for block in self.blocks[:-1]:
            assert isinstance(block, Block)
            for written in block.o.parameters():
                written[self._matched_columns(config)] = 0

    @staticmethod
    def _matched_columns(config: OneHot) -> range:
        """The dimensions of one-hot vertices (words, for text) in the residual stream."""
        return range(config.matched) if config.text else range(1, config.matched + 1)

    def _match(self, config: OneHot) -> None:
        head = config.width // config.heads
        for block in self.blocks:
            assert isinstance(block, Block)
            for first in range(0, config.width, head):
                learned = config.embedding == "learned"
                columns = range(first, first + head) if learned else self._matched_columns(config)
                match(block.q, block.k, first, columns, columns, config.matching)
        if config.joining:
            block = self.blocks[0]
            assert isinstance(block, Block)
            ends, others = self._ends_of_edges(config)
            for first in range(0, config.width, head):
                match(block.q, block.k, first + config.matched, ends, others, config.joining)
        if config.following:
            self._follow(config, config.following)
        if config.asking:
            last, goal = config.width - 1, config.width - Layout(config.input_size).region_width - 1
            for block in self.blocks[:-1]:
                assert isinstance(block, Block)
                match(block.q, block.k, last, [last], [goal], config.asking)

    @torch.no_grad()
    def _follow(self, config: OneHot, by: float) -> None:
        """Make queries read what attention will have copied: a vertex that a row takes over from another stands there
        as its image under the layer's value and output matrices, and what is taken over from there as the image's
        image. Each layer reads as much of the one as of the other."""
        vertices = torch.arange(1, config.matched + 1)
        rows = torch.arange(config.matched, 2 * config.matched)
        copies_DV = torch.eye(config.width)[:, vertices]
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            if layer:
                block.q.weight[rows] += by * copies_DV.t()
                block.k.weight[rows, vertices] += by
            images_DV = F.normalize(block.o.weight @ (block.v.weight @ copies_DV), dim=0)
            copies_DV = (copies_DV + images_DV) / math.sqrt(2) if layer else images_DV

    @staticmethod
    def _ends_of_edges(config: OneHot) -> tuple[list[int], list[int]]:
        """The dimensions of the positions of all ends of edges, and beside each that of its edge's other end."""
        layout = Layout(config.input_size)
        last = config.width - layout.region_width - 3  # before QUERY, start, goal and the region
        sources = [last - 2 - 3 * slot for slot in range(layout.max_edges)]
        targets = [last - 1 - 3 * slot for slot in range(layout.max_edges)]
        return [*sources, *targets], [*targets, *sources]

    def inputs(self, batch: Batch) -> Inputs:
        config, problem = self.config, batch.distribution
        if problem.input_size != config.input_size or (problem.name == "language") != config.text:
            kind = "text" if config.text else "symbolic tokens"
            raise ValueError(f"{problem.describe()}: the model reads {kind} of input_size={config.input_size}")
        device = self.ln_final.weight.device
        if not config.text:
            return Inputs(to_device(batch.tokens, device), to_device(batch.label, device)[:, None])
        from pathmerge.encodings.sentences import LanguageBatch

        assert isinstance(batch, LanguageBatch)
        answer = to_device(batch.label_tokens, device)
        tokens = to_device(batch.tokens, device).clone()
        tokens[:, -config.answer_width + 1 :] = answer[:, :-1]  # each row of the answer sees the words before it
        return Inputs(tokens, answer)

    def padding(self, tokens: Tensor) -> Tensor:
        return tokens == self.config.pad

    def vertices_of(self, tokens: Tensor) -> Tensor:
        return torch.where(tokens <= self.config.vocabulary - 5, tokens, 0)

    def embed(
        self,
        tokens: Tensor,
        weights: Mapping[str, Tensor],
        sites: Sites | None = None,
        columns: Columns | None = None,
    ) -> Tensor:
        config = self.config
        if config.embedding == "learned":
            x_BTD = weights["embedding"][tokens]
        else:
            x_BTD = self.ln_final.weight.new_zeros(*tokens.shape, config.width)
            x_BTD.scatter_(2, tokens[:, :, None], 1.0)
        if sites is not None:
            x_BTD = sites("hook_embed", x_BTD)
        if config.positions not in ("onehot", "learned"):
            return x_BTD
        columns = slice(-tokens.shape[1], None) if columns is None else columns
        if config.positions == "learned":
            places_TD = weights["positions"][columns]
        else:
            at = torch.arange(config.width - config.tokens, config.width, device=x_BTD.device)[columns]
            places_TD = x_BTD.new_zeros(len(at), config.width).scatter_(1, at[:, None], 1.0)
        if sites is not None:
            places_TD = sites("hook_pos_embed", places_TD.expand(x_BTD.shape))
        return x_BTD + places_TD

    def unembed(self, x_BRD: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        if self.config.embedding == "learned":
            return x_BRD @ weights["embedding"].t()
        return x_BRD[..., : self.config.vocabulary]

    def outer_weights(self) -> dict[str, Tensor]:
        found = {"embedding": self.embedding, "positions": self.positions}
        return {name: value for name, value in found.items() if value is not None}
