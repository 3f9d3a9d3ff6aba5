"""The keyed counter generator: Philox4x32-10 (Salmon et al., SC 2011), drawn in 16-bit pieces.

Choices a reader could not guess:
- key = the seed (64 bits). Counter = (attempt << 16 | block, index low, index high, split << 24 | stream), 32 bits
  each, so every (seed, split, stream, index, attempt) owns 2^16 blocks of 128 bits that no other owns.
- 8 blocks are made at a time, one per vector lane, and stored column by column: draw number d of a refill is 16-bit
  piece d % 4 of word d // 4, where words 0..7 are the low halves of blocks 0..7 and words 8..15 their high halves.
- Graphs have at most 169 vertices, so 16 bits are enough for an exactly uniform bounded draw: Lemire's
  multiplication, with its rejection step, which is needed in fewer than n of 65,536 draws.
- The state is one uint64 array: [draws used, next block | attempt << 16, index low, index high, split/stream,
  key low, key high, unused, 16 words].
"""

from __future__ import annotations

import numpy as np

from pathmerge.kernels.compile import helper, inline

LANES = 8
STATE_WORDS = 8 + 2 * LANES
DRAWS = 8 * LANES
MAX_ATTEMPTS = 0xFFF0
DIFFICULTY_ATTEMPT = 0xFFFF  # the slot from which the requested difficulty is drawn: it survives rejections
ATOMS_ATTEMPT = 0xFFFE  # the slot from which the language encoding draws its atoms

_M0 = np.uint64(0xD2511F53)
_M1 = np.uint64(0xCD9E8D57)
_W0 = np.uint64(0x9E3779B9)
_W1 = np.uint64(0xBB67AE85)
_LOW32 = np.uint64(0xFFFFFFFF)
_LOW16 = np.uint64(0xFFFF)
_S32 = np.uint64(32)
_S16 = np.uint64(16)
_ONE = np.uint64(1)
_ALL = np.uint64(DRAWS)
_STEP = np.uint64(LANES)
_U3 = np.uint64(3)
_U2 = np.uint64(2)
_U4 = np.uint64(4)
_U8 = np.uint64(8)


@helper
def refill(rng):
    """Make the next 64 draws."""
    base = rng[1]
    index_low = rng[2]
    index_high = rng[3]
    stream = rng[4]
    key_low = rng[5]
    key_high = rng[6]
    for lane in range(LANES):
        c0 = base + np.uint64(lane)
        c1 = index_low
        c2 = index_high
        c3 = stream
        k0 = key_low
        k1 = key_high
        for _ in range(10):
            p0 = _M0 * c0
            p1 = _M1 * c2
            c0, c1, c2, c3 = (p1 >> _S32) ^ c1 ^ k0, p1 & _LOW32, (p0 >> _S32) ^ c3 ^ k1, p0 & _LOW32
            k0 = (k0 + _W0) & _LOW32
            k1 = (k1 + _W1) & _LOW32
        rng[8 + lane] = c0 | (c1 << _S32)
        rng[8 + LANES + lane] = c2 | (c3 << _S32)
    rng[1] = base + _STEP
    rng[0] = np.uint64(0)


@inline
def set_stream(rng, seed, split, stream):
    rng[4] = (np.uint64(split) << np.uint64(24)) | np.uint64(stream)
    rng[5] = np.uint64(seed) & _LOW32
    rng[6] = np.uint64(seed) >> _S32


@inline
def set_index(rng, index, attempt):
    """Go to the first draw of one attempt at one example."""
    rng[0] = _ALL
    rng[1] = np.uint64(attempt) << _S16
    rng[2] = np.uint64(index) & _LOW32
    rng[3] = np.uint64(index) >> _S32


@inline
def draw16(rng):
    """The next 16 random bits, as a uint64."""
    used = rng[0]
    if used == _ALL:
        refill(rng)
        used = np.uint64(0)
    rng[0] = used + _ONE
    return (rng[_U8 + (used >> _U2)] >> ((used & _U3) << _U4)) & _LOW16


@helper
def _redraw(rng, n, product):
    """The rare second half of Lemire's method: throw away the draws that would favour small numbers."""
    threshold = np.uint64(65536) % n
    while (product & _LOW16) < threshold:
        product = draw16(rng) * n
    return product


@inline
def below(rng, n):
    """A uniform integer in 0..n-1, for 1 <= n <= 65535."""
    bound = np.uint64(n)
    product = draw16(rng) * bound
    if (product & _LOW16) < bound:
        product = _redraw(rng, bound, product)
    return np.int64(product >> _S16)


@helper
def below64(rng, n):
    """A uniform uint64 in 0..n-1, for any n >= 1: as many bits as n - 1 has, until they fit."""
    mask = n - _ONE
    for shift in (1, 2, 4, 8, 16, 32):
        mask |= mask >> np.uint64(shift)
    while True:
        x = draw16(rng)
        if mask > _LOW16:
            for _ in range(3):
                x = (x << _S16) | draw16(rng)
        x &= mask
        if x < n:
            return x
