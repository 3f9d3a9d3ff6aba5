"""Checkpoints: numbers in a safetensors file, everything else in a JSON beside it, both checked by SHA-256.

Choices a reader could not guess:
- The JSON is written last and holds the checksum of the numbers and of itself: a checkpoint is there when its JSON is.
  Each file is written under another name, brought to the disk (fsync) and renamed, so a kill at any moment leaves the
  old checkpoint or the new one.
- A checkpoint that does not fit its checksums is named in a warning, and the one before it is taken.
- The two newest are kept, and milestones (`keep_every`).
- Loading executes no code: safetensors and JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from pathmerge.training.metrics import warn

FORMAT = "pathmerge checkpoint"
VERSION = 1
KEPT = 2


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A moment of a run."""

    examples: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    """Plain values."""

    def group(self, name: str) -> dict[str, Tensor]:
        """The tensors `name/...`, without that."""
        return {
            key.removeprefix(f"{name}/"): value for key, value in self.tensors.items() if key.startswith(f"{name}/")
        }


def save_checkpoint(folder: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any], *, milestone: bool) -> None:
    """Write the checkpoint of `state["examples"]`; raises OSError if the disk does not take it, the old ones stay."""
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{state['examples']:015d}"
    data = save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    _write(folder / f"{stem}.safetensors", data)
    values = {
        "format": FORMAT,
        "version": VERSION,
        "milestone": milestone,
        "sha256": hashlib.sha256(data).hexdigest(),
        "state": state,
    }
    text = json.dumps(values, allow_nan=True)
    signed = json.dumps({"checksum": hashlib.sha256(text.encode()).hexdigest(), "checkpoint": text})
    _write(folder / f"{stem}.json", signed.encode())
    _remove_old(folder, stem)


def _write(path: Path, data: bytes) -> None:
    """Write, bring to the disk, rename; what a failure leaves is removed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    with suppress(OSError):
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove_old(folder: Path, present: str) -> None:
    # Newer ones than the present are damaged: the run went back before them.
    for path in folder.glob("*.json"):
        if path.stem > present:
            with suppress(OSError):
                path.unlink()
    names = sorted(folder.glob("*.json"), reverse=True)
    for path in names[KEPT:]:
        with suppress(OSError, ValueError):
            if not _read_values(path)["milestone"]:
                path.unlink()
                path.with_suffix(".safetensors").unlink()
    for stray in [*folder.glob(".*.json.*"), *folder.glob(".*.safetensors.*")]:
        with suppress(OSError):
            stray.unlink()
    known = {path.stem for path in names}
    for path in folder.glob("*.safetensors"):
        if path.stem not in known:
            with suppress(OSError):
                path.unlink()


def list_checkpoints(folder: Path) -> list[Path]:
    """The JSON files of the checkpoints, oldest first; not yet checked."""
    return sorted(folder.glob("*.json"))


def load_latest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; none if there is none. Damaged ones are named in a warning."""
    found = list_checkpoints(folder)
    for path in reversed(found):
        try:
            return load_checkpoint(path)
        except ValueError as error:
            warn(f"{error}; going back to the one before")
    if found:
        raise ValueError(f"checkpoints={str(folder)!r}: all {len(found)} are damaged; remove them to start anew")
    return None


def load_checkpoint(path: Path) -> Checkpoint:
    """One checkpoint by its JSON file; ValueError if it is damaged."""
    from safetensors.torch import load

    name = f"checkpoint={str(path)!r}"
    try:
        values = _read_values(path)
        data = path.with_suffix(".safetensors").read_bytes()
    except OSError as error:
        raise ValueError(f"{name}: cannot be read ({error.strerror})") from None
    if hashlib.sha256(data).hexdigest() != values["sha256"]:
        raise ValueError(f"{name}: damaged, its numbers do not fit their checksum")
    return Checkpoint(examples=values["state"]["examples"], tensors=load(data), state=values["state"])


def _read_values(path: Path) -> dict[str, Any]:
    try:
        outer = json.loads(path.read_bytes())
        text = outer["checkpoint"]
        fine = hashlib.sha256(text.encode()).hexdigest() == outer["checksum"]
        values = json.loads(text) if fine else {}
    except (ValueError, TypeError, KeyError, AttributeError):
        fine, values = False, {}
    if not fine:
        raise ValueError(f"checkpoint={str(path)!r}: damaged, it does not fit its checksum")
    if values.get("format") != FORMAT or values.get("version") != VERSION:
        raise ValueError(
            f"checkpoint={str(path)!r}: version {values.get('version')!r}, this pathmerge reads version {VERSION}"
        )
    return values
