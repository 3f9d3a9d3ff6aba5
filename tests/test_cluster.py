"""Studies on a Ray cluster, whatever dies, and when the cluster is not there; options that do not fit.

The study is a plug-in written by the test, as a user's would be, so that every process has to load it. What a run gives
is held against the same study on this machine without a failure, to the byte.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from study_runs import Recorder, directory, family, performers, run_here, run_it

from pathmerge.cli import main
from pathmerge.studies import ray_backend, slurm_backend
from pathmerge.studies.ray_backend import RayCluster
from pathmerge.studies.runner import POLL, Event, Local
from pathmerge.studies.study import Study, Task


@pytest.fixture(scope="module", autouse=True)
def own_token() -> Generator[None]:
    """Clusters of this module take only who knows their token, and need none from the home folder nor leave one there.

    Ray reads it once in a process, so all tests share it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        yield


def has_checkpoint(out: Path, task: Task) -> bool:
    return any(directory(out, task).glob("checkpoints/*.json"))


def wait_until(what: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_study_through_ray(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """One cluster for several questions: it takes seconds to start."""
    import ray

    monkeypatch.setattr(ray_backend, "_complaint", lambda _: "none")  # whatever else may be running on this machine
    before = signal.getsignal(signal.SIGTERM)
    backend = RayCluster(address="auto")
    with backend.connected():
        assert signal.getsignal(signal.SIGTERM) is before
        watch = Recorder(tmp_path / "ray", "seed=1")
        found = run_it(study, "smoke", tmp_path / "ray", backend, watch)
        assert watch.kinds("seed=0") == ["began", "ended"]
        assert watch.kinds("seed=1") == ["began", "died", "began", "ended"]

        # Ctrl-C: a run far from its end stops with a checkpoint, though none was due.
        (task,) = study.tasks(study.setting("paper"))

        def interrupt(event: Event, tasks: Sequence[Task]) -> None:
            if (directory(tmp_path / "ray", task) / "metrics.jsonl").exists():
                raise KeyboardInterrupt

        def cancel_late(stream: Any) -> None:
            time.sleep(POLL + 0.01)  # the task has seen the file that ends it, and waits for its process
            cancel(stream)

        cancel = ray.cancel
        monkeypatch.setattr(ray, "cancel", cancel_late)
        with pytest.raises(KeyboardInterrupt):
            run_it(study, "paper", tmp_path / "ray", backend, interrupt, save_every=1e6)
        assert performers(tmp_path / "ray") == {}
        assert has_checkpoint(tmp_path / "ray", task)
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err == f"no Ray cluster is running: starting one on this machine, {os.cpu_count()} cores\n"
    assert found == run_here(study, "smoke", tmp_path / "here")
    assert len(set(found.values())) == 2


def start_node(log: Path, *words: str) -> subprocess.Popen[bytes]:
    """A raylet with all that belongs to it, as `ray start` makes it on each machine of a cluster."""
    ports = ["--min-worker-port", "0", "--max-worker-port", "0"]  # those of several raylets on one machine would clash
    program = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", *ports, *words]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    with log.open("wb") as file:
        return subprocess.Popen(program, env=environment, stdout=file, stderr=file)


def kill_node(node: subprocess.Popen[bytes]) -> None:
    """All at once, as when its machine loses power: the raylet, its workers, their children."""
    for pid in family(node.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    node.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Generator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """The address and the nodes of a real cluster: a head with one core and two more nodes, with one and with two."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address, store = f"127.0.0.1:{port}", ["--object-store-memory", str(100 * 2**20)]
    head = ["--head", "--node-ip-address", "127.0.0.1", "--port", str(port), "--include-dashboard", "false"]
    nodes = [start_node(tmp_path / "head.log", *head, "--num-cpus", "1", *store)]
    try:
        wait_until(lambda: ray_backend._complaint(address) is None, 120)
        for count in (1, 2):
            log = tmp_path / f"node{count}.log"
            nodes.append(start_node(log, "--address", address, "--num-cpus", str(count), *store))
            # One after the other: each looks for free ports, and two at once may choose the same.
            wait_until(lambda log=log: "Ray runtime started" in log.read_text(), 120)
        yield address, nodes
    finally:
        for node in reversed(nodes):
            kill_node(node)


@pytest.mark.long
def test_a_node_that_dies_costs_nothing(
    study: Study,
    cluster: tuple[str, list[subprocess.Popen[bytes]]],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
):
    address, nodes = cluster
    out = tmp_path / "ray"
    tasks = study.tasks(study.setting("laptop"))
    events: list[Event] = []
    first_lines: dict[str, bytes] = {}

    def watch(event: Event, _: Sequence[Task]) -> None:
        if event.kind != "waiting":
            events.append(event)
        there = [] if first_lines else performers(out, above=nodes[2].pid)
        victims = [task for task in tasks if task.name in there and has_checkpoint(out, task)]
        metrics = [directory(out, task) / "metrics.jsonl" for task in victims]
        if len(victims) == 2 and all(path.read_bytes().count(b"\n") > 1 for path in metrics):
            kill_node(nodes[2])
            for task, path in zip(victims, metrics, strict=True):
                first_lines[task.name] = path.read_bytes().splitlines()[0]

    import ray

    backend = RayCluster(address=address)
    with backend.connected():
        wait_until(lambda: ray.cluster_resources().get("CPU") == 4, 180)
        found = run_it(study, "laptop", out, backend, watch, save_every=0.2)
        alive = sorted(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"])
    assert alive == [1, 1]
    died = [event.task for event in events if event.kind == "died"]
    assert sorted(died) == sorted(first_lines)
    assert len(died) == 2
    for task in tasks:
        # With the times of then: it went on and did not start anew.
        if task.name in first_lines:
            assert (directory(out, task) / "metrics.jsonl").read_bytes().startswith(first_lines[task.name])
        assert [event.kind for event in events if event.task == task.name].count("ended") == 1
    assert capfd.readouterr() == ("", "")
    assert found == run_it(study, "laptop", tmp_path / "local", Local(cores=2))
    assert len(set(found.values())) == 4


def test_a_cluster_that_does_not_answer_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray_backend, "CONNECT_WAIT", 3.0)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.socket() as mute, socket.socket() as closed:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        closed.bind(("127.0.0.1", 0))
        silent, refused = (f"127.0.0.1:{one.getsockname()[1]}" for one in (mute, closed))
        assert (
            complaint(capsys, "--cluster", silent) == f"cluster={silent!r}: does not answer as a Ray cluster within 3 s"
        )
        assert complaint(capsys, "--cluster", refused) == f"cluster={refused!r}: cannot be reached: Connection refused"
        monkeypatch.setenv("RAY_ADDRESS", refused)
        assert complaint(capsys, "--cluster", "auto") == f"cluster={refused!r}: cannot be reached: Connection refused"
    assert list(tmp_path.iterdir()) == []


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What the command says against these options, in one line, with code 2."""
    assert main(["study", "lookahead-histogram", "--scale", "smoke", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    program, _, rest = said.err.strip().partition(": ")
    assert program == "pathmerge"
    return rest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--cluster nowhere", "cluster='nowhere': must be auto or HOST:PORT, as `ray start --head` prints it"),
        ("--cluster host:0", "cluster='host:0': must be auto or HOST:PORT, as `ray start --head` prints it"),
        (
            "--cluster ray://host:1",
            "cluster='ray://host:1': must be auto or HOST:PORT, as `ray start --head` prints it",
        ),
        ("--cluster auto --slurm", "cluster='auto': not together with --slurm; leave one of the two out"),
        ("--cluster auto --cores 1", "cores=1: is for this machine; leave it out with --cluster and --slurm"),
        ("--slurm --cores 1", "cores=1: is for this machine; leave it out with --cluster and --slurm"),
        ("--slurm", "slurm: there is no sbatch here; run this where jobs are submitted"),
        ("--slurm --slurm-minutes 0", "slurm_minutes=0: must be a whole number in 1..1000000"),
    ],
)
def test_bad_options_are_one_line(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert complaint(capsys, *words.split()) == said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "module", "said"),
    [
        ("--cluster auto", "ray", "cluster='auto': needs Ray; pip install 'pathmerge[cluster]'"),
        ("--slurm", "submitit", "slurm: needs submitit; pip install 'pathmerge[slurm]'"),
    ],
)
def test_what_is_not_installed_is_named(
    words: str,
    module: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    find = importlib.util.find_spec
    for place in (ray_backend, slurm_backend):
        monkeypatch.setattr(place, "find_spec", lambda name: None if name == module else find(name))
    assert complaint(capsys, *words.split()) == said
