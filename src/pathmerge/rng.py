"""The key of an example: (seed, split, stream, index, attempt), and nothing else, decides what it is.

Example i of a stream is a pure function of its key and of the held-out set: whatever the batch size, the number of
threads or the order of drawing. The generator itself is `pathmerge.kernels.random`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from pathmerge.errors import check_choice, check_range

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
MAX_SEED = 2**64 - 1
MAX_STREAM = 2**24 - 1
MAX_INDEX = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Key:
    """Where a draw takes its randomness from; examples are then numbered from 0."""

    seed: int = 0
    """Any whole number from 0 to 2^64-1."""
    split: Split = "train"
    """Train, validation or test: three streams that share no randomness."""
    stream: int = 0
    """Independent streams of the same seed and split, 0 to 2^24-1."""

    def __post_init__(self) -> None:
        check_range("seed", self.seed, 0, MAX_SEED)
        check_choice("split", self.split, SPLITS)
        check_range("stream", self.stream, 0, MAX_STREAM)

    @property
    def split_number(self) -> int:
        return SPLITS.index(self.split)
