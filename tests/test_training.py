"""The training room without interruptions: configs, feeds, schedules, losses, stop rules, every kind of model."""

from __future__ import annotations

import csv
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from short_runs import train_until

import pathmerge as pm
from pathmerge.cli import main
from pathmerge.encodings.language import Language
from pathmerge.evaluation.suite import guard_for, hold_out_test, hold_out_validation
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import Distribution
from pathmerge.recipes import RECIPES, of_kinds
from pathmerge.training import batch_gradients, loop
from pathmerge.training.config import config_from_dict, to_toml
from pathmerge.training.feed import Feed
from pathmerge.training.flops import training_flops
from pathmerge.training.gradients import add_gradients, leading, make_task, reach_losses


def tiny(**changes: Any) -> pm.RunConfig:
    """A run of a second: fields of Training by name, other tables whole."""
    training = {f.name for f in fields(pm.Training)}
    given: dict[str, Any] = {"examples": 640, "batch_size": 32, "threads": 1, "log_every": 160, "validate_every": 320}
    given |= {name: value for name, value in changes.items() if name in training}
    rest = {name: value for name, value in changes.items() if name not in training}
    tables: dict[str, Any] = {
        "problem": pm.Balanced(input_size=20),
        "model": pm.OneHot(input_size=20, layers=2, hidden=4),
        "training": pm.Training(**given),
        "held_out": pm.Holding(test=50, validation=50),
        "seed": 3,
    }
    return pm.RunConfig(**(tables | rest))


def lines_of(run: pm.Run, kind: str) -> list[dict[str, Any]]:
    return [line for line in run.metrics() if line["kind"] == kind]


# Configs.


@pytest.mark.parametrize("problem", ["naive", "star", "tangled", "language", "dfs", "selection-inference"])
@pytest.mark.parametrize("name", ["matched", "efficient"])
def test_a_recipe_for_large_graphs_takes_every_problem(name: str, problem: str):
    size = 64  # from 19 vertices on `matched` has a share of tangled problems, which only balanced ones can have
    config = of_kinds(pm.recipe(name, size), problem, "onehot")
    assert config.curriculum.sources(config.problem)[-1] == config.problem
    balanced = pm.recipe("matched", size)
    assert balanced.curriculum.sources(balanced.problem)[-1].name == "tangled"


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("size", [14, 32, 128, 512])
def test_recipes_are_whole_configs_and_survive_toml(name: str, size: int, tmp_path: Path):
    config = pm.recipe(name, size, seed=7)
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config))
    again = pm.load_config(path)
    assert (again, again.digest) == (config, config.digest)


@settings(max_examples=40, deadline=None)
@given(
    rate=st.floats(0, 1),
    warmup=st.integers(0, 10**6),
    beta=st.none() | st.floats(0, 0.99),
    size=st.integers(14, 64),
    first=st.none() | st.integers(1, 32),
    text=st.booleans(),
)
def test_any_config_survives_its_dictionary(
    rate: float, warmup: int, beta: float | None, size: int, first: int | None, text: bool
):
    problem = Language(input_size=size) if text else pm.Naive(input_size=size, vertices=3)
    config = pm.RunConfig(
        problem=problem,
        model=pm.Rotary(input_size=size, layers=1, text=text),
        training=pm.Training(learning_rate=rate, warmup=warmup, beta1=beta, first_batch_size=first),
    )
    assert config_from_dict(config.to_dict()) == config


