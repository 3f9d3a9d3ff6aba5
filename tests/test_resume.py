"""Nothing is lost: a run that was killed, stopped, damaged or out of room ends as one that was left alone, to the bit.

Two ways to die. Real processes get a real SIGKILL: at random moments, and before every single operation on a file. For
breadth, runs inside the test end in an exception at chosen steps, which leaves the same files behind.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pathmerge as pm
from pathmerge.cli import main
from pathmerge.models.config import ModelConfig
from pathmerge.training import batch_gradients, loop
from pathmerge.training import checkpoint as checkpoints
from pathmerge.training.checkpoint import Checkpoint, load_checkpoint, load_latest, save_checkpoint
from pathmerge.training.config import RunConfig, to_toml
from pathmerge.training.loop import Trainer, train
from pathmerge.training.metrics import TIME_FIELDS, read_metrics
from pathmerge.training.run import lock

NEVER = 1e9
SIZE = 20


def make_config(
    optimizer: Any = "adamw", *, model: ModelConfig | None = None, threads: int = 1, **training: Any
) -> RunConfig:
    """A run with all that has a memory: stages, an easier share, a ramp, a warm-up, a decay that the last stage starts.

    The rates are high and the threshold is low, so that three stages pass and the decay ends the run within a second.
    """
    rate = {"signum": 1e-3, "sophia": 1e-3, "adamw": 3e-3, "muon": 3e-3}[optimizer]
    settings: dict[str, Any] = {
        "learning_rate": rate,
        "hessian_every": 3,
        "batch_size": 32,
        "first_batch_size": 8,
        "ramp": 400,
        "warmup": 100,
        "schedule": "cosine",
        "decay": 400,
        "examples": 4000,
        "validate_every": 500,
        "log_every": 200,
    }
    return RunConfig(
        problem=pm.Balanced(input_size=SIZE),
        model=model or pm.Edges(input_size=SIZE, layers=1, end_width=8),
        training=pm.Training(optimizer=optimizer, threads=threads, **(settings | training)),
        curriculum=pm.Curriculum(over="size", first=3, step=1, threshold=0.3, window=128, easier=0.5),
        held_out=pm.Holding(test=50, validation=50),
        seed=5,
    )


PLAIN = replace(
    make_config(examples=640, ramp=0, schedule="constant", log_every=64, validate_every=320),
    curriculum=pm.Curriculum(),
)
"""Twenty steps of 32 examples without a curriculum."""


class KilledError(BaseException):
    """Stands for a SIGKILL inside the test."""


def crash(monkeypatch: pytest.MonkeyPatch, method: str, steps: Iterable[int]) -> None:
    """Let `Trainer.<method>` do its work and then raise, the first time each of these steps is done."""
    left = set(steps)
    original = getattr(Trainer, method)

    def crashing(self: Trainer, *positional: Any, **named: Any) -> Any:
        result = original(self, *positional, **named)
        if self.step in left:
            left.remove(self.step)
            raise KilledError
        return result

    monkeypatch.setattr(Trainer, method, crashing)


def train_to_the_end(config: RunConfig, out: Path, **options: Any) -> int:
    """Start again after every crash; how often that was needed."""
    for crashes in range(100):
        try:
            train(config, out, quiet=True, **options)
            return crashes
        except KilledError:
            continue
    raise AssertionError("does not come to its end")


def newest(run: Path) -> Checkpoint:
    found = load_latest(run / "checkpoints")
    assert found is not None
    return found


def lines_without_time(run: Path) -> list[dict[str, Any]]:
    lines = read_metrics(run / "metrics.jsonl")
    return [{name: value for name, value in line.items() if name not in TIME_FIELDS} for line in lines]


def check_same_tensors(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype
        assert ours[name].numpy().tobytes() == value.numpy().tobytes(), name


def check_same_weights(ours: Path, theirs: Path) -> None:
    found, expected = pm.load_weights(ours), pm.load_weights(theirs)
    assert found.config == expected.config
    check_same_tensors(found.state_dict(), expected.state_dict())


def check_same_checkpoint(run: Path, reference: Path) -> None:
    ours, theirs = newest(run), newest(reference)
    assert ours.examples == theirs.examples
    assert any(name.startswith("optimizer/") for name in ours.tensors)
    check_same_tensors(ours.tensors, theirs.tensors)
    # How many bytes the metrics have depends on the digits of the times in them.
    assert {**ours.state, "seconds": 0, "metrics": 0} == {**theirs.state, "seconds": 0, "metrics": 0}


def check_same(run: Path, reference: Path) -> None:
    """Weights, all that the optimizer and the loop remember, and every line of metrics: the same to the bit."""
    check_same_weights(run / "model.safetensors", reference / "model.safetensors")
    check_same_checkpoint(run, reference)
    ours, theirs = lines_without_time(run), lines_without_time(reference)
    for our, their in zip(ours, theirs, strict=True):
        assert our == their
    assert newest(run).state["metrics"] == (run / "metrics.jsonl").stat().st_size


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its bytes and its time, but for the empty file that is locked."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[RunConfig], Path]:
    """Uninterrupted runs, each trained once."""
    folder = tmp_path_factory.mktemp("reference")

    def get(config: RunConfig) -> Path:
        directory = folder / config.run_name
        if not (directory / "model.safetensors").exists():
            train(config, folder, quiet=True, save_every=NEVER)
            initial = dict(config.model.build(config.seed).named_parameters())
            trained = dict(pm.load_weights(directory / "model.safetensors").named_parameters())
            assert any(not torch.equal(trained[name], value) for name, value in initial.items())
        return directory

    return get


# Inside the test: breadth.


@pytest.mark.parametrize("optimizer", ["signum", "sophia", "adamw", "muon"])
def test_a_killed_run_ends_as_one_left_alone(
    optimizer: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reference: Callable[[RunConfig], Path],
):
    config = make_config(optimizer, threads=2)
    whole = reference(config)
    lines = read_metrics(whole / "metrics.jsonl")
    # The run has all that it is meant to have: three stages, and an end that depends on when the last was mastered.
    assert [line["stage"] for line in lines if line["kind"] == "stage"][1:] == ["3/3 (vertices ≤ 5)", "mastered"]
    assert lines[-1]["reason"] == "decay"
    last = newest(whole).state["step"]
    crash(monkeypatch, "_report", [2, 3, 20, last - 9, last - 1, last])
    crash(monkeypatch, "_step", [1, 14, 31])
    crash(monkeypatch, "_save", [18, last - 4])
    # Checkpoints are 4 to 19 steps apart, so steps are repeated and lines of metrics written twice.
    crashes = train_to_the_end(config, tmp_path, save_every=NEVER, keep_every=150)
    assert crashes >= 9
    check_same(tmp_path / config.run_name, whole)


MODELS = {
    "onehot": pm.OneHot(input_size=SIZE, layers=1, hidden=4),
    "matching": pm.OneHot(input_size=SIZE, layers=2, hidden=4, initialisation="matching"),
    "looped": pm.OneHot(input_size=SIZE, layers=1, hidden=4, loops=2, positions="learned"),
    "rotary": pm.Rotary(input_size=SIZE, layers=1, hidden=4),
    "edges": pm.Edges(input_size=SIZE, layers=2, heads=4, end_width=8),
}


@pytest.mark.long
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", ["signum", "sophia", "adamw", "muon"])
def test_a_run_killed_many_times_ends_as_one_left_alone(
    optimizer: str,
    model: str,
    accumulate: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reference: Callable[[RunConfig], Path],
):
    config = make_config(optimizer, model=MODELS[model], threads=2, accumulate=accumulate, loss="any")
    whole = reference(config)
    choose = random.Random(f"{optimizer} {model} {accumulate}")
    steps = newest(whole).state["step"]
    for method in ("_step", "_report", "_save"):
        crash(monkeypatch, method, choose.sample(range(1, steps + 1), 12))
    crashes = train_to_the_end(config, tmp_path, save_every=NEVER, keep_every=70)
    assert crashes >= 24
    check_same(tmp_path / config.run_name, whole)


@pytest.mark.parametrize(
    "problem",
    [pm.DFS(input_size=SIZE), pm.SelectionInference(input_size=SIZE), pm.Language(input_size=SIZE)],
    ids=lambda problem: problem.name,
)
def test_every_task_goes_on_where_it_stopped(
    problem: pm.Distribution,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reference: Callable[[RunConfig], Path],
):
    model = pm.OneHot(input_size=SIZE, layers=1, hidden=4, text=problem.name == "language")
    training = replace(PLAIN.training, examples=256, batch_size=32, optimizer="sophia")
    config = replace(PLAIN, problem=problem, model=model, training=training)
    crash(monkeypatch, "_report", [3, 6])
    assert train_to_the_end(config, tmp_path, save_every=NEVER, keep_every=64) == 2
    check_same(tmp_path / config.run_name, reference(config))


def test_a_run_killed_between_its_last_checkpoint_and_its_weights_still_writes_the_trained_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: Callable[[RunConfig], Path]
):
    def die(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_weights", die)
        with pytest.raises(KilledError):
            train(PLAIN, tmp_path, quiet=True)
    run = tmp_path / PLAIN.run_name
    assert newest(run).state["finished"] == "examples"
    assert not (run / "model.safetensors").exists()
    train(PLAIN, tmp_path, quiet=True)
    check_same(run, reference(PLAIN))


def test_what_was_reached_once_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """When the published rule and the convergence were met, though later batches may be worse."""
    original = loop.validate
    monkeypatch.setattr(loop, "PUBLISHED_BATCH", 32)
    monkeypatch.setattr(loop, "PUBLISHED_RULE", 0.1)
    monkeypatch.setattr(loop, "validate", lambda *a: {**original(*a), "converged": True})
    for out in ("whole", "killed"):
        if out == "killed":
            crash(monkeypatch, "_report", [13, 17])
        train_to_the_end(PLAIN, tmp_path / out, save_every=NEVER, keep_every=128)
    state = newest(tmp_path / "whole" / PLAIN.run_name).state
    assert 0 < state["published_at"] < 384
    assert state["converged_at"] == {"converged": 320}
    check_same(tmp_path / "killed" / PLAIN.run_name, tmp_path / "whole" / PLAIN.run_name)


def test_how_often_it_is_saved_changes_no_number(
    tmp_path: Path, reference: Callable[[RunConfig], Path], capsys: pytest.CaptureFixture[str]
):
    train(PLAIN, tmp_path, quiet=True, save_every=0)
    run = tmp_path / PLAIN.run_name
    check_same(run, reference(PLAIN))
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        f"{examples:015d}.{suffix}" for examples in (608, 640) for suffix in ("json", "safetensors")
    ]
    assert capsys.readouterr().err == ""


def test_the_same_weights_are_the_same_file(tmp_path: Path):
    """So that two runs can be compared with `sha256sum`."""
    model = PLAIN.model.build(0)
    found: set[bytes] = set()
    for _ in range(20):
        pm.save_weights(model, tmp_path / "model.safetensors")
        found.add((tmp_path / "model.safetensors").read_bytes())
    assert len(found) == 1


def test_milestones_are_kept_beside_the_two_newest(tmp_path: Path, reference: Callable[[RunConfig], Path]):
    train(PLAIN, tmp_path, quiet=True, save_every=0, keep_every=200)
    run = tmp_path / PLAIN.run_name
    found = checkpoints.list_checkpoints(run / "checkpoints")
    # Each is the first step that passes a multiple of 200.
    assert [load_checkpoint(path).examples for path in found] == [224, 416, 608, 640]
    check_same(run, reference(PLAIN))


# Real processes.

SERVER = '''
"""Starts `pathmerge` again and again without importing torch each time: forks of a process that has computed nothing.

