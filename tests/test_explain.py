"""`pathmerge explain`: the folder it writes, that it goes on where it stopped, and what it says to bad input."""

from __future__ import annotations

import csv
import gc
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy import stats

import pathmerge as pm
from pathmerge.circuits import explain as explaining
from pathmerge.circuits import results
from pathmerge.circuits.counts import student
from pathmerge.circuits.explain import explain_all
from pathmerge.circuits.files import Circuit
from pathmerge.circuits.history import check_inputs
from pathmerge.circuits.options import Options
from pathmerge.circuits.plan import plan
from pathmerge.circuits.results import Inputs, explain_into
from pathmerge.circuits.subject import TransformerSubject
from pathmerge.circuits.summary import summarise, upper_bound
from pathmerge.circuits.sweep import settings, sweep
from pathmerge.circuits.truth import recovery
from pathmerge.cli import main
from pathmerge.errors import NotFiniteError
from pathmerge.models.transformer import Transformer
from pathmerge.zoo.shelf import card

OPTIONS = Options(alpha=0.05, kappa1=40.0, kappa2=20.0)


@pytest.fixture(scope="module")
def model() -> Transformer:
    return pm.OneHot(input_size=17, layers=3, initialisation="matching", matching=2.0).build(9)


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    return Inputs(problems=(pm.Balanced(input_size=17, lookahead=1),), count=6, seed=3)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "summary.json"}


def test_an_interrupted_command_goes_on_and_ends_in_the_same_files(
    model: Transformer, inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, summary = explain_into(tmp_path / "whole", model, inputs, OPTIONS, threads=1)
    saved: list[Path] = []
    plain = Circuit.save

    def failing(self: Circuit, path: Path | str) -> None:
        if len(saved) == 2:
            raise KeyboardInterrupt
        saved.append(Path(path))
        plain(self, path)

    monkeypatch.setattr(Circuit, "save", failing)
    with pytest.raises(KeyboardInterrupt):
        explain_into(tmp_path / "cut", model, inputs, OPTIONS, threads=1)
    assert not (tmp_path / "cut" / "summary.json").exists()
    monkeypatch.setattr(Circuit, "save", plain)
    before = saved[0].stat().st_mtime_ns
    _, after = explain_into(tmp_path / "cut", model, inputs, OPTIONS, threads=1)
    assert saved[0].stat().st_mtime_ns == before, "what was there has been computed again"
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    timeless = [{k: v for k, v in s.items() if k != "seconds_per_input"} for s in (summary, after)]
    assert timeless[0] == timeless[1]
    more = Inputs(problems=inputs.problems, count=8, seed=3)
    circuits, _ = explain_into(tmp_path / "cut", model, more, OPTIONS, threads=1)
    assert len(circuits) == 8


def test_a_folder_made_for_something_else_is_refused_and_left_alone(
    model: Transformer, inputs: Inputs, tmp_path: Path
) -> None:
    explain_into(tmp_path / "a", model, inputs, OPTIONS, threads=1)
    before = files(tmp_path / "a")
    other = pm.OneHot(input_size=17, layers=3).build(1)
    for changed, line in (
        ((other, inputs, OPTIONS), "holds circuits made with other weights"),
        ((model, inputs, Options(alpha=0.1)), "holds circuits made with alpha=0.05, not 0.1"),
        ((model, Inputs(problems=inputs.problems, count=6, seed=4), OPTIONS), "holds circuits made with seed=3, not 4"),
    ):
        with pytest.raises(ValueError, match=re.escape(line)):
            explain_into(tmp_path / "a", *changed, threads=1)
    assert files(tmp_path / "a") == before
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"is not empty and has no explain\.json"):
        explain_into(tmp_path / "b", model, inputs, OPTIONS, threads=1)
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["thesis.txt"]


