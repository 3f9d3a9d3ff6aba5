"""A study's results: what failed or died is tried again, what is done stays, and what does not fit is refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pyarrow.parquet as pq
import pytest
from study_runs import Here, configs_of

from pathmerge.cli import main
from pathmerge.studies import runner
from pathmerge.studies.catalogue import STUDIES, study_named
from pathmerge.studies.claims import touched
from pathmerge.studies.lookahead_histogram import LookaheadHistogram
from pathmerge.studies.perform import Order
from pathmerge.studies.results import Folder, Outcome, write_rows
from pathmerge.studies.runner import Event, Local, run_study
from pathmerge.studies.study import Row, Task
from pathmerge.training.run import open_directory


class Broken(LookaheadHistogram):
    """A study with a task that fails, one that does not."""

    name = "broken"
    error: ClassVar[Exception] = ValueError("part=7: is broken")

    def tasks(self, setting):
        return [Task(labels={"part": 0}), Task(labels={"part": 7})]

    def measure(self, task, run, setting, place):
        if task.labels["part"] == 7 and not (place.folder.parent.parent / "mended").exists():
            raise self.error
        return [{"lookahead": 1, "graphs": 5}, {"lookahead": 2, "graphs": 1, "note": float("nan")}]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError("part=7: is broken"), "part=7: is broken"),
        (KeyError("nothing"), "KeyError: 'nothing'"),
        (RuntimeError("no memory\nleft"), "RuntimeError: no memory left"),
    ],
)
def test_a_failure_is_a_row_and_is_tried_again(
    error: Exception, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Broken, "error", error)
    study = Broken()
    monkeypatch.setitem(STUDIES, "broken", study)
    rows, _ = run_study(study, study.setting("smoke"), tmp_path, Here())
    assert rows == [
        {"part": 0, "lookahead": 1, "graphs": 5},
        {"part": 0, "lookahead": 2, "graphs": 1, "note": None},
        {"part": 7, "error": says},
    ]
    folder = Folder(root=tmp_path, study=study, setting=study.setting("smoke"))
    (folder.path / "mended").touch()
    events: list[str] = []
    rows, _ = run_study(study, study.setting("smoke"), tmp_path, Here(), watch=lambda e, _: events.append(e.task))
    assert set(events) == {"part=7"}
    assert [row for row in rows if row.get("error")] == []


def test_a_killed_process_is_started_again(tmp_path: Path):
    """The first process of each task is killed; what comes out is what an undisturbed run gives."""
    study = study_named("lookahead-histogram")
    setting = study.setting("smoke")
    undisturbed, _ = run_study(study, setting, tmp_path / "calm", Local(cores=2))
    killed: list[str] = []

    @dataclass(frozen=True, kw_only=True)
    class Killing(Local):
        def run(self, orders: Sequence[Order], cores: Sequence[int], folder: Folder) -> Iterator[Event]:
            for event in Local.run(self, orders, cores, folder):
                if event.kind == "began" and event.task not in killed:
                    killed.append(event.task)
                    _kill_children()
                yield event

    seen: list[Event] = []
    rows, _ = run_study(study, setting, tmp_path / "storm", Killing(cores=2), watch=lambda e, _: seen.append(e))
    assert [event.says for event in seen if event.kind == "died"] == ["killed by signal 9"]
    assert rows == undisturbed


def _kill_children() -> None:
    import os
    import signal

    me = os.getpid()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                words = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if parent == me and b"pathmerge.studies.perform" in words:
                os.kill(int(process.name), signal.SIGKILL)


def test_a_process_that_was_asked_to_stop_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real, begun = runner.start, []

    def start(order: Order, log: Path) -> subprocess.Popen[bytes]:
        begun.append(order.task)
        return subprocess.Popen(["sh", "-c", "exit 130"]) if len(begun) == 1 else real(order, log)

    monkeypatch.setattr(runner, "start", start)
    study = study_named("lookahead-histogram")
    seen: list[Event] = []
    rows, _ = run_study(study, study.setting("smoke"), tmp_path, Local(cores=1), watch=lambda e, _: seen.append(e))
    assert [event.says for event in seen if event.kind == "died"] == ["asked to stop"]
    assert rows
    assert [row for row in rows if row.get("error")] == []


def test_the_command_runs_a_study_in_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["study", "lookahead-histogram", "--scale", "smoke", "--out", str(tmp_path / "results")]) == 0
    said = capsys.readouterr()
    assert "figure.png" in said.out
    assert "done 1/1 part=0" in said.err
    assert main(["claims", str(tmp_path / "results"), "--write", str(tmp_path / "claims.md")]) == 0
    said = capsys.readouterr().out
    assert "C15" in said
    assert "not run" in said
    assert "undecided" in (tmp_path / "claims.md").read_text()


def test_tables_of_mixed_columns(tmp_path: Path):
    rows: list[Row] = [{"a": 1, "b": 1.5, "c": "x"}, {"a": 2.5, "c": 3}, {"d": True}]
    write_rows(tmp_path / "t.parquet", rows)
    found = pq.read_table(tmp_path / "t.parquet").to_pylist()
    assert found[0] == {"a": 1.0, "b": 1.5, "c": "x", "d": None}
    assert found[1] == {"a": 2.5, "b": None, "c": "3", "d": None}
    assert found[2] == {"a": None, "b": None, "c": None, "d": True}


# The folder.


def test_results_of_another_config_are_refused(tmp_path: Path):
    study = study_named("graph-size")
    setting = study.setting("smoke")
    folder = Folder(root=tmp_path, study=study, setting=setting)
    tasks = study.tasks(setting)
    folder.open(tasks)
    folder.open(tasks)
    config = tasks[0].config
    assert config is not None
    changed = replace(tasks[0], config=replace(config, seed=99))
    with pytest.raises(ValueError, match="the config of 'input_size=17-vertices=4-seed=1' has changed"):
        folder.open([changed, *tasks[1:]])
    about = json.loads((folder.path / "study.json").read_text())
    (folder.path / "study.json").write_text(json.dumps({**about, "version": 99}))
    with pytest.raises(ValueError, match="version=99, not 1"):
        folder.open(tasks)
    (folder.path / "study.json").write_text("{")
    with pytest.raises(ValueError, match=r"its study.json cannot be read; choose another folder"):
        folder.open(tasks)


def test_a_study_that_has_gained_tasks_goes_on_in_its_folder(tmp_path: Path):
    study = study_named("graph-size")
    folder = Folder(root=tmp_path, study=study, setting=study.setting("smoke"))
    tasks = study.tasks(folder.setting)
    folder.open(tasks[:2])
    folder.keep(Outcome(task=tasks[0].name, rows=({"kind": "end"},)))
    path = folder.path / "study.json"
    folder.check(tasks)  # to look at it changes nothing
    assert list(json.loads(path.read_text())["tasks"]) == [task.name for task in tasks[:2]]
    folder.open(tasks)
    about = json.loads(path.read_text())
    assert about["tasks"] == {task.name: task.digest for task in tasks}
    assert list(about["configs"]) == [task.name for task in tasks]
    assert folder.rows(tasks) == [{**tasks[0].labels, "kind": "end"}]
    config = tasks[-1].config
    assert config is not None
    with pytest.raises(ValueError, match="has changed"):  # also of those that came later
        folder.open([*tasks[:-1], replace(tasks[-1], config=replace(config, seed=99))])
    path.write_text(json.dumps({**about, "tasks": None}))
    with pytest.raises(ValueError, match=r"its study.json does not say which tasks it is for"):
        folder.open(tasks)


def test_a_run_whose_config_changed_is_refused_and_nothing_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["study", "model-size", "--scale", "smoke", "--out", str(tmp_path)]
    study = study_named("model-size")
    folder = Folder(root=tmp_path, study=study, setting=study.setting("smoke"))
    config = configs_of(study.tasks(folder.setting))[0]
    run = open_directory(folder.runs, config)
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("examples = 1024", "examples = 2048"))
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.err == f"pathmerge: training.examples=1024: the run in {str(run)!r} has 2048, and keeps it\n"
    assert said.out == ""
    assert not folder.path.exists()


def test_a_start_that_was_cut_off_is_no_obstacle(tmp_path: Path):
    study = study_named("lookahead-histogram")
    folder = Folder(root=tmp_path, study=study, setting=study.setting("smoke"))
    tasks = study.tasks(folder.setting)
    (tmp_path / "runs").write_text("mine")
    with pytest.raises(ValueError, match="File exists"):
        folder.open(tasks)
    (tmp_path / "runs").unlink()
    (folder.path / "tasks").mkdir(parents=True, exist_ok=True)
    (folder.path / ".pathmerge-0123.json").touch()
    folder.open(tasks)
    (folder.path / "study.json").unlink()
    (folder.path / "tasks" / "part=0.json").write_text("{}")
    with pytest.raises(ValueError, match=r"is not empty and has no study.json"):
        folder.open(tasks)


def test_damaged_results_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["study", "lookahead-histogram", "--scale", "smoke", "--cores", "1", "--quiet", "--out", str(tmp_path)]
    assert main(words) == 0
    folder = tmp_path / "lookahead-histogram" / "smoke-tuned"
    capsys.readouterr()
    for content in ("{", "{}", '{"rows": null}', '{"rows": [1, 2]}', '{"rows": [], "error": 5}'):
        (folder / "tasks" / "part=0.json").write_text(content)
        for command in (words, ["claims", str(tmp_path)], ["report", str(folder)]):
            assert main(command) == 2
            error = capsys.readouterr().err
            assert "is damaged; remove it" in error
            assert error.count("\n") == 1
    (folder / "tasks" / "part=0.json").write_text('{"rows": [], "error": null}')
    assert main(words) == 0
    assert (folder / "table.csv").read_text().strip() == ""


def test_a_study_does_not_mind_what_became_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    other = tmp_path / "sensitivity" / "smoke-matched"
    other.mkdir(parents=True)
    (other / "study.json").write_text('{"format": "pathmerge study", "version": 0}')
    assert main(["study", "lookahead-histogram", "--scale", "smoke", "--cores", "1", "--out", str(tmp_path)]) == 0
    mine = tmp_path / "lookahead-histogram" / "smoke-tuned"
    assert (mine / "report.html").exists()
    (mine.parent / "smoke-tuned-backup").mkdir()
    (mine.parent / "smoke-tuned-backup" / "study.json").write_bytes((mine / "study.json").read_bytes())
    assert len(touched(tmp_path, "lookahead-histogram")) == 1
    capsys.readouterr()
    assert main(["claims", str(tmp_path)]) == 2
    assert "move its folder elsewhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["study", "sensitivty"], "did you mean sensitivity?"),
        (["study", "sensitivity", "--scale", "laptp"], "did you mean laptop?"),
        (["study", "graph-size", "--save-every", "-1"], "save_every=-1"),
        (["study", "sensitivity", "--recipe", "tund"], "did you mean tuned?"),
        (["study", "dfs-size", "--recipe", "efficient"], "takes one of paper, tuned, matched"),
        (["study"], "--list"),
        (["study", "graph-size", "--cores", "0"], "cores=0"),
        (["claims", "/nowhere"], "no such directory"),
        (["study", "bogus", "--list"], "leave the name out"),
        (
            ["train", "--recipe", "efficient", "--input-size", "32", "--problem", "language"],
            "model.name='edges': cannot read language problems",
        ),
    ],
)
def test_bad_input_is_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]):
    assert main(words) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_folder_that_cannot_be_made_is_told_before_anything_else(capsys: pytest.CaptureFixture[str]):
    assert main(["study", "lookahead-histogram", "--scale", "smoke", "--out", "/proc/nope"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
