"""Draws are pure functions of their key: the same bytes for any batch size, thread count, order and process."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from conftest import every_distribution

import pathmerge as pm
from pathmerge.encodings.language import Language
from pathmerge.kernels.fill import fill
from pathmerge.kernels.workspace import Workspace, make_workspace
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import Distribution
from pathmerge.problems.draw import _empty_columns, _request

KINDS = every_distribution(32)


def same(a: Batch, b: Batch) -> bool:
    one, two = a.to_columns(), b.to_columns()
    return one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("distribution", KINDS, ids=lambda d: d.describe())
def test_the_way_of_drawing_does_not_matter(distribution: Distribution):
    whole = distribution.sample(3000, seed=11, threads=1)
    assert same(whole, distribution.sample(3000, seed=11, threads=3))
    assert same(whole.take(slice(1234, 1240)), distribution.sample(6, seed=11, first=1234))
    assert same(whole.take(slice(2999, 3000)), distribution.sample(1, seed=11, first=2999))


@pytest.mark.parametrize("distribution", KINDS, ids=lambda d: d.describe())
def test_every_part_of_the_key_matters(distribution: Distribution):
    base = distribution.sample(50, seed=1)
    others = [
        distribution.sample(50, seed=2),
        distribution.sample(50, seed=1, split="test"),
        distribution.sample(50, seed=1, stream=1),
        distribution.sample(50, seed=1, first=50),
        distribution.sample(50, seed=1 + 2**32),
        distribution.sample(50, seed=1, first=2**32),
    ]
    seen = [batch.tokens.tobytes() for batch in (base, *others)]
    assert len(set(seen)) == len(seen)


def digest(distribution: Distribution, threads: int) -> str:
    columns = distribution.sample(2500, seed=2026, split="validation", stream=3, first=7, threads=threads).to_columns()
    total = hashlib.sha256()
    for name in sorted(columns):
        total.update(name.encode() + np.ascontiguousarray(columns[name]).astype("<i8", casting="unsafe").tobytes())
    return total.hexdigest()[:16]


# Made by `python tests/test_draw.py`. They change only when a distribution or the generator does, and then on purpose.
GOLDEN: dict[str, str] = json.loads(
    """
    {
        "dfs(input_size=32)": "2aaa378890057aee",
        "dfs(input_size=32, mode='naive', padding='random')": "827bb49b6eee187b",
        "dfs(input_size=32, padding='random', prefix=True)": "16bf0dcf80478490",
        "selection-inference(input_size=32)": "4e21bf591647ece8",
        "naive(input_size=32)": "5ffda8dd8148247b",
        "balanced(input_size=32)": "be218e9f7f8819bd",
        "balanced(input_size=32, label='vertex', incoming=False)": "389bc6fda11ce41e",
        "star(input_size=32, label='soft')": "00bcd0ee60b92b4a",
        "language(input_size=32)": "3f0f5873d4a7b153",
        "dfs(input_size=128)": "cc11d4b6c0d3fbba",
        "dfs(input_size=128, mode='naive', padding='random')": "3c40d111edf632e9",
        "dfs(input_size=128, padding='random', prefix=True)": "e3e12798316b7ed0",
        "selection-inference(input_size=128)": "5d243b1844e213cc",
        "naive(input_size=128)": "66ee13e14faab39e",
        "balanced(input_size=128)": "f6feea78c489b15b",
        "balanced(input_size=128, label='vertex', incoming=False)": "cf0c544acb38bf88",
        "star(input_size=128, label='soft')": "c8495d26b067c64a",
        "language(input_size=128)": "a07843c313588b8f"
    }
    """
)


def golden_now(threads: int) -> dict[str, str]:
    return {d.describe(): digest(d, threads) for size in (32, 128) for d in every_distribution(size)}


@pytest.mark.parametrize("threads", [1, 3])
def test_a_fresh_process_reproduces_the_golden_bytes(threads: int):
    done = subprocess.run(
        [sys.executable, __file__, str(threads)], capture_output=True, text=True, check=True, timeout=300
    )
    assert json.loads(done.stdout) == GOLDEN


def test_the_requested_difficulty_survives_rejection_and_redraws():
    """The difficulty of example i is the same with and without held-out problems, though its problem is not."""
    from pathmerge.heldout import HeldOut

    plain = pm.Balanced(input_size=32).sample(2000, seed=5)
    guarded = pm.Balanced(input_size=32).sample(2000, seed=5, held_out=HeldOut.of(plain.identity[::2]))
    assert np.array_equal(plain.lookahead, guarded.lookahead)
    assert not np.isin(guarded.identity, plain.identity[::2]).any()
    # Rows whose problem is not held out are untouched.
    kept = ~np.isin(plain.identity, plain.identity[::2])
    assert kept.sum() > 500
    assert np.array_equal(plain.tokens[kept], guarded.tokens[kept])
    assert (guarded.redraws[~kept] >= 1).all()
    assert (guarded.redraws[kept] == 0).all()


def test_what_cannot_be_drawn_ends_with_an_error_in_bounded_time():
    from pathmerge.heldout import HeldOut

    tiny = pm.Star(input_size=14, spokes=2, lookahead=1)
    everything = HeldOut.of(tiny.sample(2000).identity)
    assert len(everything) == tiny.problem_count() == 6
    with pytest.raises(pm.DrawError, match="was not found in 65520 attempts") as caught:
        tiny.sample(1, held_out=everything)
    assert "\n" not in str(caught.value)


def test_star_problem_count_is_exact():
    for spokes, length in [(2, 1), (3, 1), (2, 2), (8, 1)]:
        cell = pm.Star(input_size=32, spokes=spokes, lookahead=length)
        assert len(np.unique(cell.sample(400_000).identity)) == cell.problem_count()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pm.Naive(input_size=13), "input_size=13: must be a whole number in 14..512"),
        (lambda: pm.Naive(input_size=513), "input_size=513"),
        (lambda: pm.DFS(input_size=10), "input_size=10: must be a whole number in 11..512"),
        (lambda: pm.Balanced(input_size=128, lookahead=21), r"lookahead=21: must be a whole number in 1..20"),
        (lambda: pm.Balanced(input_size=128, lookahead=0), "lookahead=0"),
        (lambda: pm.Balanced(input_size=128, max_lookahead=21), "max_lookahead=21"),
        (lambda: pm.Balanced(input_size=128, lookahead=2, max_lookahead=3), "max_lookahead=3: must be left out"),
        (lambda: pm.Balanced(input_size=128, label="best"), "label='best': must be one of path, vertex, soft"),  # pyright: ignore[reportArgumentType]
        (lambda: pm.Star(input_size=128, spokes=1), "spokes=1: must be a whole number in 2..40"),
        (lambda: pm.Star(input_size=128, spokes=5, lookahead=9), r"spokes=5: must be a whole number in 2..4 "),
        (lambda: pm.Star(input_size=64, spokes=7, lookahead=500), "lookahead=500: must be a whole number in 1..9"),
        (lambda: pm.Balanced(input_size=64, incoming="no"), "incoming='no': must be True or False"),  # pyright: ignore[reportArgumentType]
        (lambda: pm.Naive(input_size=64).sample(10**15), "count=1000000000000000: does not fit into memory"),
        (lambda: pm.Tangled(input_size=16), "input_size=16: tangled problems need at least 4 vertices, input_size 17"),
        (lambda: pm.Tangled(input_size=32, vertices=3), "vertices=3: tangled problems need at least 4 vertices"),
        (lambda: pm.Tangled(input_size=32, lookahead=4), r"lookahead=4: must be a whole number in 1..3 \(\(V-2\)//2"),
        (lambda: pm.Star(input_size=128, lookahead=21), "lookahead=21: must be a whole number in 1..20"),
        (lambda: pm.DFS(input_size=128, backtrack=31), "backtrack=31: must be a whole number in 0..30"),
        (lambda: pm.DFS(input_size=13, backtrack=1), "backtrack=1: must be a whole number in 0..0"),
        (lambda: pm.DFS(input_size=64, mode="naive", backtrack=1), "backtrack=1: must be left out"),
        (lambda: pm.DFS(input_size=64, mode="naive", prefix=True), "prefix=True: must be False"),
        (lambda: pm.SelectionInference(input_size=64, frontier=6), "frontier=6: must be a whole number in 1..5"),
        (
            lambda: pm.SelectionInference(input_size=64, frontier=5, branch=7),
            "branch=7: must be a whole number in 1..6",
        ),
        (lambda: Language(input_size=64, graph="naive", lookahead=2), "lookahead=2: must be left out"),
        (lambda: Language(input_size=64, lookahead=99), "lookahead=99"),
        (lambda: pm.Naive(input_size=64).sample(-1), "count=-1"),
        (lambda: pm.Naive(input_size=64).sample(1, first=-1), "first=-1"),
        (lambda: pm.Naive(input_size=64).sample(1, threads=0), "threads=0"),
    ],
)
def test_bad_requests_name_the_field_the_value_and_what_is_allowed(make, message: str):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("distribution", KINDS, ids=lambda d: d.describe())
def test_fixed_cells_are_the_cells(distribution: Distribution):
    fixed = distribution.fixed()
    assert len(fixed) == len(distribution.cells())
    for one, cell in zip(fixed, distribution.cells(), strict=True):
        assert one.cells() == [cell]


def test_feasible_pairs_are_those_of_the_definition():
    import oracles

    for size in (14, 32, 64, 128, 512):
        assert {(k, length) for length, k, _ in pm.Star(input_size=size).cells()} == set(
            oracles.feasible_pairs(size, "star")
        )
        pairs = {(f, b) for f, b, _ in pm.SelectionInference(input_size=size).cells()}
        assert pairs == set(oracles.feasible_pairs(size, "selection-inference"))


@pytest.mark.parametrize("size", [11, 14, 199, 392, 512])
def test_no_kernel_writes_beyond_its_workspace(size: int):
    """Words before and after each scratch array must come through unchanged; at N=512 they once did not."""
    margin, mark = 64, 77
    for distribution in every_distribution(size):
        ask, cells = _request(getattr(distribution, "symbolic", distribution))
        plain = make_workspace(ask.vertices, len(ask.words))
        whole = [np.full((array.shape[0] + 2 * margin, *array.shape[1:]), mark, array.dtype) for array in plain]
        work = Workspace(*(array[margin:-margin] for array in whole))
        fill(work, ask, cells, np.uint64(1), 0, 0, 0, np.zeros(1, np.uint64), _empty_columns(600, ask))
        for name, array in zip(Workspace._fields, whole, strict=True):
            assert (array[:margin] == mark).all(), (distribution.describe(), name)
            assert (array[-margin:] == mark).all(), (distribution.describe(), name)


@pytest.mark.parametrize("distribution", KINDS, ids=lambda d: d.describe())
def test_batches_and_configs_can_be_pickled_and_copied(distribution: Distribution):
    batch = distribution.sample(3, seed=1)
    for again in (pickle.loads(pickle.dumps(batch)), copy.copy(batch), copy.deepcopy(batch)):
        assert same(again, batch)
    assert pickle.loads(pickle.dumps(distribution)) == distribution


def test_rows_are_taken_as_a_stretch_of_the_stream():
    batch = pm.Naive(input_size=32).sample(10, seed=1, first=5)
    assert batch.take(slice(2, 4)).first == 7
    with pytest.raises(ValueError, match="must be consecutive"):
        batch.take(slice(0, 10, 2))


def test_whole_numbers_of_numpy_are_numbers():
    batch = pm.Balanced(input_size=np.int64(32), lookahead=np.int8(2)).sample(np.int32(3), seed=np.uint64(4))  # pyright: ignore[reportArgumentType]
    assert same(batch, pm.Balanced(input_size=32, lookahead=2).sample(3, seed=4))
    assert json.dumps(batch.distribution.to_dict())


def test_an_empty_batch_is_a_batch():
    batch = pm.Balanced(input_size=32).sample(0)
    assert len(batch) == 0
    assert batch.tokens.shape == (0, 32)


def test_missing_columns_are_named():
    batch = pm.Naive(input_size=32).sample(1)
    with pytest.raises(AttributeError, match="'backtrack': a batch of naive has no such column; it has lookahead"):
        _ = batch.backtrack


def test_targets_follow_the_label_mode():
    soft = pm.Naive(input_size=32, label="soft").sample(500)
    assert np.allclose(soft.target.sum(1), 1)
    assert ((soft.target > 0) == soft.answers).all()
    assert (soft.answers.sum(1) > 1).any()
    hard = pm.Naive(input_size=32).sample(500)
    assert (hard.target.argmax(1) == hard.label).all()
    assert (hard.target.sum(1) == 1).all()


if __name__ == "__main__":
    print(json.dumps(golden_now(int(sys.argv[1]) if len(sys.argv) > 1 else 1), indent=4))