A child may be told to kill itself before its n-th operation on a file.
"""
import json, os, signal, sys

import torch, torch._dynamo, torch._refs, safetensors.torch
import pathmerge.models.edge_transformer, pathmerge.models.sequence_transformer, pathmerge.training.loop
from pathmerge import Balanced
from pathmerge.cli import main

Balanced(input_size=20).sample(8, threads=1)  # loads the kernels; one thread starts no other


def die_before(number):
    left = [number]

    def counted(original):
        def call(*positional, **named):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*positional, **named)
        return call

    for name in ("replace", "fsync", "unlink", "truncate", "mkdir", "chmod"):
        setattr(os, name, counted(getattr(os, name)))


print("ready", flush=True)
for line in sys.stdin:
    arguments, log, number = json.loads(line)
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, 1)
            os.dup2(file, 2)
            if number is not None:
                die_before(number)
            code = main(arguments)
            sys.stdout.flush()
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(code)
    print(pid, flush=True)
    # Until it is waited for, its id is not given to another process. Without anybody to wait for it, it has to go.
    if not sys.stdin.readline():
        os.kill(pid, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
'''


class Server:
    """Real processes, one at a time."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log.txt"
        self.child: int | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _ask(self, line: str) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return int(self._line())

    def start(self, *arguments: str | Path, dies_before: int | None = None) -> None:
        """A new process that runs `pathmerge` with these arguments; `wait` for it before the next."""
        assert self.child is None
        self.child = self._ask(json.dumps([[str(a) for a in arguments], str(self.log), dies_before]))

    def send(self, number: signal.Signals) -> None:
        assert self.child is not None
        os.kill(self.child, number)

    def wait(self) -> int:
        """How it ended: its exit code, or minus the number of the signal."""
        code, self.child = self._ask("wait"), None
        return code

    def run(self, *arguments: str | Path, dies_before: int | None = None) -> int:
        self.start(*arguments, dies_before=dies_before)
        return self.wait()

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture
def server(one_server: Server) -> Generator[Server]:
    yield one_server
    if one_server.child is not None:  # a test that failed
        one_server.send(signal.SIGKILL)
        one_server.wait()