def test_the_hash_is_of_everything_but_the_recipes_name():
    config = tiny()
    assert replace(config, recipe="x").digest == config.digest
    changed = [
        replace(config, seed=4),
        replace(config, problem=pm.Balanced(input_size=20, max_lookahead=1)),
        replace(config, model=pm.OneHot(input_size=20, layers=2, hidden=5)),
        replace(config, training=replace(config.training, threads=2)),
        replace(config, held_out=pm.Holding(test=51, validation=50)),
        replace(config, curriculum=pm.Curriculum(over="lookahead")),
    ]
    assert len({config.digest, *(other.digest for other in changed)}) == 7


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"input_size": 32, "trainig": {}}, r"key='trainig': .*did you mean training\?"),
        ({"input_size": 32, "training": {"learningrate": 1}}, r"did you mean learning_rate\?"),
        ({"input_size": 32, "model": {"name": "onehott"}}, r"model.name='onehott': .*did you mean onehot\?"),
        ({"input_size": 32, "model": {"head": 2}}, r"did you mean heads\?"),
        ({"input_size": 32, "problem": {"name": "balanced", "lookahed": 1}}, r"did you mean lookahead\?"),
        ({"input_size": 32, "training": 5}, "training=5: must be a table"),
        ({"problem": {"input_size": 32}, "model": {"input_size": 35}}, "model.input_size=35: must be .* 32"),
        ({"input_size": 32, "model": {"heads": 4}}, "heads=4: must divide the width d=62"),
        ({"input_size": 12}, "input_size=12: must be"),
        ({"input_size": 32, "training": {"learning_rate": -1}}, r"training.learning_rate=-1: must be a number"),
        ({"input_size": 32, "training": {"optimizer": "adam"}}, r"training.optimizer='adam': .*did you mean adamw\?"),
        ({"input_size": 32, "training": {"batch_size": 0}}, "training.batch_size=0: must be"),
        ({"input_size": 32, "training": {"first_batch_size": 512}}, "training.first_batch_size=512: must be"),
        ({"input_size": 32, "curriculum": {"over": "sise"}}, r"curriculum.over='sise': .*did you mean size\?"),
        ({"input_size": 32, "curriculum": {"over": "size", "first": 10}}, "curriculum.first=10: must be .*3..9|1..9"),
        ({"input_size": 32, "problem": {"name": "dfs"}, "curriculum": {"over": "size"}}, "curriculum.over='size': nee"),
        (
            {"input_size": 32, "training": {"reach": 0.5}},
            r"training.reach=0\.5: must be above 0 if model.reach is true",
        ),
        ({"input_size": 32, "model": {"reach": True}}, r"training.reach=0\.0: must be above 0 if model.reach is true"),
        (
            {"input_size": 32, "problem": {"name": "dfs"}, "model": {"reach": True}, "training": {"reach": 1}},
            "model.reach=True: needs balanced, naive, star problems, not dfs",
        ),
        (
            {
                "input_size": 32,
                "problem": {"name": "dfs"},
                "model": {"initialisation": "matching", "joining": 1.0},
            },
            r"model.joining=1\.0: needs balanced, naive, star problems, not dfs",
        ),
        ({"input_size": 32, "curriculum": {"mastery": 1.5}}, r"curriculum.mastery=1\.5: must be a number"),
        ({"input_size": 32, "curriculum": {"tangled": 1}}, "curriculum.tangled=1: must be"),
        (
            {"input_size": 32, "curriculum": {"over": "size", "tangled": 0.5, "easier": 0.5}},
            r"curriculum.tangled=0\.5: must be at most 0\.4, since curriculum\.easier=0\.5",
        ),
        (
            {"input_size": 32, "curriculum": {"tangled": 0.1}, "training": {"batch_size": 64}},
            r"curriculum.tangled=0\.1: must be at least 0\.25, sixteen problems of a batch of 64",
        ),
        (
            {"input_size": 32, "problem": {"name": "naive"}, "curriculum": {"tangled": 0.5}},
            r"curriculum.tangled=0.5: needs balanced problems .* not naive\(input_size=32\)",
        ),
        (
            {"input_size": 14, "curriculum": {"tangled": 0.5}},
            r"curriculum.tangled=0.5: needs balanced problems .* at least 4 vertices, not balanced\(input_size=14\)",
        ),
        ({"input_size": 32, "curriculum": {"slow_from": 9}}, "curriculum.slow_from=9: needs curriculum.over"),
        ({"input_size": 32, "curriculum": {"largest": 9}}, "curriculum.largest=9: needs curriculum.tangled"),
        ({"input_size": 32, "curriculum": {"tangled": 0, "largest": 9}}, "curriculum.largest=9: needs"),
        ({"input_size": 32, "curriculum": {"tangled": 0.5, "largest": 1}}, "curriculum.largest=1: must be a whole"),
        ({"input_size": 32, "curriculum": {"over": "size", "slow_from": 0}}, "curriculum.slow_from=0: must be a whole"),
        ({"input_size": 32, "curriculum": {"scatter": True}}, "curriculum.scatter=True: needs curriculum.over='size'"),
        (
            {"input_size": 32, "model": {"name": "edges"}, "curriculum": {"over": "size", "scatter": True}},
            "curriculum.scatter=True: needs a model of symbolic tokens with positions",
        ),
        ({"input_size": 32, "problem": {"name": "language"}, "model": {"name": "edges"}}, "cannot read language"),
        ({"input_size": 32, "problem": {"name": "language"}, "training": {"loss": "any"}}, "must be 'label'"),
        ({"input_size": 32, "training": {"optimizer": "signum", "beta2": 0.9}}, "training.beta2=0.9: must be left out"),
    ],
)
def test_a_bad_config_is_one_line(values: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words) as caught:
        config_from_dict(values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("problem", ["balanced", "naive", "star", "dfs", "selection-inference", "language"])
def test_the_default_recipe_fits_every_problem(problem: str, capsys: pytest.CaptureFixture[str]):
    assert main(["train", "--input-size", "32", "--problem", problem, "--show-config"]) == 0
    joining = "joining = 1.0" if problem in ("balanced", "naive", "star") else "joining = 0.0"
    assert joining in capsys.readouterr().out


@pytest.mark.parametrize(("size", "legible"), [(64, None), (128, True)])
@pytest.mark.parametrize("problem", ["balanced", "naive", "star", "dfs", "selection-inference", "language"])
def test_a_prior_that_follows_edges_is_left_out_where_there_is_no_search(problem: str, size: int, legible: bool | None):
    model = of_kinds(pm.recipe("matched", size), problem, "onehot").model
    assert isinstance(model, pm.OneHot)
    searches = problem in ("balanced", "naive", "star")
    priors = (model.asking, model.following, model.joining, model.matching, model.legible)
    assert priors == ((1.7, 1.4, 1.0, 0.0, legible) if searches else (None, None, 0.0, 1.0, None))


def test_toml_and_options_meet_in_one_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "my.toml"
    path.write_text("input_size = 26\n[model]\nlayers = 3\n[training]\nbatch_size = 64\nlearning_rate = 1e-2\n")
    arguments = [str(path), "--training.learning-rate", "3e-4", "--model.heads", "2", "--seed", "5", "--show-config"]
    assert main(["train", *arguments]) == 0
    (tmp_path / "resolved.toml").write_text(capsys.readouterr().out)
    config = pm.load_config(tmp_path / "resolved.toml")
    assert (config.training.learning_rate, config.training.batch_size) == (3e-4, 64)
    assert config.model == pm.OneHot(input_size=26, layers=3, heads=2)
    assert (config.problem, config.seed) == (pm.Balanced(input_size=26), 5)
    path.write_text("[model\n")
    assert main(["train", str(path)]) == 2
    assert "is not TOML" in capsys.readouterr().err


# What training is fed.


def pieces_of(feed: Feed, sizes: list[int]) -> list[list[Batch]]:
    return [feed.next(size) for size in sizes]


def test_without_a_curriculum_the_feed_is_the_stream():
    problem = pm.Balanced(input_size=20)
    with Feed(problem, pm.Curriculum(), seed=2, held_out=None) as feed:
        got = np.concatenate([piece.tokens for (piece,) in pieces_of(feed, [32, 32, 64, 32])])
    assert (got == problem.sample(160, seed=2).tokens).all()


def test_a_share_of_each_batch_is_tangled_once_the_problem_is_mastered_and_after_a_restart():
    rule = pm.Curriculum(over="size", first=5, step=4, threshold=0.0, window=32, tangled=0.5, easier=0.25)
    problem = pm.Balanced(input_size=32, max_lookahead=4)

    def parents(batch: pm.Batch) -> list[int]:
        return [int(np.bincount(targets)[1:].max()) for targets in batch.edges[:, :, 1]]

    with Feed(problem, rule, seed=3, held_out=None) as feed:
        for sizes in ([64], [48, 16]):
            assert [len(piece) for piece in feed.next(64)] == sizes
            feed.observe(32, 32)
        assert feed.mastered
        now, tangled, easier = feed.next(64)
        assert (len(now), len(tangled), len(easier)) == (16, 32, 16)
        assert now.distribution == problem
        assert tangled.distribution == pm.Tangled(input_size=32, max_lookahead=3)
        assert min(parents(tangled)) >= 2 > min(parents(now))
        state = feed.state()
        wanted = feed.next(64)
        assert not (wanted[1].identity == tangled.identity).any()
    with Feed(problem, rule, seed=3, held_out=None) as again:
        again.load_state(state)
        for one, other in zip(wanted, again.next(64), strict=True):
            np.testing.assert_array_equal(one.tokens, other.tokens)


def test_the_tangled_share_of_some_batches_is_of_the_largest_lookahead():
    rule = pm.Curriculum(tangled=0.5, largest=3)
    problem = pm.Balanced(input_size=32)  # nine vertices: none is left beside two chains of four
    with Feed(problem, rule, seed=3, held_out=None) as feed:
        shares = [beside for _, beside in pieces_of(feed, [64] * 7)]
        state = feed.state()
        wanted = feed.next(64)
    assert [int(share.lookahead.min()) == 4 for share in shares] == [True, False, False, True, False, False, True]
    assert max(int(share.lookahead.max()) for share in (shares[1], shares[2])) == 3
    assert not set(shares[0].identity.tolist()) & set(shares[3].identity.tolist())
    with Feed(problem, rule, seed=3, held_out=None) as again:
        again.load_state(state)
        for one, other in zip(wanted, again.next(64), strict=True):
            np.testing.assert_array_equal(one.tokens, other.tokens)


def test_tangled_problems_grow_within_their_own_bounds():
    stages = pm.Curriculum(over="size", first=4, step=3).stages(pm.Tangled(input_size=32, max_lookahead=3))
    assert [(stage.vertices, stage.max_lookahead) for stage in stages if isinstance(stage, pm.Tangled)] == [
        (4, 1),
        (7, 2),
        (None, 3),
    ]
    with pytest.raises(ValueError, match=r"curriculum.first=3: must be a whole number in 4..9"):
        pm.Curriculum(over="size", first=3).stages(pm.Tangled(input_size=32))
    assert pm.Curriculum(tangled=0.8).tangled_part(128) == 96


def test_without_a_rule_of_mastery_problems_are_tangled_from_the_beginning():
    with Feed(pm.Balanced(input_size=32), pm.Curriculum(tangled=0.25), seed=3, held_out=None) as feed:
        assert [len(piece) for piece in feed.next(64)] == [48, 16]


def test_a_curriculum_moves_when_the_window_is_good_and_keeps_easier_problems():
    rule = pm.Curriculum(over="size", first=4, step=2, threshold=0.75, window=64, easier=0.25)
    problem = pm.Balanced(input_size=32)
    with Feed(problem, rule, seed=2, held_out=None) as feed:
        assert [getattr(stage, "vertices", None) for stage in feed.stages] == [4, 6, 8, None]
        assert [len(piece) for piece in feed.next(64)] == [64]
        assert not feed.observe(40, 64), "40 of 64 is below 0.75"
        assert not feed.observe(24, 32), "the window holds 64 of the last 96: the first 64 are still in it"
        assert feed.observe(32, 32), "the last 64 are 56 right"
        assert feed.stage == 1
        for number in range(4):
            now, easier = feed.next(64)
            assert (len(now), len(easier)) == (48, 16)
            assert now.distribution == feed.stages[1]
            assert easier.distribution == feed.stages[0], number
        feed.observe(64, 64)
        assert [feed.next(64)[1].distribution == feed.stages[turn] for turn in (1, 0, 1)] == [True] * 3
        feed.observe(64, 64)
        assert feed.stage == 3
        assert not feed.mastered
        feed.observe(60, 64)
        assert feed.mastered
        assert not feed.observe(64, 64), "told once"


def test_a_feed_goes_on_from_its_state_and_shards_make_the_whole():
    rule = pm.Curriculum(over="lookahead", window=64, easier=0.5)
    problem = pm.Balanced(input_size=32)

    def play(feed: Feed, steps: int) -> list[bytes]:
        found: list[bytes] = []
        for _ in range(steps):
            pieces = feed.next(64)
            found += [piece.tokens.tobytes() for piece in pieces]
            feed.observe(63 if feed.batches % 3 else 10, 32)
        return found

    with Feed(problem, rule, seed=2, held_out=None) as feed:
        play(feed, 2)
        state = feed.state()
        rest = play(feed, 9)
        assert feed.stage > state["stage"]
    with Feed(problem, rule, seed=2, held_out=None) as again:
        again.load_state(state)
        assert play(again, 9) == rest
    feeds = [Feed(problem, rule, seed=2, held_out=None, shard=(rank, 2)) for rank in range(2)]
    whole = Feed(problem, rule, seed=2, held_out=None)
    for feed in (*feeds, whole):
        feed.load_state(state)
    for _ in range(3):
        parts = [feed.next(64) for feed in feeds]
        for number, piece in enumerate(whole.next(64)):
            joined = np.concatenate([part[number].tokens for part in parts])
            assert (joined == piece.tokens).all()
    for feed in (*feeds, whole):
        feed.close()


def test_no_training_example_is_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = tiny(curriculum=pm.Curriculum(over="size", first=4, window=64, threshold=0.05))
    seen: list[np.ndarray] = []
    original = Feed.next

    def spy(self: Feed, size: int) -> list[Batch]:
        pieces = original(self, size)
        seen.extend(piece.identity for piece in pieces)
        return pieces

    monkeypatch.setattr(Feed, "next", spy)
    run = pm.train(config, tmp_path, quiet=True)
    test = hold_out_test(config.problem, 50, 0)
    validation = hold_out_validation(config.problem, 50, 0, besides=test)
    met = np.concatenate(seen)
    assert len(met) == run.examples == 640
    assert not np.isin(met, (test + validation).identities).any()
    assert not np.isin(test.identities, validation.identities).any()
    assert lines_of(run, "train")[-1]["guard"] > 0, "at this size held-out problems do come up"


def test_a_cell_that_other_cells_hold_out_almost_whole_is_named_and_not_guarded():
    star = pm.Star(input_size=20)
    held = hold_out_test(star, 4000, 0)
    guard, named = guard_for([star], held)
    starved = pm.Star(input_size=20, spokes=4, lookahead=1)
    assert starved.problem_count() == 20
    assert any(text.startswith(starved.describe()) for text in named)
    assert np.isin(starved.sample(100).identity, held.identities).mean() > 0.9
    assert not np.isin(starved.sample(100).identity, guard.identities).any()
    assert guard_for([pm.Balanced(input_size=32)], held) == (held, []), "nothing to free: the same set"


def test_a_difficulty_with_few_problems_is_named_when_training_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Five vertices in two chains of two: 120 problems, of which 5% are held out."""
    pm.train(tiny(examples=32), tmp_path)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "by heart" in line]
    assert "lookahead=2" in line
    assert "6 of 50 examples held out (6 of at least 120 distinct problems" in line


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


def test_validation_begins_with_the_last_stage(tmp_path: Path):
    rule = pm.Curriculum(over="size", first=3, window=320, threshold=0.0)
    run = pm.train(tiny(curriculum=rule, examples=960, validate_every=160), tmp_path, quiet=True)
    assert [line["examples"] for line in lines_of(run, "stage")] == [320, 640, 960]
    assert [line["examples"] for line in lines_of(run, "validation")] == [640, 800, 960]


def test_scattered_edges_are_the_same_problems_in_other_places(tmp_path: Path):
    problem, small = pm.Balanced(input_size=32), pm.Balanced(input_size=32, vertices=5)
    model = pm.OneHot(input_size=32, layers=1).build()
    pieces = [small.sample(40, seed=1), small.sample(20, seed=2)]
    slots = np.random.default_rng(1).permutation(9)
    plain, moved = (make_task(model, pieces, order).inputs.tokens.numpy() for order in (None, slots))
    assert (plain[:, -5:] == moved[:, -5:]).all()
    used: set[int] = set()
    for before, after in zip(plain[:, :-5].reshape(60, 9, 3), moved[:, :-5].reshape(60, 9, 3), strict=True):
        assert sorted(map(tuple, before.tolist())) == sorted(map(tuple, after.tolist()))
        used |= set(np.flatnonzero((after != after.max()).any(1)).tolist())
    assert used == set(np.flatnonzero(slots >= 4).tolist())  # all examples share five slots
    rule = pm.Curriculum(over="size", first=5, step=4, window=64, threshold=0.0, scatter=True)
    model_config = pm.OneHot(input_size=32, layers=1)
    runs = [
        pm.train(tiny(problem=problem, model=model_config, curriculum=each), tmp_path, quiet=True)
        for each in (rule, replace(rule, scatter=False))
    ]
    losses = [[line["loss"] for line in lines_of(run, "train")] for run in runs]
    assert losses[0] != losses[1]


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


# Every kind of problem and model, by the command.

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


def test_another_problem_keeps_settings_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "my.toml"
    for extra, expected in (([], 'optimizer = "adamw"'), (["--training.batch-size", "48"], 'optimizer = "muon"')):
        assert main(["train", "--recipe", "tuned", "--input-size", "32", *extra, "--show-config"]) == 0
        path.write_text(capsys.readouterr().out)
        assert main(["train", str(path), "--problem", "dfs", "--show-config"]) == 0
        assert expected in capsys.readouterr().out


def test_a_table_that_is_none_is_one_line_with_a_size_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "my.toml"
    path.write_text("problem = 3\n")
    assert main(["train", str(path), "--input-size", "32"]) == 2
    assert "problem=3: must be a table of fields" in capsys.readouterr().err
