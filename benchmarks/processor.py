"""The vector instructions that a benchmark may use: those of the machine, or those of the goals' machine."""

from __future__ import annotations

import os
import sys

AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "NUMBA_CPU_NAME": "znver3",
}
"""Torch, its libraries and our own kernels read these when they are loaded."""


def only_avx2() -> None:
    """Begin this program anew without wider instructions than AVX2, unless it has been."""
    if not AVX2.items() <= os.environ.items():
        os.environ |= AVX2
        os.execv(sys.executable, [sys.executable, *sys.argv])
