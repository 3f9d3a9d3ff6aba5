"""What the steps since the last line of metrics added up to, by difficulty; part of a run's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

LEVELS = 256
"""Difficulties are below this (a lookahead is at most 84, a backtrack distance at most 126)."""


class Tally:
    """Sums over steps; over all processes, if there are several."""

    def __init__(self) -> None:
        self.loss = self.gradient_norm = 0.0
        self.steps = 0
        self.right = np.zeros(LEVELS)
        self.seen = np.zeros(LEVELS)

    def fields(self, difficulty: str) -> dict[str, Any]:
        """Means for a line of metrics, and [right, seen] for each level of the difficulty of this name."""
        count = self.seen.sum()
        return {
            "loss": self.loss / count,
            "accuracy": self.right.sum() / count,
            "gradient_norm": self.gradient_norm / self.steps,
            "by_difficulty": {
                f"{difficulty}={level}": [int(self.right[level]), int(self.seen[level])]
                for level in np.flatnonzero(self.seen)
            },
        }

    def state(self) -> dict[str, Any]:
        """Plain values."""
        columns = {"right": self.right, "seen": self.seen}
        counts = {k: {str(i): int(v[i]) for i in np.flatnonzero(v)} for k, v in columns.items()}
        return {"loss": self.loss, "gradient_norm": self.gradient_norm, "steps": self.steps, **counts}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Tally:
        tally = cls()
        tally.loss, tally.gradient_norm, tally.steps = state["loss"], state["gradient_norm"], state["steps"]
        for name in ("right", "seen"):
            for level, value in state[name].items():
                getattr(tally, name)[int(level)] = value
        return tally
