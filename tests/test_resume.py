"""Nothing is lost: a run that was killed ends as one that was left alone, to the bit; the same command goes on with it.

For breadth, runs end inside the test in an exception at chosen steps, which leaves the same files behind as a SIGKILL
(real ones are in test_killed.py). Also here: a run keeps its config, and a loss that is not finite ends it.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from short_runs import (
    MODELS,
    NEVER,
    PLAIN,
    SIZE,
    KilledError,
    check_same,
    check_same_checkpoint,
    crash,
    make_config,
    newest,
    snapshot,
    train_until,
    write_config,
)

import pathmerge as pm
from pathmerge.cli import main
from pathmerge.training import batch_gradients, loop
from pathmerge.training import checkpoint as checkpoints
from pathmerge.training.checkpoint import load_checkpoint
from pathmerge.training.config import RunConfig
from pathmerge.training.loop import train
from pathmerge.training.metrics import read_metrics
from pathmerge.training.run import lock


def train_to_the_end(config: RunConfig, out: Path, **options: Any) -> int:
    """Start again after every crash; how often that was needed."""
    for crashes in range(100):
        try:
            train(config, out, quiet=True, **options)
            return crashes
        except KilledError:
            continue
    raise AssertionError("does not come to its end")


# Inside the test: breadth.


@pytest.mark.parametrize("optimizer", ["signum", "sophia", "adamw", "muon"])
def test_a_killed_run_ends_as_one_left_alone(
    optimizer: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reference: Callable[[RunConfig], Path],
):
    config = make_config(optimizer, threads=2, deepest=3)  # and a depth that is drawn for each step
    whole = reference(config)
    lines = read_metrics(whole / "metrics.jsonl")
    # The run has all that it is meant to have: three stages, and an end that depends on when the last was mastered.
    assert [line["stage"] for line in lines if line["kind"] == "stage"][1:] == ["3/3 (vertices ≤ 5)", "mastered"]
    assert lines[-1]["reason"] == "decay"
    last = newest(whole).state["step"]
    crash(monkeypatch, "_report", [2, 3, 20, last - 9, last - 1, last])
    crash(monkeypatch, "_step", [1, 14, 31])
    crash(monkeypatch, "_save", [18, last - 4])
    # Checkpoints are 4 to 19 steps apart, so steps are repeated and lines of metrics written twice.
    crashes = train_to_the_end(config, tmp_path, save_every=NEVER, keep_every=150)
    assert crashes >= 9
    check_same(tmp_path / config.run_name, whole)


@pytest.mark.long
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", ["signum", "sophia", "adamw", "muon"])
def test_a_run_killed_many_times_ends_as_one_left_alone(
    optimizer: str,
    model: str,
    accumulate: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reference: Callable[[RunConfig], Path],
):
    config = make_config(optimizer, model=MODELS[model], threads=2, accumulate=accumulate, loss="any")
    whole = reference(config)
    choose = random.Random(f"{optimizer} {model} {accumulate}")
    steps = newest(whole).state["step"]
    for method in ("_step", "_report", "_save"):
        crash(monkeypatch, method, choose.sample(range(1, steps + 1), 12))
    crashes = train_to_the_end(config, tmp_path, save_every=NEVER, keep_every=70)
    assert crashes >= 24
    check_same(tmp_path / config.run_name, whole)


@pytest.mark.parametrize(
    "problem",
    [pm.DFS(input_size=SIZE), pm.SelectionInference(input_size=SIZE), pm.Language(input_size=SIZE)],
    ids=lambda problem: problem.name,
)
def test_every_task_goes_on_where_it_stopped(
    problem: pm.Distribution,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reference: Callable[[RunConfig], Path],
):
    model = pm.OneHot(input_size=SIZE, layers=1, hidden=4, text=problem.name == "language")
    training = replace(PLAIN.training, examples=256, batch_size=32, optimizer="sophia")
    config = replace(PLAIN, problem=problem, model=model, training=training)
    crash(monkeypatch, "_report", [3, 6])
    assert train_to_the_end(config, tmp_path, save_every=NEVER, keep_every=64) == 2
    check_same(tmp_path / config.run_name, reference(config))


def test_a_run_killed_between_its_last_checkpoint_and_its_weights_still_writes_the_trained_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: Callable[[RunConfig], Path]
):
    def die(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_weights", die)
        with pytest.raises(KilledError):
            train(PLAIN, tmp_path, quiet=True)
    run = tmp_path / PLAIN.run_name
    assert newest(run).state["finished"] == "examples"
    assert not (run / "model.safetensors").exists()
    train(PLAIN, tmp_path, quiet=True)
    check_same(run, reference(PLAIN))


def test_what_was_reached_once_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """When the published rule and the convergence were met, though later batches may be worse."""
    original = loop.validate
    monkeypatch.setattr(loop, "PUBLISHED_BATCH", 32)
    monkeypatch.setattr(loop, "PUBLISHED_RULE", 0.1)
    monkeypatch.setattr(loop, "validate", lambda *a: {**original(*a), "converged": True})
    for out in ("whole", "killed"):
        if out == "killed":
            crash(monkeypatch, "_report", [13, 17])
        train_to_the_end(PLAIN, tmp_path / out, save_every=NEVER, keep_every=128)
    state = newest(tmp_path / "whole" / PLAIN.run_name).state
    assert 0 < state["published_at"] < 384
    assert state["converged_at"] == {"converged": 320}
    check_same(tmp_path / "killed" / PLAIN.run_name, tmp_path / "whole" / PLAIN.run_name)


def test_how_often_it_is_saved_changes_no_number(
    tmp_path: Path, reference: Callable[[RunConfig], Path], capsys: pytest.CaptureFixture[str]
):
    train(PLAIN, tmp_path, quiet=True, save_every=0)
    run = tmp_path / PLAIN.run_name
    check_same(run, reference(PLAIN))
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        f"{examples:015d}.{suffix}" for examples in (608, 640) for suffix in ("json", "safetensors")
    ]
    assert capsys.readouterr().err == ""


def test_the_same_weights_are_the_same_file(tmp_path: Path):
    """So that two runs can be compared with `sha256sum`."""
    model = PLAIN.model.build(0)
    found: set[bytes] = set()
    for _ in range(20):
        pm.save_weights(model, tmp_path / "model.safetensors")
        found.add((tmp_path / "model.safetensors").read_bytes())
    assert len(found) == 1


def test_milestones_are_kept_beside_the_two_newest(tmp_path: Path, reference: Callable[[RunConfig], Path]):
    train(PLAIN, tmp_path, quiet=True, save_every=0, keep_every=200)
    run = tmp_path / PLAIN.run_name
    found = checkpoints.list_checkpoints(run / "checkpoints")
    # Each is the first step that passes a multiple of 200.
    assert [load_checkpoint(path).examples for path in found] == [224, 416, 608, 640]
    check_same(run, reference(PLAIN))


# The same command again, another command, another process.


def test_a_finished_run_says_so_and_nothing_changes(
    reference: Callable[[RunConfig], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = Path(shutil.copytree(reference(PLAIN), tmp_path / PLAIN.run_name))
    path = write_config(PLAIN, tmp_path)
    before = snapshot(run)
    for command in (["train", str(path), "--out", str(tmp_path)], ["train", str(run)]):
        assert main(command) == 0
        captured = capsys.readouterr()
        assert captured.out.splitlines()[1] == "finished before: all examples seen after 640 examples"
        assert captured.out.splitlines()[2].startswith("validation accuracy 0.")
        assert captured.err == ""
    again = train(PLAIN, tmp_path)
    assert (again.finished, again.examples) == ("examples", 640)
    assert snapshot(run) == before


def test_a_run_that_another_process_holds_is_left_alone(broken: Path, capsys: pytest.CaptureFixture[str]):
    before = snapshot(broken)
    with lock(broken):
        assert main(["train", str(broken), "--quiet"]) == 2
    assert capsys.readouterr().err == f"pathmerge train: run={str(broken)!r}: another process is training it\n"
    assert snapshot(broken) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--training.threads 3", "training.threads=3: the run in {run!r} has 1, and keeps it"),
        ("--training.learning-rate 0.1", "training.learning_rate=0.1: the run in {run!r} has 0.003, and keeps it"),
        ("--seed 6", "seed=6: the run in {run!r} has 5, and keeps it"),
        ("--problem.max-lookahead 1", "problem.max_lookahead=1: the run in {run!r} has None, and keeps it"),
        ("--model.layers 2", "model.layers=2: the run in {run!r} has 1, and keeps it"),
        ("--curriculum.over size", "curriculum.over='size': the run in {run!r} has 'none', and keeps it"),
        ("--held-out.seed 1", "held_out.seed=1: the run in {run!r} has 0, and keeps it"),
        ("--recipe paper", "recipe='paper': must be left out when a config or a run is given"),
    ],
)
def test_a_run_keeps_its_config(options: str, message: str, broken: Path, capsys: pytest.CaptureFixture[str]):
    before = snapshot(broken)
    assert main(["train", str(broken), *options.split()]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"pathmerge train: {message.format(run=str(broken))}\n"
    assert captured.out == ""
    assert snapshot(broken) == before


def test_a_config_edited_by_hand_is_refused(broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = write_config(PLAIN, tmp_path)
    text = (broken / "config.toml").read_text()
    (broken / "config.toml").write_text(text.replace("batch_size = 32", "batch_size = 64"))
    before = snapshot(broken)
    # The command that made it finds another value there.
    assert main(["train", str(path), "--out", str(tmp_path), "--quiet"]) == 2
    assert (
        capsys.readouterr().err
        == f"pathmerge train: training.batch_size=32: the run in {str(broken)!r} has 64, and keeps it\n"
    )
    # The run itself no longer fits its name.
    assert main(["train", str(broken), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert f"run={str(broken)!r}: its name is not that of its config" in said
    assert said.count("\n") == 1
    assert snapshot(broken) == before


# A loss that is not finite.


def test_a_loss_that_is_not_finite_ends_the_run_and_the_last_good_checkpoint_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    path = write_config(PLAIN, tmp_path)
    original = batch_gradients.add_gradients

    calls = count()

    def poisoned(model: Any, *positional: Any, **named: Any) -> Any:
        outcome = original(model, *positional, **named)
        if next(calls) == 7:
            next(model.parameters()).grad[0, 0] = float("nan")
        return outcome

    with monkeypatch.context() as patch:
        patch.setattr(batch_gradients, "add_gradients", poisoned)
        assert main(["train", str(path), "--out", str(tmp_path), "--quiet", "--save-every", "0"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("pathmerge train: the gradient is not finite at example 224 (step 7); the last good")
    assert said.count("\n") == 1
    run = tmp_path / PLAIN.run_name
    assert newest(run).examples == 224
    assert all(bool(value.isfinite().all()) for value in newest(run).tensors.values())
    check_same_checkpoint(run, train_until(PLAIN, tmp_path / "whole", 224))


def test_a_rate_far_too_high_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    settings = replace(
        PLAIN.training, learning_rate=1000.0, clip=0.0, optimizer="signum", warmup=0, examples=32 * 200, decay=None
    )
    config = replace(PLAIN, training=settings, model=pm.OneHot(input_size=SIZE, layers=4, hidden=4))
    path = write_config(config, tmp_path)
    assert main(["train", str(path), "--out", str(tmp_path), "--quiet", "--save-every", "0"]) == 1
    said = capsys.readouterr().err
    assert "is not finite at example " in said
    assert "training.learning_rate=1000" in said
    assert said.count("\n") == 1
    found = newest(tmp_path / config.run_name)
    assert found.examples == int(said.split("at example ")[1].split()[0].replace(",", ""))
    assert all(bool(value.isfinite().all()) for value in found.tensors.values())
