"""Studies elsewhere: on a Ray cluster and through Slurm, whatever dies, and when the cluster is not there.

The study is a plug-in written by the test, as a user's would be, so that every process has to load it. What a run gives
is held against the same study on this machine without a failure, to the byte.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pathmerge import plugins
from pathmerge.cli import main
from pathmerge.studies import elsewhere, perform, ray_backend, slurm_backend
from pathmerge.studies.catalogue import STUDIES
from pathmerge.studies.elsewhere import Attempt, Landing, News
from pathmerge.studies.perform import Order
from pathmerge.studies.ray_backend import RayCluster
from pathmerge.studies.results import Folder, Outcome
from pathmerge.studies.runner import POLL, Backend, Event, Local, run_study
from pathmerge.studies.slurm_backend import Slurm
from pathmerge.studies.study import Study, Task
from pathmerge.training.run import lock

PLUGIN = """
from matplotlib.figure import Figure

import pathmerge as pm
from pathmerge.studies.catalogue import STUDIES
from pathmerge.studies.study import Study, Task
from pathmerge.training.config import RunConfig


class Trained(Study):
    name, figure, question = "trained", "Figure 0", "Does a run survive?"

    def says(self, setting):
        return "small trainings"

    def tasks(self, setting):
        examples, runs = {"smoke": (20 * 64, 2), "laptop": (1500 * 64, 4), "paper": (10**7 * 64, 1)}[setting.scale]
        training = pm.Training(
            optimizer="adamw", learning_rate=1e-3, batch_size=64, examples=examples, log_every=640,
            validate_every=32000, schedule="constant", threads=1, stop="never",
        )
        return [
            Task(labels={"seed": seed}, config=RunConfig(
                problem=pm.Balanced(input_size=20),
                model=pm.Edges(input_size=20, layers=2, end_width=8),
                training=training,
                curriculum=pm.Curriculum(),
                held_out=pm.Holding(test=50, validation=50),
                seed=seed,
            ))
            for seed in range(runs)
        ]

    def measure(self, task, run, setting, place):
        return [{"examples": run.examples}]

    def draw(self, rows, setting):
        return Figure()


