"""What backends on other machines share: how an order is carried out there, and how its file is seen here.

Choices a reader could not guess:
- A machine that is lost costs a task no try: it is sent again up to `LOSSES` times. A task whose own process is killed
  (out of memory, most often) is tried `TRIES` times, as on this machine.
- Shared storage is cached. A file that a task has just written there may be seen here seconds later; until then it
  has not failed.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from pathmerge.plugins import VARIABLE
from pathmerge.studies.perform import STOPPED, Order
from pathmerge.studies.results import ABOUT, Folder
from pathmerge.studies.runner import POLL, TRIES, Event, how_killed, last_words, log_of, start, stop

LOSSES = 20
LANDING_WAIT = 60.0
"""Seconds until a file that was written on another machine must be seen here."""


@dataclass(frozen=True, kw_only=True)
class News:
    """What a task says of itself from where it runs."""

    kind: str
    """began; ended: its file is written; failed: it wrote none; died: its process was killed; lost: its machine was."""
    says: str = ""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An order on its way."""

    order: Order
    cores: int
    deaths: int = 0
    losses: int = 0

    def again(self, news: News) -> Attempt | None:
        """The next attempt after this one died or was lost; none if there were enough."""
        if news.kind == "lost":
            return replace(self, losses=self.losses + 1) if self.losses + 1 < LOSSES else None
        return replace(self, deaths=self.deaths + 1) if self.deaths + 1 < TRIES else None


def carry_out(order: Order, place: str, plugins: str, end: str | None = None) -> News:
    """Perform an order in a child of this process, on whatever machine this is.

    `place` is the folder of the study. An exception in between, or a file called `end` (the task is taken back), ends
    the child with a checkpoint.
    """
    host = socket.gethostname()
    if not (Path(place) / ABOUT).is_file():
        return News(kind="failed", says=f"out={place!r}: is not there on {host}; all machines must share it")
    process = start(order, log_of(Path(place), order.task), **{VARIABLE: plugins})
    try:
        while process.poll() is None and not (end and Path(end).exists()):
            time.sleep(POLL)  # short waits: a long one could not be interrupted
    finally:
        stop([process])
    if process.returncode < 0 or process.returncode == STOPPED:
        return News(kind="died", says=f"{how_killed(process.returncode)} on {host}")
    words = last_words(Path(place), order.task)
    return News(kind="ended" if process.returncode in (0, 1) else "failed", says=words)


@dataclass(frozen=True, kw_only=True)
class Landing:
    """Tasks that have ended elsewhere, until their files are seen here."""

    folder: Folder
    deadlines: dict[str, float] = field(default_factory=dict[str, float])

    def expect(self, task: str) -> None:
        self.deadlines[task] = time.monotonic() + LANDING_WAIT

    def landed(self) -> Iterator[Event]:
        """Those that are here, and those that will not come."""
        if self.deadlines:
            os.listdir(self.folder.file_of("").parent)  # asks the storage itself
        for task, deadline in list(self.deadlines.items()):
            if self.folder.outcome(task) is not None or time.monotonic() > deadline:
                del self.deadlines[task]
                yield Event(task=task, kind="ended", says="its file did not arrive")
