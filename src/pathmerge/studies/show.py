"""What a study prints: the catalogue with its costs, the plan, a view of all runs while they go, and the end."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pathmerge.studies.claims import Verdict
from pathmerge.studies.cost import cost_of, measure_pace
from pathmerge.studies.results import Folder
from pathmerge.studies.runner import Event, own_cores
from pathmerge.studies.study import SCALES, Row, Setting, Study, Task, recipe_and_track, tasks_of
from pathmerge.training.run import METRICS

REFRESH = 1.0


def print_list() -> int:
    """All studies, with what each scale costs on this machine if nothing is done yet."""
    from pathmerge.studies.catalogue import STUDIES

    console = Console(highlight=False)
    pace, cores = measure_pace(), own_cores()
    for study in STUDIES.values():
        console.print(f"[bold]{escape(study.name)}[/bold]  {study.figure}: {escape(study.question)}", soft_wrap=True)
        for scale in SCALES:
            setting = study.setting(scale)
            cost = cost_of(tasks_of(study, setting), pace)
            runs = f"{cost.runs:>4} runs {_power(cost.examples):>8} examples {_power(cost.flops):>8} FLOPs"
            what = runs if cost.runs else f"{'nothing is trained':>41}"
            print(f"  {scale:7} {setting.recipe if cost.runs else '':8} {what} {duration(cost.hours(cores)):>10}")
    speeds = ", ".join(f"{speed / 1e9:.0f} GFLOP/s at width {width}" for width, speed in pace.points)
    print(f"\nIf nothing is done and no run stops early, on the {cores} cores of this machine; one trains at {speeds}.")
    return 0


def print_plan(study: Study, setting: Setting, cores: int) -> int:
    """The tasks of a study and what each costs."""
    pace = measure_pace()
    print(f"{study.name} ({study.figure}): {study.question}")
    tasks = tasks_of(study, setting)
    print(f"{setting.scale} scale, recipe {recipe_and_track(setting, tasks)}: {study.says(setting)}")
    for task in tasks:
        cost = cost_of([task], pace)
        run = (
            "" if task.config is None else f"  {task.config.training.examples:,} examples, {_power(cost.flops)} FLOPs,"
        )
        print(f"  {task.name}:{run} {duration(cost.hours(1))}  {'' if task.config is None else task.config.run_name}")
    total = cost_of(tasks, pace)
    print(
        f"{len(tasks)} tasks, {total.runs} trainings, {total.examples:,} examples, {_power(total.flops)} FLOPs; "
        f"about {duration(total.hours(cores))} on {cores} cores if no run stops early"
    )
    return 0


def _power(value: float) -> str:
    return f"{value:.1e}" if value else "–"


def duration(hours: float) -> str:
    """Hours as people say them."""
    for most, factor, unit in ((1 / 60, 3600, "s"), (2, 60, "min"), (100, 1, "h"), (24_000, 1 / 24, "days")):
        if hours < most:
            return f"{max(1, round(hours * factor)):,} {unit}"
    return f"{hours / 8766:,.0f} years"


class Watcher:
    """A view of all tasks: a table that is kept up to date on a terminal, a line for each event elsewhere."""

    def __init__(self, folder: Folder, *, quiet: bool = False) -> None:
        self._folder, self._quiet = folder, quiet
        self._console = Console(stderr=True)
        self._stack = ExitStack()
        self._live: Live | None = None
        self._running: dict[str, float] = {}
        self._last = 0.0

    def __enter__(self) -> Watcher:
        if not self._quiet and self._console.is_terminal:
            self._live = self._stack.enter_context(Live(console=self._console, refresh_per_second=2, transient=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def __call__(self, event: Event, tasks: Sequence[Task]) -> None:
        if event.kind == "began":
            self._running[event.task] = time.monotonic()
        elif event.kind in ("ended", "died"):
            self._running.pop(event.task, None)
        if self._quiet:
            return
        if event.kind != "waiting":
            self._say(event, tasks)
        if self._live is not None and time.monotonic() - self._last >= REFRESH:
            self._last = time.monotonic()
            self._live.update(self._table(tasks))

    def _say(self, event: Event, tasks: Sequence[Task]) -> None:
        ended = self._folder.outcome(event.task) if event.kind == "ended" else None
        if event.kind == "began" and self._live is not None:
            return
        if event.kind == "ended":
            done = sum(self._folder.file_of(task.name).exists() for task in tasks)
            failed = f": {ended.error}" if ended is not None and ended.error else ""
            words = f"{'failed' if failed else 'done'} {done}/{len(tasks)} {event.task}{failed}"
        else:
            words = f"{event.kind} {event.task} {event.says}".rstrip()
        if self._live is not None:
            self._live.console.print(words, highlight=False)
        else:
            print(words, file=sys.stderr, flush=True)

    def _table(self, tasks: Sequence[Task]) -> Table:
        done = sum(self._folder.file_of(task.name).exists() for task in tasks)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title=f"{done} of {len(tasks)} tasks done")
        for title in ("running", "examples", "of", "accuracy", "stage", "for"):
            table.add_column(title, justify="left" if title in ("running", "stage") else "right")
        for task in tasks:
            if task.name not in self._running:
                continue
            line = {} if task.config is None else last_line(self._folder.runs / task.config.run_name / METRICS)
            total = "" if task.config is None else f"{task.config.training.examples:,}"
            seen = f"{line['examples']:,}" if "examples" in line else "…"
            accuracy = f"{line['accuracy']:.3f}" if "accuracy" in line else ""
            passed = f"{(time.monotonic() - self._running[task.name]) / 60:.0f} min"
            table.add_row(task.name, seen, total, accuracy, str(line.get("stage") or ""), passed)
        return table


def last_line(path: Path) -> dict[str, Any]:
    """The newest line of training or validation of a metrics file; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 20_000))
            lines = file.read().splitlines()
    except OSError:
        return {}
    for text in reversed(lines):
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if line.get("kind") in ("train", "validation"):
            return line
    return {}


