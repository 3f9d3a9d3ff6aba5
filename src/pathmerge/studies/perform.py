"""One task, in a process of its own: train or go on training, measure, write the rows.

    python -m pathmerge.studies.perform '{"study": ..., "scale": ..., "recipe": ..., "task": ..., "root": ...}'

Every backend runs this and nothing else, on whatever machine: all that a task needs are its five words and the folder
of results, and all that it gives is files in that folder. So it can be killed at any moment and started again anywhere.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pathmerge.errors import HeldError, NotFiniteError
from pathmerge.studies.results import Folder, Outcome
from pathmerge.studies.study import Place, Row, Setting, Task, tasks_of

if TYPE_CHECKING:
    from pathmerge.training.config import RunConfig
    from pathmerge.training.run import Run

PARENT = "PATHMERGE_PARENT"
"""The environment variable with the id of the process that this one has to end with."""
STOPPED = 130
"""The exit code of a task that was asked to stop."""
HELD_WAIT = 180.0
"""Seconds without a sign of life after which a run that another process holds is given up. A machine that was lost may
still be computing for a while, and the lock of a dead one lasts as long as its lease on the storage (NFS: 90 s)."""
HELD_POLL = 1.0


@dataclass(frozen=True, kw_only=True)
class Order:
    """A task in words, so that it can be sent anywhere."""

    study: str
    scale: str
    recipe: str
    task: str
    root: str
    save_every: float = 30.0
    """Seconds between checkpoints."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def perform(order: Order) -> Outcome:
    """Do a task, unless it is done; its outcome is written, and a failure is an outcome like another."""
    folder, task = find(order)
    done = folder.outcome(task.name)
    if done is not None and done.error is None:
        return done
    began = time.monotonic()
    try:
        rows = _work(folder, task, order)
        outcome = Outcome(task=task.name, rows=tuple(rows), seconds=time.monotonic() - began)
    except Exception as error:  # whatever it is: a task that leaves no file would be waited for
        outcome = Outcome(task=task.name, error=_words(error), seconds=time.monotonic() - began)
    folder.keep(outcome)
    return outcome


def _words(error: Exception) -> str:
    """An error in one line; one that was not made for people says its kind, and where it came from in the log."""
    says = " ".join(str(error).split())
    if isinstance(error, ValueError | OSError | MemoryError | NotFiniteError):
        return says or type(error).__name__
    traceback.print_exception(error)
    return f"{type(error).__name__}: {says}"


def find(order: Order) -> tuple[Folder, Task]:
    """The task of an order and the folder it belongs to."""
    from pathmerge.studies.catalogue import study_named

    study = study_named(order.study)
    setting = Setting(scale=order.scale, recipe=order.recipe)
    folder = Folder(root=Path(order.root), study=study, setting=setting)
    for task in tasks_of(study, setting):
        if task.name == order.task:
            return folder, task
    raise ValueError(f"task={order.task!r}: study {order.study} has no such task at {setting.name}")


def _work(folder: Folder, task: Task, order: Order) -> list[Row]:
    run = None
    threads = 1
    if task.config is not None:
        run = _train(task.config, folder.runs, order.save_every)
        threads = task.config.training.threads
    place = Place(folder=folder.path / "files" / task.name, threads=threads)
    rows = folder.study.measure(task, run, folder.setting, place)
    for row in rows:
        clash = next((name for name, value in task.labels.items() if row.get(name, value) != value), None)
        if clash is not None:
            raise ValueError(f"a row says {clash}={row[clash]!r} where the task's label is {task.labels[clash]!r}")
    return rows


def _train(config: RunConfig, runs: Path, save_every: float) -> Run:
    """Train; while another process holds the run and gets on with it, wait for what it leaves."""
    from pathmerge.training.loop import train

    seen, since = None, time.monotonic()
    while True:
        try:
            return train(config, runs, quiet=True, save_every=save_every)
        except HeldError:
            sign = _sign_of_life(runs / config.run_name)
            if sign != seen:
                seen, since = sign, time.monotonic()
            elif time.monotonic() - since > HELD_WAIT:
                raise
            time.sleep(HELD_POLL)


def _sign_of_life(run: Path) -> list[int]:
    """Changes whenever a checkpoint or a line of metrics is written."""
    from pathmerge.training.run import CHECKPOINTS, METRICS

    return [path.stat().st_mtime_ns for path in (run / METRICS, run / CHECKPOINTS) if path.exists()]


def main() -> int:
    """0: the task is done; 1: it failed, and says so in its file; 2: the order makes no sense; 130: asked to stop."""
    from pathmerge.parallel import end_with_parent
    from pathmerge.plugins import load_plugins

    parent = os.environ.get(PARENT)
    end_with_parent(parent=None if parent is None else int(parent))
    try:
        load_plugins()
        outcome = perform(Order(**json.loads(sys.argv[1])))
    except KeyboardInterrupt:
        return STOPPED
    except (ValueError, TypeError, IndexError) as error:
        print(f"perform: {error}", file=sys.stderr)
        return 2
    return 0 if outcome.error is None else 1


if __name__ == "__main__":
    sys.exit(main())
