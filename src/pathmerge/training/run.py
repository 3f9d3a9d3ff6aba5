"""A run is a directory: config.toml, versions.json, metrics.jsonl, checkpoints/ and, in the end, model.safetensors.

Choices a reader could not guess:
- Its name ends in the hash of the config, so the same config finds the same directory: it resumes, or is finished.
- A lock (held by the living process, gone with it) keeps two processes from training the same run.
"""

from __future__ import annotations

import errno
import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pathmerge.errors import HeldError
from pathmerge.training.config import RunConfig, load_config, to_toml
from pathmerge.training.metrics import read_metrics
from pathmerge.version import __version__

if TYPE_CHECKING:
    from pathmerge.models.transformer import Transformer

CONFIG, METRICS, CHECKPOINTS, WEIGHTS, VERSIONS = (
    "config.toml",
    "metrics.jsonl",
    "checkpoints",
    "model.safetensors",
    "versions.json",
)

LINES = {
    "train": {"examples", "flops", "loss", "accuracy", "by_difficulty", "stage", "seconds"},
    "validation": {"examples", "loss", "accuracy", "by_difficulty", "loss_by_difficulty", "converged_each"},
    "stage": {"examples", "stage"},
    "end": {"examples", "flops", "reason", "seconds", "published_at"},
}
"""The lines of a run's metrics, and what each kind has at least."""

ENDS = {
    "examples": "all examples seen",
    "decay": "the rate has fallen to its end",
    "minutes": "the time is up",
    "converged": "converged",
    "converged_each": "converged at each difficulty",
}
"""Why a run ended, in words."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run on disk, finished or not, with its model as far as it was trained."""

    directory: Path
    config: RunConfig
    model: Transformer
    examples: int
    finished: str | None
    """Why it ended: "examples", "converged", "converged_each", "minutes" or "decay"; none if it has not."""

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return metrics_of(self.directory)


def metrics_of(directory: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics; an error of one line if they are not of a run."""
    lines = read_metrics(directory / METRICS)
    for number, line in enumerate(lines, start=1):
        missing = LINES.get(str(line.get("kind")), {"kind"}) - line.keys()
        if missing or line.get("kind") not in LINES:
            what = ", ".join(sorted(missing)) or f"a kind other than {line['kind']!r}"
            raise ValueError(f"metrics={str(directory / METRICS)!r}: line {number} is not of a run, it lacks {what}")
    return lines


def load_run(directory: Path | str, field: str = "run", *, checkpoint: Path | None = None) -> Run:
    """A run from its directory, with the weights of the newest whole checkpoint, or of one given by its JSON file."""
    from pathmerge.models.weights import fill
    from pathmerge.training.checkpoint import load_checkpoint, load_latest

    directory = Path(directory)
    if not (directory / CONFIG).is_file():
        raise ValueError(f"{field}={str(directory)!r}: not a run: it has no {CONFIG}")
    config = load_config(directory / CONFIG)
    found = load_latest(directory / CHECKPOINTS) if checkpoint is None else load_checkpoint(checkpoint)
    if found is None:
        raise ValueError(f"{field}={str(directory)!r}: has no checkpoint yet")
    model = config.model.build(config.seed)
    fill(model, found.group("model"), f"{field}={str(directory)!r}")
    return Run(
        directory=directory,
        config=config,
        model=model,
        examples=found.examples,
        finished=found.state["finished"],
    )


def open_directory(out: Path, config: RunConfig) -> Path:
    """The directory of this config under `out`, made and filled if it is new, checked if it is not."""
    directory = out / config.run_name
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK):
            raise ValueError(f"out: the directory {str(directory)!r} cannot be written to")
        path = directory / CONFIG
        if path.exists():
            check_config(directory, config)
        else:
            from pathmerge.disk import written_whole

            with written_whole(directory / VERSIONS, "out") as temporary:
                temporary.write_text(json.dumps(versions(), indent=1) + "\n")
            with written_whole(path, "out") as temporary:
                temporary.write_text(to_toml(config), encoding="utf-8")
    except OSError as error:
        raise ValueError(f"out={str(out)!r}: {error.strerror}: {error.filename}") from None
    return directory


def check_config(directory: Path, config: RunConfig) -> None:
    """Raise unless the run in this directory has exactly this config; the first field that differs is named."""
    found = load_config(directory / CONFIG)
    if found.digest == config.digest:
        return
    ours, theirs = config.to_dict(), found.to_dict()
    for table, value in theirs.items():
        if table == "recipe" or value == ours[table]:
            continue
        if isinstance(value, dict):
            for key in {**value, **ours[table]}:
                old, new = value.get(key), ours[table].get(key)
                if old != new:
                    raise ValueError(f"{table}.{key}={new!r}: the run in {str(directory)!r} has {old!r}, and keeps it")
        raise ValueError(f"{table}={ours[table]!r}: the run in {str(directory)!r} has {value!r}, and keeps it")


def versions() -> dict[str, str]:
    """What a run was made with."""
    import numba
    import numpy
    import torch

    return {
        "pathmerge": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "numba": numba.__version__,
        "machine": platform.platform(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "cores": str(os.cpu_count()),
    }


def read_versions(directory: Path) -> dict[str, str]:
    """What the run in this directory was begun with; empty if that was not kept."""
    try:
        found = json.loads((directory / VERSIONS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(name): str(version) for name, version in found.items()} if isinstance(found, dict) else {}


def lock(directory: Path) -> IO[str]:
    """Hold the run for this process; the lock goes when the returned file is closed or the process ends."""
    import fcntl

    file = (directory / ".lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if error.errno not in (errno.EAGAIN, errno.EACCES):  # some shared file systems know no locks
            raise ValueError(f"run={str(directory)!r}: cannot be locked: {error.strerror}") from None
        raise HeldError(f"run={str(directory)!r}: another process is training it") from None
    return file
