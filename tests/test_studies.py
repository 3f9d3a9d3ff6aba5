"""Studies: every one runs at smoke scale, goes on where it stopped, and claims nothing that its rows do not say."""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure

from pathmerge.cli import main
from pathmerge.models.config import Edges, ModelConfig, OneHot
from pathmerge.problems.balanced import Balanced
from pathmerge.problems.naive import Naive
from pathmerge.recipes import track_of
from pathmerge.studies import learning, runner
from pathmerge.studies.catalogue import STUDIES, study_named
from pathmerge.studies.claims import as_markdown, touched, verdicts
from pathmerge.studies.cost import Cost, cost_of, flops_per_example, measure_pace, parameters_of, tokens_of
from pathmerge.studies.learning import LearningStudy
from pathmerge.studies.lookahead_histogram import LookaheadHistogram
from pathmerge.studies.perform import Order, perform
from pathmerge.studies.results import Folder, Outcome, write_rows
from pathmerge.studies.runner import Event, Local, run_study
from pathmerge.studies.study import Place, Row, Task
from pathmerge.training.config import RunConfig
from pathmerge.training.flops import training_flops
from pathmerge.training.run import open_directory


@dataclass(frozen=True)
class Here:
    """A backend without processes: this one does the work."""

    def run(self, orders: Sequence[Order], cores: Sequence[int], folder: Folder) -> Iterator[Event]:
        for order in orders:
            yield Event(task=order.task, kind="began")
            perform(order)
            yield Event(task=order.task, kind="ended")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_runs_at_smoke_scale(name: str, results: Path):
    study = study_named(name)
    setting = study.setting("smoke")
    rows, written = run_study(study, setting, results, Here())
    assert [row for row in rows if row.get("error")] == []
    labels = [task.labels for task in study.tasks(setting)]
    assert all(any(dict(label).items() <= row.items() for row in rows) for label in labels)
    assert [path.name for path in written] == ["table.csv", "table.parquet", "figure.png", "figure.svg"]
    table = pq.read_table(written[1]).to_pylist()
    with written[0].open() as file:
        lines = list(csv.DictReader(file))
    assert len(table) == len(lines) == len(rows)
    assert all(path.stat().st_size > 1000 for path in written[2:])
    # Done is done: the second time nothing is performed.
    events: list[Event] = []
    again, _ = run_study(study, setting, results, Here(), watch=lambda event, _: events.append(event))
    assert events == []
    assert again == rows


def test_settings_of_the_paper_are_the_published_ones():
    """SPEC section 7, line by line."""

    def configs(name: str) -> list[RunConfig]:
        study = study_named(name)
        return [task.config for task in study.tasks(study.setting("paper")) if task.config is not None]

    def one_of(name: str, what: str) -> list[object]:
        return sorted({eval(what, {"c": config}) for config in configs(name)})

    common = ("sensitivity", "graph-size", "model-size", "language", "rotary-size", "dfs-size", "dfs-padding")
    for name in common:
        assert one_of(name, "c.training.optimizer") == ["signum"]
        assert one_of(name, "c.training.learning_rate") == [1e-5]
        assert one_of(name, "c.training.stop") == ["never"]
        assert one_of(name, "c.training.validate_every") == [2**18]
        assert one_of(name, "c.training.batch_size") == [1024 if name == "sensitivity" else 256]
    assert one_of("sensitivity", "(c.model.layers, c.training.examples)") == [(6, 883_000_000)]
    assert [config.problem.name for config in configs("sensitivity")] == ["naive", "star", "balanced", "balanced"]
    assert one_of("graph-size", "c.problem.input_size") == list(range(32, 153, 6))
    assert one_of("graph-size", "(c.model.layers, c.model.hidden, c.training.examples)") == [(8, 16, 236_000_000)]
    assert one_of("graph-size", "c.seed") == list(range(1, 15))
    assert one_of("model-size", "(c.problem.input_size, c.model.layers)") == [(98, 8)]
    assert one_of("model-size", "c.model.hidden") == [16, 64, 256, 1024]
    assert one_of("language", "c.problem.input_size") == [32, 48, 64, 80, 96]
    assert one_of("rotary-size", "(c.model.name, c.training.examples)") == [("rotary", 524_000_000)]
    assert one_of("rotary-model", "c.model.hidden") == [16, 128, 256, 1024]
    assert one_of("dfs-size", "c.problem.input_size") == list(range(48, 193, 16))
    assert one_of("dfs-size", "c.seed") == list(range(1, 16))
    for name in ("sensitivity", "graph-size", "model-size", "dfs-size", "selection-inference-size"):
        assert {track_of(config) for config in configs(name)} == {"T0"}
    models = [(3, 16, 1), (16, 128, 4), (24, 192, 4), (32, 256, 4), (32, 384, 4)]
    assert one_of("dfs-model", "(c.model.layers, c.model.hidden, c.model.heads)") == models
    assert one_of("dfs-padding", "(c.problem.mode, c.problem.padding)") == [("naive", "random"), ("naive", "standard")]
    assert one_of("selection-inference-size", "c.training.validate_every") == [2**16]
    wide = [(4, 16), (4, 128), (4, 512), (4, 1024), (8, 256)]
    assert one_of("selection-inference-model", "(c.model.layers, c.model.hidden)") == wide


