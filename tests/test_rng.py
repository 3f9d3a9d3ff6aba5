"""The keyed generator: known answers, statistics, independence of neighbouring keys, and the same from Python."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from pathmerge.kernels.compile import kernel
from pathmerge.kernels.random import (
    DIFFICULTY_ATTEMPT,
    DRAWS,
    LANES,
    MAX_ATTEMPTS,
    STATE_WORDS,
    below,
    below64,
    draw16,
    set_index,
    set_stream,
)
from pathmerge.rng import Key, KeyedRandom

# With about a hundred tests at fixed keys, a sound generator fails one of them for one choice of keys in a hundred.
LEVEL = 1e-4


@kernel
def pieces(rng, seed, split, stream, index, attempt, out):
    set_stream(rng, seed, split, stream)
    set_index(rng, index, attempt)
    for i in range(out.shape[0]):
        out[i] = draw16(rng)


@kernel
def bounded(rng, seed, first, n, out):
    set_stream(rng, seed, 0, 0)
    for row in range(out.shape[0]):
        set_index(rng, first + row, 0)
        for i in range(out.shape[1]):
            out[row, i] = below(rng, n)


@kernel
def bounded64(rng, seed, n, out):
    set_stream(rng, seed, 0, 0)
    set_index(rng, 0, 0)
    for i in range(out.shape[0]):
        out[i] = below64(rng, n)


def draws(count: int, seed: int = 0, split: int = 0, stream: int = 0, index: int = 0, attempt: int = 0) -> np.ndarray:
    out = np.zeros(count, np.uint64)
    pieces(np.zeros(STATE_WORDS, np.uint64), np.uint64(seed), split, stream, np.uint64(index), attempt, out)
    return out


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10, written from the paper's figure with Python integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(second >> 32) ^ c[1] ^ k[0], second & 0xFFFFFFFF, (first >> 32) ^ c[3] ^ k[1], first & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_reference_gives_the_published_answers(counter: list[int], key: list[int], expected: list[int]):
    assert philox(counter, key) == expected


@pytest.mark.parametrize(
    ("seed", "split", "stream", "index", "attempt"),
    [(0, 0, 0, 0, 0), (2**64 - 1, 2, 2**24 - 1, 2**63 - 1, 0xFFFF), (0x299F31D0A4093822, 1, 77, 2**40 + 5, 3)],
)
def test_kernel_is_philox_in_the_documented_order(seed: int, split: int, stream: int, index: int, attempt: int):
    got = draws(2 * DRAWS, seed, split, stream, index, attempt).tolist()
    expected: list[int] = []
    for refill in range(2):
        blocks = [
            philox(
                [attempt << 16 | (refill * LANES + lane), index & 0xFFFFFFFF, index >> 32, split << 24 | stream],
                [seed & 0xFFFFFFFF, seed >> 32],
            )
            for lane in range(LANES)
        ]
        words = [b[0] | b[1] << 32 for b in blocks] + [b[2] | b[3] << 32 for b in blocks]
        expected += [word >> 16 * piece & 0xFFFF for word in words for piece in range(4)]
    assert got == expected


def uniform(values: np.ndarray, bins: int) -> float:
    return float(stats.chisquare(np.bincount(values.astype(np.int64), minlength=bins)).pvalue)


def test_pieces_and_their_bits_are_uniform():
    values = draws(2**20, seed=5)
    assert uniform(values >> np.uint64(6), 1024) > LEVEL
    assert uniform(values & np.uint64(1023), 1024) > LEVEL
    ones = [(values >> np.uint64(bit) & np.uint64(1)).sum() for bit in range(16)]
    assert all(stats.binomtest(int(n), len(values)).pvalue > LEVEL for n in ones)


@pytest.mark.parametrize("lag", [1, 2, 4, 8, 32, 64])
def test_pairs_are_independent(lag: int):
    values = draws(2**20, seed=6) >> np.uint64(11)
    assert uniform(values[:-lag:2] * np.uint64(32) + values[lag::2], 1024) > LEVEL


@pytest.mark.parametrize("field", ["seed", "split", "stream", "index", "attempt"])
def test_neighbouring_keys_are_independent(field: str):
    """The first draws of keys that differ by one in one place look like draws of one generator, and never repeat."""
    most = {"split": 3, "stream": 4096}.get(field, 4096)
    rows = np.array([draws(64, **{field: value}) for value in range(most)])
    assert len(np.unique(rows, axis=0)) == most
    if most > 3:
        assert uniform(rows[:-1, 0] // np.uint64(2048) * np.uint64(32) + rows[1:, 0] // np.uint64(2048), 1024) > LEVEL
        flipped = np.unpackbits((rows[:-1] ^ rows[1:]).astype(np.uint16).view(np.uint8)).mean()
        bits = (most - 1) * 64 * 16
        assert abs(flipped - 0.5) < 4 * 0.5 / np.sqrt(bits)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 41, 97, 169, 338, 1000, 3000])
def test_bounded_draws_are_uniform(n: int):
    out = np.zeros((4000, 100), np.int64)
    bounded(np.zeros(STATE_WORDS, np.uint64), np.uint64(7), 0, n, out)
    assert out.min() >= 0
    assert out.max() == n - 1
    if n > 1:
        assert uniform(out.reshape(-1), n) > LEVEL
        assert uniform(out[:, 0], n) > LEVEL or n > 400
        halves = (out[:, 0] * 2 >= n).astype(int) * 2 + (out[:, 1] * 2 >= n).astype(int)
        low = (n + 1) // 2 / n
        expected = np.array([low * low, low * (1 - low), (1 - low) * low, (1 - low) ** 2]) * len(out)
        assert stats.chisquare(np.bincount(halves, minlength=4), expected).pvalue > LEVEL


def test_rejection_makes_bounded_draws_exact():
    """Without Lemire's rejection, 65,536 mod n of the results of a bound like 40,000 would be twice as likely."""
    out = np.zeros((2000, 200), np.int64)
    bounded(np.zeros(STATE_WORDS, np.uint64), np.uint64(8), 0, 40_000, out)
    assert uniform(out.reshape(-1) // 400, 100) > LEVEL
    assert uniform(out.reshape(-1) % 25, 25) > LEVEL


@pytest.mark.parametrize("n", [1, 2, 3, 1000, 2**16 + 1, 3 * 10**17, 2**63 + 1])
def test_wide_bounded_draws_are_uniform(n: int):
    out = np.zeros(200_000, np.uint64)
    bounded64(np.zeros(STATE_WORDS, np.uint64), np.uint64(9), np.uint64(n), out)
    assert int(out.max()) < n
    bins = min(n, 50)
    edges = [(i * n + bins - 1) // bins for i in range(bins + 1)]
    counts = np.array(
        [np.count_nonzero((out >= np.uint64(a)) & (out < np.uint64(b))) for a, b in itertools.pairwise(edges)]
    )
    expected = np.array([(b - a) / n for a, b in itertools.pairwise(edges)]) * len(out)
    assert stats.chisquare(counts, expected).pvalue > LEVEL or n == 1


def test_attempts_and_the_difficulty_have_slots_of_their_own():
    assert MAX_ATTEMPTS < DIFFICULTY_ATTEMPT <= 0xFFFF


@pytest.mark.parametrize(
    ("field", "value"),
    [("seed", -1), ("seed", 2**64), ("seed", 1.5), ("split", "dev"), ("stream", 2**24), ("stream", -1), ("seed", True)],
)
def test_bad_keys_are_named(field: str, value: object):
    with pytest.raises(ValueError, match=f"^{field}=.*must be"):
        Key(**{field: value})  # pyright: ignore[reportArgumentType]


# The same generator for what is written in Python.


@pytest.mark.parametrize(("seed", "stream", "index", "attempt"), [(0, 0, 0, 0), (2**64 - 1, 2**24 - 1, 2**63 - 1, 9)])
def test_the_generator_is_that_of_the_kernels(seed: int, stream: int, index: int, attempt: int):
    random = KeyedRandom(Key(seed=seed, split="test", stream=stream), index, attempt)
    low = 2**32 - 1
    for block in range(3):
        counter = [attempt << 16 | block, index & low, index >> 32, 2 << 24 | stream]
        words = philox(counter, [seed & low, seed >> 32])
        assert [random.getrandbits(32) for _ in range(4)] == words


def test_the_generator_is_uniform_and_whole():
    random = KeyedRandom(Key(seed=3), 0, 0)
    counts = Counter(random.randrange(7) for _ in range(7000))
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4
    assert len(counts) == 7
    assert 0.4 < np.mean([random.random() for _ in range(2000)]) < 0.6
    assert abs(random.gauss(0.0, 1.0)) < 10
    assert sorted(random.sample(range(9), 9)) == list(range(9))
    random._block = 2**16 - 1  # pyright: ignore[reportPrivateUsage]
    random.getrandbits(128)
    with pytest.raises(ValueError, match="more than 8 million bits"):
        random.getrandbits(128)
