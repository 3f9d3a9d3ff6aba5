"""Training FLOPs as the field counts them: 6 · parameters · tokens plus attention, on tokens that are not padding.

This is a measure of the model and the data, whatever the program executed: products saved and padding dropped do not
change it (SPEC section 5). Attention: two products of T x T x d per layer, three times (forward and backward), 2 FLOPs
per multiplication and addition: 12 · layers · T² · d per example.
"""

from __future__ import annotations

import numpy as np

from pathmerge.models.transformer import Transformer


def training_flops(model: Transformer, rows: np.ndarray) -> float:
    """FLOPs of one step on examples with these numbers of tokens."""
    own = sum(p.numel() for p in model.blocks.parameters())
    inner, outer = own * (model.layers // len(model.blocks)), sum(p.numel() for p in model.parameters()) - own
    tokens = rows.astype(np.float64)
    attention = 12.0 * model.layers * model.config.width * float((tokens**2).sum())
    return 6.0 * (inner + outer) * float(tokens.sum()) + attention
