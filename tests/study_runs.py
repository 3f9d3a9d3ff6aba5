"""Studies that tests run: without processes of their own, as someone's plug-in, and with processes that are killed.

The fixture that holds the plug-in is in conftest.py.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pathmerge.studies.perform import Order, perform
from pathmerge.studies.results import Folder
from pathmerge.studies.runner import Backend, Event, run_study
from pathmerge.studies.study import Study, Task
from pathmerge.training.config import RunConfig

PLUGIN = """
from matplotlib.figure import Figure

import pathmerge as pm
from pathmerge.studies.catalogue import STUDIES
from pathmerge.studies.study import Study, Task
from pathmerge.training.config import RunConfig


class Trained(Study):
    name, figure, question = "trained", "Figure 0", "Does a run survive?"

    def says(self, setting):
        return "small trainings"

    def tasks(self, setting):
        examples, runs = {"smoke": (20 * 64, 2), "laptop": (1500 * 64, 4), "paper": (10**7 * 64, 1)}[setting.scale]
        training = pm.Training(
            optimizer="adamw", learning_rate=1e-3, batch_size=64, examples=examples, log_every=640,
            validate_every=32000, schedule="constant", threads=1, stop="never",
        )
        return [
            Task(labels={"seed": seed}, config=RunConfig(
                problem=pm.Balanced(input_size=20),
                model=pm.Edges(input_size=20, layers=2, end_width=8),
                training=training,
                curriculum=pm.Curriculum(),
                held_out=pm.Holding(test=50, validation=50),
                seed=seed,
            ))
            for seed in range(runs)
        ]

    def measure(self, task, run, setting, place):
        return [{"examples": run.examples}]

    def draw(self, rows, setting):
        return Figure()


STUDIES["trained"] = Trained()
"""

Watch = Callable[[Event, Sequence[Task]], None]


@dataclass(frozen=True)
class Here:
    """A backend without processes: this one does the work."""

    def run(self, orders: Sequence[Order], cores: Sequence[int], folder: Folder) -> Iterator[Event]:
        for order in orders:
            yield Event(task=order.task, kind="began")
            perform(order)
            yield Event(task=order.task, kind="ended")


def configs_of(tasks: Sequence[Task]) -> list[RunConfig]:
    return [task.config for task in tasks if task.config is not None]


def run_it(
    study: Study, scale: str, out: Path, backend: Backend, watch: Watch | None = None, save_every: float = 0.5
) -> dict[str, bytes]:
    """The weights of each run; every task must have ended well."""
    setting = study.setting(scale)
    rows, _ = run_study(study, setting, out, backend, save_every=save_every, watch=watch)
    tasks = study.tasks(setting)
    assert [row.get("error") for row in rows] == [None] * len(tasks)
    return weights(out, tasks)


def run_here(study: Study, scale: str, out: Path) -> dict[str, bytes]:
    """The same in this process, without a failure."""
    setting = study.setting(scale)
    tasks = study.tasks(setting)
    Folder(root=out, study=study, setting=setting).open(tasks)
    for task in tasks:
        outcome = perform(make_order(task, out, scale))
        assert outcome.error is None
    return weights(out, tasks)


def make_order(task: Task, out: Path, scale: str = "smoke") -> Order:
    return Order(study="trained", scale=scale, recipe="tuned", task=task.name, root=str(out), save_every=0.5)


def weights(out: Path, tasks: Sequence[Task]) -> dict[str, bytes]:
    return {task.name: (directory(out, task) / "model.safetensors").read_bytes() for task in tasks}


def directory(out: Path, task: Task) -> Path:
    assert task.config is not None
    return out / "runs" / task.config.run_name


def performers(root: Path, above: int | None = None) -> dict[str, int]:
    """The processes that perform tasks with results in this folder, by task; `above`: only those below this process."""
    found: dict[str, int] = {}
    for pid, words in command_lines().items():
        if "pathmerge.studies.perform" in words and words[-1].startswith("{"):
            order = json.loads(words[-1])
            if order["root"] == str(root.resolve()) and (above is None or pid in family(above)):
                found[order["task"]] = pid
    return found


def command_lines() -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it has just ended
        found[int(path.parent.name)] = [word for word in words if word]
    return found


def family(pid: int) -> list[int]:
    """A process and all that come from it."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for one in found:  # grows meanwhile
        found += [child for child, parent in parents.items() if parent == one]
    return found


class Recorder:
    """Keeps the events and kills, once, the process of one task as soon as it has one."""

    def __init__(self, root: Path, victim: str) -> None:
        self.root, self.victim, self.events = root, victim, list[Event]()
        self.killed = False

    def __call__(self, event: Event, tasks: Sequence[Task]) -> None:
        if event.kind != "waiting":
            self.events.append(event)
        if not self.killed and self.victim in (found := performers(self.root)):
            os.kill(found[self.victim], signal.SIGKILL)
            self.killed = True

    def kinds(self, task: str) -> list[str]:
        return [event.kind for event in self.events if event.task == task]
