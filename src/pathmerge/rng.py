"""The key of an example: (seed, split, stream, index, attempt), and nothing else, decides what it is.

Example i of a stream is a pure function of its key and of the held-out set: whatever the batch size, the number of
threads or the order of drawing. The generator itself is `pathmerge.kernels.random`; `KeyedRandom` is the same one for
distributions that are written in Python.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal, get_args

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


_MASK = 2**32 - 1
_BLOCKS = 2**16


class KeyedRandom(random.Random):
    """Python's `random.Random` (choice, shuffle, sample, randrange, ...) on the blocks of one attempt at one example:
    Philox4x32-10, block after block, 128 bits each."""

    def __init__(self, key: Key, index: int, attempt: int) -> None:
        self._key = key.seed & _MASK, key.seed >> 32
        self._rest = index & _MASK, index >> 32, key.split_number << 24 | key.stream
        self._attempt = attempt
        self._block = 0
        self._bits = 0
        self._left = 0
        self.gauss_next = None
        super().__init__()

    def getrandbits(self, k: int, /) -> int:
        """So many random bits."""
        while self._left < k:
            self._bits |= self._next() << self._left
            self._left += 128
        found = self._bits & ((1 << k) - 1)
        self._bits >>= k
        self._left -= k
        return found

    def random(self) -> float:
        """A float in [0, 1), of 53 bits."""
        return self.getrandbits(53) * 2.0**-53

    def seed(self, a: Any = None, version: int = 2) -> None:
        """Nothing: the key has decided."""

    def getstate(self) -> Any:
        raise NotImplementedError("a keyed generator has no state to keep; its key is enough")

    def setstate(self, state: Any) -> None:
        raise NotImplementedError("a keyed generator has no state to set; make one with another key")

    def _next(self) -> int:
        if self._block == _BLOCKS:
            raise ValueError("random: one attempt at an example used more than 8 million bits; draw less, or reject it")
        c0, (c1, c2, c3), (k0, k1) = self._attempt << 16 | self._block, self._rest, self._key
        for _ in range(10):
            p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
            c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & _MASK, p0 >> 32 ^ c3 ^ k1, p0 & _MASK
            k0, k1 = k0 + 0x9E3779B9 & _MASK, k1 + 0xBB67AE85 & _MASK
        self._block += 1
        return c0 | c1 << 32 | c2 << 64 | c3 << 96
