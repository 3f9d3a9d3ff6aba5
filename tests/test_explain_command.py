"""`pathmerge explain` as users type it: of a model, a run, a checkpoint, all checkpoints; what it says to bad input."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from short_runs import files

import pathmerge as pm
from pathmerge.circuits import results
from pathmerge.circuits.options import Options
from pathmerge.circuits.results import Inputs, check_inputs
from pathmerge.cli import main
from pathmerge.zoo.shelf import card


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_commands_of_the_issue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "circuits"
    common = ("explain", "compiled", "--input-size", 20, "--lookahead", 2, "--count", 3)
    code, said, _ = run(capsys, *common, "--plan", "--out", out)
    assert code == 0
    assert all(word in said for word in ("forward passes", "memory", "time"))
    assert ": 3 inputs of " in said
    code, said, _ = run(capsys, *common, "--plan", "--sweep", "--out", out)
    assert "screened, 13 times" in said
    code, said, _ = run(capsys, *common, "--plan", "--replacement", "absent", "--out", out)
    assert ": 0 inputs of " in said, "with lookahead 2 all five ids occur"
    code, said, _ = run(capsys, "explain", "compiled", "--lookahead", 2, "--plan", "--probes", "--out", out)
    assert "probes           not counted" in said
    assert not out.exists()
    code, said, _ = run(capsys, *common, "--out", out, "--pictures", 1)
    assert code == 0
    summary = json.loads((out / "summary.json").read_text())
    names = "count skipped correct explained maximal sufficiency completeness minimality seconds_per_input"
    assert set(names.split()) <= set(summary)
    assert (summary["count"], summary["explained"], summary["sufficiency"]) == (3, 1.0, 1.0)
    assert (summary["recovery"]["precision"], summary["recovery"]["recall"]) == (1.0, 1.0)
    assert "precision 1.0000, recall 1.0000" in said
    assert len(list(out.glob("balanced-L02-*.json"))) == 3
    assert (out / "circuits.png").stat().st_size > 10_000
    assert len(list(out.glob("circuit-*.png"))) == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("nowhere",), "run='nowhere': not a run"),
        (("compiled", "--lookahead", "9", "--input-size", "20"), "lookahead=9: must be a whole number in 1..2"),
        (("compiled", "--count", "0"), "count=0: must be a whole number"),
        (("compiled", "--alpha", "-1"), "alpha=-1.0: must be a number"),
        (("compiled", "--kappa1", "0"), "kappa1=0.0: must be a number"),
        (("compiled", "--problem", "naive", "--lookahead", "2"), "lookahead=2: must be left out for naive"),
        (("compiled", "--noise", "-2"), "noise=-2.0: must be a number"),
        (("compiled", "--initial"), "initial"),
        (("compiled", "--history"), "history: needs a run"),
        (("compiled", "--loops", "2"), "loops=2: must be left out for `compiled`"),
        (("compiled", "--history", "--sweep"), "history: must be given without sweep"),
        (("untrained", "--merges", "3"), "merges=3: only for `compiled`"),
        (("balanced-32", "--noise", "0.1"), "noise=0.1: only for `compiled`; 'balanced-32' has its own"),
        (("compiled", "--mode", "exact", "--audit", "3"), "audit=3: only for mode='screened'"),
        (("compiled", "--input-size", "14"), "input_size=14: has too few problems to hold any out"),
        (("compiled", "--input-size", "14", "--plan"), "input_size=14: has too few problems"),
        (("untrained", "--input-size", "5"), "input_size=5: must be a whole number"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    arguments: tuple[str, ...], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = run(capsys, "explain", *arguments, "--out", tmp_path / "circuits")
    assert code == 2
    assert line in error
    assert error.count("\n") == 1
    assert not (tmp_path / "circuits").exists()


def test_the_initial_weights_of_a_shipped_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--lookahead", 1, "--count", 2, "--pictures", 0, "--no-trust", "--out")
    assert run(capsys, "explain", "balanced-32", "--initial", *arguments, tmp_path / "a")[0] == 0
    weights = json.loads((tmp_path / "a" / "explain.json").read_text())["weights"]
    config = card("balanced-32").run_config
    assert weights == results.weights_hash(config.model.build(config.seed))
    assert weights != results.weights_hash(pm.load("balanced-32"))
    code, _, error = run(capsys, "explain", "balanced-33", "--initial", *arguments, tmp_path / "b")
    assert code == 2
    assert "initial: 'balanced-33' is neither a run nor a name that `pathmerge models` lists" in error


def test_probes_are_fitted_to_the_problem_that_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[pm.Distribution] = []

    def probe(_: object, problem: pm.Distribution, **__: object) -> None:
        asked.append(problem)
        raise KeyboardInterrupt

    monkeypatch.setattr("pathmerge.circuits.probes.probe", probe)
    common = ("explain", "compiled", "--input-size", 32, "--count", 1, "--pictures", 0, "--no-trust", "--probes")
    for i, more in enumerate((("--problem", "star", "--lookahead", 2), ())):
        assert run(capsys, *common, *more, "--out", tmp_path / str(i))[0] == 130
    assert asked == [pm.Star(input_size=32, lookahead=2), pm.Balanced(input_size=32)]


def test_probes_that_cannot_be_fitted_are_refused_before_anything_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("compiled", "--input-size", 20, "--lookahead", 2, "--count", 1, "--probes", "--out", tmp_path / "a")
    code, _, error = run(capsys, "explain", *arguments)
    assert (code, error.count("\n")) == (2, 1)
    assert "has so few problems that only 0 of 2000 test problems differ from those that probes are fitted to" in error
    assert not (tmp_path / "a").exists()


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run that keeps a checkpoint for each 640 examples."""
    config = pm.RunConfig(
        problem=pm.Balanced(input_size=17),
        model=pm.OneHot(input_size=17, layers=3, initialisation="matching", matching=2.0),
        training=pm.Training(examples=1920, batch_size=64, learning_rate=1e-3),
        held_out=pm.Holding(test=50, validation=50),
        seed=1,
    )
    out = tmp_path_factory.mktemp("runs")
    return pm.train(config, out, quiet=True, keep_every=640).directory


