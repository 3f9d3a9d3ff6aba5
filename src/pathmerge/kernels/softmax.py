"""Softmax of one row of scores inside a kernel.

LLVM's loops take four vector registers at a time and do what is left number by number, with n < 32 rows all of it: so
rows of scores are widened.
"""

from __future__ import annotations

import numpy as np

from pathmerge.kernels.compile import float_inline, larger

WIDE = 32
"""Rows of scores have room for a multiple of so many."""
_ZERO = np.float32(0)
_NONE = np.float32(-np.inf)
_LOWEST = np.float32(-88)
_TWOS = np.float32(1 / np.log(2))
_LOG_TWO = np.float32(np.log(2))
_SERIES = tuple(np.float32(1 / n) for n in (1, 1, 2, 6, 24, 120, 720, 5040))


@float_inline
def exponential(x):
    """e to the power of a number that is not above 0 by much, to about a unit in the last place; 0 below e^-87.6. Eight
    at once in a vector register: the library's takes four times as long."""
    x = larger(x, _LOWEST)
    whole = np.floor(x * _TWOS + np.float32(0.5))
    rest = x - whole * _LOG_TWO
    value = _SERIES[7]
    value = value * rest + _SERIES[6]
    value = value * rest + _SERIES[5]
    value = value * rest + _SERIES[4]
    value = value * rest + _SERIES[3]
    value = value * rest + _SERIES[2]
    value = value * rest + _SERIES[1]
    value = value * rest + _SERIES[0]
    bits = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23))
    return value * bits.view(np.float32)


@float_inline
def weigh(scores, n):
    """Turn scores into their softmax in place; zeros if there is none but -inf. There are n, and zeros after them: room
    up to a multiple of WIDE."""
    for i in range(n, scores.shape[0]):
        scores[i] = _NONE
    top = _NONE
    for i in range(scores.shape[0]):
        top = larger(top, scores[i])
    if top == _NONE:
        for i in range(n):
            scores[i] = _ZERO
        return
    total = _ZERO
    for i in range(scores.shape[0]):
        weight = exponential(scores[i] - top)
        scores[i] = weight
        total += weight
    share = np.float32(1) / total
    for i in range(scores.shape[0]):
        scores[i] *= share
