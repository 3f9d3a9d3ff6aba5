"""Shared set-up: no test may depend on another's files or on the order of tests."""

from __future__ import annotations

import pathmerge as pm
from pathmerge.encodings.language import Language
from pathmerge.problems.distribution import Distribution


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