def test_a_history_shows_each_checkpoint_and_goes_on(
    run_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("explain", run_directory, "--history", "--count", 3, "--lookahead", 1, "--out", tmp_path / "h")
    code, said, _ = run(capsys, *arguments)
    assert code == 0
    lines = (tmp_path / "h" / "history.csv").read_text().splitlines()
    assert [int(line.split(",")[0]) for line in lines[1:]] == [640, 1280, 1920]
    assert (tmp_path / "h" / "history.png").stat().st_size > 10_000
    assert "1,920" in said
    last = dict(zip(lines[0].split(","), lines[-1].split(","), strict=True))
    shares = [float(value) for name, value in last.items() if name.startswith("present") and value]
    assert shares == [1.0] * len(shares), "the final circuits' operations are all there in the end"
    kept = [float(value) for name, value in last.items() if name.startswith("kept")]
    circuits = [pm.load_circuit(path) for path in (tmp_path / "h" / "after-000001920").glob("balanced-*.json")]
    assert sum(kept) == pytest.approx(sum(len(c.lenient.kept) for c in circuits) / len(circuits))
    rows = list(csv.DictReader((tmp_path / "h" / "appearances.csv").read_text().splitlines()))
    assert len(rows) == sum(len(c.lenient.kept) for c in circuits) > 0
    times, early = (640, 1280, 1920), {}
    for then in times:
        for path in (tmp_path / "h" / f"after-{then:09d}").glob("balanced-*.json"):
            c = pm.load_circuit(path)
            kept = (c.operations[i] for i in c.lenient.kept)
            early[then, path.stem] = {(o.layer, o.head, o.target, o.source) for o in kept}
    for row in rows:
        place = tuple(int(row[name]) for name in ("layer", "head", "target", "source"))
        there = {then for then in times if place in early[then, row["input"]]}
        assert int(row["appears"]) == min(there)
        assert int(row["for_good"]) == next(t for t in times if {later for later in times if later >= t} <= there)
    assert "are there for good by" in said
    before = files(tmp_path / "h" / "after-000000640")
    full = Inputs(problems=(pm.Balanced(input_size=20, lookahead=2),), count=2)
    with pytest.raises(ValueError, match="replacement='absent': skips all of these inputs"):
        check_inputs(full, Options(replacement="absent"))
    check_inputs(full, Options())
    assert run(capsys, *arguments)[0] == 0
    assert files(tmp_path / "h" / "after-000000640") == before


def test_a_run_without_enough_checkpoints_has_no_history(
    run_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / run_directory.name
    shutil.copytree(run_directory, copy)
    for path in sorted((copy / "checkpoints").iterdir())[:2]:
        path.unlink()
    code, _, error = run(capsys, "explain", copy, "--history", "--lookahead", 1, "--out", tmp_path / "h")
    assert code == 2
    assert "a history needs 3; train with --keep-every" in error
    assert not (tmp_path / "h").exists()


def test_a_sweep_or_history_does_not_write_into_a_foreign_folder(
    run_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command, name in (("--sweep", "sweep.csv"), ("--history", "history.csv")):
        folder = tmp_path / name[:-4]
        folder.mkdir()
        (folder / name).write_text("precious")
        code, _, error = run(capsys, "explain", run_directory, command, "--count", 1, "--lookahead", 1, "--out", folder)
        assert (code, error.count("\n")) == (2, 1)
        assert (folder / name).read_text() == "precious"
        assert len(list(folder.iterdir())) == 1


def test_a_checkpoint_can_be_explained_and_its_weights_are_its_own(
    run_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _, last = sorted((run_directory / "checkpoints").glob("*.json"))
    weights = {}
    for name, given in (("first", first), ("last", last.with_suffix(".safetensors")), ("run", run_directory)):
        arguments = ("--count", 2, "--lookahead", 1, "--pictures", 0, "--out", tmp_path / name)
        assert run(capsys, "explain", given, *arguments)[0] == 0
        weights[name] = json.loads((tmp_path / name / "explain.json").read_text())["weights"]
    assert weights["last"] == weights["run"] != weights["first"]
    (circuit,) = [pm.load_circuit(path) for path in (tmp_path / "first").glob("balanced-*-0000.json")]
    assert circuit.model["examples"] == 640


def test_a_checkpoint_has_no_initial_weights_but_its_run_has(
    run_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = next((run_directory / "checkpoints").glob("*.json"))
    for given in (checkpoint, checkpoint.with_suffix(".safetensors")):
        code, _, error = run(capsys, "explain", given, "--initial", "--count", 1, "--out", tmp_path / "a")
        assert (code, error.count("\n")) == (2, 1)
        assert f"is a checkpoint, with weights of its own; give its run, {str(run_directory)!r}" in error
    assert not (tmp_path / "a").exists()


def test_the_blocks_can_be_applied_more_often(
    run_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--loops`: the same weights at another depth, in files of their own."""
    shutil.copytree(run_directory, tmp_path / "run")
    before = {path.name for path in (tmp_path / "run").iterdir()}
    code, said, _ = run(capsys, "evaluate", tmp_path / "run", "--loops", 1, 2, "--count", 50, "--no-heuristics")
    assert code == 0
    assert "onehot, loops 2: balanced" in said
    written = {f"evaluation-loops-{loops}.csv" for loops in (1, 2)} | {"evaluation-loops-1.png"}
    assert {path.name for path in (tmp_path / "run").iterdir()} == before | written
    tables = [(tmp_path / "run" / f"evaluation-loops-{loops}.csv").read_text() for loops in (1, 2)]
    assert run(capsys, "evaluate", tmp_path / "run", "--count", 50, "--no-heuristics")[0] == 0
    assert (tmp_path / "run" / "evaluation.csv").read_text() == tables[0] != tables[1]

    arguments = ("--lookahead", 1, "--count", 2, "--pictures", 0, "--no-trust", "--out", tmp_path / "circuits")
    assert run(capsys, "explain", tmp_path / "run", "--loops", 2, *arguments)[0] == 0
    circuit = pm.load_circuit(next((tmp_path / "circuits").glob("balanced-*.json")))
    assert {operation.layer for operation in circuit.operations} - {0, 1, 2}
    code, _, error = run(capsys, "explain", tmp_path / "run", *arguments)
    assert code == 2
    assert "holds circuits made with loops=2, not 1" in error
    for word in ("evaluate", "explain"):
        code, _, error = run(capsys, word, tmp_path / "run", "--loops", 0)
        assert code == 2
        assert error == "pathmerge: loops=0: must be a whole number in 1..1000\n"
    code, _, error = run(capsys, "explain", tmp_path / "run", "--loops", 2, "--history")
    assert code == 2
    assert "loops=2: must be left out with history" in error