def write_config(config: RunConfig, folder: Path) -> Path:
    path = folder / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    return path


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("optimizer", "seed", "kills"),
    [
        ("adamw", 1, 6),
        *(
            pytest.param(optimizer, seed, 12, marks=pytest.mark.long)
            for optimizer in ("signum", "sophia", "adamw", "muon")
            for seed in (2, 3)
        ),
    ],
)
def test_sigkill_at_random_moments(
    optimizer: str, seed: int, kills: int, server: Server, tmp_path: Path, reference: Callable[[RunConfig], Path]
):
    config = make_config(optimizer, model=MODELS["onehot"], threads=2)
    arguments = ("train", write_config(config, tmp_path), "--save-every", "0.03", "--out")
    began = time.monotonic()
    assert server.run(*arguments, tmp_path / "whole") == 0, server.said
    duration = min(3.0, time.monotonic() - began)
    check_same(tmp_path / "whole" / config.run_name, reference(config))
    choose = random.Random(seed)
    killed = finished = 0
    while killed < kills:
        server.start(*arguments, tmp_path / str(finished))
        time.sleep(choose.uniform(0, duration))
        server.send(signal.SIGKILL)
        if server.wait() == -signal.SIGKILL:
            killed += 1
        else:  # it was quicker, and at its end: another one
            check_same(tmp_path / str(finished) / config.run_name, reference(config))
            finished += 1
    assert server.run(*arguments, tmp_path / str(finished)) == 0, server.said
    check_same(tmp_path / str(finished) / config.run_name, reference(config))


