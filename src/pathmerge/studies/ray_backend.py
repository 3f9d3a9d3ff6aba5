"""Ray: the cores of a cluster, or of this machine.

Choices a reader could not guess:
- Ray places the tasks and notices deaths; it retries nothing itself. What is lost comes back to `RayCluster.run`,
  which says so and sends it again. There it goes on from its last checkpoint, so all machines have to see the same
  folder of results, by the same path.
- A task starts a process like every other backend does and watches it: nothing stays behind in Ray's worker, and what
  is lost with it is one process, which ends with its parent.
- Ray's own connecting can hang, or end the process, when an address does not lead to a cluster. So a child asks first,
  for a bounded time.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pathmerge.plugins import VARIABLE
from pathmerge.studies.elsewhere import Attempt, Landing, News, carry_out
from pathmerge.studies.perform import Order
from pathmerge.studies.results import Folder
from pathmerge.studies.runner import POLL, Event

CONNECT_WAIT = 30.0
"""Seconds in which a cluster has to answer."""
STOP_WAIT = 75.0
"""Seconds for tasks that are taken back: a process gets 60 to make its last checkpoint."""
Stream = Any
"""Ray's ObjectRefGenerator: what a task says, piece by piece."""
STORE = 100 * 2**20
"""Bytes of shared memory of a cluster that we start; what tasks say is a few words."""


@dataclass(frozen=True, kw_only=True)
class RayCluster:
    """A Ray cluster, by the HOST:PORT of its head; `auto`: the one that is running, or else a new one on this machine.

    `auto` means RAY_ADDRESS where it is set.
    """

    address: str = "auto"

    def __post_init__(self) -> None:
        if self.address != "auto":
            host_and_port(self.address)

    @contextmanager
    def connected(self) -> Generator[None]:
        """Connected to it, unless this process already is; raises a ValueError of one line if it cannot be reached."""
        if find_spec("ray") is None:
            raise ValueError(f"cluster={self.address!r}: needs Ray; pip install 'pathmerge[cluster]'")
        import ray

        if ray.is_initialized():
            yield
            return
        self._connect()
        try:
            yield
        finally:
            with _kept(signal.SIGTERM):
                ray.shutdown()

    def run(self, orders: Sequence[Order], cores: Sequence[int], folder: Folder) -> Iterator[Event]:
        """All orders at once, which Ray starts as cores get free; what dies or is lost is sent again."""
        with self.connected():
            import ray
            from ray.exceptions import RayError

            most = max((int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]), default=0)
            attempts = [
                Attempt(order=order, cores=min(count, most or count))
                for order, count in zip(orders, cores, strict=True)
            ]
            try:
                yield from _follow(attempts, folder)
            except RayError as error:
                raise OSError(f"cluster={self.address!r}: {_line(error)}; the same command goes on from here") from None

    def _connect(self) -> None:
        address = (os.environ.get("RAY_ADDRESS") or "auto") if self.address == "auto" else self.address
        if address != "auto":
            host, port = host_and_port(address)
            try:
                socket.create_connection((host, port), timeout=CONNECT_WAIT).close()
            except OSError as error:
                raise ValueError(f"cluster={address!r}: cannot be reached: {error.strerror or error}") from None
        complaint = _complaint(address)
        if complaint is not None and (address != "auto" or "Authentication" in complaint):
            raise ValueError(f"cluster={address!r}: {complaint}")
        if complaint is not None:
            cores = os.cpu_count() or 1
            print(f"no Ray cluster is running: starting one on this machine, {cores} cores", file=sys.stderr)
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            _init(address="local", num_cpus=cores, include_dashboard=False, object_store_memory=STORE)
            return
        try:
            _init(address=address)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ValueError(
                f"cluster={address!r}: {_line(error)} (is this machine part of it? ray start --address=...)"
            ) from None


