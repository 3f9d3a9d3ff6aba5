"""The training room without interruptions: steps, losses, stop rules, every kind of model."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from short_runs import lines_of, tiny, train_until

import pathmerge as pm
from pathmerge.cli import main
from pathmerge.problems.distribution import Distribution
from pathmerge.training import batch_gradients, loop
from pathmerge.training.config import to_toml
from pathmerge.training.feed import Feed
from pathmerge.training.flops import training_flops
from pathmerge.training.gradients import add_gradients, leading, reach_losses

# Steps.


def weights(run: pm.Run) -> dict[str, torch.Tensor]:
    return run.model.state_dict()


def test_a_batch_in_parts_is_the_same_step(tmp_path: Path):
    one, four = (
        pm.train(tiny(accumulate=n, optimizer="signum", learning_rate=1e-4), tmp_path, quiet=True) for n in (1, 4)
    )
    for name, value in weights(one).items():
        # 20 steps of 1e-4: a sign that rounding turns would show as 2e-4.
        torch.testing.assert_close(value, weights(four)[name], rtol=0, atol=1e-5)
    for a, b in zip(lines_of(one, "train"), lines_of(four, "train"), strict=True):
        assert a["by_difficulty"] == b["by_difficulty"]
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)


@pytest.mark.parametrize("optimizer", ["signum", "sophia", "adamw", "muon"])
def test_every_optimizer_learns(tmp_path: Path, optimizer: Any):
    rate = {"signum": 1e-3, "sophia": 1e-3, "adamw": 3e-3, "muon": 3e-3}[optimizer]
    run = pm.train(tiny(optimizer=optimizer, learning_rate=rate, examples=3200), tmp_path, quiet=True)
    losses = [line["loss"] for line in lines_of(run, "train")]
    assert losses[-1] < losses[0] - 0.3


def test_the_three_losses_and_the_soft_label_are_different_steps(tmp_path: Path):
    naive = pm.Naive(input_size=26)
    model = pm.OneHot(input_size=26, layers=2, hidden=4)
    configs = {loss: tiny(problem=naive, model=model, loss=loss, examples=96) for loss in ("label", "soft", "any")}
    configs["soft label"] = tiny(problem=replace(naive, label="soft"), model=model, examples=96)
    runs = {name: pm.train(config, tmp_path, quiet=True) for name, config in configs.items()}
    final = {name: weights(run)["blocks.0.q.weight"] for name, run in runs.items()}
    for a, b in (("label", "soft"), ("label", "any"), ("soft", "any")):
        assert not torch.allclose(final[a], final[b], atol=1e-6)


def test_rates_and_sizes_are_what_the_config_says(tmp_path: Path):
    run = pm.train(
        tiny(
            examples=1280,
            learning_rate=1e-3,
            warmup=320,
            schedule="linear",
            decay=640,
            floor=0.1,
            first_batch_size=8,
            batch_size=32,
            ramp=320,
        ),
        tmp_path,
        quiet=True,
    )
    lines = {line["examples"]: line for line in lines_of(run, "train")}
    assert lines[160]["learning_rate"] == pytest.approx(0.5e-3)
    assert lines[640]["learning_rate"] == pytest.approx(1e-3)
    assert lines[960]["learning_rate"] == pytest.approx(0.55e-3)
    assert lines[1280]["learning_rate"] == pytest.approx(0.1e-3)
    assert [lines[at]["batch_size"] for at in (160, 320, 640)] == [8, 16, 32]
    assert sum(n for _, n in lines[320]["by_difficulty"].values()) == 160


@pytest.mark.parametrize(("over", "first"), [("size", 3), ("lookahead", 1)])
def test_the_rate_falls_as_problems_grow(over: Any, first: int, tmp_path: Path):
    """Beyond `slow_from` in proportion, and at the end as usual on top of it; the same after a restart."""
    rule = pm.Curriculum(over=over, first=first, window=64, threshold=0.0, slow_from=first + 1)
    common: dict[str, Any] = {"schedule": "linear", "decay": 320, "log_every": 32, "learning_rate": 1e-3}
    problem = pm.Balanced(input_size=26)
    model = pm.OneHot(input_size=26, layers=2, hidden=4)
    config = tiny(problem=problem, model=model, curriculum=rule, **common)
    train_until(config, tmp_path, 160)
    run = pm.train(config, tmp_path, quiet=True)
    most = {"size": problem.most_vertices, "lookahead": problem.largest_lookahead}[over]
    stages = list(range(first, most + 1))
    # Two steps of 32 to a stage; the last is mastered with its second, and ten steps later the rate is gone.
    extents = [extent for extent in stages for _ in range(2)] + [most] * 10
    left = [1.0] * (2 * len(stages)) + [1 - step / 10 for step in range(1, 11)]
    wanted = [1e-3 * min(1, (first + 1) / extent) * share for extent, share in zip(extents, left, strict=True)]
    lines = lines_of(run, "train")
    assert [line["learning_rate"] for line in lines] == pytest.approx(wanted, abs=1e-12)


def test_flops_of_a_tiny_model():
    model = pm.OneHot(input_size=14, layers=2, hidden=4, loops=3).build()
    d = 8 + 4 + 14
    inner = 2 * (6 * (d * d + d) + 4 * d)
    rows = np.array([11, 14])
    attention = 12 * 6 * d * (11**2 + 14**2)
    assert training_flops(model, rows) == 6 * (3 * inner + 2 * d) * 25 + attention


# The end of a run.


def test_it_ends_after_its_examples_and_says_so(tmp_path: Path):
    run = pm.train(tiny(examples=650), tmp_path, quiet=True)
    assert (run.finished, run.examples) == ("examples", 672)
    (end,) = lines_of(run, "end")
    assert (end["reason"], end["examples"]) == ("examples", 672)
    assert [line["examples"] for line in lines_of(run, "validation")] == [320, 640, 672]


@pytest.mark.parametrize("rule", ["converged", "converged_each"])
def test_it_ends_when_validation_says_converged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: Any):
    original = loop.validate
    calls: list[int] = []

    def pretend(*arguments: Any) -> dict[str, Any]:
        calls.append(1)
        return {**original(*arguments), "converged": len(calls) > 1, "converged_each": len(calls) > 2}

    monkeypatch.setattr(loop, "validate", pretend)
    run = pm.train(tiny(stop=rule, examples=6400), tmp_path, quiet=True)
    assert (run.finished, run.examples) == (rule, 640 if rule == "converged" else 960)


def test_it_ends_in_time(tmp_path: Path):
    run = pm.train(tiny(minutes=0.01, examples=10**9), tmp_path, quiet=True)
    assert run.finished == "minutes"


def test_with_a_curriculum_it_ends_when_the_rate_has_fallen(tmp_path: Path):
    rule = pm.Curriculum(over="size", first=4, window=64, threshold=0.0)
    run = pm.train(tiny(curriculum=rule, schedule="linear", decay=320, examples=10**6), tmp_path, quiet=True)
    assert (run.finished, run.examples) == ("decay", 128 + 320)
    assert [line["stage"] for line in lines_of(run, "stage")] == ["2/2 (vertices ≤ 5)", "mastered"]
    never = replace(rule, mastery=1.0)
    run = pm.train(tiny(curriculum=never, schedule="linear", decay=320), tmp_path, quiet=True)
    assert (run.finished, run.examples) == ("examples", 640)
    assert [line["stage"] for line in lines_of(run, "stage")] == ["2/2 (vertices ≤ 5)"]


def test_without_a_curriculum_the_rate_falls_once_the_problem_is_mastered_or_at_the_end(tmp_path: Path):
    mastered = pm.Curriculum(window=64, mastery=0.0)
    run = pm.train(tiny(curriculum=mastered, schedule="linear", decay=320, examples=10**6), tmp_path, quiet=True)
    assert (run.finished, run.examples) == ("decay", 64 + 320)
    assert [line["stage"] for line in lines_of(run, "stage")] == ["mastered"]
    run = pm.train(tiny(curriculum=pm.Curriculum(), schedule="linear", decay=320), tmp_path, quiet=True)
    assert (run.finished, run.examples) == ("examples", 640)
    assert not lines_of(run, "stage")


def test_the_newest_lookahead_is_counted_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    told: list[tuple[int, int]] = []
    observe = Feed.observe

    def watch(feed: Feed, correct: int, count: int, newest: tuple[int, int] = (0, 0)) -> bool:
        told.append(newest)
        return observe(feed, correct, count, newest)

    monkeypatch.setattr(Feed, "observe", watch)
    rule = pm.Curriculum(over="size", first=5, window=64, threshold=0.0, newest=1.0)
    run = pm.train(tiny(curriculum=rule), tmp_path, quiet=True)
    counted = [line["by_difficulty"]["lookahead=2"] for line in lines_of(run, "train")]
    assert [sum(column) for column in zip(*told, strict=True)] == [sum(column) for column in zip(*counted, strict=True)]
    assert sum(seen for _, seen in told) > 200
    assert not lines_of(run, "stage"), "never all right"


def test_validation_begins_with_the_last_stage(tmp_path: Path):
    rule = pm.Curriculum(over="size", first=3, window=320, threshold=0.0)
    run = pm.train(tiny(curriculum=rule, examples=960, validate_every=160), tmp_path, quiet=True)
    assert [line["examples"] for line in lines_of(run, "stage")] == [320, 640, 960]
    assert [line["examples"] for line in lines_of(run, "validation")] == [640, 800, 960]


# The second loss.


@pytest.mark.parametrize("problem", [pm.Balanced(input_size=32), pm.Naive(input_size=32), pm.Star(input_size=32)])
def test_the_vertices_that_lead_to_the_goal_are_those_with_a_path(problem: Distribution):
    batch = problem.sample(60, seed=1, threads=1)
    found = leading(batch)
    assert 0 < found.mean() < 1
    for i, told in enumerate(found):
        graph = nx.DiGraph([(u, v) for u, v in batch.edges[i].tolist() if u])
        graph.add_node(int(batch.goal[i]))
        assert set(np.flatnonzero(told).tolist()) == nx.ancestors(graph, int(batch.goal[i])) | {int(batch.goal[i])}


@pytest.mark.parametrize("kind", [pm.OneHot, pm.Edges])
def test_the_second_output_is_read_before_the_last_layer_and_changes_no_answer(kind: Any):
    batch = pm.Balanced(input_size=20).sample(12, seed=1, threads=1)
    model = kind(input_size=20, layers=3, reach=True).build(1)
    tokens = model.inputs(batch).tokens
    logits, told = model.forward_both(tokens)
    plain, record = model.run(tokens, record=["blocks.2.hook_resid_pre"])
    assert (logits - plain).abs().max() < 1e-5
    rows = record["blocks.2.hook_resid_pre"]
    rows = (rows - rows.mean(-1, keepdim=True)) / (rows.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    expected = model.reach(rows)[:, :, 0]
    seen = ~model.padding(tokens)
    assert (told[seen] - expected[seen]).abs().max() < 1e-5
    vertices = model.vertices_of(tokens)
    if kind is pm.Edges:  # an edge is about its target
        assert sorted(vertices[0][vertices[0] > 0].tolist()) == sorted(v for v in batch.edges[0, :, 1].tolist() if v)
    else:
        assert (vertices > 0).sum(1).tolist() == [int(2 * (edges > 0).all(1).sum()) + 3 for edges in batch.edges]
    loss = reach_losses(told, vertices, torch.from_numpy(leading(batch)))
    about = vertices[3] > 0
    truth = torch.from_numpy(leading(batch))[3][vertices[3][about]]
    chance = torch.sigmoid(told[3][about])
    assert abs(loss[3] + torch.where(truth, chance, 1 - chance).log().mean()) < 1e-5


def test_the_second_loss_fades_with_the_rate_and_is_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = pm.OneHot(input_size=20, layers=2, hidden=4, reach=True)
    given: list[float] = []

    def watch(*arguments: Any, reach: float, **named: Any) -> Any:
        given.append(reach)
        return add_gradients(*arguments, reach=reach, **named)

    monkeypatch.setattr(batch_gradients, "add_gradients", watch)
    common = {"schedule": "linear", "decay": 320, "warmup": 64, "learning_rate": 1e-9}
    with_it = pm.train(tiny(model=model, reach=0.5, **common), tmp_path, quiet=True)
    assert given[:10] == [0.5] * 10
    assert given[10:] == pytest.approx([0.5 * left / 10 for left in range(9, -1, -1)])
    monkeypatch.undo()
    without = pm.train(tiny(model=replace(model, reach=False), **common), tmp_path, quiet=True)
    one, other = (lines_of(run, "train")[0]["loss"] for run in (with_it, without))
    assert one == pytest.approx(other, rel=1e-3)  # at this rate nothing is learned


# By the command: every kind of problem and model, and what is refused.

KINDS: list[tuple[Distribution, Any]] = [
    (pm.Naive(input_size=20), pm.Edges(input_size=20, layers=2, end_width=8, initialisation="matching")),
    (pm.Star(input_size=20), pm.Rotary(input_size=20, layers=2, hidden=4)),
    (pm.DFS(input_size=24), pm.OneHot(input_size=24, layers=2, hidden=4, heads=3)),
    (pm.DFS(input_size=24, mode="naive", padding="random"), pm.Edges(input_size=24, layers=2, end_width=8)),
    (pm.SelectionInference(input_size=26), pm.OneHot(input_size=26, layers=2, hidden=4, loops=2)),
    (pm.Language(input_size=14), pm.OneHot(input_size=14, layers=2, hidden=4, text=True)),
    (pm.Language(input_size=14, graph="naive"), pm.Rotary(input_size=14, layers=2, hidden=4, text=True)),
]


@pytest.mark.parametrize(("problem", "model"), KINDS, ids=lambda value: getattr(value, "name", None))
def test_every_kind_trains_and_is_evaluated(problem: Distribution, model: Any, tmp_path: Path):
    config = tiny(problem=problem, model=model, examples=128, validate_every=64)
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config))
    assert main(["train", str(path), "--out", str(tmp_path / "runs"), "--quiet"]) == 0
    (directory,) = (tmp_path / "runs").iterdir()
    table = tmp_path / "table.csv"
    assert main(["evaluate", str(directory), "--out", str(table), "--figure", str(tmp_path / "map.svg")]) == 0
    rows = list(csv.reader(table.read_text().splitlines()))
    assert rows[0] == ["distribution", "difficulty", "examples", "correct", "accuracy", "low", "high", "loss"]
    assert (tmp_path / "map.svg").stat().st_size > 1000
    assert (directory / "curves.png").exists()
    run = pm.load_run(directory)
    again = pm.evaluate(run.model, problem, count=50, heuristics=False)
    names = {(row[0], row[1]): row for row in rows[1:]}
    shared = [row for row in again.rows if (row.distribution, row.difficulty) in names]
    assert shared
    if problem.name != "dfs":  # trained with random padding, tested without
        for row in shared:
            assert [row.examples, row.correct] == [int(n) for n in names[row.distribution, row.difficulty][2:4]]


def test_bad_input_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for arguments, words in (
        (["--sinks", "wandb"], "sink='wandb': not installed"),
        (["--training.device", "mps"], "training.device='mps': torch sees no MPS device"),
        (["--model.heads", "4"], "heads=4: must divide the width d=62"),
        (["--training.optimizer", "adamm"], "adamm"),
        (["--recipe", "matchd"], "did you mean matched?"),
        (["--keep-every", "0"], "keep_every=0: must be"),
    ):
        assert main(["train", "--input-size", "32", "--out", str(tmp_path / "runs"), *arguments]) == 2
        said = capsys.readouterr().err
        assert words in said
        assert said.count("\n") == 1
        assert not (tmp_path / "runs").exists()