def test_sigkill_before_every_operation_on_a_file(
    server: Server, tmp_path: Path, reference: Callable[[RunConfig], Path]
):
    """The n-th start dies before its n-th operation: making the directory, syncing, renaming, cutting, removing."""
    path = write_config(PLAIN, tmp_path)
    examples: list[int] = []
    for number in range(1, 200):
        options = ("--out", tmp_path, "--save-every", "1e9", "--keep-every", "200")
        code = server.run("train", path, *options, dies_before=number)
        if code == 0:
            break
        assert code == -signal.SIGKILL, server.said
        found = load_latest(tmp_path / PLAIN.run_name / "checkpoints")
        examples.append(0 if found is None else found.examples)
    assert examples == sorted(examples)
    assert {0, 224, 416, 608} <= set(examples)
    check_same(tmp_path / PLAIN.run_name, reference(PLAIN))
    check_no_half_files(tmp_path / PLAIN.run_name)


def test_sigkill_before_every_operation_of_a_resumed_run(
    server: Server, half_way: Path, tmp_path: Path, reference: Callable[[RunConfig], Path]
):
    """Each time from the same two checkpoints: up to the last one, the removal of the old ones, the weights."""
    examples: list[int] = []
    for number in range(1, 200):
        run = Path(shutil.copytree(half_way, tmp_path / str(number) / PLAIN.run_name))
        code = server.run("train", run, "--save-every", "1e9", dies_before=number)
        if code == 0:
            break
        assert code == -signal.SIGKILL, server.said
        examples.append(newest(run).examples)
        assert server.run("train", run, "--save-every", "1e9") == 0, server.said
        check_same(run, reference(PLAIN))
        check_no_half_files(run)
    assert sorted(set(examples)) == [352, 640]
    assert examples.count(640) >= 5


def check_no_half_files(run: Path) -> None:
    assert [path.name for path in (run / "checkpoints").iterdir() if path.name.startswith(".")] == []


def test_sigkill_of_the_command_itself(tmp_path: Path, reference: Callable[[RunConfig], Path]):
    """`python -m pathmerge`, killed as soon as there is a checkpoint."""
    config = make_config("muon", model=MODELS["onehot"], threads=2)
    command = [sys.executable, "-m", "pathmerge", "train", str(write_config(config, tmp_path)), "--save-every", "0.05"]
    run = tmp_path / "runs" / config.run_name
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: list((run / "checkpoints").glob("*.json")))
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert newest(run).state["finished"] is None
    known = newest(run).examples
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert f"resumed at {known:,} examples" in done.stderr
    assert done.stdout.splitlines()[1].startswith("finished: the rate has fallen to its end after ")
    check_same(run, reference(config))


