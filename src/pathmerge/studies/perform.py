"""One task, in a process of its own: train or go on training, measure, write the rows.

    python -m pathmerge.studies.perform '{"study": ..., "scale": ..., "recipe": ..., "task": ..., "root": ...}'

Every backend runs this and nothing else, on whatever machine: all that a task needs are its five words and the folder
of results, and all that it gives is files in that folder. So it can be killed at any moment and started again anywhere.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from pathmerge.errors import NotFiniteError
from pathmerge.studies.results import Folder, Outcome
from pathmerge.studies.study import Place, Row, Setting, Task


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
    except (ValueError, OSError, MemoryError, NotFiniteError) as error:
        outcome = Outcome(task=task.name, error=" ".join(str(error).split()), seconds=time.monotonic() - began)
    folder.keep(outcome)
    return outcome


def find(order: Order) -> tuple[Folder, Task]:
    """The task of an order and the folder it belongs to."""
    from pathmerge.studies.catalogue import study_named

    study = study_named(order.study)
    setting = Setting(scale=order.scale, recipe=order.recipe)
    folder = Folder(root=Path(order.root), study=study, setting=setting)
    for task in study.tasks(setting):
        if task.name == order.task:
            return folder, task
    raise ValueError(f"task={order.task!r}: study {order.study} has no such task at {setting.name}")


def _work(folder: Folder, task: Task, order: Order) -> list[Row]:
    run = None
    threads = 1
    if task.config is not None:
        from pathmerge.training.loop import train

        run = train(task.config, folder.runs, quiet=True, save_every=order.save_every)
        threads = task.config.training.threads
    place = Place(folder=folder.path / "files" / task.name, threads=threads)
    return folder.study.measure(task, run, folder.setting, place)


def main() -> int:
    """0: the task is done; 1: it failed, and says so in its file; 2: the order makes no sense."""
    from pathmerge.parallel import end_with_parent
    from pathmerge.plugins import load_plugins

    end_with_parent()
    try:
        load_plugins()
        outcome = perform(Order(**json.loads(sys.argv[1])))
    except KeyboardInterrupt:
        return 130
    except (ValueError, TypeError, IndexError) as error:
        print(f"perform: {error}", file=sys.stderr)
        return 2
    return 0 if outcome.error is None else 1


if __name__ == "__main__":
    sys.exit(main())
