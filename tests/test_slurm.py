"""Studies through Slurm, with a stand-in for it: held against the same study on this machine without a failure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from study_runs import Recorder, run_here, run_it

from pathmerge.cli import main
from pathmerge.studies.slurm_backend import Slurm
from pathmerge.studies.study import Study


@pytest.mark.long
def test_a_study_through_submitit_alone(study: Study, tmp_path: Path):
    """Its own jobs, as processes of this machine: one is killed, and another one goes on for it."""
    watch = Recorder(tmp_path / "slurm", "seed=1")
    found = run_it(study, "smoke", tmp_path / "slurm", Slurm(executor="local"), watch)
    assert watch.kinds("seed=0") == ["began", "ended"]
    assert watch.kinds("seed=1") == ["began", "died", "began", "ended"]
    assert found == run_here(study, "smoke", tmp_path / "here")


STANDINS = {
    "sbatch": """
        export SLURM_JOB_ID=$$ SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0
        grep '^#SBATCH' "$1" >> "$(dirname "$0")/asked"
        cp "$1" "$(dirname "$0")/job-$$"  # as Slurm does: submitit moves the script as soon as this ends
        setsid sh "$(dirname "$0")/job-$$" > /dev/null 2>&1 &
        echo "Submitted batch job $$"
    """,
    "srun": """
        while true; do
            case "$1" in --output|--error) shift 2 ;; -*) shift ;; *) exec "$@" ;; esac
        done
    """,
    "sacct": """
        echo 'JobID|State|NodeList'
        for word in "$@"; do case "$word" in [0-9]*) echo "$word|RUNNING|here" ;; esac; done
    """,
    "scancel": "exit 0",
}
"""As much of Slurm as submitit asks for; jobs are processes of this machine."""


def install(scripts: Mapping[str, str], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir()
    for name, script in scripts.items():
        (place / name).write_text(f"#!/bin/sh\n{script}")
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")


def test_a_job_that_slurm_refuses_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    refuses = "echo 'sbatch: error: invalid partition specified: fast' >&2; exit 1"
    install({**STANDINS, "sbatch": refuses}, tmp_path / "bin", monkeypatch)
    words = ["study", "lookahead-histogram", "--scale", "smoke", "--slurm", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("pathmerge: slurm: the job was refused: ")
    assert "invalid partition specified: fast" in said


def test_a_study_through_slurm(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    place = tmp_path / "bin"
    install(STANDINS, place, monkeypatch)
    watch = Recorder(tmp_path / "slurm", "seed=1")
    found = run_it(study, "smoke", tmp_path / "slurm", Slurm(minutes=7), watch)
    assert watch.kinds("seed=0") == ["began", "ended"]
    assert watch.kinds("seed=1") == ["began", "died", "began", "ended"]
    asked = (place / "asked").read_text().splitlines()
    for line in ("--cpus-per-task=1", "--time=7", "--job-name=pathmerge-trained"):
        assert asked.count(f"#SBATCH {line}") == 3
    assert found == run_here(study, "smoke", tmp_path / "here")
