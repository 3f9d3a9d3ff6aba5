"""Random depth (`training.deepest`): which depth a step has, that it really has it, and what it costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from short_runs import PLAIN

import pathmerge as pm
from pathmerge.training.config import RunConfig, config_from_dict
from pathmerge.training.loop import train
from pathmerge.training.metrics import read_metrics
from pathmerge.training.run import METRICS
from pathmerge.training.schedule import RunSchedule


def deep(loops: int, deepest: int | None, *, seed: int = 5, layers: int = 1, **training: Any) -> RunConfig:
    model = replace(PLAIN.model, loops=loops, layers=layers)
    settings = replace(PLAIN.training, deepest=deepest, **training)
    return replace(PLAIN, model=model, training=settings, seed=seed)


def test_depths_are_drawn_evenly_and_by_seed_and_example_alone():
    schedule = RunSchedule(config=deep(2, 5, layers=3))
    drawn = [schedule.layers(example) for example in range(0, 64 * 4000, 64)]
    counts = Counter(drawn)
    assert sorted(counts) == [6, 9, 12, 15]
    assert chisquare(list(counts.values())).pvalue > 1e-4
    assert [schedule.layers(example) for example in range(640, 64 * 100, 64)] == drawn[10:100]
    assert [RunSchedule(config=deep(2, 5, seed=6, layers=3)).layers(64 * i) for i in range(100)] != drawn[:100]
    assert {RunSchedule(config=deep(2, None, layers=3)).layers(64 * i) for i in range(100)} == {6}


def test_a_step_has_the_depth_that_was_drawn(tmp_path: Path):
    """One step of a run with random depth gives the weights of a run of that depth, and costs its FLOPs."""
    size = PLAIN.training.batch_size
    schedule = RunSchedule(config=deep(1, 4))
    drawn = schedule.layers(0)
    assert drawn > 1

    def one_step(name: str, loops: int, deepest: int | None) -> tuple[pm.Run, float]:
        run = train(deep(loops, deepest, examples=size, first_batch_size=None), tmp_path / name, quiet=True)
        lines = read_metrics(run.directory / METRICS)
        return run, next(line["flops"] for line in lines if line["kind"] == "train")

    (random, cost), (fixed, same), (_, less) = one_step("a", 1, 4), one_step("b", drawn, None), one_step("c", 1, None)
    assert random.model.layers == 1  # judged and kept as the config says
    pairs = zip(random.model.parameters(), fixed.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert cost == same > less


def test_runs_without_it_have_the_names_they_had(tmp_path: Path):
    assert "deepest" not in deep(2, None).to_dict()["training"]
    config = deep(2, 3)
    assert config_from_dict(config.to_dict()) == config
    assert config.digest != deep(2, None).digest
    with pytest.raises(ValueError, match=r"training\.deepest=2: must be at least model\.loops=3"):
        deep(3, 2)
    with pytest.raises(ValueError, match=r"training\.deepest=0: must be a whole number in 1\.\.1000"):
        deep(1, 0)
