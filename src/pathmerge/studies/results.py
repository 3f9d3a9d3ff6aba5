"""The results of a study on disk: what it is, the rows of each task, the table, the figure.

    RESULTS/runs/<run>/                     the trainings, shared by all studies
    RESULTS/<study>/<scale>-<recipe>/       study.json, tasks/<task>.json, table.csv, table.parquet, figure.png, .svg

Choices a reader could not guess:
- `study.json` is written first and says what the folder is for, with the config of every run. The same command finds
  what is done and goes on; if a config has changed since (another version of a recipe), it is refused: rows of two
  configs in one table would be a lie. Tasks that a study has gained since (another size, another seed) are added to it.
- A task's file appears when it ends: with its rows, or with its error. One that failed is tried again next time.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from pathmerge.disk import read_json, write_csv, write_json, written_whole
from pathmerge.plugins import guarded
from pathmerge.studies.study import Row, Setting, Study, Task, Value
from pathmerge.training.run import CONFIG, check_config
from pathmerge.version import __version__

FORMAT, VERSION = "pathmerge study", 1
ABOUT, TASKS, RUNS = "study.json", "tasks", "runs"
TABLE, FIGURE = "table", "figure"
LETTERS = 19
"""Letters of a figure's title that fit an inch."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a task ended."""

    task: str
    rows: tuple[Row, ...] = ()
    error: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Folder:
    """The folder of a study at one setting."""

    root: Path
    study: Study
    setting: Setting

    @property
    def path(self) -> Path:
        return self.root / self.study.name / self.setting.name

    @property
    def runs(self) -> Path:
        return self.root / RUNS

    def file_of(self, task: str) -> Path:
        return self.path / TASKS / f"{task}.json"

    def check(self, tasks: Sequence[Task]) -> None:
        """Raise unless what is in it was made for the same thing."""
        _check(self.path / ABOUT, self._about(tasks))

    def _about(self, tasks: Sequence[Task]) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "study": self.study.name,
            "scale": self.setting.scale,
            "recipe": self.setting.recipe,
            "tasks": {task.name: task.digest for task in tasks},
        }

    def open(self, tasks: Sequence[Task]) -> None:
        """Make it, or check that what is in it was made for the same thing."""
        path = self.path / ABOUT
        self._check_runs(tasks)
        if path.exists():
            self.check(tasks)
            self._grow(path, tasks)
            return
        try:
            if self.path.is_dir() and any(not _ours(path) for path in self.path.iterdir()):
                raise ValueError(f"out={str(self.path)!r}: is not empty and has no {ABOUT}; choose another folder")
            self.runs.mkdir(parents=True, exist_ok=True)
            (self.path / TASKS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"out={str(self.root)!r}: {error.strerror}: {error.filename}") from None
        if not os.access(self.path, os.W_OK):
            raise ValueError(f"out={str(self.path)!r}: cannot be written to")
        write_json(path, {**self._about(tasks), "made_with": __version__, "configs": configs_of(tasks)})

    def _grow(self, path: Path, tasks: Sequence[Task]) -> None:
        """Add the tasks that it was made without."""
        about = read_json(path)
        new = [task for task in tasks if task.name not in about["tasks"]]
        if new:
            about["tasks"] |= {task.name: task.digest for task in new}
            about["configs"] = about.get("configs", {}) | configs_of(new)
            write_json(path, about)

    def _check_runs(self, tasks: Sequence[Task]) -> None:
        """Raise if a run that is there has not the config it was made with."""
        for task in tasks:
            if task.config is not None and (self.runs / task.config.run_name / CONFIG).exists():
                check_config(self.runs / task.config.run_name, task.config)

    def outcome(self, task: str) -> Outcome | None:
        """How a task ended; none if it has not."""
        path = self.file_of(task)
        if not path.exists():
            return None
        values = read_json(path)
        rows, error, seconds = values.get("rows"), values.get("error"), values.get("seconds", 0.0)
        whole = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
        if not whole or not isinstance(error, str | None) or not isinstance(seconds, int | float):
            raise ValueError(f"out: {str(path)!r} is damaged; remove it, and the task is done again")
        return Outcome(task=task, rows=tuple(rows), error=error, seconds=seconds)

    def keep(self, outcome: Outcome) -> None:
        """Write how a task ended."""
        path = self.file_of(outcome.task)
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{name: _finite(value) for name, value in row.items()} for row in outcome.rows]
        values = {"error": outcome.error, "seconds": outcome.seconds, "made_with": __version__, "rows": rows}
        write_json(path, values)

    def rows(self, tasks: Sequence[Task]) -> list[Row]:
        """The rows of all tasks that ended, their labels first; a failed one has a single row with its error."""
        found: list[Row] = []
        for task in tasks:
            ended = self.outcome(task.name)
            if ended is None:
                continue
            if ended.error is not None:
                found.append({**task.labels, "error": ended.error})
            found += [{**task.labels, **row} for row in ended.rows]
        return found

    def write(self, rows: Sequence[Row]) -> list[Path]:
        """The table as CSV and Parquet, and the figure as PNG and SVG."""
        from matplotlib.figure import Figure

        from pathmerge.pictures import save

        written = [self.path / f"{TABLE}.csv", self.path / f"{TABLE}.parquet"]
        for path in written:
            write_rows(path, rows)
        good = [row for row in rows if row.get("error") is None]
        if good:
            figure = guarded(self.study.draw, good, self.setting)
            if not isinstance(figure, Figure):
                raise ValueError(f"study {self.study.name}: draw must return a figure of matplotlib")
            if not figure.get_suptitle():
                figure.suptitle(self._title(figure.get_figwidth()), fontsize=7, color="0.35")
            for suffix in ("png", "svg"):
                path = self.path / f"{FIGURE}.{suffix}"
                save(figure, path)
                written.append(path)
        return written

    def _title(self, inches: float) -> str:
        """What a figure shows, for when it is seen alone; not how that differs from the paper."""
        setting = f"{self.study.name}, {self.setting.scale} scale, recipe {self.setting.recipe}"
        says = self.study.says(self.setting).partition("; the paper")[0]
        return "\n".join(textwrap.wrap(f"{setting}: {says}", int(inches * LETTERS)))


