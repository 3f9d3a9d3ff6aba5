"""LayerNorm over rows, without gain and bias, forward and backward, in one pass each. torch takes several times as
long on rows of a hundred numbers, and training spent a sixth of its time there at N=32."""

from __future__ import annotations

import numpy as np

from pathmerge.kernels.compile import float_inline, float_kernel

_ZERO = np.float32(0)
_ONE = np.float32(1)


@float_inline
def moments(x, real, epsilon):
    """The mean of a row's first `real` numbers, and 1/√(variance + epsilon)."""
    width = np.float32(real)
    total = _ZERO
    for j in range(real):
        total += x[j]
    mean = total / width
    squares = _ZERO
    for j in range(real):
        apart = x[j] - mean
        squares += apart * apart
    return mean, _ONE / np.sqrt(squares / width + epsilon)


@float_inline
def wide_moments(x, real, epsilon):
    """The same of a row that zeros widen to a multiple of eight numbers: a loop over all of them has no odd end, which
    would take as long as the rest."""
    width = np.float32(real)
    total = _ZERO
    for j in range(x.shape[0]):
        total += x[j]
    mean = total / width
    squares = _ZERO
    for j in range(x.shape[0]):
        apart = x[j] - mean
        squares += apart * apart
    squares -= np.float32(x.shape[0] - real) * mean * mean
    return mean, _ONE / np.sqrt(max(squares, _ZERO) / width + epsilon)


@float_inline
def write_normal(x, mean, factor, real, h):
    """h = the normalised row x, widened by zeros, a 1 and then zeros."""
    for j in range(x.shape[0]):
        h[j] = (x[j] - mean) * factor
    h[real] = _ONE
    for j in range(real + 1, h.shape[0]):
        h[j] = _ZERO


@float_kernel
def normalise(x, real, epsilon, h, scale):
    """h = (x - mean)·scale and scale = 1/√(variance + epsilon) of the first `real` numbers of each row, zeros after
    them; float32."""
    for i in range(x.shape[0]):
        mean, factor = moments(x[i], real, epsilon)
        scale[i] = factor
        for j in range(real):
            h[i, j] = (x[i, j] - mean) * factor
        for j in range(real, x.shape[1]):
            h[i, j] = _ZERO


@float_kernel
def normalise_backward(d_h, h, scale, d_out, real, d_x):
    """d_x = d_out + the gradient that reaches x through h; d_out is what reaches x beside the norm."""
    width = np.float32(real)
    for i in range(h.shape[0]):
        total = _ZERO
        along = _ZERO
        for j in range(real):
            total += d_h[i, j]
            along += d_h[i, j] * h[i, j]
        mean, along = total / width, along / width
        for j in range(real):
            d_x[i, j] = d_out[i, j] + scale[i] * (d_h[i, j] - mean - h[i, j] * along)
        for j in range(real, h.shape[1]):
            d_x[i, j] = _ZERO


@float_kernel
def normalise_one(x, real, epsilon, h):
    """(x - mean)·scale of the first `real` numbers of each row (zeros after them), a 1 and then zeros."""
    for i in range(x.shape[0]):
        mean, factor = wide_moments(x[i], real, epsilon)
        write_normal(x[i], mean, factor, real, h[i])


@float_kernel
def add_normalise(x, real, bias, more, epsilon, out, h):
    """h = the normalised row x + out + bias, a 1 and then zeros; out becomes that sum plus `more`."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] += x[i, j] + bias[j]
        mean, factor = wide_moments(out[i], real, epsilon)
        write_normal(out[i], mean, factor, real, h[i])
        for j in range(x.shape[1]):
            out[i, j] += more[j]


@float_kernel
def gather(first, second, places, out):
    """Rows of two arrays one after the other, by number."""
    count = first.shape[0]
    for i in range(places.shape[0]):
        at = places[i]
        if at < count:
            for j in range(out.shape[1]):
                out[i, j] = first[at, j]
        else:
            for j in range(out.shape[1]):
                out[i, j] = second[at - count, j]
