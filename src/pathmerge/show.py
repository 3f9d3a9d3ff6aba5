"""Problems, histograms and verdicts as text for a terminal; plain when there is none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from rich.columns import Columns
from rich.console import Console
from rich.table import Table

from pathmerge.encodings import sentences, symbolic
from pathmerge.encodings.sentences import LanguageBatch
from pathmerge.files import ProblemFile
from pathmerge.problems.batch import Batch
from pathmerge.problems.problem import Problem
from pathmerge.problems.selection_inference import STEPS
from pathmerge.stats import Histogram, acceptance, histograms
from pathmerge.verify import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BAR_WIDTH = 16
MOST_BARS = 24


def problem_at(batch: Batch, row: int) -> Problem:
    """One row of a batch as a problem."""
    if isinstance(batch, LanguageBatch):
        return problem_at(batch.symbolic, row)
    current = int(batch.current[row]) if batch.distribution.task == "selection" else None
    return symbolic.parse(batch.tokens[row].tolist(), batch.distribution.layout, current=current)


def title(batch: Batch, row: int) -> str:
    """A row's kind and difficulty in a few words."""
    return f"{batch.distribution.name}: {_difficulty(batch, row)}"


def _difficulty(batch: Batch, row: int) -> str:
    parts = []
    for i, name in enumerate(batch.distribution.columns):
        value = int(batch.difficulty[row, i])
        parts.append(STEPS[value] if name == "step" else f"{name} {value}")
    return ", ".join(parts)


def picture(batch: Batch, rows: Iterable[int]) -> Figure:
    """Some rows as one figure."""
    from pathmerge.pictures import draw_problems

    chosen = list(rows)
    return draw_problems(
        [problem_at(batch, row) for row in chosen],
        labels=[int(batch.label[row]) for row in chosen],
        titles=[title(batch, row) for row in chosen],
    )


def describe_tokens(batch: Batch, row: int) -> str:
    """The input as a reader would write it: edges, query and what was visited; text for language."""
    if isinstance(batch, LanguageBatch):
        return sentences.to_text(batch.tokens[row])
    layout = batch.distribution.layout
    marks = {layout.edge: "E", layout.query: "Q", layout.path: "P"}
    return " ".join(marks.get(int(t), str(int(t))) for t in batch.tokens[row] if int(t) != layout.pad)


def make_console() -> Console:
    """Wide when written to a file or a pipe, so that no line is cut there."""
    console = Console(highlight=False, markup=False, emoji=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, emoji=False, width=160)


def print_table(batch: Batch, count: int) -> None:
    """The first problems: difficulty, start, goal, answers, label and input."""
    console = make_console()
    rows = min(count, len(batch))
    console.print(
        f"{len(batch):,} problems of {batch.distribution.describe()}, {batch.key.split} split, seed {batch.key.seed}, "
        f"stream {batch.key.stream}, examples {batch.first:,}..{batch.first + len(batch) - 1:,}",
        soft_wrap=True,
    )
    if rows == 0:
        return
    table = Table(title=f"the first {rows}" if rows < len(batch) else None, title_justify="left")
    for name in ("example", "difficulty", "start", "goal", "answers", "label"):
        table.add_column(
            name, justify="left" if name in ("difficulty", "answers") else "right", no_wrap=name != "difficulty"
        )
    table.add_column(
        "input" if isinstance(batch, LanguageBatch) else "input (padding left out; E edge, Q query, P path)",
        overflow="fold",
    )
    for row in range(rows):
        answers = " ".join(str(v) for v in np.flatnonzero(batch.answers[row]))
        table.add_row(
            str(batch.first + row),
            _difficulty(batch, row),
            str(batch.start[row]),
            str(batch.goal[row]),
            answers,
            str(batch.label[row]),
            describe_tokens(batch, row),
        )
    console.print(table)


def histogram_table(found: Histogram) -> Table:
    """Values, counts and bars; a long tail is put together."""
    total = sum(found.counts)
    pairs = list(zip(map(str, found.values), found.counts, strict=True))
    if len(pairs) > MOST_BARS:
        rest = pairs[MOST_BARS - 1 :]
        pairs = [*pairs[: MOST_BARS - 1], (f"{rest[0][0]}..{rest[-1][0]}", sum(n for _, n in rest))]
    most = max(n for _, n in pairs)
    table = Table(title=f"{found.name} ({found.unit})", title_justify="left", box=None, show_header=False)
    for _ in range(3):
        table.add_column(justify="right")
    table.add_column()
    for value, n in pairs:
        table.add_row(value, f"{n:,}", f"{n / total:.2%}", "█" * round(BAR_WIDTH * n / most) or "▏")
    return table


def print_statistics(batch: Batch) -> None:
    """What was achieved: histograms, and how many attempts it took."""
    console = make_console()
    console.print()
    console.print(Columns([histogram_table(found) for found in histograms(batch)], padding=(1, 4)))
    rates = acceptance(batch)
    worst = min(rates, key=lambda cell: rates[cell])
    overall = len(batch) / int(batch.attempts.sum())
    names = ", ".join(batch.distribution.columns)
    console.print(f"acceptance: {overall:.1%} of attempts", end="")
    if len(batch.distribution.cells()) > 1:
        shown = ", ".join(map(str, worst))
        console.print(f"; lowest {rates[worst]:.1%} at ({names}) = ({shown})", end="")
    console.print()


def print_verdict(file: ProblemFile, verdict: Verdict) -> None:
    """A line per check."""
    console = make_console()
    console.print(f"{file.path}: {len(file):,} problems of {file.distribution.describe()}", soft_wrap=True)
    table = Table()
    table.add_column("check")
    table.add_column("rows", justify="right")
    table.add_column("wrong", justify="right")
    table.add_column("first difference, or remark", overflow="fold")
    for check in verdict.checks:
        table.add_row(check.name, f"{check.asked:,}", f"{check.failed:,}", check.first_failure or check.note)
    console.print(table)
    console.print("all right" if verdict.right else "NOT all right: see the table")