def _ours(path: Path) -> bool:
    """Whether this is what a start that was cut off leaves behind."""
    return path.name.startswith(".pathmerge-") or (path.name == TASKS and path.is_dir() and not any(path.iterdir()))


def _finite(value: Value) -> Value:
    """A value that is not a number is no value: JSON has none, and a table leaves it empty."""
    return None if isinstance(value, float) and not isfinite(value) else value


def configs_of(tasks: Sequence[Task]) -> dict[str, Any]:
    return {task.name: task.config.to_dict() for task in tasks if task.config is not None}


def columns_of(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """A table; a value that a row does not have is empty."""
    columns = columns_of(rows)
    if path.suffix == ".csv":
        write_csv(path, rows, columns)
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {name: [row.get(name) for row in rows] for name in columns}
    with written_whole(path) as temporary:
        pq.write_table(pa.table({name: _column(values) for name, values in arrays.items()}), temporary)


def _column(values: Sequence[Any]) -> Any:
    """An Arrow column: numbers of both kinds together are floats, anything mixed with words is words."""
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return pa.array([None if value is None else float(value) for value in values])
    if len(kinds) > 1:
        return pa.array([None if value is None else str(value) for value in values])
    return pa.array(values)


def _check(path: Path, about: Mapping[str, Any]) -> None:
    """Raise unless the folder of this study.json was made for the same thing."""
    place = f"out={str(path.parent)!r}"
    try:
        found = read_json(path)
    except ValueError:
        raise ValueError(f"{place}: its {ABOUT} cannot be read; choose another folder") from None
    for name in ("format", "version", "study", "scale", "recipe"):
        if found.get(name) != about[name]:
            raise ValueError(
                f"{place}: {ABOUT} has {name}={found.get(name)!r}, not {about[name]!r} (results of another version?); "
                "choose another folder"
            )
    there: Any = found.get("tasks")
    if not isinstance(there, dict):
        raise ValueError(f"{place}: its {ABOUT} does not say which tasks it is for; choose another folder")
    for name, digest in about["tasks"].items():
        if there.get(name, digest) != digest:
            raise ValueError(
                f"{place}: the config of {name!r} has changed ({there[name]}, now {digest}); choose another folder"
            )