def test_a_damaged_circuit_is_named_and_not_overwritten(model: Transformer, inputs: Inputs, tmp_path: Path) -> None:
    explain_into(tmp_path / "a", model, inputs, OPTIONS, threads=1)
    damaged = tmp_path / "a" / "balanced-L01-0002.json"
    text = damaged.read_text()[:100]
    damaged.write_text(text)
    with pytest.raises(ValueError, match=r"balanced-L01-0002\.json.*cut off"):
        explain_into(tmp_path / "a", model, inputs, OPTIONS, threads=1)
    assert damaged.read_text() == text


def test_skipped_inputs_are_counted_once(model: Transformer, tmp_path: Path) -> None:
    options = Options(replacement="absent", trust=False)
    inputs = Inputs(problems=(pm.Balanced(input_size=17),), count=12, seed=1)
    circuits, summary = explain_into(tmp_path / "a", model, inputs, options, threads=2)
    assert summary["skipped"] > 0
    assert summary["count"] == len(circuits)
    total = sum(len(batch) for _, batch in inputs.batches)
    assert summary["count"] + summary["skipped"] == total
    again, second = explain_into(tmp_path / "a", model, inputs, options, threads=2)
    assert (again, second["skipped"]) == (circuits, summary["skipped"])


def test_a_distribution_of_several_difficulties_shares_its_count_out() -> None:
    inputs = Inputs(problems=(pm.Star(input_size=32, lookahead=2),), count=10)
    batches = inputs.batches
    names = [results.file_name(problem, 7) for problem, _ in batches]
    assert names == ["star-K02-L02-0007", "star-K03-L02-0007", "star-K04-L02-0007"]
    assert [len(batch) for _, batch in batches] == [4, 3, 3]
    assert all(set(batch.lookahead) == {2} for _, batch in batches)


def test_the_summary_is_the_mean_of_its_circuits(model: Transformer) -> None:
    batch = pm.Balanced(input_size=17).sample(9, seed=2)
    circuits = [c for c in explain_all(model, batch, OPTIONS) if c is not None]
    summary = summarise(circuits)
    assert summary["count"] == 9
    assert summary["explained"] == sum(c.explained for c in circuits) / 9
    assert summary["lenient"] == sum(c.lenient.explained for c in circuits) / 9
    trusts = [c.lenient.trust for c in circuits]
    assert summary["sufficiency"] == sum(t.sufficient for t in trusts if t) / 9
    known = [t.minimal for t in trusts if t and t.minimal is not None]
    assert summary["minimality"] == pytest.approx(sum(known) / len(known))
    merges = sum(len(c.lenient.ranked) for c in circuits)
    assert merges
    assert summary["maximal"] == sum(len(c.lenient.maximal) for c in circuits) / merges
    assert sum(row["count"] for row in summary["by_lookahead"]) == 9
    assert sum(row["kept"] for row in summary["by_layer"]) == sum(len(c.lenient.kept) for c in circuits)


def test_a_model_from_outside_is_known_by_the_weights_it_holds(tmp_path: Path, inputs: Inputs) -> None:
    class Held(TransformerSubject):
        """Not a module, but holds one."""

    first, second = (Held(pm.OneHot(input_size=17, layers=2).build(seed)) for seed in (1, 2))
    assert not hasattr(first, "state_dict")
    explain_into(tmp_path / "a", first, inputs, OPTIONS, threads=1)
    before = files(tmp_path / "a")
    with pytest.raises(ValueError, match="holds circuits made with other weights"):
        explain_into(tmp_path / "a", second, inputs, OPTIONS, threads=1)
    assert files(tmp_path / "a") == before


def test_weights_are_found_wherever_a_model_keeps_them() -> None:
    def hashed(**held: object) -> str:
        return results.weights_hash(SimpleNamespace(**held))

    torch.manual_seed(0)
    one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    for place in (lambda m: {"net": m}, lambda m: {"parts": [m]}, lambda m: {"parts": {"a": SimpleNamespace(inner=m)}}):
        assert hashed(**place(one)) != hashed(**place(other))
        assert hashed(**place(one), note=torch.zeros(2)) == hashed(**place(one)), "a note beside a module is no weight"
    assert hashed(w=torch.zeros(2)) != hashed(w=torch.ones(2)) != hashed(w=torch.ones(2, dtype=torch.bfloat16))
    assert hashed(size=3) == hashed(size=4) == "SimpleNamespace"
    loop = SimpleNamespace(w=one)
    loop.me = loop
    assert results.weights_hash(loop) == hashed(w=one)
    assert results.weights_hash(one) != results.weights_hash(other)