def print_end(folder: Folder, rows: Sequence[Row], seconds: float, written: Sequence[Path]) -> int:
    """What came of it; 1 if a task failed."""
    failed = [row for row in rows if row.get("error") is not None]
    for row in failed:
        labels = ", ".join(f"{name}={value}" for name, value in row.items() if name != "error" and value is not None)
        print(f"failed: {labels}: {row['error']}")
    print(f"{len(rows) - len(failed):,} rows in {seconds:.0f} s" + (f", {len(failed)} tasks failed" if failed else ""))
    for path in written:
        print(f"wrote {path}")
    return 1 if failed else 0


def print_claims(found: Mapping[str, Sequence[Verdict]]) -> None:
    """A block for each claim: what it says, and its verdict at each setting."""
    from pathmerge.studies.claims import CLAIMS

    colours = {"holds": "green", "fails": "red", "undecided": "yellow"}
    console = Console(highlight=False)
    for claim in CLAIMS:
        console.print(f"[bold]{claim.number}[/bold]  {escape(claim.says)}")
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        for verdict in found[claim.number]:
            word = Text(verdict.verdict, style=colours[verdict.verdict])
            table.add_row("   ", word, f"{verdict.scale}, {verdict.recipe}", Text(verdict.evidence))
        if not found[claim.number]:
            needed = ", ".join(f"pathmerge study {study}" for study in claim.studies)
            table.add_row("   ", Text("not run", style="dim"), needed, Text(""))
        if claim.remark and found[claim.number]:
            table.add_row("", "", Text("remark", style="dim"), Text(claim.remark, style="dim"))
        console.print(table)
    words = [verdict.verdict for verdicts in found.values() for verdict in verdicts]
    counts = ", ".join(f"{words.count(word)} {word}" for word in colours)
    print(f"verdicts: {counts}; not run: {sum(not verdicts for verdicts in found.values())} of {len(found)} claims")
