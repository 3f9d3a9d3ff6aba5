"""The metrics of a run: a file of JSON lines, cut back to the checkpoint when the run is resumed.

Choices a reader could not guess:
- Two runs of one config write the same lines but for TIME_FIELDS.
- Strict JSON. A float is written with the digits that bring back the same float; what JSON has no number for is written
  as the text "NaN", "Infinity" or "-Infinity" (null would not say which), and `read_metrics` makes it a float again.
- On a full disk what does not fit waits in memory and is written, in order, when there is room. A part of a line that
  did fit is taken back first. A checkpoint written meanwhile knows only the whole lines on disk.
- A line counts when its end is there. What a crash left of a last line is cut off when the file is opened again.
"""

from __future__ import annotations

import errno
import json
import math
import os
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

TIME_FIELDS = frozenset({"seconds", "examples_per_second"})
_NOT_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def warn(text: str) -> None:
    """One line on stderr; a terminal that is gone is no reason to stop."""
    with suppress(OSError):
        print(f"warning: {' '.join(text.split())}", file=sys.stderr, flush=True)


class MetricsFile:
    """An append-only file of lines; a directory that cannot be written to is a ValueError, a full disk is a warning."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._waiting: deque[bytes] = deque()
        self._full = False
        self._torn = False
        try:
            # Without a buffer: what was written is on its way to the disk, and a full disk is known at once.
            self._file = self.path.open("ab", buffering=0)
            self._length = self._synced = _end_of_whole_lines(self.path)
            self._file.truncate(self._length)
        except OSError as error:
            raise ValueError(f"metrics={str(path)!r}: {error.strerror}") from None

    @classmethod
    def resume(cls, path: Path | str, length: int) -> MetricsFile:
        """Open the file as it was at a checkpoint: the lines after `length`, what `sync` returned then, are cut."""
        path = Path(path)
        try:
            size = path.stat().st_size if path.exists() else 0
            if size < length:
                raise ValueError(
                    f"metrics={str(path)!r}: damaged, it has {size} bytes and the checkpoint knows of {length}"
                )
            if length > 0:
                with path.open("rb") as file:
                    file.seek(length - 1)
                    if file.read(1) != b"\n":
                        raise ValueError(f"metrics={str(path)!r}: damaged, no line ends at byte {length}")
            if size > length:
                os.truncate(path, length)
        except OSError as error:
            raise ValueError(f"metrics={str(path)!r}: {error.strerror}") from None
        return cls(path)

    @property
    def length(self) -> int:
        """The bytes of the lines in the file, without those that wait for room."""
        return self._length

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line of plain values: numbers, text, truth values, None, and lists and mappings of them."""
        self._waiting.append(f"{json.dumps(_strict(line), allow_nan=False)}\n".encode())
        self._write_waiting()

    def _write_waiting(self) -> None:
        if not self._waiting:
            return
        try:
            while self._waiting:
                self._append(self._waiting[0])
                self._waiting.popleft()
            self._full = False
        except OSError as error:
            self._no_room(error, "metrics are kept in memory until there is room")

    def _append(self, data: bytes) -> None:
        if self._torn:
            self._file.truncate(self._length)
        self._torn = True
        rest = data
        while rest:
            rest = rest[self._file.write(rest) :]
        self._torn = False
        self._length += len(data)

    def _no_room(self, error: OSError, meanwhile: str) -> None:
        """Warn of a full disk, once until there is room; any other error is raised."""
        if error.errno not in _NO_ROOM:
            raise error
        if not self._full:
            warn(f"{self.path}: {error.strerror}; {meanwhile}")
        self._full = True

    def sync(self) -> int:
        """Bring every line to the disk itself; the length in bytes, which a checkpoint keeps for `resume`."""
        self._write_waiting()
        try:
            os.fsync(self._file.fileno())
            self._synced = self._length
        except OSError as error:
            self._no_room(error, "a checkpoint written now knows only the metrics up to the one before")
        return self._synced

    def close(self) -> None:
        """A last attempt at what waits for room, then close."""
        if self._file.closed:
            return
        try:
            self._write_waiting()
            if self._waiting:
                warn(f"{self.path}: the disk is still full; the last {len(self._waiting)} lines are lost")
        finally:
            self._file.close()

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(path: Path | str) -> list[dict[str, Any]]:
    """The lines of a file, also of one still written to: a last line without its end is left out."""
    name = f"metrics={str(path)!r}"
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{name}: {error.strerror}") from None
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not isinstance(line, dict):
            raise ValueError(f"{name}: line {number} is damaged, it is not a JSON object")
        lines.append(_floats(line))
    return lines


def _end_of_whole_lines(path: Path) -> int:
    """The byte after the last end of a line, looked for from the end of the file."""
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        while position > 0:
            start = max(0, position - 2**16)
            file.seek(start)
            found = file.read(position - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            position = start
    return 0


def _strict(value: Any) -> Any:
    """The value without floats that JSON has no number for."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _strict(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(inner) for inner in value]
    return value


def _floats(value: Any) -> Any:
    """The opposite of `_strict`."""
    if isinstance(value, str):
        return _NOT_NUMBERS.get(value, value)
    if isinstance(value, dict):
        return {key: _floats(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_floats(inner) for inner in value]
    return value