def has_more_lines(run: Path, count: int) -> bool:
    return (run / "metrics.jsonl").exists() and len(lines_without_time(run)) > count


def train_until(config: RunConfig, out: Path, examples: int) -> Path:
    """Train inside the test, uninterrupted, and stop with a checkpoint once these examples are seen."""
    original = Trainer._step

    def step(self: Trainer, wish_to_stop: bool) -> bool:
        original(self, wish_to_stop)
        return self.examples >= examples

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_step", step)
        with pytest.raises(KeyboardInterrupt):
            train(config, out, quiet=True, save_every=NEVER)
    return out / config.run_name


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_a_stopped_run_has_a_checkpoint_at_its_last_step(number: signal.Signals, server: Server, tmp_path: Path):
    """A run that would take days is stopped twice; an uninterrupted one is at the same point, to the bit."""
    config = make_config("sophia", threads=2, examples=10**8, decay=10**8)
    path = write_config(config, tmp_path)
    run = tmp_path / config.run_name
    known: list[dict[str, Any]] = []
    for turn in range(2):
        server.start("train", path, "--out", tmp_path, "--save-every", "1e9")
        wait_for(partial(has_more_lines, run, len(known)))
        if turn == 0:
            with pytest.raises(ValueError, match="another process is training it"):
                lock(run)
        server.send(number)
        assert server.wait() == 130
        assert server.said.endswith("pathmerge train: interrupted\n")
        assert "Traceback" not in server.said
        stopped = newest(run)
        assert server.said.splitlines()[-2].endswith("checkpoint written")
        # No step was taken after the checkpoint: all lines of the metrics are known to it.
        assert stopped.state["metrics"] == (run / "metrics.jsonl").stat().st_size
        assert stopped.state["finished"] is None
        assert not (run / "model.safetensors").exists()
        known = lines_without_time(run)
    assert len(checkpoints.list_checkpoints(run / "checkpoints")) == 2
    whole = train_until(config, tmp_path / "whole", newest(run).examples)
    check_same_checkpoint(run, whole)
    assert known == lines_without_time(whole)


def test_asked_twice_a_run_ends_at_once(tmp_path: Path):
    """The second wish is not put off to the end of the step, and no checkpoint is written."""
    config = make_config(examples=10**8, decay=10**8)
    original = Trainer._step

    def step(self: Trainer, wish_to_stop: bool) -> bool:
        if self.step == 3:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("goes on")
        return original(self, wish_to_stop)

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_step", step)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path, quiet=True, save_every=NEVER)
    assert load_latest(tmp_path / config.run_name / "checkpoints") is None
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


# Damage.