def test_backtracks_beyond_the_figure_are_not_tested(monkeypatch: pytest.MonkeyPatch):
    """N=128 has room for 30; figure 15 has 0 to 15, and the claim's "larger half" is of those."""
    judged = [
        SimpleNamespace(parameters={"backtrack": b}, accuracy=1.0, low=1.0, high=1.0, examples=9) for b in range(31)
    ]
    monkeypatch.setattr("pathmerge.evaluation.evaluate.evaluate", lambda *_, **__: SimpleNamespace(rows=judged))
    monkeypatch.setattr("pathmerge.studies.dfs.ending", lambda _: {"kind": "end"})
    study = study_named("dfs-padding")
    setting = study.setting("paper")
    task = study.tasks(setting)[0]
    run: Any = SimpleNamespace(config=task.config, model=None)
    rows = study.measure(task, run, setting, Place(folder=Path(), threads=1))
    assert [row["backtrack"] for row in rows if row["kind"] == "cell"] == list(range(16))


def test_rotary_decoders_match_tokens_where_others_follow_edges():
    study = study_named("rotary-size")
    configs = _configs(study.tasks(study.setting("paper", "matched")))
    assert {config.model.matching for config in configs} == {OneHot.matching}


def test_studies_share_their_runs():
    chosen = {name: study_named(name) for name in ("sensitivity", "circuits", "direction")}
    runs = {
        name: {task.digest for task in study.tasks(study.setting("laptop")) if task.config is not None}
        for name, study in chosen.items()
    }
    assert runs["circuits"] <= runs["sensitivity"]
    assert runs["direction"] & runs["sensitivity"]


def test_every_recipe_of_every_study_gives_configs():
    for study in STUDIES.values():
        for recipe in study.recipes:
            for scale in ("smoke", "laptop", "paper"):
                names = [task.name for task in study.tasks(study.setting(scale, recipe))]
                assert len(names) == len(set(names))
                assert all(
                    config.training.threads == 1 for config in _configs(study.tasks(study.setting(scale, recipe)))
                )


def _configs(tasks: Sequence[Task]) -> list[RunConfig]:
    return [task.config for task in tasks if task.config is not None]


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
    config = _configs(study.tasks(folder.setting))[0]
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


def test_tables_of_mixed_columns(tmp_path: Path):
    rows: list[Row] = [{"a": 1, "b": 1.5, "c": "x"}, {"a": 2.5, "c": 3}, {"d": True}]
    write_rows(tmp_path / "t.parquet", rows)
    found = pq.read_table(tmp_path / "t.parquet").to_pylist()
    assert found[0] == {"a": 1.0, "b": 1.5, "c": "x", "d": None}
    assert found[1] == {"a": 2.5, "b": None, "c": "3", "d": None}
    assert found[2] == {"a": None, "b": None, "c": None, "d": True}


@pytest.mark.parametrize(
    "model",
    [OneHot(input_size=32, layers=4), OneHot(input_size=20, layers=2, hidden=40), Edges(input_size=32, layers=3)],
)
def test_estimated_flops_are_close_to_counted_ones(model: ModelConfig):
    built = model.build()
    exact = sum(parameter.numel() for parameter in built.blocks.parameters())
    assert abs(parameters_of(model) - exact) <= 2 * model.width
    study = study_named("graph-size")
    config = _configs(study.tasks(study.setting("smoke")))[0]
    problem = Balanced(input_size=model.input_size)
    config = replace(config, problem=problem, model=model)
    batch = problem.sample(2000, seed=3)
    used = (batch.tokens != problem.layout.pad).sum(1)
    used = (used - 5) / 3 + 1 if isinstance(model, Edges) else used
    counted = training_flops(built, np.asarray(used)) / len(batch)
    assert flops_per_example(config) == pytest.approx(counted, rel=0.1)


def test_costs_add_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("pathmerge.studies.cost._measure", lambda size: (size, 1e9 * size))
    pace = measure_pace()
    assert pace.at(32) == pytest.approx(32e9)
    assert pace.at(96) == pytest.approx(96e9)
    assert pace.at(1000) == pytest.approx(96e9)
    assert pace.at(55) == pytest.approx(55e9, rel=1e-6)
    monkeypatch.setattr("pathmerge.studies.cost._measure", lambda size: pytest.fail("it was measured before"))
    assert measure_pace() == pace
    study = study_named("graph-size")
    tasks = study.tasks(study.setting("laptop"))
    total = cost_of(tasks, pace)
    assert total.runs == len(tasks) == 11
    assert total.examples == 11 * 600_000
    assert total.flops == pytest.approx(sum(cost_of([task], pace).flops for task in tasks))
    assert total.hours(1) > total.hours(2) >= total.longest / 3600
    assert Cost(core_seconds=10, longest=10).hours(4) == pytest.approx(10 / 3600)
    assert tokens_of(Naive(input_size=300), False) == pytest.approx(tokens_of(Naive(input_size=199), False) * 300 / 199)
    assert tokens_of(Naive(input_size=272), False) < 0.9 * 272, "padding is not counted"


