"""Numbers with as many digits as they are known to."""

from __future__ import annotations

import math

import numpy as np

from pathmerge.kernels.compile import kernel


@kernel
def rounded(values, powers, out):
    """float32 numbers rounded to six digits, as float64; zeros, infinities and what is not a number stay what they are.

    powers: those of ten by which a number is multiplied to have six digits before the point; the smaller the number,
    the higher, and 5 - floor(log10) of any float32 is among them from -40 on.
    """
    for i in range(values.shape[0]):
        value = float(values[i])
        if value == 0 or not math.isfinite(value):
            out[i] = value
        else:
            factor = powers[45 - math.floor(math.log10(abs(value)))]
            out[i] = np.rint(value * factor) / factor