def test_inputs_without_a_spare_id_are_told_apart() -> None:
    model = pm.compiled(20)
    batch = pm.Balanced(input_size=20).sample(12, seed=2)
    circuits = [c for c in explain_all(model, batch, Options(trust=False)) if c is not None]
    full = [c for c in circuits if c.method.substitute == 0]
    assert 0 < len(full) < len(circuits)
    wrong = [replace(c, strict=replace(c.strict, explained=False)) if c in full[:1] else c for c in circuits]
    summary = summarise(wrong)
    assert summary["without_absent_id"] == len(full)
    assert summary["without_absent_id_apart"]["explained"] == pytest.approx(1 - 1 / len(full))
    assert summary["explained"] == pytest.approx(1 - 1 / len(circuits))
    assert "substitute" not in summary["method"]
    assert summary["recovery"] is None, "nobody said that it is the compiled model"


def test_the_bound_on_missed_operations() -> None:
    """Without a miss in n looks the exact 95% bound is 1 - 0.05^(1/n)."""
    assert upper_bound(300, 600_000) == pytest.approx(5e-4 + 1.645 * 300**0.5 / 600_000, rel=0.02)
    assert upper_bound(5, 5) == 1.0
    # Clopper and Pearson's bound for 1 of 10, from a table.
    assert upper_bound(1, 10) == pytest.approx(0.3942, abs=1e-4)
    assert upper_bound(0, 0) is None
    assert upper_bound(0, 100) == pytest.approx(1 - 0.05 ** (1 / 100))
    one, none = upper_bound(1, 100), upper_bound(0, 100)
    assert one is not None
    assert none is not None
    assert one > none


def test_a_plan_counts_the_passes_that_are_then_made(model: Transformer, inputs: Inputs) -> None:
    for mode in ("exact", "screened"):
        options = Options(mode=mode, alpha=0.05, kappa1=40.0, kappa2=20.0, trust=False)
        found = plan(model, inputs, options, 1)
        batch = inputs.batches[0][1]
        circuits = [c for c in explain_all(model, batch, options) if c is not None]
        passes = [c.passes for c in circuits]
        assert min(passes) <= found.passes <= max(passes)
        assert found.inputs == 6
        assert found.passes < found.brute_force
        assert found.seconds > 0
        assert found.memory < 4e9


def test_a_sweep_changes_one_threshold_at_a_time(model: Transformer, tmp_path: Path) -> None:
    inputs = Inputs(problems=(pm.Balanced(input_size=17, lookahead=1),), count=2, seed=3)
    table = sweep(tmp_path, model, inputs, Options(trust=False))
    tried = [(row["alpha"], row["kappa1"], row["kappa2"]) for row in table]
    assert tried == list(settings(Options(trust=False)))
    assert len(set(tried)) == 13
    assert all(sum(a != b for a, b in zip(s, (0.4, 20.0, 10.0), strict=True)) <= 1 for s in tried)
    kept = {row["kappa1"]: row["kept"] for row in table if row["varied"] == "kappa1"}
    assert kept[5.0] <= kept[80.0], "a looser threshold keeps fewer operations"
    assert len(set(settings(Options(alpha=0.3)))) == 14, "thresholds of one's own are among those tried"