STUDIES["trained"] = Trained()
"""

Watch = Callable[[Event, Sequence[Task]], None]


@pytest.fixture(scope="module", autouse=True)
def own_token() -> Generator[None]:
    """Clusters of this module take only who knows their token, and need none from the home folder nor leave one there.

    Ray reads it once in a process, so all tests share it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        yield


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Study]:
    """The plug-in, in this process and in all that it starts."""
    path = tmp_path / "trained.py"
    path.write_text(PLUGIN)
    monkeypatch.setenv(plugins.VARIABLE, str(path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    plugins.load_plugins()
    yield STUDIES["trained"]
    del STUDIES["trained"]


def run_it(
    study: Study, scale: str, out: Path, backend: Backend, watch: Watch | None = None, save_every: float = 0.5
) -> dict[str, bytes]:
    """The weights of each run; every task must have ended well."""
    setting = study.setting(scale)
    rows, _ = run_study(study, setting, out, backend, save_every=save_every, watch=watch)
    tasks = study.tasks(setting)
    assert [row.get("error") for row in rows] == [None] * len(tasks)
    return weights(out, tasks)


def run_here(study: Study, scale: str, out: Path) -> dict[str, bytes]:
    """The same in this process, without a failure."""
    setting = study.setting(scale)
    tasks = study.tasks(setting)
    Folder(root=out, study=study, setting=setting).open(tasks)
    for task in tasks:
        outcome = perform.perform(make_order(task, out, scale))
        assert outcome.error is None
    return weights(out, tasks)


def make_order(task: Task, out: Path, scale: str = "smoke") -> Order:
    return Order(study="trained", scale=scale, recipe="tuned", task=task.name, root=str(out), save_every=0.5)


def weights(out: Path, tasks: Sequence[Task]) -> dict[str, bytes]:
    return {task.name: (directory(out, task) / "model.safetensors").read_bytes() for task in tasks}


def directory(out: Path, task: Task) -> Path:
    assert task.config is not None
    return out / "runs" / task.config.run_name


def has_checkpoint(out: Path, task: Task) -> bool:
    return any(directory(out, task).glob("checkpoints/*.json"))


def wait_until(what: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def performers(root: Path, above: int | None = None) -> dict[str, int]:
    """The processes that perform tasks with results in this folder, by task; `above`: only those below this process."""
    found: dict[str, int] = {}
    for pid, words in command_lines().items():
        if "pathmerge.studies.perform" in words and words[-1].startswith("{"):
            order = json.loads(words[-1])
            if order["root"] == str(root.resolve()) and (above is None or pid in family(above)):
                found[order["task"]] = pid
    return found


def command_lines() -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it has just ended
        found[int(path.parent.name)] = [word for word in words if word]
    return found


def family(pid: int) -> list[int]:
    """A process and all that come from it."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for one in found:  # grows meanwhile
        found += [child for child, parent in parents.items() if parent == one]
    return found


class Recorder:
    """Keeps the events and kills, once, the process of one task as soon as it has one."""

    def __init__(self, root: Path, victim: str) -> None:
        self.root, self.victim, self.events = root, victim, list[Event]()
        self.killed = False

    def __call__(self, event: Event, tasks: Sequence[Task]) -> None:
        if event.kind != "waiting":
            self.events.append(event)
        if not self.killed and self.victim in (found := performers(self.root)):
            os.kill(found[self.victim], signal.SIGKILL)
            self.killed = True

    def kinds(self, task: str) -> list[str]:
        return [event.kind for event in self.events if event.task == task]


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


def test_a_run_that_is_held_is_waited_for(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A machine that was lost may live on for a while: its process holds the run, and gets on with it or does not."""
    monkeypatch.setattr(perform, "HELD_WAIT", 0.5)
    monkeypatch.setattr(perform, "HELD_POLL", 0.05)
    setting = study.setting("smoke")
    task = study.tasks(setting)[0]
    folder = Folder(root=tmp_path, study=study, setting=setting)
    folder.open(study.tasks(setting))
    run = directory(tmp_path, task)
    run.mkdir()
    done: list[Outcome] = []
    work = threading.Thread(target=lambda: done.append(perform.perform(make_order(task, tmp_path))))
    with lock(run):
        # Without a sign of life it is given up.
        failed = perform.perform(make_order(task, tmp_path))
        assert failed.error == f"run={str(run)!r}: another process is training it"
        assert failed.seconds > 0.5
        folder.file_of(task.name).unlink()
        work.start()
        for number in range(30):  # three times as long as it would wait for nothing
            (run / "metrics.jsonl").write_text("")
            os.utime(run / "metrics.jsonl", ns=(number, number))
            time.sleep(0.05)
        (run / "metrics.jsonl").unlink()
        assert work.is_alive()
        assert done == []
    work.join(timeout=60)
    assert [outcome.error for outcome in done] == [None]


def test_a_task_whose_parent_is_gone_does_not_start(study: Study, tmp_path: Path):
    """It may die while the child still loads its libraries, when the system does not tell the child yet."""
    (task, *_) = study.tasks(study.setting("smoke"))
    program = [sys.executable, "-m", "pathmerge.studies.perform", make_order(task, tmp_path).to_json()]
    done = subprocess.run(program, env={**os.environ, perform.PARENT: "1"}, capture_output=True, check=False)
    assert done.returncode == -signal.SIGTERM
    assert not (tmp_path / "runs").exists()


def test_how_often_a_task_is_sent(tmp_path: Path, study: Study):
    (task, *_) = study.tasks(study.setting("smoke"))
    for kind, often in (("died", 3), ("lost", elsewhere.LOSSES)):
        attempt: Attempt | None = Attempt(order=make_order(task, tmp_path), cores=1)
        count = 0
        while attempt is not None:
            count += 1
            attempt = attempt.again(News(kind=kind))
        assert count == often


def test_a_machine_without_the_folder_says_so(study: Study, tmp_path: Path):
    (task, *_) = study.tasks(study.setting("smoke"))
    place = str(tmp_path / "elsewhere")
    news = elsewhere.carry_out(make_order(task, tmp_path), place, "")
    assert news.kind == "failed"
    assert news.says == f"out={place!r}: is not there on {socket.gethostname()}; all machines must share it"
    assert not Path(place).exists()


def test_a_file_may_arrive_late(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    setting = study.setting("smoke")
    folder = Folder(root=tmp_path, study=study, setting=setting)
    folder.open(study.tasks(setting))
    landing = Landing(folder=folder)
    landing.expect("seed=0")
    assert list(landing.landed()) == []
    folder.keep(Outcome(task="seed=0"))
    assert [(event.task, event.kind) for event in landing.landed()] == [("seed=0", "ended")]
    monkeypatch.setattr(elsewhere, "LANDING_WAIT", -1.0)
    landing.expect("seed=1")
    assert [(event.task, event.says) for event in landing.landed()] == [("seed=1", "its file did not arrive")]
    assert landing.deadlines == {}


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
