"""Rotary positions: queries and keys are turned by angles that grow with the position.

The published "rotary" model adds a cosine table to its input and turns nothing (SPEC section 8); this one is real.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotation(rows: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine tables, T x K/2: row t counted from the right end, dimension pair i turns by t·10000^(-2i/K).

    Attention sees only differences of positions, so counting from the right makes dropped padding harmless.
    """
    rates = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float32, device=like.device) / width)
    angles = torch.arange(-rows, 0, dtype=torch.float32, device=like.device)[:, None] * rates
    return angles.cos(), angles.sin()


def rotate(x_BHTK: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the pairs (i, i + K/2) of each row by its angles."""
    cosine, sine = rotation
    first, second = x_BHTK.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
