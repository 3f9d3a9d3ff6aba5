"""Run the tasks of a study: skip what is done, go on with what is not, and let no failure stop the rest.

Choices a reader could not guess:
- A backend takes orders (`pathmerge.studies.perform.Order`) and says when each has ended; outcomes are files. This
  machine's cores are one backend, Ray and Slurm are others.
- Whoever runs it, a task is a process that trains with checkpoints. Killed, it is started again and goes on, so a lost
  machine costs seconds, and the weights are those of a run that was never stopped.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pathmerge.studies.perform import PARENT, STOPPED, Order
from pathmerge.studies.results import Folder, Outcome
from pathmerge.studies.study import Row, Setting, Study, Task, tasks_of

TRIES = 3
"""How often a task whose process dies is started."""
POLL = 0.2


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something happened to a task."""

    task: str
    kind: str
    """began, ended, died, waiting."""
    says: str = ""


class Backend(Protocol):
    """What runs tasks."""

    def run(self, orders: Sequence[Order], cores: Sequence[int], folder: Folder) -> Iterator[Event]:
        """Perform each order, with so many cores, as far as it can be done; say what happens.

        A task has ended when its file is there. One that died without a file counts as failed.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Local:
    """Processes on this machine, as many as its cores allow."""

    cores: int

    def run(self, orders: Sequence[Order], cores: Sequence[int], folder: Folder) -> Iterator[Event]:
        """Largest first come, first served; a process that is killed is started again."""
        waiting = [(order, min(count, self.cores), 1) for order, count in zip(orders, cores, strict=True)]
        running: list[tuple[Order, int, int, subprocess.Popen[bytes]]] = []
        try:
            while waiting or running:
                free = self.cores - sum(count for _, count, _, _ in running)
                while waiting and waiting[0][1] <= free:
                    order, count, tried = waiting.pop(0)
                    running.append((order, count, tried, start(order, log_of(folder.path, order.task))))
                    free -= count
                    yield Event(task=order.task, kind="began")
                time.sleep(POLL)
                yield Event(task="", kind="waiting")
                for entry in list(running):
                    order, count, tried, process = entry
                    if process.poll() is None:
                        continue
                    running.remove(entry)
                    stopped = process.returncode < 0 or process.returncode == STOPPED
                    killed = stopped and folder.outcome(order.task) is None
                    says = how_killed(process.returncode)
                    if killed and tried < TRIES:
                        yield Event(task=order.task, kind="died", says=says)
                        waiting.insert(0, (order, count, tried + 1))
                    else:
                        says = f"{says}, {TRIES} times" if killed else last_words(folder.path, order.task)
                        yield Event(task=order.task, kind="ended", says=says)
        finally:
            stop([process for *_, process in running])


def own_cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def start(order: Order, log: Path, **more: str) -> subprocess.Popen[bytes]:
    """A process that performs an order, with more variables in its environment; what it says goes into a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", PARENT: str(os.getpid()), **more}
    with log.open("wb") as file:
        program = [sys.executable, "-m", "pathmerge.studies.perform", order.to_json()]
        return subprocess.Popen(program, stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=environment)


def stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask these to end, which they do with a checkpoint, and wait for it."""
    for process in processes:
        process.terminate()
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=60)
        process.kill()


def how_killed(code: int) -> str:
    """What ended a process that left no result, by its exit code."""
    return "asked to stop" if code == STOPPED else f"killed by signal {-code}"


def log_of(place: Path, task: str) -> Path:
    return place / "logs" / f"{task}.log"


def last_words(place: Path, task: str) -> str:
    """The last line a process said."""
    try:
        lines = log_of(place, task).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""


def run_study(
    study: Study,
    setting: Setting,
    root: Path,
    backend: Backend,
    *,
    save_every: float = 30.0,
    watch: Callable[[Event, Sequence[Task]], None] | None = None,
) -> tuple[list[Row], list[Path]]:
    """Do all that is left to do of a study, write its table and figure; its rows, and the files written."""
    tasks = tasks_of(study, setting)
    folder = Folder(root=root, study=study, setting=setting)
    folder.open(tasks)
    left = [task for task in tasks if not _done(folder, task)]
    for task in left:  # a failure of before is no longer the truth
        folder.file_of(task.name).unlink(missing_ok=True)
    orders = [
        Order(
            study=study.name,
            scale=setting.scale,
            recipe=setting.recipe,
            task=task.name,
            root=str(root.resolve()),
            save_every=save_every,
        )
        for task in left
    ]
    cores = [1 if task.config is None else task.config.training.threads for task in left]
    for event in backend.run(orders, cores, folder):
        if event.kind == "ended" and folder.outcome(event.task) is None:
            reason = event.says or "its process ended without a word"
            folder.keep(Outcome(task=event.task, error=reason))
        if watch is not None:
            watch(event, tasks)
    rows = folder.rows(tasks)
    return rows, folder.write(rows)


def _done(folder: Folder, task: Task) -> bool:
    ended = folder.outcome(task.name)
    return ended is not None and ended.error is None
