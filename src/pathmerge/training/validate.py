"""Validation during training: the held-out validation problems, shared among the processes."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Any

import numpy as np
import torch

from pathmerge.evaluation.accuracy import Row, converged, evaluate_cells, name_cell, row_of
from pathmerge.heldout import HeldOutCell
from pathmerge.models.judge import ModelJudge
from pathmerge.training.processes import Processes


def validate(
    judge: ModelJudge, cells: Sequence[HeldOutCell], processes: Processes, device: torch.device
) -> dict[str, Any]:
    """Loss and accuracy, together and by difficulty, and the verdicts, the same on every process."""
    rows, found = judged(judge, cells, processes, device)
    verdicts = converged(rows)
    several = len({row.distribution for row in rows}) > 1
    labels = {
        f"{row.distribution} {row.difficulty}" if several else row.difficulty: row for row in rows if row.examples
    }
    return {
        **found,
        "by_difficulty": {name: row.accuracy for name, row in labels.items()},
        "loss_by_difficulty": {name: row.loss for name, row in labels.items()},
        "converged": verdicts.converged,
        "converged_each": verdicts.converged_each,
    }


def judged(
    judge: ModelJudge, cells: Sequence[HeldOutCell], processes: Processes, device: torch.device
) -> tuple[list[Row], dict[str, float]]:
    """A row for each cell, and loss and accuracy of all examples together; the same on every process."""
    names = [name_cell(cell.distribution) for cell in cells]
    mine = range(processes.rank, len(cells), processes.count)
    table = evaluate_cells(judge, [cells[i] for i in mine], heuristics=False)
    found = {(row.distribution, row.difficulty): row for row in table.rows}
    sums = np.zeros((len(cells), 3))
    for i in mine:
        row = found[names[i]]
        sums[i] = row.examples, row.correct, row.loss * row.examples if row.examples else 0.0
    sums = processes.add_numbers(sums.reshape(-1), device).reshape(sums.shape)
    rows = [
        row_of(name, int(n), int(right), loss / n if n else nan)
        for name, (n, right, loss) in zip(names, sums, strict=True)
    ]
    examples, right, loss = (float(column.sum()) for column in sums.T)
    whole = {"loss": loss / examples, "accuracy": right / examples} if examples else {"loss": nan, "accuracy": nan}
    return rows, whole
