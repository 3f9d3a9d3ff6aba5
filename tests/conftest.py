"""Shared set-up: no test may depend on another's files or on the order of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pathmerge as pm
from pathmerge import plugins
from pathmerge.distributions import DISTRIBUTIONS
from pathmerge.encodings.language import Language
from pathmerge.models.config import MODELS
from pathmerge.problems.distribution import Distribution
from pathmerge.studies.catalogue import STUDIES


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