def test_a_sweep_goes_on_where_it_stopped(model: Transformer, tmp_path: Path) -> None:
    inputs = Inputs(problems=(pm.Balanced(input_size=17, lookahead=1),), count=2, seed=3)
    whole = sweep(tmp_path / "whole", model, inputs, Options(trust=False))

    def stop(done: int) -> None:
        seen.append(done)
        if len(seen) == 9:
            raise KeyboardInterrupt

    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path / "part", model, inputs, Options(trust=False), threads=1, progress=stop)
    kept = json.loads((tmp_path / "part/sweep.json").read_text())
    assert kept == whole[:4], "four settings of two inputs each, and one input of the fifth"
    seen = []
    assert sweep(tmp_path / "part", model, inputs, Options(trust=False), threads=1, progress=seen.append) == whole
    assert seen == [2] * 4 + [1] * 18
    assert (tmp_path / "part/sweep.csv").read_bytes() == (tmp_path / "whole/sweep.csv").read_bytes()
    more = sweep(tmp_path / "part", model, replace(inputs, count=3), Options(trust=False), threads=1)
    assert {row["count"] for row in more} == {3}


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
    code, said, _ = run(capsys, *common, "--plan", "--replacement", "absent", "--probes", "--out", out)
    assert ": 0 inputs of " in said, "with lookahead 2 all five ids occur"
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


def test_the_untrained_control_is_hardly_ever_explained() -> None:
    """SPEC section 6: under 2%. With PyTorch's initialisation, and with one that matches tokens."""
    for config in (pm.OneHot(input_size=32, layers=4), pm.OneHot(input_size=32, layers=4, initialisation="matching")):
        batch = pm.Balanced(input_size=32).sample(50, seed=5, split="test")
        circuits = explain_all(config.build(3), batch, trust=False)
        assert sum(c.explained for c in circuits if c is not None) == 0


def test_nothing_is_left_of_a_write_that_failed(
    model: Transformer, inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json, "dumps", full)
    with pytest.raises((ValueError, OSError)):
        explain_into(tmp_path / "a", model, inputs, OPTIONS, threads=1)
    assert list((tmp_path / "a").iterdir()) == []


@pytest.mark.parametrize("size", [20, 32])
def test_the_compiled_models_own_operations_are_found(size: int) -> None:
    """The known truth: precision and recall at least 0.99, and explained wherever its path is not redundant."""
    model = pm.compiled(size)
    for problem in (pm.Star(input_size=size), pm.Balanced(input_size=size), pm.Naive(input_size=size)):
        batch = problem.sample(25, seed=7, split="test")
        circuits = [circuit for circuit in explain_all(model, batch, trust=False) if circuit is not None]
        found = recovery(circuits)
        assert found.found > 50
        assert found.precision is not None
        assert found.recall is not None
        assert found.precision >= 0.99
        assert found.recall >= 0.99
        assert found.plain_explained == found.plain
        if problem.name == "star":
            assert found.plain == 25


def test_a_circuit_that_misses_or_adds_an_operation_loses_recall_or_precision() -> None:
    model = pm.compiled(20)
    circuits = [c for c in explain_all(model, pm.Star(input_size=20).sample(4, seed=1), trust=False) if c is not None]
    fewer = [replace(c, strict=replace(c.strict, kept=c.strict.kept[1:])) for c in circuits]
    found = recovery(fewer)
    assert (found.missing, found.precision) == (4, 1.0)
    moved = [replace(c, operations=tuple(o._replace(source=o.target) for o in c.operations)) for c in circuits]
    assert recovery(moved).found == 0


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


def test_students_quantile() -> None:
    for freedom in (1, 2, 3, 4, 7, 15, 39, 400):
        assert student(freedom) == pytest.approx(float(stats.t.ppf(0.975, freedom)), rel=0.01)


def test_every_module_imports_without_what_only_tests_need() -> None:
    """A plain installation has no scipy, hypothesis or beartype."""
    names = [f"pathmerge.circuits.{path.stem}" for path in Path(results.__file__).parent.glob("*.py")]
    blocked = "import sys\nfor name in ('scipy', 'hypothesis', 'beartype', 'pytest'): sys.modules[name] = None\n"
    code = blocked + "\n".join(f"import {name}" for name in ["pathmerge.cli", "pathmerge.models.true_circuit", *names])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]