def host_and_port(address: str) -> tuple[str, int]:
    """The two parts of an address."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"cluster={address!r}: must be auto or HOST:PORT, as `ray start --head` prints it")
    return host, int(port)


def _complaint(address: str) -> str | None:
    """What is wrong with a cluster; none: it is there. `auto`: any, as Ray finds it."""
    program = [sys.executable, "-m", "ray.scripts.scripts", "health-check"]
    more = [] if address == "auto" else ["--address", address]
    try:
        done = subprocess.run([*program, *more], capture_output=True, text=True, timeout=CONNECT_WAIT, check=False)
    except subprocess.TimeoutExpired:
        return f"does not answer as a Ray cluster within {CONNECT_WAIT:.0f} s"
    lines = done.stderr.strip().splitlines() or ["it is not healthy"]
    return None if done.returncode == 0 else f"no Ray cluster answers there ({_line(lines[-1])})"


def _init(**options: Any) -> None:
    import ray
    from ray._private import worker

    with _kept(signal.SIGTERM):  # Ray takes it for itself; it is ours
        ray.init(log_to_driver=False, logging_level=logging.CRITICAL, **options)
    # The death of a node would print the last lines of its log; no option turns that off.
    worker._worker_logs_enabled = False


@contextmanager
def _kept(which: signal.Signals, meanwhile: signal.Handlers | None = None) -> Generator[None]:
    """What a signal does is the same afterwards; `meanwhile`: what it does until then."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(which)
    try:
        if meanwhile is not None:
            signal.signal(which, meanwhile)
        yield
    finally:
        signal.signal(which, before)


def work(order: Order, place: str, plugins: str, end: str) -> Generator[News]:
    """What Ray runs, on one of its machines.

    A task that is taken back sees the file `end`. Ray interrupts its worker besides, which must not keep it from
    waiting for the last checkpoint.
    """
    yield News(kind="began", says=f"on {socket.gethostname()}")
    with _kept(signal.SIGINT, meanwhile=signal.SIG_IGN):
        news = carry_out(order, place, plugins, end)
    yield news


def _follow(attempts: Sequence[Attempt], folder: Folder) -> Iterator[Event]:
    import ray

    task = ray.remote(work)
    plugins = os.environ.get(VARIABLE, "")
    place = str(folder.path.resolve())
    end = folder.path.resolve() / f".end-{secrets.token_hex(8)}"

    def send(attempt: Attempt) -> Stream:
        options = {"num_cpus": attempt.cores, "max_retries": 0, "num_returns": "streaming", "name": attempt.order.task}
        return task.options(**options).remote(attempt.order, place, plugins, str(end))

    landing = Landing(folder=folder)
    away = {send(attempt): attempt for attempt in attempts}
    try:
        while away or landing.deadlines:
            ready: Sequence[Any] = ()
            if away:
                ready, _ = ray.wait(list(away), num_returns=len(away), timeout=POLL, fetch_local=False)
            if not ready:
                time.sleep(POLL)
            yield Event(task="", kind="waiting")
            for stream in ready:
                attempt, news = away[stream], _next(stream)
                name = attempt.order.task
                if news.kind == "began":
                    yield Event(task=name, kind="began", says=news.says)
                    continue
                del away[stream]
                if news.kind == "ended":
                    landing.expect(name)
                    continue
                again = attempt.again(news) if news.kind in ("died", "lost") else None
                if again is None or folder.outcome(name) is not None:
                    yield Event(task=name, kind="ended", says=news.says)
                else:
                    yield Event(task=name, kind="died", says=news.says)
                    away[send(again)] = again
            yield from landing.landed()
    finally:
        _take_back(list(away), end)


def _next(stream: Stream) -> News:
    import ray
    from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

    try:
        news: Any = ray.get(next(stream))
        return news
    except OutOfMemoryError as error:
        return News(kind="died", says=_line(error))
    except RayTaskError as error:
        return News(kind="failed", says=_line(error.cause or error))
    except RayError as error:
        return News(kind="lost", says=_line(error))
    except StopIteration:
        return News(kind="lost", says="its worker ended without a word")


def _take_back(streams: Sequence[Stream], end: Path) -> None:
    """Have tasks end, those that run with a checkpoint, and wait for it.

    Ray takes back those that wait. Those that run look for a file: Ray would send their worker a SIGINT, which a worker
    that was started in the background of a shell never gets.
    """
    import ray
    from ray.exceptions import RayError

    if not streams:
        return
    end.touch()
    try:
        with suppress(RayError):
            for stream in streams:
                ray.cancel(stream)
            ray.wait([stream.completed() for stream in streams], num_returns=len(streams), timeout=STOP_WAIT)
    finally:
        end.unlink(missing_ok=True)


def _line(error: BaseException | str) -> str:
    """The first sentence of what Ray has to say."""
    return " ".join(str(error).split()).split(". ")[0][:200]
