"""Evaluate a model: on any distribution, or a run on its task's whole test suite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pathmerge.evaluation.accuracy import Table, evaluate_cells
from pathmerge.heldout import HeldOutCell, hold_out
from pathmerge.models.judge import ModelJudge
from pathmerge.parallel import Workers
from pathmerge.problems.distribution import Distribution
from pathmerge.rng import Split

if TYPE_CHECKING:
    from pathmerge.models.transformer import Transformer


def evaluate(
    model: Transformer,
    problems: Distribution | Sequence[Distribution],
    *,
    count: int = 4000,
    seed: int = 0,
    split: Split = "test",
    threads: int = 2,
    heuristics: bool = True,
    progress: Callable[[int], None] | None = None,
) -> Table:
    """Accuracy and loss of a model at each difficulty of these problems, `count` held-out examples each.

    With a run's `held_out.seed` and `held_out.test` these are problems its training never saw.
    """
    asked = [problems] if isinstance(problems, Distribution) else list(problems)
    cells = hold_out(asked, count, seed=seed, split=split, threads=threads).cells
    return evaluate_model(model, cells, threads=threads, heuristics=heuristics, progress=progress)


def evaluate_model(model: Transformer, cells: Sequence[HeldOutCell], *, threads: int = 2, **options: Any) -> Table:
    """The same on cells that were held out before."""
    with Workers(threads if next(model.parameters()).device.type == "cpu" else 1) as workers:
        return evaluate_cells(ModelJudge(model, workers), cells, **options)