def test_a_killed_worker_is_one_line_and_the_command_goes_on(
    model: Transformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = Inputs(problems=(pm.Balanced(input_size=17, lookahead=1),), count=8, seed=3)
    plain = explaining._explain  # pyright: ignore[reportPrivateUsage]

    def dying(*arguments: Any) -> Any:
        if 5 in arguments[2] and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*arguments)

    monkeypatch.setattr(explaining, "_explain", dying)
    with pytest.raises(OSError, match="a process was killed from outside"):
        explain_into(tmp_path / "a", model, inputs, OPTIONS, threads=2)
    explain_into(tmp_path / "a", model, inputs, OPTIONS, threads=2)
    explain_into(tmp_path / "b", model, inputs, OPTIONS, threads=1)
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_no_process_stays_behind(model: Transformer) -> None:
    batch = pm.Balanced(input_size=17).sample(12, seed=3)
    found = explain_all(model, batch, OPTIONS, threads=2)
    assert isinstance(found, Generator)
    next(found)
    assert len(multiprocessing.active_children()) == 2
    found.close()
    assert multiprocessing.active_children() == []
    assert gc.isenabled()


def test_workers_end_with_the_process_that_made_them(tmp_path: Path) -> None:
    """SIGKILL of the parent leaves nothing behind (on Linux)."""
    code = (
        "import pathmerge as pm, multiprocessing, pathlib, time\n"
        "from pathmerge.circuits.explain import explain_all\n"
        "batch = pm.Balanced(input_size=32).sample(400, seed=1)\n"
        "results = explain_all(pm.compiled(32), batch, mode='exact')\n"
        "next(results)\n"
        f"path = pathlib.Path({str(tmp_path / 'pids')!r})\n"
        "path.with_suffix('.new').write_text(' '.join(str(p.pid) for p in multiprocessing.active_children()))\n"
        "path.with_suffix('.new').rename(path)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while not (tmp_path / "pids").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    workers = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(workers) == 2
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < deadline, "workers outlive their parent"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


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


def test_another_inputs_circuit_is_refused_and_leftovers_do_not_matter(
    model: Transformer, inputs: Inputs, tmp_path: Path
) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / ".pathmerge-0123456789abcdef.json").touch()
    explain_into(folder, model, inputs, OPTIONS, threads=1)
    shutil.copy(folder / "balanced-L01-0001.json", folder / "balanced-L01-0000.json")
    with pytest.raises(ValueError, match="is the circuit of another input"):
        explain_into(folder, model, inputs, OPTIONS, threads=1)
    shutil.rmtree(folder)
    explain_into(folder, model, inputs, OPTIONS, threads=1)
    for name, text in (("summary.json", "["), ("explain.json", "[]")):
        before = (folder / name).read_text()
        (folder / name).write_text(text)
        with pytest.raises(ValueError, match=rf"{name}' is damaged"):
            explain_into(folder, model, inputs, OPTIONS, threads=1)
        (folder / name).write_text(before)


def test_a_model_of_not_numbers_is_refused(inputs: Inputs) -> None:
    broken = pm.OneHot(input_size=17, layers=2).build(1)
    with torch.no_grad():
        broken.ln_final.weight.fill_(float("nan"))
    with pytest.raises(NotFiniteError, match="its logits are infinite or not numbers"):
        list(explain_all(broken, inputs.batches[0][1]))


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


def test_probes_are_fitted_to_the_problem_that_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[pm.Distribution] = []

    def probe(_: object, problem: pm.Distribution, **__: object) -> None:
        asked.append(problem)
        raise KeyboardInterrupt

    monkeypatch.setattr("pathmerge.circuits.probes.probe", probe)
    common = ("explain", "compiled", "--input-size", 20, "--count", 1, "--pictures", 0, "--no-trust", "--probes")
    for i, more in enumerate((("--problem", "star", "--lookahead", 2), ())):
        assert run(capsys, *common, *more, "--out", tmp_path / str(i))[0] == 130
    assert asked == [pm.Star(input_size=20, lookahead=2), pm.Balanced(input_size=20)]
