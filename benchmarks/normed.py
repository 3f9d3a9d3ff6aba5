"""Edge tokens with normalised queries and keys (QK-norm), as a file for `--use`: a trial of docs/experiments.md.

    .venv/bin/pathmerge --use benchmarks/normed.py train --recipe efficient --input-size 64 --model edges-normed

Each head's query and key have root mean square 1, times a learned gain for each of their numbers: how sharp attention
is no longer depends on how large the residual stream or the weights have grown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from pathmerge import Edges, register
from pathmerge.models.edge_transformer import EdgeTransformer
from pathmerge.models.sites import Sites
from pathmerge.models.transformer import Block


class NormedLinear(nn.Linear):
    """A linear map whose output is normalised head by head; begins with the weights of a plain one."""

    def __init__(self, plain: nn.Linear, heads: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.heads = plain.in_features, plain.out_features, heads
        self.weight, self.bias = plain.weight, plain.bias
        self.gain = nn.Parameter(torch.ones(plain.out_features // heads))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        split = super().forward(input).unflatten(-1, (self.heads, -1))
        return rms_norm(split, self.gain.shape, self.gain, 1e-6).flatten(-2)


class NormedTransformer(EdgeTransformer):
    """The blocks' q and k normalise what they give."""

    def __init__(self, config: NormedEdges, seed: int) -> None:
        super().__init__(config, seed)
        for block in self.blocks:
            assert isinstance(block, Block)
            block.q, block.k = NormedLinear(block.q, self.heads), NormedLinear(block.k, self.heads)

    def apply_block(self, layer: int, x: Tensor, bias: Tensor, sites: Sites, /) -> Tensor:
        """As ever; a method of its own says that the fast way, which multiplies q with k beforehand, is not open."""
        return super().apply_block(layer, x, bias, sites)


@register
@dataclass(frozen=True, kw_only=True)
class NormedEdges(Edges):
    """The edge-token transformer with normalised queries and keys."""

    name: ClassVar[str] = "edges-normed"

    def build(self, seed: int = 0) -> NormedTransformer:
        return NormedTransformer(self, seed)
