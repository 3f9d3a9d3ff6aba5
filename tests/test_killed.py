"""Real processes get real signals: a run killed at any moment, or asked to stop, loses nothing, to the bit.

SIGKILL comes at random moments and before every single operation on a file; a run that is asked to stop writes a
checkpoint first.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from short_runs import (
    MODELS,
    NEVER,
    PLAIN,
    check_no_half_files,
    check_same,
    check_same_checkpoint,
    lines_without_time,
    make_config,
    newest,
    train_until,
    write_config,
)

from pathmerge.training import checkpoint as checkpoints
from pathmerge.training.checkpoint import load_latest
from pathmerge.training.config import RunConfig
from pathmerge.training.loop import Trainer, train
from pathmerge.training.run import lock

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


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("optimizer", "seed", "kills"),
    [
        ("adamw", 1, 3),
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


@pytest.mark.long
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