@pytest.fixture(scope="module")
def half_way(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run PLAIN, killed after 384 of its 640 examples, with checkpoints at 320 and 352."""
    out = tmp_path_factory.mktemp("half")
    with pytest.MonkeyPatch.context() as patch:
        crash(patch, "_report", [12])
        with pytest.raises(KilledError):
            train(PLAIN, out, quiet=True, save_every=0)
    return out / PLAIN.run_name


@pytest.fixture
def broken(half_way: Path, tmp_path: Path) -> Path:
    """A copy of it to be damaged."""
    return Path(shutil.copytree(half_way, tmp_path / PLAIN.run_name))


def flip(place: float) -> Callable[[Path], Any]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[min(int(place * len(data)), len(data) - 1)] ^= 1
        path.write_bytes(data)

    return damage


def cut(share: float) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def fill_with(data: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "first byte": flip(0),
    "a byte": flip(0.4),
    "last byte": flip(1),
    "empty": cut(0),
    "half": cut(0.5),
    "gone": lambda path: path.unlink(),
    "null": fill_with(b"null"),
    "other JSON": fill_with(b'{"checksum": "", "checkpoint": 3}'),
    "not text": fill_with(b"\xff\xfe{}"),
}
NEWEST, OLDER = "000000000000352", "000000000000320"


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("suffix", ["safetensors", "json"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(
    suffix: str,
    damage: str,
    broken: Path,
    reference: Callable[[RunConfig], Path],
    capsys: pytest.CaptureFixture[str],
):
    DAMAGES[damage](broken / "checkpoints" / f"{NEWEST}.{suffix}")
    assert main(["train", str(broken)]) == 0
    said = capsys.readouterr().err
    warnings = {line for line in said.splitlines() if line.startswith("warning: ")}
    if (suffix, damage) == ("json", "gone"):
        # Nothing is known of a checkpoint without its JSON: a kill while it is written leaves the same.
        assert warnings == set()
    else:
        assert len(warnings) == 1
        (warning,) = warnings
        assert f"checkpoint={str(broken / 'checkpoints' / NEWEST)!r}"[:-1] in warning
        assert warning.endswith("going back to the one before")
    assert "resumed at 320 examples" in said
    check_same(broken, reference(PLAIN))


def test_a_damaged_checkpoint_is_not_one_of_the_two_that_are_kept(tmp_path: Path):
    for examples in (100, 200, 300):
        save_checkpoint(tmp_path, {"x": torch.ones(2)}, {"examples": examples}, milestone=False)
    flip(0.5)(tmp_path / "000000000000300.safetensors")
    for examples in (220, 240, 260):
        save_checkpoint(tmp_path, {"x": torch.ones(2)}, {"examples": examples}, milestone=False)
    good = {240, 260}
    for examples in good:
        assert load_checkpoint(tmp_path / f"{examples:015d}.json").examples == examples


def test_when_all_checkpoints_are_damaged_nothing_is_overwritten(broken: Path, capsys: pytest.CaptureFixture[str]):
    flip(0.5)(broken / "checkpoints" / f"{NEWEST}.safetensors")
    cut(0.5)(broken / "checkpoints" / f"{OLDER}.json")
    before = snapshot(broken)
    assert main(["train", str(broken)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in said] == ["warning", "warning", "pathmerge train"]
    assert said[-1].endswith("all 2 are damaged; remove them to start anew")
    assert snapshot(broken) == before
    assert main(["evaluate", str(broken)]) == 2
    assert snapshot(broken) == before


def test_metrics_shorter_than_the_checkpoint_knows_are_refused(broken: Path, capsys: pytest.CaptureFixture[str]):
    cut(0.3)(broken / "metrics.jsonl")
    before = snapshot(broken)
    assert main(["train", str(broken), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "damaged, it has" in said
    assert said.count("\n") == 1
    assert snapshot(broken) == before


def test_a_checkpoint_of_other_shapes_is_one_line(broken: Path, capsys: pytest.CaptureFixture[str]):
    found = newest(broken)
    name = "model/blocks.0.q.weight"
    other = {**found.tensors, name: found.tensors[name][:, 1:]}
    save_checkpoint(broken / "checkpoints", other, found.state, milestone=False)
    before = snapshot(broken)
    assert main(["train", str(broken), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "'blocks.0.q.weight' has shape (24, 23), the model's has (24, 24)" in said
    assert said.count("\n") == 1
    assert snapshot(broken) == before


def test_a_checkpoint_of_another_optimizer_or_config_is_one_line(broken: Path, capsys: pytest.CaptureFixture[str]):
    found = newest(broken)
    tensors = {name: value for name, value in found.tensors.items() if not name.endswith("/square")}
    save_checkpoint(broken / "checkpoints", tensors, found.state, milestone=False)
    assert main(["train", str(broken), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "optimizer state: missing entry" in said
    assert said.count("\n") == 1
    save_checkpoint(broken / "checkpoints", found.tensors, {**found.state, "config": "other"}, milestone=False)
    assert main(["train", str(broken), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "its checkpoints are of another config" in said
    assert said.count("\n") == 1


# A disk that does not take what is written.


@pytest.mark.parametrize("where", ["open", "write", "fsync", "replace"])
def test_a_full_disk_costs_checkpoints_but_not_the_run(
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reference: Callable[[RunConfig], Path],
    capsys: pytest.CaptureFixture[str],
):
    """No checkpoint fits from 200 to 500 examples; the last good one can be loaded all the while."""
    run = tmp_path / PLAIN.run_name
    full = [False]
    states: list[tuple[int, int]] = []
    original_report = Trainer._report

    def report(self: Trainer) -> None:
        original_report(self)
        full[0] = 200 <= self.examples <= 500
        if self.step > 1:
            states.append((self.examples, newest(run).examples))
            check_no_half_files(run)  # they would take the room that is needed

    class Full:
        """A file without room for its second half."""

        def __init__(self, file: Any) -> None:
            self._file = file

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def write(self, data: bytes) -> int:
            self._file.write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    originals: dict[str, Callable[..., Any]] = {"open": Path.open, "fsync": os.fsync, "replace": os.replace}

    def refuse(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*positional: Any, **named: Any) -> Any:
            # The metrics file is opened before and synced in another place; here only checkpoints are refused.
            caller = sys._getframe(1).f_code.co_name
            if not full[0] or caller != "_write":
                return original(*positional, **named)
            if where == "write":
                return Full(original(*positional, **named))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return call

    monkeypatch.setattr(Trainer, "_report", report)
    if where in ("open", "write"):
        monkeypatch.setattr(Path, "open", refuse(originals["open"]))
    else:
        monkeypatch.setattr(os, where, refuse(originals[where]))
    train(PLAIN, tmp_path, quiet=True, save_every=0)
    # A report is made before the checkpoint of its step.
    expected = [(at, at - 32 if at - 32 < 200 or at - 32 > 500 else 192) for at in range(64, 641, 32)]
    assert states == expected
    warnings = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1] for line in warnings] == [
        f" no checkpoint at {at} examples" for at in range(224, 481, 32)
    ]
    assert all(line.endswith(": No space left on device; the last good one stays") for line in warnings)
    check_same(run, reference(PLAIN))


def test_a_disk_full_at_the_end_is_not_called_finished(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reference: Callable[[RunConfig], Path],
    capsys: pytest.CaptureFixture[str],
):
    original = Trainer._save

    def save(self: Trainer, *positional: Any, **named: Any) -> bool:
        if self.examples <= 320:
            return original(self, *positional, **named)
        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "_write", refuse)
            return original(self, *positional, **named)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = write_config(PLAIN, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_save", save)
        code = main(["train", str(path), "--out", str(tmp_path), "--quiet", "--save-every", "0"])
    captured = capsys.readouterr()
    assert newest(tmp_path / PLAIN.run_name).examples == 320
    # With room again the same command brings it to its end.
    assert main(["train", str(path), "--out", str(tmp_path), "--quiet"]) == 0
    check_same(tmp_path / PLAIN.run_name, reference(PLAIN))
    assert code != 0
    assert "finished" not in captured.out


def private_mounts_work() -> bool:
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.long
@pytest.mark.skipif(not private_mounts_work(), reason="needs the right to mount")
def test_a_really_full_disk(tmp_path: Path, reference: Callable[[RunConfig], Path]):
    """A disk of its own for the run, taken up by another file until it is removed while the run goes on."""
    config = replace(PLAIN, training=replace(PLAIN.training, examples=32 * 400, log_every=32))
    path = write_config(config, tmp_path)
    (tmp_path / "disk").mkdir()
    train_it = f"{sys.executable} -m pathmerge train {path} --out disk --save-every 0"
    script = f"""
        mount -t tmpfs -o size=400k none disk || exit 9
        {train_it} 2> first.log &
        while ! ls disk/*/checkpoints/*.json 2> ls.log; do sleep 0.05; done
        dd if=/dev/zero of=disk/filler bs=1k 2> dd.log
        while [ $(grep -c 'no checkpoint' first.log) -lt 3 ]; do sleep 0.05; done
        kill -9 $!
        wait
        rm disk/filler
        {train_it} 2> second.log || exit 8
        cp -r disk/{config.run_name} found
    """
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], cwd=tmp_path, timeout=300, check=False)
    assert done.returncode == 0, [p.read_text() for p in tmp_path.glob("*.log")]
    assert "No space left on device" in (tmp_path / "first.log").read_text()
    assert "resumed at" in (tmp_path / "second.log").read_text()
    check_same(tmp_path / "found", reference(config))


def test_a_place_that_cannot_be_written_to_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    path = write_config(PLAIN, tmp_path)
    (tmp_path / "file").write_text("mine")
    for out in ("file", "file/below"):
        assert main(["train", str(path), "--out", str(tmp_path / out), "--quiet"]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"pathmerge train: out={str(tmp_path / out)!r}: ")
        assert said.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"
    # Root may write anywhere, so the answer of the system is replaced.
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert main(["train", str(path), "--out", str(tmp_path / "closed"), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "cannot be written to" in said
    assert said.count("\n") == 1
    assert not list((tmp_path / "closed").rglob("*.toml"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_place_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = write_config(PLAIN, tmp_path)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    assert main(["train", str(path), "--out", str(closed), "--quiet"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(closed.iterdir()) == []


# The same command again, another command, another process.


def test_a_finished_run_says_so_and_nothing_changes(
    reference: Callable[[RunConfig], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = Path(shutil.copytree(reference(PLAIN), tmp_path / PLAIN.run_name))
    path = write_config(PLAIN, tmp_path)
    before = snapshot(run)
    for command in (["train", str(path), "--out", str(tmp_path)], ["train", str(run)]):
        assert main(command) == 0
        captured = capsys.readouterr()
        assert captured.out.splitlines()[1] == "finished before: all examples seen after 640 examples"
        assert captured.out.splitlines()[2].startswith("validation accuracy 0.")
        assert captured.err == ""
    again = train(PLAIN, tmp_path)
    assert (again.finished, again.examples) == ("examples", 640)
    assert snapshot(run) == before


def test_a_run_that_another_process_holds_is_left_alone(broken: Path, capsys: pytest.CaptureFixture[str]):
    before = snapshot(broken)
    with lock(broken):
        assert main(["train", str(broken), "--quiet"]) == 2
    assert capsys.readouterr().err == f"pathmerge train: run={str(broken)!r}: another process is training it\n"
    assert snapshot(broken) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--training.threads 3", "training.threads=3: the run in {run!r} has 1, and keeps it"),
        ("--training.learning-rate 0.1", "training.learning_rate=0.1: the run in {run!r} has 0.003, and keeps it"),
        ("--seed 6", "seed=6: the run in {run!r} has 5, and keeps it"),
        ("--problem.max-lookahead 1", "problem.max_lookahead=1: the run in {run!r} has None, and keeps it"),
        ("--model.layers 2", "model.layers=2: the run in {run!r} has 1, and keeps it"),
        ("--curriculum.over size", "curriculum.over='size': the run in {run!r} has 'none', and keeps it"),
        ("--held-out.seed 1", "held_out.seed=1: the run in {run!r} has 0, and keeps it"),
        ("--recipe paper", "recipe='paper': must be left out when a config or a run is given"),
    ],
)
def test_a_run_keeps_its_config(options: str, message: str, broken: Path, capsys: pytest.CaptureFixture[str]):
    before = snapshot(broken)
    assert main(["train", str(broken), *options.split()]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"pathmerge train: {message.format(run=str(broken))}\n"
    assert captured.out == ""
    assert snapshot(broken) == before


def test_a_config_edited_by_hand_is_refused(broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = write_config(PLAIN, tmp_path)
    text = (broken / "config.toml").read_text()
    (broken / "config.toml").write_text(text.replace("batch_size = 32", "batch_size = 64"))
    before = snapshot(broken)
    # The command that made it finds another value there.
    assert main(["train", str(path), "--out", str(tmp_path), "--quiet"]) == 2
    assert (
        capsys.readouterr().err
        == f"pathmerge train: training.batch_size=32: the run in {str(broken)!r} has 64, and keeps it\n"
    )
    # The run itself no longer fits its name.
    assert main(["train", str(broken), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert f"run={str(broken)!r}: its name is not that of its config" in said
    assert said.count("\n") == 1
    assert snapshot(broken) == before


# A loss that is not finite.


def test_a_loss_that_is_not_finite_ends_the_run_and_the_last_good_checkpoint_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    path = write_config(PLAIN, tmp_path)
    original = batch_gradients.add_gradients

    calls = count()

    def poisoned(model: Any, *positional: Any, **named: Any) -> Any:
        outcome = original(model, *positional, **named)
        if next(calls) == 7:
            next(model.parameters()).grad[0, 0] = float("nan")
        return outcome

    with monkeypatch.context() as patch:
        patch.setattr(batch_gradients, "add_gradients", poisoned)
        assert main(["train", str(path), "--out", str(tmp_path), "--quiet", "--save-every", "0"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("pathmerge train: the gradient is not finite at example 224 (step 7); the last good")
    assert said.count("\n") == 1
    run = tmp_path / PLAIN.run_name
    assert newest(run).examples == 224
    assert all(bool(value.isfinite().all()) for value in newest(run).tensors.values())
    check_same_checkpoint(run, train_until(PLAIN, tmp_path / "whole", 224))


def test_a_rate_far_too_high_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    settings = replace(
        PLAIN.training, learning_rate=1000.0, clip=0.0, optimizer="signum", warmup=0, examples=32 * 200, decay=None
    )
    config = replace(PLAIN, training=settings, model=pm.OneHot(input_size=SIZE, layers=4, hidden=4))
    path = write_config(config, tmp_path)
    assert main(["train", str(path), "--out", str(tmp_path), "--quiet", "--save-every", "0"]) == 1
    said = capsys.readouterr().err
    assert "is not finite at example " in said
    assert "training.learning_rate=1000" in said
    assert said.count("\n") == 1
    found = newest(tmp_path / config.run_name)
    assert found.examples == int(said.split("at example ")[1].split()[0].replace(",", ""))
    assert all(bool(value.isfinite().all()) for value in found.tensors.values())
