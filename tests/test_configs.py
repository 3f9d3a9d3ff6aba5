"""Configs: recipes, TOML and the command's options make one config, and a bad one is refused in one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from short_runs import tiny

import pathmerge as pm
from pathmerge.cli import main
from pathmerge.encodings.language import Language
from pathmerge.recipes import RECIPES, of_kinds
from pathmerge.training.config import config_from_dict, to_toml


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
        ({"input_size": 32, "curriculum": {"newest": 0.8}}, "curriculum.newest=0.8: needs curriculum.over"),
        ({"input_size": 32, "curriculum": {"over": "size", "newest": 2}}, "curriculum.newest=2: must be a number"),
        (
            {"input_size": 32, "problem": {"name": "naive"}, "curriculum": {"over": "size", "newest": 0.8}},
            r"curriculum.newest=0.8: needs balanced problems of all lookaheads, not naive\(input_size=32\)",
        ),
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


@pytest.mark.parametrize(
    ("size", "asking", "following", "legible"), [(64, 1.7, 1.4, None), (128, 1.7, 1.4, True), (152, 2.0, 1.7, True)]
)
@pytest.mark.parametrize("problem", ["balanced", "naive", "star", "dfs", "selection-inference", "language"])
def test_a_prior_that_follows_edges_is_left_out_where_there_is_no_search(
    problem: str, size: int, asking: float, following: float, legible: bool | None
):
    model = of_kinds(pm.recipe("matched", size), problem, "onehot").model
    assert isinstance(model, pm.OneHot)
    searches = problem in ("balanced", "naive", "star")
    priors = (model.asking, model.following, model.joining, model.matching, model.legible)
    assert priors == ((asking, following, 1.0, 0.0, legible) if searches else (None, None, 0.0, 1.0, None))


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
