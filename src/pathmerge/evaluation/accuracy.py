"""Accuracy and loss by distribution and difficulty, with confidence intervals and baselines (SPEC section 5).

Choices a reader could not guess:
- Evaluation knows no models: a *judge* takes a batch and says which answers are right. So does each baseline.
- A row is one cell of the held-out set. Distributions are named as in the command, but selection and inference stand
  apart, and graphs that leave the difficulty to chance or tell stars in sentences get names of their own ("dfs-naive",
  "language-naive", "language-star"), so that distribution and difficulty together name a row.
- Intervals are Wilson's, 95%: unlike the usual normal one they are honest near 0 and 1, where results live. A summary
  row ("all") is a mean over cells, each cell counting the same, whatever its size (the paper's mean over stars).
- A cell too small to hold anything out is a row without examples: accuracy, interval and loss are nan, and no mean
  counts it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan, sqrt
from statistics import NormalDist

import numpy as np

from pathmerge.encodings.language import Language
from pathmerge.errors import check_choice, check_range
from pathmerge.evaluation.heuristics import Judge, as_judge, heuristics_for
from pathmerge.heldout import HeldOutCell
from pathmerge.problems.batch import Batch
from pathmerge.problems.dfs import DFS
from pathmerge.problems.distribution import Distribution
from pathmerge.problems.naive import Naive
from pathmerge.problems.selection_inference import SelectionInference
from pathmerge.problems.star import Star

MODEL = "model"
ALL = "all"
CONVERGED = 0.995
"""The least accuracy that counts as having learned the task (SPEC section 5)."""
JUDGED: tuple[tuple[str, ...], ...] = (("balanced",), ("dfs",), ("selection", "inference"), ("language",))
"""The distributions convergence is judged by: the first of these that a table has rows of; else a plug-in's own."""
OTHERS = {"naive", "star", "dfs-naive", "language-naive", "language-star"}
_Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One judge on one cell, or (difficulty "all") the mean over a distribution's cells."""

    distribution: str
    difficulty: str
    """Such as "lookahead=3" or "spokes=2,lookahead=4"; "all" for a mean, and where difficulty is left to chance."""
    examples: int
    correct: int
    accuracy: float
    """correct / examples; in a mean over cells the unweighted mean of theirs."""
    low: float
    high: float
    loss: float
    """Mean over the examples that have one; nan if none has."""

    @property
    def parameters(self) -> dict[str, int]:
        """The difficulty by name; empty for "all"."""
        parts = [] if self.difficulty == ALL else self.difficulty.split(",")
        return {name: int(value) for name, _, value in (part.partition("=") for part in parts)}


@dataclass(frozen=True, kw_only=True)
class Table:
    """The model's rows, and those of each baseline under its name; a baseline has rows only where it applies."""

    rows: tuple[Row, ...]
    baselines: Mapping[str, tuple[Row, ...]] = field(default_factory=dict[str, tuple[Row, ...]])

    @property
    def judges(self) -> tuple[str, ...]:
        return (MODEL, *self.baselines)

    def __getitem__(self, judge: str) -> tuple[Row, ...]:
        """The rows of the model (under "model") or of a baseline."""
        check_choice("judge", judge, self.judges)
        return self.rows if judge == MODEL else self.baselines[judge]

    def find(self, distribution: str, difficulty: str, judge: str = MODEL) -> Row | None:
        """One row, if the judge has it."""
        wanted = (distribution, difficulty)
        return next((row for row in self[judge] if (row.distribution, row.difficulty) == wanted), None)


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """Whether the task counts as learned: accuracy of at least `CONVERGED`."""

    converged: bool
    """On the examples of all difficulties together."""
    converged_each: bool
    """At each difficulty that has examples."""


def wilson(correct: int, examples: int) -> tuple[float, float]:
    """The 95% interval of Wilson for a share; (nan, nan) without examples."""
    if not examples:
        return nan, nan
    share, weight = correct / examples, _Z**2 / examples
    middle = (share + weight / 2) / (1 + weight)
    half = _Z * sqrt(share * (1 - share) / examples + weight / examples / 4) / (1 + weight)
    return (middle - half if correct else 0.0), (middle + half if correct < examples else 1.0)


def name_cell(distribution: Distribution) -> tuple[str, str]:
    """The `distribution` and `difficulty` of the row for a distribution of one difficulty."""
    cells = distribution.cells()
    if len(cells) != 1:
        raise ValueError(f"cells: {distribution.describe()} has {len(cells)} difficulties, must have one (see fixed)")
    (first, second, _), name = cells[0], distribution.name
    match distribution:
        case Language():
            _, difficulty = name_cell(distribution.symbolic)
            return (name if distribution.graph == "balanced" else f"{name}-{distribution.graph}"), difficulty
        case Naive():
            return name, ALL
        case Star():
            return name, f"spokes={second},lookahead={first}"
        case DFS():
            return (name, f"backtrack={first}") if distribution.mode == "balanced" else (f"{name}-naive", ALL)
        case SelectionInference():
            return str(distribution.step), f"frontier={first},branch={second}"
        case _:
            return name, f"{distribution.difficulty_names[0]}={first}" if first else ALL


def cells_of(rows: Iterable[Row], distribution: str) -> list[Row]:
    """The rows of a distribution without the mean over them."""
    found = [row for row in rows if row.distribution == distribution]
    return found if len(found) == 1 else [row for row in found if row.difficulty != ALL]


