"""Runs of a second, how they are killed inside the test, and how two of them are compared to the bit.

The fixtures that hold such runs are in conftest.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import pathmerge as pm
from pathmerge.models.config import ModelConfig
from pathmerge.training.checkpoint import Checkpoint, load_latest
from pathmerge.training.config import RunConfig, to_toml
from pathmerge.training.loop import Trainer, train
from pathmerge.training.metrics import TIME_FIELDS, read_metrics

NEVER = 1e9


SIZE = 20


def make_config(
    optimizer: Any = "adamw", *, model: ModelConfig | None = None, threads: int = 1, **training: Any
) -> RunConfig:
    """A run with all that has a memory: stages, an easier share, a ramp, a warm-up, a decay that the last stage starts.

    The rates are high and the threshold is low, so that three stages pass and the decay ends the run within a second.
    """
    rate = {"signum": 1e-3, "sophia": 1e-3, "adamw": 3e-3, "muon": 3e-3}[optimizer]
    settings: dict[str, Any] = {
        "learning_rate": rate,
        "hessian_every": 3,
        "batch_size": 32,
        "first_batch_size": 8,
        "ramp": 400,
        "warmup": 100,
        "schedule": "cosine",
        "decay": 400,
        "examples": 4000,
        "validate_every": 500,
        "log_every": 200,
    }
    return RunConfig(
        problem=pm.Balanced(input_size=SIZE),
        model=model or pm.Edges(input_size=SIZE, layers=1, end_width=8),
        training=pm.Training(optimizer=optimizer, threads=threads, **(settings | training)),
        curriculum=pm.Curriculum(over="size", first=3, step=1, threshold=0.3, window=128, easier=0.5),
        held_out=pm.Holding(test=50, validation=50),
        seed=5,
    )


PLAIN = replace(
    make_config(examples=640, ramp=0, schedule="constant", log_every=64, validate_every=320),
    curriculum=pm.Curriculum(),
)
"""Twenty steps of 32 examples without a curriculum."""


def tiny(**changes: Any) -> pm.RunConfig:
    """A run of a second: fields of Training by name, other tables whole."""
    training = {f.name for f in fields(pm.Training)}
    given: dict[str, Any] = {"examples": 640, "batch_size": 32, "threads": 1, "log_every": 160, "validate_every": 320}
    given |= {name: value for name, value in changes.items() if name in training}
    rest = {name: value for name, value in changes.items() if name not in training}
    tables: dict[str, Any] = {
        "problem": pm.Balanced(input_size=20),
        "model": pm.OneHot(input_size=20, layers=2, hidden=4),
        "training": pm.Training(**given),
        "held_out": pm.Holding(test=50, validation=50),
        "seed": 3,
    }
    return pm.RunConfig(**(tables | rest))


MODELS = {
    "onehot": pm.OneHot(input_size=SIZE, layers=1, hidden=4),
    "matching": pm.OneHot(input_size=SIZE, layers=2, hidden=4, initialisation="matching"),
    "looped": pm.OneHot(input_size=SIZE, layers=1, hidden=4, loops=2, positions="learned"),
    "rotary": pm.Rotary(input_size=SIZE, layers=1, hidden=4),
    "edges": pm.Edges(input_size=SIZE, layers=2, heads=4, end_width=8),
}


class KilledError(BaseException):
    """Stands for a SIGKILL inside the test."""


def crash(monkeypatch: pytest.MonkeyPatch, method: str, steps: Iterable[int]) -> None:
    """Let `Trainer.<method>` do its work and then raise, the first time each of these steps is done."""
    left = set(steps)
    original = getattr(Trainer, method)

    def crashing(self: Trainer, *positional: Any, **named: Any) -> Any:
        result = original(self, *positional, **named)
        if self.step in left:
            left.remove(self.step)
            raise KilledError
        return result

    monkeypatch.setattr(Trainer, method, crashing)


def train_until(config: RunConfig, out: Path, examples: int) -> Path:
    """Train inside the test, uninterrupted, and stop with a checkpoint once these examples are seen."""
    original = Trainer._step

    def step(self: Trainer, wish_to_stop: bool) -> bool:
        original(self, wish_to_stop)
        return self.examples >= examples

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_step", step)
        with pytest.raises(KeyboardInterrupt):
            train(config, out, quiet=True, save_every=NEVER)
    return out / config.run_name


def write_config(config: RunConfig, folder: Path) -> Path:
    path = folder / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    return path


def newest(run: Path) -> Checkpoint:
    found = load_latest(run / "checkpoints")
    assert found is not None
    return found


def lines_of(run: pm.Run, kind: str) -> list[dict[str, Any]]:
    return [line for line in run.metrics() if line["kind"] == kind]


def lines_without_time(run: Path) -> list[dict[str, Any]]:
    lines = read_metrics(run / "metrics.jsonl")
    return [{name: value for name, value in line.items() if name not in TIME_FIELDS} for line in lines]


def check_same_tensors(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype
        assert ours[name].numpy().tobytes() == value.numpy().tobytes(), name


def check_same_weights(ours: Path, theirs: Path) -> None:
    found, expected = pm.load_weights(ours), pm.load_weights(theirs)
    assert found.config == expected.config
    check_same_tensors(found.state_dict(), expected.state_dict())


def check_same_checkpoint(run: Path, reference: Path) -> None:
    ours, theirs = newest(run), newest(reference)
    assert ours.examples == theirs.examples
    assert any(name.startswith("optimizer/") for name in ours.tensors)
    check_same_tensors(ours.tensors, theirs.tensors)
    # How many bytes the metrics have depends on the digits of the times in them.
    assert {**ours.state, "seconds": 0, "metrics": 0} == {**theirs.state, "seconds": 0, "metrics": 0}


def check_same(run: Path, reference: Path) -> None:
    """Weights, all that the optimizer and the loop remember, and every line of metrics: the same to the bit."""
    check_same_weights(run / "model.safetensors", reference / "model.safetensors")
    check_same_checkpoint(run, reference)
    ours, theirs = lines_without_time(run), lines_without_time(reference)
    for our, their in zip(ours, theirs, strict=True):
        assert our == their
    assert newest(run).state["metrics"] == (run / "metrics.jsonl").stat().st_size


def check_no_half_files(run: Path) -> None:
    assert [path.name for path in (run / "checkpoints").iterdir() if path.name.startswith(".")] == []


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its bytes and its time, but for the empty file that is locked."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def files(folder: Path) -> dict[str, bytes]:
    """What stands in a folder of circuits, but for the summary, which says how long it took."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "summary.json"}
