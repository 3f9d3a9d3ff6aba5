"""Circuits of many inputs: the folder they are written to, going on where it stopped, and processes that are killed."""

from __future__ import annotations

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
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from short_runs import files

import pathmerge as pm
from pathmerge.circuits import explain as explaining
from pathmerge.circuits import results
from pathmerge.circuits.explain import explain_all
from pathmerge.circuits.files import Circuit
from pathmerge.circuits.options import Options
from pathmerge.circuits.plan import plan
from pathmerge.circuits.results import Inputs, explain_into
from pathmerge.circuits.subject import TransformerSubject
from pathmerge.circuits.summary import summarise
from pathmerge.circuits.sweep import settings, sweep
from pathmerge.errors import NotFiniteError
from pathmerge.models.transformer import Transformer

OPTIONS = Options(alpha=0.05, kappa1=40.0, kappa2=20.0)


@pytest.fixture(scope="module")
def model() -> Transformer:
    return pm.OneHot(input_size=17, layers=3, initialisation="matching", matching=2.0).build(9)


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    return Inputs(problems=(pm.Balanced(input_size=17, lookahead=1),), count=6, seed=3)


# The folder.


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


def test_another_inputs_circuit_is_refused_and_leftovers_do_not_matter(
    model: Transformer, inputs: Inputs, tmp_path: Path
) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / ".pathmerge-0123456789abcdef.json").touch()
    explain_into(folder, model, inputs, OPTIONS, threads=1)
    shutil.copy(folder / "balanced-L01-0001.json", folder / "balanced-L01-0000.json")
    with pytest.raises(ValueError, match="is a circuit of another input"):
        explain_into(folder, model, inputs, OPTIONS, threads=1)
    shutil.rmtree(folder)
    explain_into(folder, model, inputs, OPTIONS, threads=1)
    before = (folder / "explain.json").read_text()
    (folder / "explain.json").write_text("[]")
    with pytest.raises(ValueError, match=r"its explain\.json, which says .* cannot be read; choose another folder"):
        explain_into(folder, model, inputs, OPTIONS, threads=1)
    (folder / "explain.json").write_text(before)
    summary = (folder / "summary.json").read_text()
    (folder / "summary.json").write_text("[")  # made anew from the circuits; what an input took is not known any more
    explain_into(folder, model, inputs, OPTIONS, threads=1)
    assert {**json.loads((folder / "summary.json").read_text()), "seconds_per_input": 0} == {
        **json.loads(summary),
        "seconds_per_input": 0,
    }


def test_circuits_of_another_model_or_method_are_refused(model: Transformer, inputs: Inputs, tmp_path: Path) -> None:
    """A summary says of all of them how they were made."""
    other = model.config.build(99)
    name = "balanced-L01-0001.json"
    explain_into(tmp_path / "mine", model, inputs, OPTIONS, threads=1)
    explain_into(tmp_path / "theirs", other, inputs, OPTIONS, threads=1)
    explain_into(tmp_path / "exact", model, inputs, replace(OPTIONS, mode="exact"), threads=1)
    explain_into(tmp_path / "alpha", model, inputs, replace(OPTIONS, alpha=7), threads=1)
    for folder, words in (
        ("theirs", "is a circuit of another model"),
        ("exact", "is a circuit made with another mode"),
        ("alpha", "is a circuit made with another alpha"),
    ):
        shutil.copy(tmp_path / folder / name, tmp_path / "mine" / name)
        with pytest.raises(ValueError, match=words):
            explain_into(tmp_path / "mine", model, inputs, OPTIONS, threads=1)


def test_nothing_is_left_of_a_write_that_failed(
    model: Transformer, inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json, "dumps", full)
    with pytest.raises((ValueError, OSError)):
        explain_into(tmp_path / "a", model, inputs, OPTIONS, threads=1)
    assert list((tmp_path / "a").iterdir()) == []


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


def test_a_model_of_not_numbers_is_refused(inputs: Inputs) -> None:
    broken = pm.OneHot(input_size=17, layers=2).build(1)
    with torch.no_grad():
        broken.ln_final.weight.fill_(float("nan"))
    with pytest.raises(NotFiniteError, match="its logits are infinite or not numbers"):
        list(explain_all(broken, inputs.batches[0][1]))


# Plans and sweeps.


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


def test_a_plan_explains_one_input_where_that_takes_long(
    model: Transformer, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(model: Transformer, batch: pm.Batch, *rest: Any, **settings: Any) -> Iterator[Any]:
        sizes.append(len(batch))
        return explain_all(model, batch, *rest, **settings)

    monkeypatch.setattr("pathmerge.circuits.plan.explain_all", counted)
    for slow, wanted in ((1e9, [1, 6]), (0.0, [1])):
        sizes: list[int] = []
        monkeypatch.setattr("pathmerge.circuits.plan.SLOW", slow)
        assert plan(model, inputs, Options(trust=False), 1).seconds > 0
        assert sizes == wanted


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
    rows = json.loads((tmp_path / "part/sweep.json").read_text())
    lacking = {name: value for name, value in rows[0].items() if name != "explained"}
    for damaged in ({**rows[0], "explained": "x"}, {**rows[0], "alpha": None}, {**rows[0], "inputs": "2"}, lacking):
        (tmp_path / "part/sweep.json").write_text(json.dumps([damaged, *rows[1:]]))
        with pytest.raises(ValueError, match=r"sweep\.json' is damaged; remove it"):
            sweep(tmp_path / "part", model, inputs, Options(trust=False), threads=1)


def test_a_sweep_of_nothing_is_refused(model: Transformer, tmp_path: Path) -> None:
    inputs = Inputs(problems=(pm.Balanced(input_size=17),), count=12, seed=1)
    full = [batch.take(slice(i, i + 1)) for _, batch in inputs.batches for i in range(len(batch))]
    full = [batch for batch in full if len({*batch.edges[batch.edges > 0].tolist()}) == 4]
    assert full
    object.__setattr__(inputs, "batches", [(batch.distribution, batch) for batch in full])
    with pytest.raises(ValueError, match="replacement='absent': skips all of these inputs"):
        sweep(tmp_path / "a", model, inputs, Options(trust=False, replacement="absent"), threads=1)
    assert not (tmp_path / "a").exists()


# Processes.


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


def test_every_module_imports_without_what_only_tests_need() -> None:
    """A plain installation has no scipy, hypothesis or beartype."""
    names = [f"pathmerge.circuits.{path.stem}" for path in Path(results.__file__).parent.glob("*.py")]
    blocked = "import sys\nfor name in ('scipy', 'hypothesis', 'beartype', 'pytest'): sys.modules[name] = None\n"
    code = blocked + "\n".join(f"import {name}" for name in ["pathmerge.cli", "pathmerge.models.true_circuit", *names])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
