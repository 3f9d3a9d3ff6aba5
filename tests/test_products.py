"""Small products and exponentials inside kernels, held against numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from llvmlite import binding
from numba.core import config

from pathmerge.kernels.compile import float_kernel, helper
from pathmerge.kernels.products import LANES, LINE, LONG, ROWS, SHORT, Tiles, apart, has_long_registers, products
from pathmerge.kernels.softmax import WIDE, exponential, weigh


def _multiplier(tiles: dict[int, Tiles]) -> Any:
    multiply, multiply_onto = products(tiles)

    @helper
    def both(a, rows, depth, b, out, begin, onto) -> None:
        if onto:
            multiply_onto(a, rows, depth, b, out, begin)
        else:
            multiply(a, rows, depth, b, out, begin)

    return both


# Tiles for other processors work on this one too, only slower.
_MULTIPLY = {"short": _multiplier(SHORT), "long": _multiplier(LONG)}


@pytest.mark.parametrize(
    ("name", "features", "long"),
    [
        (None, None, binding.get_host_cpu_features().get("avx512f", False)),
        ("znver3", "", False),
        ("znver4", "+avx2,+avx512f", True),
        (None, "+avx2,-avx512f", False),
    ],
)
def test_registers_are_those_numba_compiles_for(
    monkeypatch: pytest.MonkeyPatch, name: str | None, features: str | None, long: bool
) -> None:
    monkeypatch.setattr(config, "CPU_NAME", name)
    monkeypatch.setattr(config, "CPU_FEATURES", features)
    assert has_long_registers() is long


@float_kernel
def _exponentials(x, out) -> None:
    for i in range(x.shape[0]):
        out[i] = exponential(x[i])


@float_kernel
def _weigh(scores, n) -> None:
    weigh(scores, n)


@pytest.mark.parametrize("registers", _MULTIPLY)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 9, 28, 30])
@pytest.mark.parametrize(("depth", "columns"), [(1, 8), (5, 16), (27, 24), (64, 64), (72, 40), (9, 184)])
def test_products_are_numpys(rows: int, depth: int, columns: int, registers: str) -> None:
    draw = np.random.default_rng(rows + depth)
    begin, size = 2, rows + -rows % ROWS
    a = draw.standard_normal((size, depth + 3), np.float32)
    b = draw.standard_normal((depth + 1, columns), np.float32)
    before = draw.standard_normal((begin + size + 1, columns), np.float32)
    wanted = a[:rows, :depth].astype(float) @ b[:depth].astype(float)
    for onto in (False, True):
        out = before.copy()
        _MULTIPLY[registers](a, rows, depth, b, out, begin, onto)
        found = out[begin : begin + rows] - (before[begin : begin + rows] if onto else 0)
        # float32: sums of up to 72 terms of about 1.
        np.testing.assert_allclose(found, wanted, atol=2e-5)
        np.testing.assert_array_equal(out[:begin], before[:begin])
        np.testing.assert_array_equal(out[begin + size :], before[begin + size :])


def test_products_go_into_rows_that_lie_apart() -> None:
    """As a response of one feature among all of them."""
    draw = np.random.default_rng(1)
    a, b = draw.standard_normal((ROWS, 9), np.float32), draw.standard_normal((9, LANES), np.float32)
    out = np.zeros((ROWS, 3, LANES), np.float32)
    _MULTIPLY["short"](a, ROWS, 9, b, out[:, 1], 0, False)
    np.testing.assert_allclose(out[:, 1], a @ b, atol=1e-5)
    assert not out[:, [0, 2]].any()


@pytest.mark.parametrize("columns", range(LANES, 26 * LANES, LANES))
def test_products_are_the_same_whatever_the_registers(columns: int) -> None:
    draw = np.random.default_rng(columns)
    a, b = draw.standard_normal((16, 63), np.float32), draw.standard_normal((63, columns), np.float32)
    out = np.zeros((4, 16, columns), np.float32)
    for at, (multiply, factor) in enumerate((m, f) for m in _MULTIPLY.values() for f in (b, apart(b))):
        multiply(a, 16, 63, factor, out[at], 0, False)
    for other in out[1:]:
        np.testing.assert_array_equal(out[0], other)


@pytest.mark.parametrize("columns", [8, 24, 64, 104, 192])
@pytest.mark.parametrize("registers", _MULTIPLY)
def test_a_row_of_a_product_is_the_same_whatever_the_number_of_rows(registers: str, columns: int) -> None:
    """One or two rows that are left have tiles of their own; circuits must not depend on which inputs share a block."""
    draw = np.random.default_rng(columns)
    a, b = draw.standard_normal((12, 63), np.float32), draw.standard_normal((63, columns), np.float32)
    whole = np.zeros((12, columns), np.float32)
    _MULTIPLY[registers](a, 12, 63, b, whole, 0, False)
    for rows in range(1, 12):
        out = np.zeros((12, columns), np.float32)
        _MULTIPLY[registers](a, rows, 63, b, out, 0, False)
        np.testing.assert_array_equal(out[:rows], whole[:rows])


@pytest.mark.parametrize("shape", [(5, 8), (64, 64), (192, 192), (3, 64, 104), (200, 128)])
def test_columns_of_matrices_apart_meet_every_set_of_the_cache(shape: tuple[int, ...]) -> None:
    given = np.random.default_rng(1).standard_normal(shape, np.float32)
    made = apart(given)
    np.testing.assert_array_equal(made, given)
    assert made.strides[-1] == 4
    assert not made.flags.c_contiguous  # one type for the kernels, whatever the width
    places = made.ctypes.data + made.strides[-2] * np.arange(64)
    assert not (places % 32).any(), "a vector register is loaded from one line"
    assert np.bincount(places // LINE % 64, minlength=64).max() <= 2


def test_exponentials_are_right_to_a_few_units_in_the_last_place() -> None:
    x = np.concatenate([np.linspace(-87, 1, 100_001), [0.0]]).astype(np.float32)
    found = np.empty_like(x)
    _exponentials(x, found)
    # x times 1/log 2 is rounded: a relative error of |x|·2^-24 beside the series' own.
    assert (np.abs(found / np.exp(x.astype(float)) - 1) < (2 + np.abs(x)) * 2.0**-23).all()
    assert found[-1] == 1
    low = np.array([-88, -1000, -np.inf], np.float32)
    _exponentials(low, low)
    assert not low.any()


@pytest.mark.parametrize("n", [1, 5, 27, 32, 33, 64])
def test_weights_are_a_softmax(n: int) -> None:
    draw = np.random.default_rng(n)
    scores = np.full(n + -n % WIDE, 7.0, np.float32)
    scores[:n] = 9 * draw.standard_normal(n, np.float32)
    scores[: n // 2] = -np.inf
    wanted = np.exp(scores[:n].astype(float) - scores[:n].max())
    _weigh(scores, n)
    np.testing.assert_allclose(scores[:n], wanted / wanted.sum(), rtol=2e-5, atol=1e-12)
    assert not scores[n:].any()
    scores[:] = -np.inf
    _weigh(scores, n)
    assert not scores[:n].any()
