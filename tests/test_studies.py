"""Studies: every one runs at smoke scale, is what the paper did, and claims nothing that its rows do not say."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure
from study_runs import Here, configs_of

from pathmerge.models.config import Edges, ModelConfig, OneHot
from pathmerge.problems.balanced import Balanced
from pathmerge.problems.naive import Naive
from pathmerge.recipes import track_of
from pathmerge.studies import learning
from pathmerge.studies.catalogue import STUDIES, study_named
from pathmerge.studies.claims import as_markdown, touched, verdicts
from pathmerge.studies.cost import Cost, cost_of, flops_per_example, measure_pace, parameters_of, tokens_of
from pathmerge.studies.learning import LearningStudy
from pathmerge.studies.results import Folder, Outcome
from pathmerge.studies.runner import Event, run_study
from pathmerge.studies.study import Place, Row
from pathmerge.training.config import RunConfig
from pathmerge.training.flops import training_flops


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
    configs = configs_of(study.tasks(study.setting("paper", "matched")))
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
                    config.training.threads == 1 for config in configs_of(study.tasks(study.setting(scale, recipe)))
                )


# What they cost.


@pytest.mark.parametrize(
    "model",
    [OneHot(input_size=32, layers=4), OneHot(input_size=20, layers=2, hidden=40), Edges(input_size=32, layers=3)],
)
def test_estimated_flops_are_close_to_counted_ones(model: ModelConfig):
    built = model.build()
    exact = sum(parameter.numel() for parameter in built.blocks.parameters())
    assert abs(parameters_of(model) - exact) <= 2 * model.width
    study = study_named("graph-size")
    config = configs_of(study.tasks(study.setting("smoke")))[0]
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


# What is drawn and claimed.


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
