"""Shared set-up: no test may depend on another's files or on the order of tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pathmerge as pm
from pathmerge import plugins
from pathmerge.distributions import DISTRIBUTIONS
from pathmerge.encodings.language import Language
from pathmerge.models.config import MODELS
from pathmerge.problems.distribution import Distribution
from pathmerge.studies.catalogue import STUDIES
from pathmerge.studies.study import Study
from pathmerge.training.config import RunConfig

# What helpers assert is explained like what tests assert.
pytest.register_assert_rewrite("circuit_samples", "html_reader", "planted", "short_runs", "study_runs")


@pytest.fixture
def catalogues(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What plug-ins add is gone after the test, in this process and for those that later tests start."""
    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.setattr(plugins, "_loaded", set(plugins._loaded))  # pyright: ignore[reportPrivateUsage]
    before = [dict(DISTRIBUTIONS), dict(MODELS), dict(STUDIES)]
    yield
    for catalogue, kept in zip((DISTRIBUTIONS, MODELS, STUDIES), before, strict=True):
        catalogue.clear()
        catalogue.update(kept)  # pyright: ignore[reportArgumentType, reportCallIssue]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Study]:
    """A study from someone's plug-in, in this process and in all that it starts."""
    from study_runs import PLUGIN

    path = tmp_path / "trained.py"
    path.write_text(PLUGIN)
    monkeypatch.setenv(plugins.VARIABLE, str(path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    plugins.load_plugins()
    yield STUDIES["trained"]
    del STUDIES["trained"]


@pytest.fixture(scope="module")
def one_core() -> Iterator[None]:
    """Small operations on several cores wait for each other, ten times as long where other tests run beside them."""
    from pathmerge.parallel import Workers

    with Workers(1):
        yield


# Runs that tests of several files go back to. Training is imported where it is needed: many tests do without torch.


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[RunConfig], Path]:
    """Uninterrupted runs, each trained once."""
    import torch
    from short_runs import NEVER

    from pathmerge.training.loop import train

    folder = tmp_path_factory.mktemp("reference")

    def get(config: RunConfig) -> Path:
        directory = folder / config.run_name
        if not (directory / "model.safetensors").exists():
            train(config, folder, quiet=True, save_every=NEVER)
            initial = dict(config.model.build(config.seed).named_parameters())
            trained = dict(pm.load_weights(directory / "model.safetensors").named_parameters())
            assert any(not torch.equal(trained[name], value) for name, value in initial.items())
        return directory

    return get


@pytest.fixture(scope="session")
def half_way(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run PLAIN, killed after 384 of its 640 examples, with checkpoints at 320 and 352."""
    from short_runs import PLAIN, KilledError, crash

    from pathmerge.training.loop import train

    out = tmp_path_factory.mktemp("half")
    with pytest.MonkeyPatch.context() as patch:
        crash(patch, "_report", [12])
        with pytest.raises(KilledError):
            train(PLAIN, out, quiet=True, save_every=0)
    return out / PLAIN.run_name


@pytest.fixture
def broken(half_way: Path, tmp_path: Path) -> Path:
    """A copy of it to be damaged."""
    return Path(shutil.copytree(half_way, tmp_path / half_way.name))


def every_distribution(size: int) -> list[Distribution]:
    """One of each kind and option at this input size."""
    found: list[Distribution] = [
        pm.DFS(input_size=size),
        pm.DFS(input_size=size, mode="naive", padding="random"),
        pm.DFS(input_size=size, prefix=True, padding="random"),
        pm.SelectionInference(input_size=size),
    ]
    if size >= 14:
        found += [
            pm.Naive(input_size=size),
            pm.Balanced(input_size=size),
            pm.Balanced(input_size=size, incoming=False, label="vertex"),
            pm.Star(input_size=size, label="soft"),
            Language(input_size=size),
        ]
    return found
