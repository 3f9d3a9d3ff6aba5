"""Parts of the work side by side, each with one core: faster for small models than many cores on one operation.

`Workers` are threads, for work that is torch's: it releases the GIL inside its operations. `forked` uses copies of the
process, for work that is as much Python's. What one part gives does not depend on how many there are.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import count
from typing import Any, TypeVar

import torch

from pathmerge.errors import check_range

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers:
    """A context in which torch computes with one core per operation and `map` with `threads` of them."""

    def __init__(self, threads: int) -> None:
        self.threads = check_range("threads", threads, 1, 1024)
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Workers:
        _enter_one_core()
        if self.threads > 1:
            self._pool = ThreadPoolExecutor(
                self.threads,
                thread_name_prefix="pathmerge-worker",
                initializer=torch.set_flush_denormal,
                initargs=(True,),
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        _leave_one_core()

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """The results in the order of the items."""
        return map(function, items) if self._pool is None else self._pool.map(function, items)


class _Contexts(threading.local):
    """How many contexts of `Workers` this thread is in."""

    open = 0


_here = _Contexts()
_everywhere: list[int] = []
"""The number of torch's threads before the first open context, once for each that is open."""
_lock = threading.Lock()


def _enter_one_core() -> None:
    """Contexts may overlap in any order (a generator that nobody finishes leaves its own late), so they are counted.

    Numbers below 1e-38 are taken for zero: processors compute with them a hundred times more slowly, and a model whose
    attention has saturated is full of them (a training with Signum at 1e-3 took five times as long)."""
    with _lock:
        _everywhere.append(_everywhere[0] if _everywhere else torch.get_num_threads())
    torch.set_num_threads(1)
    _here.open += 1
    torch.set_flush_denormal(True)


def _leave_one_core() -> None:
    _here.open -= 1
    if _here.open <= 0:
        torch.set_flush_denormal(False)
    with _lock:
        before = _everywhere.pop()
        if not _everywhere:
            torch.set_num_threads(before)


FEWEST_FORKED = 4
_tasks: dict[int, Callable[[Any], Any]] = {}
_numbers = count()


def forked(function: Callable[[Item], Result], items: Sequence[Item], processes: int) -> Iterator[Result]:
    """The results in the order of the items, each computed in one of so many copies of this process.

    The copies share its memory as it is now, so nothing is sent to them but the items. Where there is no fork, or few
    items, this process does the work itself.
    """
    check_range("threads", processes, 1, 1024)
    with uncollected():
        if processes == 1 or len(items) < FEWEST_FORKED or "fork" not in multiprocessing.get_all_start_methods():
            with Workers(1):
                yield from map(function, items)
        else:
            yield from _forked(function, items, processes)


def _forked(function: Callable[[Item], Result], items: Sequence[Item], processes: int) -> Iterator[Result]:
    number = next(_numbers)
    _tasks[number] = function
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(processes, context, initializer=_settle)
    ended = False
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of forks beside threads. The copies use none of this process's threads.
            warnings.simplefilter("ignore", DeprecationWarning)
            results = pool.map(_call, [number] * len(items), items)
        yield from results
        ended = True
    except BrokenProcessPool:
        raise OSError(
            "a process was killed from outside (out of memory?); the same command goes on from here"
        ) from None
    finally:
        if not ended:  # nobody waits for what they are computing
            for process in list((pool._processes or {}).values()):  # pyright: ignore[reportPrivateUsage]
                process.kill()
        pool.shutdown(wait=True, cancel_futures=True)
        del _tasks[number]


def _settle() -> None:
    """A copy computes with one core, leaves Ctrl-C to the process it was copied from, and ends with it. It keeps memory
    once it has it: to give large arrays back and fetch them again took a tenth of the time."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    end_with_parent(signal.SIGKILL)
    with contextlib.suppress(AttributeError, OSError):
        for limit in (-3, -1):  # glibc: M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
            ctypes.CDLL(None).mallopt(limit, 2**30)


def end_with_parent(how: int = signal.SIGTERM, parent: int | None = None) -> None:
    """Have this process end when the one that started it does, where the system can see to it (Linux).

    `parent` is the id of that one: it may be gone already, which the system does not tell.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(1, how)  # PR_SET_PDEATHSIG
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), how)


@contextlib.contextmanager
def uncollected() -> Generator[None]:
    """No search for cycles meanwhile: results of many small objects would have all of them searched again and again,
    which took a quarter of the time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _call(task: int, item: Any) -> Any:
    return _tasks[task](item)
