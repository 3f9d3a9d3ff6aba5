"""Rates and batch sizes: their shape, that they depend on examples alone, and their errors."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathmerge.training.schedule import batch_size_at, rate_factor

SHAPE: dict[str, Any] = {"kind": "cosine", "warmup": 1000, "decay_start": 4000, "decay_end": 8000, "floor": 0.1}
BASE: dict[str, Any] = SHAPE | {"examples": 0, "size": 100}


def factors(size: int, until: int, **changes: Any) -> dict[int, float]:
    """The factor of each step of a run with this batch size, by the examples seen at its end."""
    shape = SHAPE | changes
    return {start + size: rate_factor(start, size=size, **shape) for start in range(0, until, size)}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("constant", {100: 0.1, 500: 0.5, 1000: 1.0, 4000: 1.0, 6000: 1.0, 9000: 1.0}),
        ("linear", {100: 0.1, 500: 0.5, 1000: 1.0, 4000: 1.0, 5000: 0.775, 6000: 0.55, 8000: 0.1, 9000: 0.1}),
        ("cosine", {100: 0.1, 500: 0.5, 1000: 1.0, 4000: 1.0, 6000: 0.55, 8000: 0.1, 9000: 0.1}),
    ],
)
def test_values_worked_out_by_hand(kind: str, expected: dict[int, float]):
    found = factors(100, 10_000, kind=kind)
    # One rounding each of a product and a sum of numbers near 1.
    assert {end: found[end] for end in expected} == pytest.approx(expected, abs=1e-15)


def test_cosine_is_a_quarter_of_the_way_where_its_cosine_says():
    # (1 + cos(pi/4)) / 2 of the way from the floor to 1.
    assert factors(100, 10_000)[5000] == pytest.approx(0.1 + 0.9 * (2 + 2**0.5) / 4, abs=1e-15)


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_another_batch_size_meets_the_same_rates(kind: str):
    small, large = factors(50, 10_000, kind=kind), factors(400, 10_000, kind=kind)
    assert large == {end: small[end] for end in large}


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_the_ends_are_exact_and_the_decay_falls_all_the_way(kind: str):
    found = list(factors(100, 10_000, kind=kind).values())
    assert found[0] > 0
    assert found[9:40] == [1.0] * 31
    assert all(before > after for before, after in pairwise(found[39:80]))
    assert set(found[79:]) == {0.1}
    assert factors(100, 9000, kind=kind, floor=0)[8000] == 0.0


def test_no_warm_up_begins_at_the_peak():
    assert rate_factor(0, size=1, kind="constant", warmup=0, decay_start=0, decay_end=0, floor=0) == 1.0
    assert factors(100, 9000, warmup=0, decay_start=0)[100] < 1.0


def test_a_step_longer_than_the_warm_up_takes_the_peak():
    assert rate_factor(0, size=1500, **SHAPE) == 1.0


def test_batch_sizes_worked_out_by_hand():
    starts = [0, 999, 1000, 1999, 2000, 2999, 3000, 10**9]
    sizes = [batch_size_at(start, first=64, last=512, ramp=3000) for start in starts]
    assert sizes == [64, 64, 128, 128, 256, 256, 512, 512]
    # 96 -> 192 -> 300: the last doubling is cut.
    assert [batch_size_at(start, first=96, last=300, ramp=100) for start in (0, 49, 50, 99, 100)] == [
        96,
        96,
        192,
        192,
        300,
    ]
    assert batch_size_at(0, first=64, last=512, ramp=0) == 512
    assert batch_size_at(5, first=512, last=512, ramp=100) == 512


@given(st.integers(1, 300), st.integers(0, 3000), st.integers(0, 10**6), st.integers(0, 2 * 10**6))
def test_batch_sizes_are_doublings_that_never_shrink(first: int, more: int, ramp: int, examples: int):
    last = first + more
    size = batch_size_at(examples, first=first, last=last, ramp=ramp)
    assert size == last or size in {first << k for k in range(12)}
    assert first <= size <= batch_size_at(examples + 1, first=first, last=last, ramp=ramp) <= last
    if examples >= ramp:
        assert size == last
    elif first < last:
        assert batch_size_at(0, first=first, last=last, ramp=ramp) == first
        # The size before the last boundary is the largest doubling below `last`, so the final jump is at most twofold.
        assert 2 * batch_size_at(ramp - 1, first=first, last=last, ramp=ramp) >= last or ramp < 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "cosin"}, r"kind='cosin': must be one of constant, cosine, linear \(did you mean cosine\?\)"),
        ({"examples": -1}, "examples=-1: must be a whole number, 0 or more"),
        ({"size": 0}, "size=0: must be a whole number, 1 or more"),
        ({"size": 1.5}, "size=1.5: must be a whole number, 1 or more"),
        ({"warmup": -2}, "warmup=-2: must be a whole number, 0 or more"),
        ({"decay_start": 999}, r"decay_start=999: must be a whole number, 1000 or more \(the end of the warm-up\)"),
        ({"decay_end": 4000}, r"decay_end=4000: must be a whole number, 4001 or more \(after decay_start\)"),
        ({"floor": 1.5}, "floor=1.5: must be a number from 0 to 1, a fraction of the peak rate"),
        ({"floor": float("nan")}, "floor=nan: must be a number from 0 to 1, a fraction of the peak rate"),
        ({"floor": "0.1"}, "floor='0.1': must be a number from 0 to 1, a fraction of the peak rate"),
    ],
)
def test_rate_errors_name_field_value_and_what_is_allowed(changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=f"^{message}$"):
        rate_factor(**BASE | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"examples": -1}, "examples=-1: must be a whole number, 0 or more"),
        ({"first": 0}, "first=0: must be a whole number, 1 or more"),
        ({"last": 63}, r"last=63: must be a whole number, 64 or more \(first\)"),
        ({"ramp": True}, "ramp=True: must be a whole number, 0 or more"),
    ],
)
def test_batch_size_errors_name_field_value_and_what_is_allowed(changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=f"^{message}$"):
        batch_size_at(**{"examples": 0, "first": 64, "last": 512, "ramp": 3000} | changes)