def test_smoothing_keeps_ends_and_means():
    noise = np.random.default_rng(0).normal(size=1000)
    smoothed = learning.smooth(noise)
    assert smoothed[500] == pytest.approx(noise[460:541].mean())
    assert (smoothed[0], smoothed[-1]) == (pytest.approx(noise[0]), pytest.approx(noise[-1]))
    assert smoothed[3] == pytest.approx(noise[:7].mean())
    assert learning.smooth(np.arange(4.0)).tolist() == [0, 1, 2, 3]


def test_the_least_of_several_curves_holds_each_at_its_last_value():
    x, y = learning.minimum(
        [(np.array([1.0, 3.0]), np.array([5.0, 1.0])), (np.array([2.0, 4.0]), np.array([4.0, 2.0]))]
    )
    assert x.tolist() == [1, 2, 3, 4]
    assert y.tolist() == [5, 4, 1, 1]


def test_seeds_are_smoothed_before_the_least_of_them_is_taken():
    """Seeds have their points at different FLOPs: a window over all points would be narrower than the paper's."""
    study = study_named("dfs-model")
    assert isinstance(study, LearningStudy)
    rng = np.random.default_rng(0)
    losses = 2 + rng.normal(size=(3, 200)) / 4
    rows: list[Row] = [
        {"kind": "point", "model": "a", "seed": seed, "flops": 1e9 * (i + 1) + seed, "train_loss": 1, "test_loss": loss}
        for seed, line in enumerate(losses)
        for i, loss in enumerate(line)
    ]
    panels: Any = Figure().subplots(1, 2)
    study.draw_curves(panels, rows, study.setting("paper"), "flops", least=True)
    drawn = panels[1].lines[0].get_ydata()
    assert drawn[-1] == pytest.approx(min(learning.smooth(line)[-1] for line in losses))
    assert drawn[299] == pytest.approx(min(learning.smooth(line)[99] for line in losses))


def test_rows_that_lack_something_leave_a_claim_undecided(tmp_path: Path):
    study = study_named("lookahead-histogram")
    setting = study.setting("laptop")
    folder = Folder(root=tmp_path, study=study, setting=setting)
    tasks = study.tasks(setting)
    folder.open(tasks)
    for task in tasks:
        folder.keep(Outcome(task=task.name, rows=({"lookahead": 1},)))
    (found,) = touched(tmp_path, "lookahead-histogram")
    assert (found.verdict, found.recipe) == ("undecided", "nothing is trained")
    assert "rows lack what the rule looks at (ValueError" in found.evidence


def test_smoke_decides_nothing_and_unfinished_studies_say_so(results: Path, tmp_path: Path):
    study = study_named("lookahead-histogram")
    setting = study.setting("smoke")
    run_study(study, setting, tmp_path, Here())
    (found,) = touched(tmp_path, "lookahead-histogram")
    assert (found.claim, found.verdict, found.scale) == ("C15", "undecided", "smoke")
    assert "R²" in found.evidence
    folder = Folder(root=tmp_path, study=study, setting=setting)
    folder.keep(Outcome(task="part=0", error="lost"))
    (found,) = touched(tmp_path, "lookahead-histogram")
    assert "0 of 1 tasks not done, 1 failed" in found.evidence
    (folder.path / "study.json").write_text('{"format": "something else"}')
    with pytest.raises(ValueError, match="is of another version"):
        verdicts(tmp_path)
    folder.path.rename(folder.path.parent / "moved")
    (folder.path.parent / "moved" / "study.json").unlink()
    page = as_markdown(verdicts(tmp_path))
    assert page.count("not run yet") == 15


def test_the_pages_in_docs_are_made_from_the_results_kept_there():
    """`pathmerge claims docs/studies --write docs/claims.md`; results of other configs than today's are refused."""
    docs = Path(__file__).parent.parent / "docs"
    assert (docs / "claims.md").read_text(encoding="utf-8") == as_markdown(verdicts(docs / "studies"))
    for table in sorted((docs / "studies").glob("*/*/table.csv")):
        study = study_named(table.parent.parent.name)
        folder = Folder(root=docs / "studies", study=study, setting=study.setting(*table.parent.name.split("-", 1)))
        with table.open(encoding="utf-8", newline="") as file:
            found = [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]
        kept = folder.rows(study.tasks(folder.setting))
        assert found == [{name: str(value) for name, value in row.items() if value is not None} for row in kept]
