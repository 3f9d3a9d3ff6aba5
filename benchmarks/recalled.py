"""Looped edge tokens that are given their input again before each loop, as a file for `--use`: a trial of
docs/experiments.md.

    .venv/bin/pathmerge --use benchmarks/recalled.py train --recipe efficient --input-size 64 --model edges-recalled \\
      --model.layers 1 --model.loops 5

Before each application of the blocks but the first, the embedded input is added to the residual stream, times a learned
gain for each of its numbers that begins at `RECALLED`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from pathmerge import Edges, register
from pathmerge.models.edge_transformer import EdgeTransformer
from pathmerge.models.sites import Sites
from pathmerge.models.transformer import Columns

RECALLED = 1.0


class RecalledTransformer(EdgeTransformer):
    """Keeps what it embedded for as long as a pass takes; one pass at a time."""

    def __init__(self, config: RecalledEdges, seed: int) -> None:
        super().__init__(config, seed)
        self.recall = nn.Parameter(torch.full((config.width,), RECALLED))
        self.embedded: Tensor | None = None

    def embed(
        self,
        tokens: Tensor,
        weights: Mapping[str, Tensor],
        sites: Sites | None = None,
        columns: Columns | None = None,
    ) -> Tensor:
        self.embedded = super().embed(tokens, weights, sites, columns)
        return self.embedded

    def apply_block(self, layer: int, x: Tensor, bias: Tensor, sites: Sites, /) -> Tensor:
        if layer > 0 and layer % self.config.layers == 0:
            assert self.embedded is not None
            x = x + self.recall * self.embedded
        if layer == self.layers - 1:
            self.embedded = None  # a copy of the model must not find it
        return super().apply_block(layer, x, bias, sites)


@register
@dataclass(frozen=True, kw_only=True)
class RecalledEdges(Edges):
    """The edge-token transformer with input recall."""

    name: ClassVar[str] = "edges-recalled"

    def build(self, seed: int = 0) -> RecalledTransformer:
        return RecalledTransformer(self, seed)
