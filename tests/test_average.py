"""The running mean of weights: against the mean computed here from every step's weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pathmerge as pm
from pathmerge.models.weights import load_weights
from pathmerge.training import loop
from pathmerge.training.loop import Trainer, train
from pathmerge.training.run import load_run

SPAN = 96
CONFIG = pm.RunConfig(
    problem=pm.Balanced(input_size=20),
    model=pm.OneHot(input_size=20, layers=2, hidden=4),
    training=pm.Training(
        optimizer="adamw",
        learning_rate=0.01,
        examples=320,
        batch_size=32,
        average=SPAN,
        validate_every=160,
        log_every=160,
        threads=1,
    ),
    held_out=pm.Holding(test=20, validation=200),
    seed=3,
)


def numbers(model: torch.nn.Module) -> np.ndarray:
    return np.concatenate([p.detach().double().numpy().ravel() for p in model.parameters()])


def watch(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The weights after each step."""
    seen: list[np.ndarray] = []
    step = Trainer._step

    def noting(self: Trainer, wish: bool) -> bool:
        found = step(self, wish)
        seen.append(numbers(self.model))
        return found

    monkeypatch.setattr(Trainer, "_step", noting)
    return seen


def test_kept_are_the_weighted_means_of_all_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen = watch(monkeypatch)
    run = train(CONFIG, tmp_path, quiet=True)
    # Three steps of 32 fill the span: their plain mean. Each later one counts a third, what was before two thirds.
    expected = (seen[0] + seen[1] + seen[2]) / 3
    for weights in seen[3:]:
        expected = 2 / 3 * expected + 1 / 3 * weights
    for model in (load_weights(run.directory / "model.safetensors"), run.model):
        np.testing.assert_allclose(numbers(model), expected, rtol=0, atol=2e-6)
        assert np.abs(numbers(model) - seen[-1]).max() > 1e-3


def test_training_itself_does_not_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen = watch(monkeypatch)
    train(CONFIG, tmp_path, quiet=True)
    averaged = seen.copy()
    seen.clear()
    run = train(replace(CONFIG, training=replace(CONFIG.training, average=None)), tmp_path, quiet=True)
    assert all((one == other).all() for one, other in zip(averaged, seen, strict=True))
    assert (numbers(run.model) == seen[-1]).all()


def test_validation_judges_the_mean(tmp_path: Path):
    run = train(CONFIG, tmp_path, quiet=True)
    last = [line for line in run.metrics() if line["kind"] == "validation"][-1]
    config = replace(CONFIG, training=replace(CONFIG.training, average=None))
    plain = [line for line in train(config, tmp_path, quiet=True).metrics() if line["kind"] == "validation"][-1]
    assert last["examples"] == plain["examples"] == 320
    assert last["loss"] != plain["loss"]


@pytest.mark.parametrize("steps", [2, 7])
def test_a_stopped_run_goes_on_to_the_same_mean(steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = train(CONFIG, tmp_path / "whole", quiet=True)

    class KilledError(Exception):
        pass

    with monkeypatch.context() as patch:
        report, count = loop.Trainer._report, [0]

        def dying(self: Any) -> None:
            report(self)
            count[0] += 1
            if count[0] == steps + 1:
                raise KilledError

        patch.setattr(loop.Trainer, "_report", dying)
        with pytest.raises(KilledError):
            train(CONFIG, tmp_path / "cut", quiet=True, save_every=0)
    cut = load_run(tmp_path / "cut" / CONFIG.run_name)
    assert cut.examples == 32 * steps
    again = train(CONFIG, tmp_path / "cut", quiet=True)
    assert (numbers(again.model) == numbers(whole.model)).all()
    both = (found.directory / "model.safetensors" for found in (again, whole))
    assert len({path.read_bytes() for path in both}) == 1


def test_runs_without_it_keep_their_names():
    plain = replace(CONFIG, training=replace(CONFIG.training, average=None))
    assert "average" not in plain.to_dict()["training"]
    assert CONFIG.to_dict()["training"]["average"] == SPAN
    assert plain.digest != CONFIG.digest
    with pytest.raises(ValueError, match=r"training\.average=0: must be"):
        replace(CONFIG.training, average=0)
