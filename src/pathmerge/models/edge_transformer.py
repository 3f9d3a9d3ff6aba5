"""One token per edge, source and target embedded side by side by one shared table, no positions (IDEAS rows 3, 7b).

Choices a reader could not guess:
- The residual stream is [source | target | free], each part as wide as the table's vectors. The kind of a token (edge,
  query, visited step, current vertex) is a learned vector over the whole width.
- The query is the edge goal → start and stands last; its row gives the answer. A learned map takes that row to a vector
  which is compared with the table of vertices: tied.
- Without positions the order of edges cannot matter. Padding is moved to the left, so that it can be dropped.
- `matching`: even heads start with "my target is your source", odd heads with "my source is your target"; one head
  alone starts with both.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from pathmerge.encodings.edges import EDGE, PAD, encode
from pathmerge.models.config import Edges
from pathmerge.models.initialise import match, normal_table, uniform_linear
from pathmerge.models.sites import Sites
from pathmerge.models.transformer import Block, Columns, Inputs, Transformer, to_device
from pathmerge.problems.batch import Batch

KINDS = 5


class EdgeTransformer(Transformer):
    """A transformer over a set of edges."""

    config: Edges
    input_sites = ("hook_embed",)

    def __init__(self, config: Edges, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        super().__init__(config, generator)
        self.vertices = normal_table(config.vocabulary, config.end, generator, config.spread)
        self.kinds = normal_table(KINDS, config.width, generator, config.spread)
        self.answer = uniform_linear(config.width, config.end, generator)
        if config.initialisation == "matching":
            self._match(config)

    def _match(self, config: Edges) -> None:
        source, target = range(config.end), range(config.end, 2 * config.end)
        head = config.width // config.heads
        for block in self.blocks:
            assert isinstance(block, Block)
            for i in range(config.heads):
                ways = [(target, source), (source, target)]
                chosen = ways if config.heads == 1 else [ways[i % 2]]
                for n, (asked, offered) in enumerate(chosen):
                    match(block.q, block.k, i * head + n * config.end, asked, offered, config.matching)

    def inputs(self, batch: Batch) -> Inputs:
        problem = batch.distribution
        if problem.input_size != self.config.input_size or problem.name == "language":
            raise ValueError(f"{problem.describe()}: the model reads edges of input_size={self.config.input_size}")
        encoded = encode(batch)
        order = np.argsort(encoded.kind != PAD, axis=1, kind="stable")
        both = np.concatenate([encoded.pairs, encoded.kind[:, :, None]], axis=2)
        tokens = np.take_along_axis(both, order[:, :, None], axis=1)
        device = self.ln_final.weight.device
        return Inputs(to_device(tokens, device), to_device(batch.label, device)[:, None])

    def padding(self, tokens: Tensor) -> Tensor:
        return tokens[:, :, 2] == PAD

    def vertices_of(self, tokens: Tensor) -> Tensor:
        return torch.where(tokens[:, :, 2] == EDGE, tokens[:, :, 1], 0)

    def embed(
        self,
        tokens: Tensor,
        weights: Mapping[str, Tensor],
        sites: Sites | None = None,
        columns: Columns | None = None,
    ) -> Tensor:
        ends_BTE = weights["vertices"][tokens[:, :, :2]].flatten(2)
        free_BTE = ends_BTE.new_zeros(*tokens.shape[:2], self.config.end)
        x_BTD = torch.cat([ends_BTE, free_BTE], dim=2) + weights["kinds"][tokens[:, :, 2]]
        return x_BTD if sites is None else sites("hook_embed", x_BTD)

    def unembed(self, x_BRD: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        read = torch.matmul(x_BRD, weights["answer.weight"].t()) + weights["answer.bias"]
        return read @ weights["vertices"].t()

    def outer_weights(self) -> dict[str, Tensor]:
        return {
            "vertices": self.vertices,
            "kinds": self.kinds,
            "answer.weight": self.answer.weight,
            "answer.bias": self.answer.bias,
        }
