"""What is written, whole or not at all, and read back with one clear line where it cannot be.

A file appears under its name only when it is complete: it is written beside it and then renamed.
"""

from __future__ import annotations

import csv
import io
import json
import os
import secrets
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def check_output(field: str, path: Path, suffixes: tuple[str, ...]) -> None:
    """Raise, before any work is done, if a file could not be written there; `field` is what the user called it."""
    if path.suffix not in suffixes:
        raise ValueError(f"{field}={str(path)!r}: the name must end in one of {', '.join(suffixes)}")
    try:
        if path.exists() and not path.is_file():
            raise ValueError(f"{field}={str(path)!r}: is there and is not a file")
    except OSError as error:
        raise ValueError(f"{field}={str(path)!r}: {error.strerror}") from None
    check_folder(field, path.parent)


def check_folder(field: str, folder: Path) -> None:
    """Raise if nothing can be written into this directory."""
    if not folder.is_dir():
        raise ValueError(f"{field}: no such directory: {str(folder)!r}")
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{field}: the directory {str(folder)!r} cannot be written to")


@contextmanager
def written_whole(path: Path, field: str = "out") -> Generator[Path]:
    """Give a temporary name beside `path`; rename it when the block ends well, remove it otherwise.

    A link is followed: what it points to is replaced, not the link.
    """
    place = path.resolve()
    temporary = place.parent / f".pathmerge-{secrets.token_hex(8)}{place.suffix}"
    try:
        yield temporary
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, place)
    except OSError as error:
        raise ValueError(f"{field}={str(path)!r}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def read_json(path: Path, kind: type[Any] = dict, field: str = "out") -> Any:
    """What a file of a folder of ours holds; one line if it cannot be read or is damaged."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{field}: {str(path)!r}: {error.strerror}") from None
    except ValueError:
        values = None
    if not isinstance(values, kind):
        raise ValueError(f"{field}: {str(path)!r} is damaged; remove it, or choose another folder")
    return values


def write_json(path: Path, values: Any, field: str = "out") -> None:
    """Write it whole or not at all."""
    with written_whole(path, field) as temporary:
        temporary.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """A table as CSV; its columns are those of the first row unless given, and a value that a row has not is empty."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]) if columns is None else columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> None:
    """Write a table whole or not at all."""
    with written_whole(path) as temporary:
        temporary.write_text(csv_text(rows, columns), encoding="utf-8", newline="")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
