"""The held-out guard: nothing held out is ever drawn, hits are counted, small cells are named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pathmerge as pm
from pathmerge.encodings.language import Language
from pathmerge.heldout import LARGEST_SHARE, HeldOut, hold_out
from pathmerge.kernels.compile import kernel
from pathmerge.kernels.fill import contains
from pathmerge.problems.distribution import Distribution


@kernel
def look_up(table, keys, out):
    for i in range(keys.shape[0]):
        out[i] = contains(table, keys[i])


@pytest.fixture(scope="module")
def held() -> HeldOut:
    return hold_out([pm.Balanced(input_size=32), pm.Naive(input_size=32), pm.Star(input_size=32)], 500, seed=1)


def test_cells_are_prefixes_of_the_test_stream(held: HeldOut):
    assert len(held.cells) == 4 + 1 + len(pm.Star(input_size=32).cells())
    for cell in held.cells:
        again = cell.distribution.sample(500, seed=1, split="test")
        assert np.array_equal(cell.batch.tokens, again.tokens[: len(cell.batch)])
        assert np.isin(cell.batch.identity, held.identities).all()


def test_no_cell_holds_out_more_than_its_share_and_small_ones_are_named(held: HeldOut):
    for cell in held.cells:
        assert cell.distinct == len(np.unique(cell.batch.identity))
        assert cell.distinct <= LARGEST_SHARE * cell.problems
        assert (len(cell.batch) < cell.requested) == (cell in held.too_small)
    named = {cell.distribution.describe() for cell in held.too_small}
    assert "star(input_size=32, spokes=2, lookahead=1)" in named
    assert "balanced(input_size=32, lookahead=4)" not in named
    smallest = next(c for c in held.cells if c.distribution == pm.Star(input_size=32, spokes=2, lookahead=1))
    assert (smallest.problems, smallest.distinct, smallest.exact) == (504, 25, True)
    assert "25 of 504 distinct problems" in smallest.describe()
    assert smallest.mass == pytest.approx(25 / 504)


def test_the_lower_bound_never_exceeds_the_true_number(monkeypatch: pytest.MonkeyPatch):
    """For stars the number is known: without the formula the bound must not be larger, and is met for small cells."""
    monkeypatch.setattr(pm.Star, "problem_count", lambda _: None)
    for spokes, length, exact in [(2, 1, 504), (8, 1, 72), (2, 2, 15_120), (2, 4, 362_880)]:
        (cell,) = hold_out([pm.Star(input_size=32, spokes=spokes, lookahead=length)], 100).cells
        assert cell.problems <= exact
        assert cell.problems >= min(exact * 0.99, 100 / LARGEST_SHARE)
        assert not cell.exact


@pytest.mark.parametrize(
    "distribution",
    [
        pm.Naive(input_size=32),
        pm.Balanced(input_size=32),
        pm.Star(input_size=32),
        pm.DFS(input_size=32),
        pm.SelectionInference(input_size=32),
        Language(input_size=32),
    ],
    ids=lambda d: d.name,
)
def test_nothing_held_out_is_drawn_and_hits_are_counted(distribution: Distribution):
    """Hold out a third of the very problems that the training stream would show."""
    plain = distribution.sample(3000, seed=9)
    held = HeldOut.of(plain.identity[:1000])
    guarded = distribution.sample(3000, seed=9, held_out=held)
    assert not np.isin(guarded.identity, held.identities).any()
    expected = np.isin(plain.identity, held.identities)
    assert ((guarded.redraws > 0) == expected).all()
    assert (guarded.attempts >= plain.attempts).all()


def test_the_hash_does_not_see_edge_order_padding_or_distribution():
    a = pm.DFS(input_size=64, padding="standard").sample(200, seed=2)
    b = pm.DFS(input_size=64, padding="random").sample(200, seed=2)
    assert (a.difficulty == b.difficulty).all()
    text = Language(input_size=64).sample(200, seed=2)
    assert (text.identity == pm.Balanced(input_size=64).sample(200, seed=2).identity).all()


def test_sets_add_up():
    a, b = HeldOut.of([5, 3, 3]), HeldOut.of([7, 5])
    assert (a + b).identities.tolist() == [3, 5, 7]
    assert 7 in a + b
    assert 7 not in a
    assert len(a) == 2


def test_the_table_finds_exactly_what_is_in_it():
    """Also when hashes collide in their low bits, and at the end of the table."""
    wanted = np.array([1, 2**63, 2**63 + 1, 2**64 - 1, 2**64 - 2, 17, 17 + 2**40], np.uint64)
    held = HeldOut.of(wanted)
    keys = np.concatenate([wanted, np.array([2, 3, 18, 2**63 + 2, 17 + 2**41, 2**64 - 3], np.uint64)])
    out = np.zeros(len(keys), np.bool_)
    look_up(held.table, keys, out)
    assert out.tolist() == [True] * len(wanted) + [False] * 6


def test_bad_counts_are_named():
    with pytest.raises(ValueError, match="count=0: must be"):
        hold_out([pm.Naive(input_size=32)], 0)


@given(st.lists(st.integers(1, 40), max_size=20), st.lists(st.integers(1, 40), max_size=20))
def test_which_of_many_are_in_the_set(held: list[int], asked: list[int]):
    found = HeldOut.of(held).has(np.array(asked, np.uint64))
    assert found.tolist() == [identity in set(held) for identity in asked]
