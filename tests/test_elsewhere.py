"""Tasks on other machines: runs that are still held, parents that are gone, folders and files that are not there."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from study_runs import directory, make_order

from pathmerge.studies import elsewhere, perform
from pathmerge.studies.elsewhere import Attempt, Landing, News
from pathmerge.studies.results import Folder, Outcome
from pathmerge.studies.study import Study
from pathmerge.training.run import lock


def test_a_run_that_is_held_is_waited_for(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A machine that was lost may live on for a while: its process holds the run, and gets on with it or does not."""
    monkeypatch.setattr(perform, "HELD_WAIT", 0.5)
    monkeypatch.setattr(perform, "HELD_POLL", 0.05)
    setting = study.setting("smoke")
    task = study.tasks(setting)[0]
    folder = Folder(root=tmp_path, study=study, setting=setting)
    folder.open(study.tasks(setting))
    run = directory(tmp_path, task)
    run.mkdir()
    done: list[Outcome] = []
    work = threading.Thread(target=lambda: done.append(perform.perform(make_order(task, tmp_path))))
    with lock(run):
        # Without a sign of life it is given up.
        failed = perform.perform(make_order(task, tmp_path))
        assert failed.error == f"run={str(run)!r}: another process is training it"
        assert failed.seconds > 0.5
        folder.file_of(task.name).unlink()
        work.start()
        for number in range(30):  # three times as long as it would wait for nothing
            (run / "metrics.jsonl").write_text("")
            os.utime(run / "metrics.jsonl", ns=(number, number))
            time.sleep(0.05)
        (run / "metrics.jsonl").unlink()
        assert work.is_alive()
        assert done == []
    work.join(timeout=60)
    assert [outcome.error for outcome in done] == [None]


def test_a_task_whose_parent_is_gone_does_not_start(study: Study, tmp_path: Path):
    """It may die while the child still loads its libraries, when the system does not tell the child yet."""
    (task, *_) = study.tasks(study.setting("smoke"))
    program = [sys.executable, "-m", "pathmerge.studies.perform", make_order(task, tmp_path).to_json()]
    done = subprocess.run(program, env={**os.environ, perform.PARENT: "1"}, capture_output=True, check=False)
    assert done.returncode == -signal.SIGTERM
    assert not (tmp_path / "runs").exists()


def test_how_often_a_task_is_sent(tmp_path: Path, study: Study):
    (task, *_) = study.tasks(study.setting("smoke"))
    for kind, often in (("died", 3), ("lost", elsewhere.LOSSES)):
        attempt: Attempt | None = Attempt(order=make_order(task, tmp_path), cores=1)
        count = 0
        while attempt is not None:
            count += 1
            attempt = attempt.again(News(kind=kind))
        assert count == often


def test_a_machine_without_the_folder_says_so(study: Study, tmp_path: Path):
    (task, *_) = study.tasks(study.setting("smoke"))
    place = str(tmp_path / "elsewhere")
    news = elsewhere.carry_out(make_order(task, tmp_path), place, "")
    assert news.kind == "failed"
    assert news.says == f"out={place!r}: is not there on {socket.gethostname()}; all machines must share it"
    assert not Path(place).exists()


def test_a_file_may_arrive_late(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    setting = study.setting("smoke")
    folder = Folder(root=tmp_path, study=study, setting=setting)
    folder.open(study.tasks(setting))
    landing = Landing(folder=folder)
    landing.expect("seed=0")
    assert list(landing.landed()) == []
    folder.keep(Outcome(task="seed=0"))
    assert [(event.task, event.kind) for event in landing.landed()] == [("seed=0", "ended")]
    monkeypatch.setattr(elsewhere, "LANDING_WAIT", -1.0)
    landing.expect("seed=1")
    assert [(event.task, event.says) for event in landing.landed()] == [("seed=1", "its file did not arrive")]
    assert landing.deadlines == {}
