"""Ctrl-C, SIGTERM and SIGHUP as wishes: a run that is asked to stop does so after the present step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def wishes_to_stop() -> Generator[list[int]]:
    """A list that gets an entry when the process is asked to stop; asked twice, it stops at once."""
    wishes: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield wishes
        return

    def note(number: int, frame: FrameType | None) -> None:
        if wishes:
            raise KeyboardInterrupt
        wishes.append(number)

    names = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, note) for number in names}
    try:
        yield wishes
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
