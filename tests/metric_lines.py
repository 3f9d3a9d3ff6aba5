"""Two lines of metrics, as a run writes them."""

from __future__ import annotations

from typing import Any

TRAIN: dict[str, Any] = {
    "kind": "train",
    "examples": 51_200,
    "step": 200,
    "loss": 1.2344,
    "accuracy": 0.5129,
    "learning_rate": 3e-4,
    "gradient_norm": 0.7,
    "batch_size": 256,
    "stage": None,
    "guard": 12,
    "flops": 1.5e12,
    "by_difficulty": {"lookahead=1": [81, 100], "lookahead=2": [33, 100], "lookahead=3": [0, 0]},
    "seconds": 17.0,
    "examples_per_second": 3012.4,
}
VALIDATION: dict[str, Any] = {
    "kind": "validation",
    "examples": 51_200,
    "loss": 1.5,
    "accuracy": 0.4989,
    "by_difficulty": {"lookahead=1": 0.98, "lookahead=2": 0.2},
    "converged": False,
    "converged_each": False,
    "seconds": 18.0,
}
