"""Studies elsewhere: on a Ray cluster and through Slurm, whatever dies, and when the cluster is not there.

The study is a plug-in written by the test, as a user's would be, so that every process has to load it. What a run gives
is held against the same study on this machine without a failure, to the byte.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pathmerge import plugins
from pathmerge.cli import main
from pathmerge.errors import HeldError
from pathmerge.studies import elsewhere, perform, ray_backend
from pathmerge.studies.catalogue import STUDIES
from pathmerge.studies.elsewhere import Attempt, Landing, News
from pathmerge.studies.perform import Order
from pathmerge.studies.ray_backend import RayCluster
from pathmerge.studies.results import Folder, Outcome
from pathmerge.studies.runner import Backend, Event, Local, run_study
from pathmerge.studies.slurm_backend import Slurm
from pathmerge.studies.study import Study, Task
from pathmerge.training.run import lock

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
        examples, runs = {"smoke": (20 * 64, 2), "laptop": (6000 * 64, 4), "paper": (10**7 * 64, 1)}[setting.scale]
        training = pm.Training(
            optimizer="adamw", learning_rate=1e-3, batch_size=64, examples=examples, log_every=6400,
            validate_every=64000, schedule="constant", threads=1, stop="never",
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


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Study]:
    """The plug-in, in this process and in all that it starts."""
    path = tmp_path / "trained.py"
    path.write_text(PLUGIN)
    monkeypatch.setenv(plugins.VARIABLE, str(path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    plugins.load_plugins()
    yield STUDIES["trained"]
    del STUDIES["trained"]


def run_it(
    study: Study, scale: str, out: Path, backend: Backend, watch: Watch | None = None, save_every: float = 0.5
) -> dict[str, bytes]:
    """The weights of each run; every task must have ended well."""
    setting = study.setting(scale)
    rows, _ = run_study(study, setting, out, backend, save_every=save_every, watch=watch)
    tasks = study.tasks(setting)
    assert [row.get("error") for row in rows] == [None] * len(tasks)
    return weights(out, tasks)


def weights(out: Path, tasks: Sequence[Task]) -> dict[str, bytes]:
    return {task.name: (directory(out, task) / "model.safetensors").read_bytes() for task in tasks}


def directory(out: Path, task: Task) -> Path:
    assert task.config is not None
    return out / "runs" / task.config.run_name


def has_checkpoint(out: Path, task: Task) -> bool:
    return any(directory(out, task).glob("checkpoints/*.json"))


def wait_until(what: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


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


def test_a_study_through_ray(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """One cluster for several questions: it takes seconds to start."""
    monkeypatch.setattr(ray_backend, "_answers", lambda _: False)  # whatever else may be running on this machine
    before = signal.getsignal(signal.SIGTERM)
    backend = RayCluster(address="auto")
    with backend.connected():
        assert signal.getsignal(signal.SIGTERM) is before
        watch = Recorder(tmp_path / "ray", "seed=1")
        found = run_it(study, "smoke", tmp_path / "ray", backend, watch)
        assert watch.kinds("seed=0") == ["began", "ended"]
        assert watch.kinds("seed=1") == ["began", "died", "began", "ended"]

        # Ctrl-C: a run far from its end stops with a checkpoint, though none was due.
        (task,) = study.tasks(study.setting("paper"))

        def interrupt(event: Event, tasks: Sequence[Task]) -> None:
            if (directory(tmp_path / "ray", task) / "metrics.jsonl").exists():
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_it(study, "paper", tmp_path / "ray", backend, interrupt, save_every=1e6)
        assert performers(tmp_path / "ray") == {}
        assert has_checkpoint(tmp_path / "ray", task)
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err == f"no Ray cluster is running: starting one on this machine, {os.cpu_count()} cores\n"
    assert found == run_it(study, "smoke", tmp_path / "local", Local(cores=1))
    assert len(set(found.values())) == 2
