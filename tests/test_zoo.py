"""The shelf of trained models: what is on it is what its cards say, and how a model gets there."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pathmerge as pm
from pathmerge.cli import main
from pathmerge.evaluation.evaluate import evaluate_model
from pathmerge.evaluation.suite import hold_out_test
from pathmerge.recipes import RECIPES, command_of, track_of
from pathmerge.zoo.shelf import SHELF, card, names
from pathmerge.zoo.ship import ship


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pm.Run:
    """A model of a second's training."""
    base = pm.recipe("efficient", 20, seed=3)
    training = replace(base.training, examples=256, batch_size=64, threads=1, validate_every=128)
    config = replace(base, training=training, held_out=pm.Holding(test=60, validation=40), curriculum=pm.Curriculum())
    return pm.train(config, tmp_path_factory.mktemp("runs"), quiet=True)


@pytest.fixture(scope="module")
def shelf(run: pm.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shelf") / "new"
    ship(run, "tiny-20", "a model of a second", shelf=folder, threads=1)
    return folder


# What comes with the package.


def judged_here(name: str) -> object:
    """A name, marked as long where the test problems alone take half a minute to draw."""
    return pytest.param(name, marks=pytest.mark.long) if card(name).run_config.problem.input_size > 200 else name


@pytest.mark.parametrize("name", [judged_here(name) for name in names()])
def test_a_shipped_model_is_as_good_as_its_card_says(name: str):
    """Judged again here, on the first of the same test problems, by a plain loop."""
    described, model = card(name), pm.load(name)
    config = described.run_config
    assert model.config == config.model
    assert sum(p.numel() for p in model.parameters()) == described.parameters
    assert (SHELF / f"{name}.safetensors").stat().st_size < 7e6
    right: dict[str, list[float]] = {}
    each = max(10, 200 // pm.Balanced(input_size=config.problem.input_size).largest_lookahead)
    for cell in hold_out_test(config.problem, 200, config.held_out.seed).cells:
        if cell.distribution.name == "balanced":
            batch = cell.batch.take(slice(0, each))
            with torch.no_grad():
                answer = model.run(model.inputs(batch).tokens).logits
            assert answer is not None
            found = batch.answers[torch.arange(len(batch)), answer.argmax(-1)].mean()
            right.setdefault("balanced", []).append(float(found))
    claimed = described.share("balanced")
    assert claimed is not None
    cells = len(right["balanced"])
    # Five standard deviations of a mean of so many problems, at the worst possible spread, and no less than 0.01.
    allowed = max(0.01, 5 * (claimed * (1 - claimed) / (each * cells)) ** 0.5)
    assert abs(sum(right["balanced"]) / cells - claimed) < allowed


@pytest.mark.parametrize("name", names())
def test_the_command_on_a_card_makes_the_config_on_it(name: str):
    described = card(name)
    assert config_of(described.command) == described.run_config


def config_of(command: str) -> pm.RunConfig:
    """The config that a `pathmerge train` command would train."""
    words = command.split()
    assert words[:2] == ["pathmerge", "train"]
    found: list[pm.RunConfig] = []
    import pathmerge.cli.train as cli

    def keep(config: pm.RunConfig, *_: object) -> int:
        found.append(config)
        return 0

    original, cli.train = cli.train, keep
    try:
        assert main(words[1:]) == 0
    finally:
        cli.train = original
    return found[0]


@pytest.mark.parametrize(
    "config",
    [
        pm.recipe("matched", 32, 4),
        replace(pm.recipe("matched", 32), problem=pm.Balanced(input_size=32, max_lookahead=2, incoming=False)),
        replace(pm.recipe("efficient", 32), model=pm.Edges(input_size=32, layers=2, initialisation="default")),
        replace(pm.recipe("tuned", 32), problem=pm.Naive(input_size=32), model=pm.Rotary(input_size=32, layers=5)),
        replace(pm.recipe("tuned", 32), training=pm.Training(learning_rate=3e-4, loss="soft")),
        replace(pm.recipe("tuned", 32), problem=pm.DFS(input_size=32), curriculum=pm.Curriculum()),
        replace(pm.recipe("paper", 32), training=replace(pm.recipe("paper", 32).training, average=500)),
    ],
)
def test_a_command_is_found_for_any_config_of_a_recipe(config: pm.RunConfig):
    assert config_of(command_of(config)) == config


def test_the_track_is_that_of_the_weights_and_not_of_the_recipes_name():
    assert [track_of(pm.recipe(name, 32)) for name in RECIPES] == ["T0", "T1", "T1m", "T2m", "T3"]
    paper, tuned, dense = (pm.recipe(name, 32) for name in ("paper", "tuned", "dense"))
    for config, track in (
        (replace(pm.recipe("efficient", 32), model=pm.Edges(input_size=32, layers=2)), "T2"),
        (replace(tuned, model=pm.Edges(input_size=32, layers=2)), "T2"),
        (replace(tuned, model=dense.model, training=dense.training), "T3"),
        (replace(pm.recipe("efficient", 32), model=tuned.model), "T1"),
        (replace(paper, training=replace(paper.training, optimizer="adamw", learning_rate=1e-3)), "T1"),
        (replace(paper, model=replace(paper.model, initialisation="matching")), "T1m"),
        (replace(paper, model=replace(paper.model, heads=2)), "T2"),
        (replace(paper, model=replace(paper.model, layers=8), training=replace(paper.training, examples=1024)), "T0"),
    ):
        assert track_of(config) == track


# How a model gets there.


def test_ship_then_load_gives_the_runs_weights_and_a_true_card(run: pm.Run, shelf: Path):
    from pathmerge.zoo.shelf import load

    model, described = load("tiny-20", shelf), card("tiny-20", shelf)
    for name, value in run.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
    assert names(shelf) == ("tiny-20",)
    assert (described.track, described.examples, described.finished) == ("T2m", 256, "examples")
    assert described.run_config == run.config
    table = evaluate_model(run.model, hold_out_test(run.config.problem, 60, 0).cells, threads=1)
    for distribution, cells in described.accuracy.items():
        for difficulty, (right, seen) in cells.items():
            row = table.find(distribution, difficulty)
            assert row is not None
            assert (row.correct, row.examples) == (right, seen)
    assert {"naive", "star", "balanced"} == set(described.accuracy)


def test_a_large_model_can_be_judged_on_a_part_of_its_test_problems(run: pm.Run, tmp_path: Path):
    made = ship(run, "few-20", "judged on few", shelf=tmp_path, count=7, threads=1)
    found: dict[str, list[int]] = {name: [0, 0] for name in made.accuracy}
    for cell in hold_out_test(run.config.problem, 60, 0).cells:
        batch = cell.batch.take(slice(0, 7))
        answer = run.model(run.model.inputs(batch).tokens).argmax(-1)
        found[cell.distribution.name][0] += int(batch.answers[range(len(batch)), answer].sum())
        found[cell.distribution.name][1] += len(batch)
    for name, cells in made.accuracy.items():
        assert [sum(counts) for counts in zip(*cells.values(), strict=True)] == found[name]
    assert max(seen for cells in made.accuracy.values() for _, seen in cells.values()) == 7
    arguments = ["ship", str(run.directory), "none-20", "--about", "x", "--shelf", str(tmp_path), "--count"]
    assert main([*arguments, "61"]) == 2
    assert not (tmp_path / "none-20.json").exists()


def test_weights_of_half_the_size_are_judged_as_they_are_kept(run: pm.Run, shelf: Path, tmp_path: Path):
    arguments = ["ship", str(run.directory), "half-20", "--about", "rounded", "--half", "--shelf", str(tmp_path)]
    assert main([*arguments, "--threads", "1"]) == 0
    whole, half = shelf / "tiny-20.safetensors", tmp_path / "half-20.safetensors"
    assert 0.4 < half.stat().st_size / whole.stat().st_size < 0.6
    model = pm.load_weights(half)
    for name, value in run.model.state_dict().items():
        kept = model.state_dict()[name]
        assert kept.dtype == torch.float32
        assert torch.equal(kept, value.half().float()), name
    assert any(not torch.equal(model.state_dict()[name], value) for name, value in run.model.state_dict().items())
    accuracy = card("half-20", tmp_path).accuracy
    table = evaluate_model(model, hold_out_test(run.config.problem, 60, 0).cells, threads=1, heuristics=False)
    for name, cells in accuracy.items():
        for difficulty, counts in cells.items():
            row = table.find(name, difficulty)
            assert row is not None
            assert (row.correct, row.examples) == counts
    with torch.no_grad():
        model.ln_final.bias[0] = 1e5
    with pytest.raises(ValueError, match=r"half=True: 'ln_final\.bias' holds numbers that 16 bits cannot"):
        pm.save_weights(model, tmp_path / "large.safetensors", half=True)
    assert not (tmp_path / "large.safetensors").exists()


def test_a_model_on_the_shelf_is_not_lost(run: pm.Run, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mine = tmp_path / "shelf"
    shutil.copytree(shelf, mine)
    before = {path.name: path.read_bytes() for path in mine.iterdir()}
    changed = replace(run, model=run.config.model.build(99))

    def unchanged() -> bool:
        return {path.name: path.read_bytes() for path in mine.iterdir()} == before

    bad: list[tuple[dict[str, Any], str]] = [
        ({}, "name='tiny-20': there is a model of this name"),
        ({"replace": True, "threads": 0}, "threads=0"),
        ({"replace": True, "about": "two\nlines"}, "about='two.*must be one line"),
        ({"replace": True, "about": " "}, "about=' '"),
    ]
    for given, words in bad:
        with pytest.raises(ValueError, match=words):
            ship(changed, "tiny-20", given.pop("about", "another"), shelf=mine, **given)
        assert unchanged()
    with monkeypatch.context() as patch:
        patch.setattr("pathmerge.zoo.ship.evaluate_model", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        for name in ("tiny-20", "other"):
            with pytest.raises(KeyboardInterrupt):
                ship(changed, name, "another", shelf=mine, replace=True)
            assert unchanged()
    from pathmerge.zoo.shelf import load

    ship(changed, "tiny-20", "another", shelf=mine, replace=True, threads=1)
    weights = load("tiny-20", mine).state_dict()
    assert card("tiny-20", mine).about == "another"
    assert all(torch.equal(weights[name], value) for name, value in changed.model.state_dict().items())


def test_the_list_and_the_card_are_printed(shelf: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["models", "--shelf", str(shelf)]) == 0
    assert re.search(r"tiny-20 +20 +T2m +256 .*a model of a second", capsys.readouterr().out)
    assert main(["models", "tiny-20", "--shelf", str(shelf)]) == 0
    out = capsys.readouterr().out
    assert "by: pathmerge train --recipe efficient --input-size 20" in out
    assert re.search(r"lookahead=1: 0\.\d{3} \(\d+ of 60\)", out)


def test_bad_input_is_one_line(run: pm.Run, shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    broken = tmp_path / "broken"
    shutil.copytree(shelf, broken)
    file = broken / "tiny-20.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + b"abcd")
    other = tmp_path / "other"
    shutil.copytree(shelf, other)
    values = json.loads((other / "tiny-20.json").read_text())
    (other / "tiny-20.json").write_text(json.dumps({**values, "version": 2}))
    odd = tmp_path / "odd"
    shutil.copytree(shelf, odd)
    for name, change in (("config", {"config": {}}), ("examples", {"examples": "x"})):
        (odd / f"{name}.json").write_text(json.dumps({**values, **change}))
    from pathmerge.zoo.shelf import load

    for action, words in (
        (lambda: pm.load("balanced-33"), "model='balanced-33': must be one of"),
        (lambda: load("tiny-20", broken), "is not the file its card describes"),
        (lambda: card("tiny-20", other), "is pathmerge model card of version 2, must be .* of version 1"),
        (lambda: card("config", odd), r"card=.*config.json': cannot be read \(balanced: the field input_size"),
        (lambda: card("examples", odd), "examples='x'"),
        (lambda: ship(replace(run, finished=None), "x", "", shelf=tmp_path / "none"), "is not finished"),
        (lambda: ship(run, "../x", "", shelf=tmp_path / "none"), r"name='\.\./x': must be letters, digits and hyphens"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            action()
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "none").exists()
    assert main(["models", "tiny-21", "--shelf", str(shelf)]) == 2
    assert "did you mean tiny-20?" in capsys.readouterr().err
    assert main(["models", "--shelf", str(tmp_path / "none")]) == 2
    assert "shelf=" in capsys.readouterr().err
    assert main(["evaluate", "balanced32"]) == 2
    assert "run='balanced32': not a run, nor the name of a trained model (did you mean balanced-32?)" in (
        capsys.readouterr().err
    )
    assert main(["evaluate", "balanced-32", "--task", "dfs"]) == 2
    assert "task='dfs': only for a file of weights" in capsys.readouterr().err
    assert main(["ship", str(tmp_path), "x", "--about", "y", "--shelf", str(tmp_path / "none")]) == 2
    assert "not a run" in capsys.readouterr().err
