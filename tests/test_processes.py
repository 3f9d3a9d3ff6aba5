"""Several processes see the same examples in each step and end with the same weights (torchrun, CPU, gloo)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pathmerge.training.metrics import TIME_FIELDS, read_metrics

SETTINGS = """--recipe matched --input-size 20 --seed 1 --model.layers 2 --training.examples 3200 --training.threads 1
    --training.log-every 640 --training.validate-every 1600 --curriculum.threshold 0.1 --curriculum.window 256
    --curriculum.first 4 --curriculum.easier 0.5 --held-out.test 50 --held-out.validation 50
    --training.learning-rate 2e-3 --training.warmup 640 --quiet""".split()


def start(out: Path, count: int, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    return subprocess.Popen(
        [*command, "-m", "pathmerge", "train", *SETTINGS, "--out", str(out), *more],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return output


def result(out: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    (run,) = out.iterdir()
    return load_file(run / "model.safetensors"), read_metrics(run / "metrics.jsonl")


def assert_same(a: Path, b: Path) -> None:
    (weights, lines), (others, other_lines) = result(a), result(b)
    for name, value in weights.items():
        # Sums of floats in another order: a few units in the last place, over 50 steps.
        torch.testing.assert_close(value, others[name], rtol=0, atol=1e-5)
    assert len(lines) == len(other_lines)
    assert any(line["kind"] == "stage" for line in lines), "the curriculum must move for this to prove anything"
    for line, other in zip(lines, other_lines, strict=True):
        assert line.keys() == other.keys()
        for field in line.keys() - TIME_FIELDS:
            if isinstance(line[field], float) or field == "loss_by_difficulty":
                assert line[field] == pytest.approx(other[field], rel=1e-4), field
            else:
                assert line[field] == other[field], field


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.long)])
def test_processes_together_do_what_one_does(tmp_path: Path, count: int):
    said = [finish(start(tmp_path / str(n), n)) for n in (1, count)]
    assert [text.count("finished: ") for text in said] == [1, 1], "one process speaks"
    assert_same(tmp_path / "1", tmp_path / str(count))


@pytest.mark.long
def test_a_killed_group_goes_on(tmp_path: Path):
    finish(start(tmp_path / "whole", 2))
    killed = start(tmp_path / "killed", 2, "--save-every", "0.1")
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed").glob("*/checkpoints/*.json")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    finish(start(tmp_path / "killed", 2))
    (weights, lines), (others, other_lines) = result(tmp_path / "whole"), result(tmp_path / "killed")
    assert all(torch.equal(value, others[name]) for name, value in weights.items())

    def timeless(found: list[dict[str, Any]]) -> list[str]:
        return [json.dumps({k: v for k, v in line.items() if k not in TIME_FIELDS}) for line in found]

    assert timeless(lines) == timeless(other_lines)
