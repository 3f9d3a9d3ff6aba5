"""Problem files and `verify`: what is written comes back, what was tampered with is found, bad files are one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import every_distribution

import pathmerge as pm
from pathmerge.distributions import distribution_from_dict
from pathmerge.files import read_problems, write_problems
from pathmerge.heldout import HeldOut
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import Distribution
from pathmerge.verify import verify

SUFFIXES = (".npz", ".parquet", ".jsonl")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("distribution", every_distribution(32), ids=lambda d: d.describe())
def test_what_is_written_comes_back_and_is_right(distribution: Distribution, suffix: str, tmp_path: Path):
    batch = distribution.sample(30, seed=8, split="test", stream=2, first=5)
    path = tmp_path / f"problems{suffix}"
    write_problems(batch, path)
    file = read_problems(path)
    assert file.distribution == distribution
    assert (file.key, file.first, len(file)) == (batch.key, 5, 30)
    for name, column in batch.to_columns().items():
        assert np.array_equal(file.columns[name], column), name
    verdict = verify(file)
    assert verdict.right
    assert all(check.asked == 30 for check in verdict.checks)
    assert list(tmp_path.iterdir()) == [path]


def test_the_contract_of_names_and_shapes(tmp_path: Path):
    write_problems(pm.Balanced(input_size=128, lookahead=8).sample(40, seed=1), tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz", allow_pickle=False) as data:
        assert data["tokens"].shape == (40, 128)
        assert data["answers"].shape == (40, 46)
        assert data["answers"].dtype == np.bool_
        for name in ("label", "lookahead", "start", "goal"):
            assert data[name].shape == (40,)
        assert (data["lookahead"] == 8).all()
        header = json.loads(str(data["header"]))
    assert header["distribution"]["lookahead"] == 8
    assert header["key"] == {"seed": 1, "split": "train", "stream": 0}
    write_problems(pm.SelectionInference(input_size=64).sample(10), tmp_path / "p.parquet")
    assert {"tokens", "label", "answers", "frontier", "branch", "start", "goal"} <= set(
        pq.read_table(tmp_path / "p.parquet").column_names
    )


@pytest.mark.parametrize("distribution", every_distribution(64), ids=lambda d: d.describe())
def test_configs_survive_the_header(distribution: Distribution):
    assert distribution_from_dict(json.loads(json.dumps(distribution.to_dict()))) == distribution


def tampered(batch: Batch, change: Callable[[dict[str, np.ndarray]], None], path: Path) -> None:
    """Write the batch, then change columns behind its back."""
    write_problems(batch, path)
    with np.load(path, allow_pickle=False) as data:
        columns = {name: data[name].copy() for name in data.files}
    change(columns)
    np.savez(path, allow_pickle=False, **columns)


def set_value(name: str, row: int, value: object) -> Callable[[dict[str, np.ndarray]], None]:
    def change(columns: dict[str, np.ndarray]) -> None:
        columns[name][row] = value

    return change


def flip_answer(columns: dict[str, np.ndarray]) -> None:
    columns["answers"][4, 1] = ~columns["answers"][4, 1]


def swap_edges(columns: dict[str, np.ndarray]) -> None:
    """The same problem with two edges in another order: only drawing again can tell."""
    end = columns["tokens"].shape[1] - 5
    row = columns["tokens"][7]
    row[end - 6 : end] = np.concatenate([row[end - 3 : end], row[end - 6 : end - 3]])


@pytest.mark.parametrize(
    ("change", "check", "row"),
    [
        (set_value("label", 3, 40), "label as the oracle says", 3),
        (flip_answer, "answers as the oracle says", 4),
        (set_value("lookahead", 5, 9), "lookahead as the oracle says", 5),
        (set_value("start", 6, 1), "start as the oracle says", 6),
        (set_value("goal", 6, 1), "goal as the oracle says", 6),
        (set_value("identity", 2, 12), "identity as the oracle says", 2),
        (set_value("redraws", 2, 1), "redraws as drawn from the key", 2),
        (set_value("tokens", 8, 44), "well-formed problem", 8),
        (swap_edges, "tokens as drawn from the key", 7),
    ],
)
def test_tampering_is_found(change: Callable[[dict[str, np.ndarray]], None], check: str, row: int, tmp_path: Path):
    batch = pm.Balanced(input_size=128, lookahead=3).sample(10, seed=3)
    tampered(batch, change, tmp_path / "p.npz")
    verdict = verify(read_problems(tmp_path / "p.npz"))
    assert not verdict.right
    found = next(c for c in verdict.checks if c.name == check)
    assert found.failed == 1
    assert f"row {row}" in found.first_failure
    if check == "tokens as drawn from the key":
        assert [c.name for c in verdict.checks if c.failed] == [check]


def test_a_pair_is_proved_disjoint_or_not(tmp_path: Path):
    held = pm.Balanced(input_size=32, lookahead=1).sample(200, seed=1, split="test")
    write_problems(held, tmp_path / "test.npz")
    guard = read_problems(tmp_path / "test.npz").held_out
    clean = pm.Balanced(input_size=32, lookahead=1).sample(400, seed=1, held_out=guard)
    assert clean.redraws.sum() > 0
    write_problems(clean, tmp_path / "clean.npz")
    write_problems(pm.Balanced(input_size=32, lookahead=1).sample(400, seed=1), tmp_path / "leaky.npz")
    test = read_problems(tmp_path / "test.npz")

    assert verify(read_problems(tmp_path / "clean.npz"), test).right
    alone = verify(read_problems(tmp_path / "clean.npz"))
    assert alone.right
    assert any("redrawn rows left out" in check.note for check in alone.checks)

    leaky = verify(read_problems(tmp_path / "leaky.npz"), test)
    (shared,) = [check for check in leaky.checks if check.failed]
    assert shared.name == "not held out in test.npz"
    assert "is the same problem as held-out row" in shared.first_failure


def test_a_collision_of_hashes_is_not_taken_for_a_shared_problem(tmp_path: Path):
    """The proof compares problems: a forged hash column neither hides nor makes an overlap."""
    batch = pm.Balanced(input_size=32).sample(20, seed=4)
    write_problems(batch, tmp_path / "a.npz")

    def forge(columns: dict[str, np.ndarray]) -> None:
        columns["identity"][:] = np.arange(1, 21)

    tampered(batch, forge, tmp_path / "b.npz")
    verdict = verify(read_problems(tmp_path / "a.npz"), read_problems(tmp_path / "b.npz"))
    assert next(c for c in verdict.checks if c.name.startswith("not held out")).failed == 20


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_truncated_files_are_one_line(suffix: str, tmp_path: Path):
    path = tmp_path / f"p{suffix}"
    write_problems(pm.Naive(input_size=32).sample(50), path)
    whole = path.read_bytes()
    for share in (0.0, 0.3, 0.7, 0.98):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(ValueError, match="file=") as caught:
            read_problems(path)
        assert "\n" not in str(caught.value)


def test_foreign_files_are_one_line(tmp_path: Path):
    foreign = tmp_path / "foreign.npz"
    np.savez(foreign, allow_pickle=False, x=np.arange(3))
    pickled = tmp_path / "pickled.npz"
    np.savez(pickled, header=np.array([{"a": 1}], dtype=object))
    text = tmp_path / "text.jsonl"
    text.write_text("hello\n")
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text(json.dumps({"header": {"format": "something else"}}) + "\n")
    (tmp_path / "odd.txt").write_text("")
    for path in (foreign, pickled, text, wrong, tmp_path / "missing.npz", tmp_path / "odd.txt", tmp_path):
        with pytest.raises(ValueError, match="file=") as caught:
            read_problems(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version=2: this pathmerge reads version 1"),
        ({"format": "x"}, "not a problem file"),
        ({"count": 7}, "has shape"),
        ({"distribution": {"name": "balance", "input_size": 32}}, "distribution='balance': must be one of"),
        ({"distribution": {"name": "naive", "input_size": 32, "depth": 3}}, "naive field='depth'"),
        ({"key": {"seed": -1, "split": "train", "stream": 0}}, "seed=-1"),
        ({"key": {"seed": 1}}, "the header is damaged: 'split'"),
        ({"count": "5"}, "count='5'"),
        ({"first": 1.5}, "first=1.5"),
        ({"first": float("inf")}, "first=inf"),
        ({"held_out": {}}, "the header is damaged: 'digest'"),
        ({"held_out": 5}, "the header is damaged"),
        (
            {"distribution": {"name": "balanced", "input_size": 32, "incoming": "x"}},
            "incoming='x': must be True or False",
        ),
    ],
)
def test_damaged_headers_are_named(change: dict[str, object], message: str, tmp_path: Path):
    path = tmp_path / "p.npz"

    def damage(columns: dict[str, np.ndarray]) -> None:
        columns["header"] = np.array(json.dumps({**json.loads(str(columns["header"])), **change}))

    tampered(pm.Naive(input_size=32).sample(5), damage, path)
    with pytest.raises(ValueError, match=message):
        read_problems(path)


def test_files_without_rows_are_right(tmp_path: Path):
    for suffix in SUFFIXES:
        write_problems(pm.Balanced(input_size=32).sample(0), tmp_path / f"p{suffix}")
        assert verify(read_problems(tmp_path / f"p{suffix}")).right
    batch = pm.Balanced(input_size=64).sample(3, seed=5)
    guarded = pm.Balanced(input_size=64).sample(3, seed=5, held_out=HeldOut.of(batch.identity))
    write_problems(guarded, tmp_path / "all redrawn.npz")
    assert verify(read_problems(tmp_path / "all redrawn.npz")).right


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("label", 3.5),
        ("start", "3"),
        ("answers", [-1]),
        ("answers", 3),
        ("answers", [2, 2]),
        ("answers", [True]),
        ("identity", -1),
        ("lookahead", 10**30),
        ("tokens", [1.5] * 32),
        ("tokens", [1]),
        ("label", None),
    ],
)
def test_values_of_another_kind_are_refused(name: str, value: object, tmp_path: Path):
    path = tmp_path / "p.jsonl"
    write_problems(pm.Balanced(input_size=32).sample(3), path)
    header, row, *rest = path.read_text().splitlines()
    path.write_text("\n".join([header, json.dumps({**json.loads(row), name: value}), *rest]))
    with pytest.raises(ValueError, match="file=") as caught:
        read_problems(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_bytes_never_raise_anything_else(suffix: str, tmp_path: Path):
    path = tmp_path / f"p{suffix}"
    write_problems(pm.Naive(input_size=32).sample(20), path)
    whole = bytearray(path.read_bytes())
    rng = np.random.default_rng(1)
    refusals: list[str] = []
    for _ in range(150):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), 3):
            damaged[place] = int(rng.integers(0, 256))
        path.write_bytes(damaged)
        try:
            verify(read_problems(path))
        except ValueError as error:
            refusals.append(str(error))
    assert len(refusals) > 20
    assert not any("\n" in line for line in refusals)


def test_a_link_is_followed(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link.npz").symlink_to(tmp_path / "real" / "p.npz")
    write_problems(pm.Naive(input_size=32).sample(3), tmp_path / "link.npz")
    assert (tmp_path / "link.npz").is_symlink()
    assert len(read_problems(tmp_path / "real" / "p.npz")) == 3


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "p.npz"
    write_problems(pm.Naive(input_size=32).sample(5), path)
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(ValueError, match="No space left on device"):
        write_problems(pm.Naive(input_size=32).sample(9), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_held_out_set_can_come_from_a_file(tmp_path: Path):
    batch = pm.DFS(input_size=32).sample(50)
    write_problems(batch, tmp_path / "p.jsonl")
    assert np.array_equal(
        read_problems(tmp_path / "p.jsonl").held_out.identities, HeldOut.of(batch.identity).identities
    )
