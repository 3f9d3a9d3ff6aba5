"""Untrained models in which much happens, of every kind that circuits are found in."""

from __future__ import annotations

import torch

import pathmerge as pm
from pathmerge.models.transformer import Transformer


def lively(config: pm.OneHot | pm.Edges, seed: int, factor: float = 3.0) -> Transformer:
    """An untrained model with larger weights, so that much is important and attention is uneven."""
    model = config.build(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for block in model.blocks:
            for name in ("q", "k", "v", "o"):
                getattr(block, name).weight.mul_(factor)
            for name in ("ln1", "ln2"):
                norm = getattr(block, name)
                norm.weight.add_(torch.randn(norm.weight.shape, generator=generator) * 0.3)
                norm.bias.add_(torch.randn(norm.bias.shape, generator=generator) * 0.3)
    return model


MODELS = {
    "one head": lambda: lively(pm.OneHot(input_size=17, layers=3), 1),
    "two heads": lambda: lively(pm.OneHot(input_size=17, layers=3, heads=2, hidden=18), 2),
    "causal": lambda: lively(pm.OneHot(input_size=17, layers=3, causal=True), 3),
    "learned positions": lambda: lively(
        pm.OneHot(input_size=17, layers=2, positions="learned", embedding="learned"), 4
    ),
    "no positions": lambda: lively(pm.OneHot(input_size=17, layers=3, positions="none"), 5),
    "rotary": lambda: lively(pm.Rotary(input_size=17, layers=3, heads=2, hidden=18), 6),
    "looped": lambda: lively(pm.OneHot(input_size=17, layers=1, loops=4), 7),
    "edges": lambda: lively(pm.Edges(input_size=17, layers=3), 8),
    "matching": lambda: lively(pm.OneHot(input_size=17, layers=3, initialisation="matching", matching=2.0), 9, 1.0),
    "sharp": lambda: lively(pm.OneHot(input_size=17, layers=4, initialisation="matching", matching=4.0), 10, 2.0),
}