def evaluate_cells(
    judge: Judge,
    cells: Sequence[HeldOutCell],
    *,
    batch_size: int = 1000,
    progress: Callable[[int], None] | None = None,
    heuristics: bool = True,
) -> Table:
    """One row for each cell, and the mean for each distribution that has several; the baselines beside them.

    The cells are those of `hold_out(...)`. `progress` is called with the number of examples the judge has just seen.
    """
    check_range("batch_size", batch_size, 1, 10**9)
    names = [name_cell(cell.distribution) for cell in cells]
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"cells: {' '.join(name)} is there {times} times; evaluate them apart")
    found: dict[str, list[Row]] = {MODEL: []}
    for name, cell in zip(names, cells, strict=True):
        found[MODEL].append(_judge_cell(judge, name, cell.batch, batch_size, progress))
        for heuristic in heuristics_for(cell.distribution) if heuristics else ():
            row = _judge_cell(as_judge(heuristic), name, cell.batch, batch_size, None)
            found.setdefault(heuristic.name, []).append(row)
    rows = {name: _with_means(given) for name, given in found.items()}
    return Table(rows=rows.pop(MODEL), baselines=rows)


def _judge_cell(
    judge: Judge, name: tuple[str, str], batch: Batch, batch_size: int, progress: Callable[[int], None] | None
) -> Row:
    right, losses = 0, [np.zeros(0)]
    for begin in range(0, len(batch), batch_size):
        part = batch.take(slice(begin, begin + batch_size))
        correct, loss = judge(part)
        for field_name, given in (("correct", correct), ("loss", loss)):
            if given.shape != (len(part),):
                raise ValueError(f"judge: {field_name} has shape {given.shape}, must be ({len(part)},)")
        if correct.dtype != np.bool_:
            raise ValueError(f"judge: correct has type {correct.dtype}, must be bool")
        right += int(correct.sum())
        losses.append(loss.astype(np.float64)[~np.isnan(loss)])
        if progress is not None:
            progress(len(part))
    known = np.concatenate(losses)
    return row_of(name, len(batch), right, float(known.mean()) if len(known) else nan)


def row_of(name: tuple[str, str], examples: int, correct: int, loss: float) -> Row:
    """The row of a cell from its counts."""
    low, high = wilson(correct, examples)
    return Row(
        distribution=name[0],
        difficulty=name[1],
        examples=examples,
        correct=correct,
        accuracy=correct / examples if examples else nan,
        low=low,
        high=high,
        loss=loss,
    )


def _with_means(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows by distribution, in order of appearance, each followed by its mean if there are several."""
    ordered: list[Row] = []
    for name in dict.fromkeys(row.distribution for row in rows):
        cells = [row for row in rows if row.distribution == name]
        ordered += [*cells, mean_over_cells(cells)] if len(cells) > 1 else cells
    return tuple(ordered)


def mean_over_cells(cells: Sequence[Row]) -> Row:
    """The unweighted mean of the cells that have examples (`examples` and `correct` are sums).

    The interval is the normal approximation: the variance of the mean is the sum of the cells' variances divided by the
    square of their number. A cell's variance is p(1-p)/n, p taken after z²/2 (about two) right and as many wrong
    answers are added, as in the middle of Wilson's interval: cells without a mistake must not make a mean look certain.
    """
    full = [row for row in cells if row.examples]
    low = high = accuracy = loss = nan
    if full:
        accuracy = sum(row.accuracy for row in full) / len(full)
        shares = [(row.correct + _Z**2 / 2) / (row.examples + _Z**2) for row in full]
        variance = sum(p * (1 - p) / row.examples for p, row in zip(shares, full, strict=True)) / len(full) ** 2
        low, high = max(0.0, accuracy - _Z * sqrt(variance)), min(1.0, accuracy + _Z * sqrt(variance))
        losses = [row.loss for row in full if not isnan(row.loss)]
        loss = sum(losses) / len(losses) if losses else nan
    return Row(
        distribution=cells[0].distribution,
        difficulty=ALL,
        examples=sum(row.examples for row in cells),
        correct=sum(row.correct for row in cells),
        accuracy=accuracy,
        low=low,
        high=high,
        loss=loss,
    )


def converged(rows: Iterable[Row]) -> Verdicts:
    """Judge the rows of a task's main distribution: balanced, else dfs, else selection and inference, else language.

    Other rows (naive, star, means) do not count, nor do cells without examples; without any example the answer is no.
    To judge by the difficulties of the training alone, hand over their rows alone.
    """
    given = list(rows)
    present = {row.distribution for row in given}
    own = tuple(sorted(present - OTHERS))
    chosen = next((names for names in (*JUDGED, own) if present & set(names)), None)
    if chosen is None:
        allowed = ", ".join(name for names in JUDGED for name in names)
        raise ValueError(f"rows: of {', '.join(sorted(present)) or 'nothing'}; must hold rows of one of {allowed}")
    cells = [row for name in chosen for row in cells_of(given, name) if row.examples]
    examples = sum(row.examples for row in cells)
    return Verdicts(
        converged=bool(cells) and sum(row.correct for row in cells) / examples >= CONVERGED,
        converged_each=bool(cells) and all(row.accuracy >= CONVERGED for row in cells),
    )
