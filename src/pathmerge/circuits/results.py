"""A directory of circuits: one file per input, what they were made with, a summary. Made in any number of goes.

Choices a reader could not guess:
- `explain.json` is written first and says what the directory is for: model (by the hash of its weights), problems and
  settings. The same command finds what is done and goes on; another one is refused, and nothing is overwritten.
- A circuit file appears only when it is whole. One that cannot be read (damaged, another version) is named and refused:
  it may be someone's work.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from pathmerge.circuits.explain import explain_all, skipped_in, warm_up
from pathmerge.circuits.files import Circuit, load_circuit
from pathmerge.circuits.options import Options
from pathmerge.circuits.summary import summarise
from pathmerge.disk import read_json, write_json
from pathmerge.heldout import hold_out
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import Distribution

ABOUT, SUMMARY, SKIPPED = "explain.json", "summary.json", "skipped.json"
Kind = TypeVar("Kind")
FORMAT, VERSION = "pathmerge circuits", 1


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What is to be explained: so many held-out test problems of each distribution."""

    problems: tuple[Distribution, ...]
    count: int
    seed: int = 0

    @cached_property
    def batches(self) -> list[tuple[Distribution, Batch]]:
        """The problems of each difficulty; a distribution of several shares its count out."""
        found: list[tuple[Distribution, Batch]] = []
        for problem in self.problems:
            cells = hold_out([problem], self.count, seed=self.seed, split="test").cells
            left = self.count
            for i, cell in enumerate(cells):
                share = min(len(cell.batch), -(-left // (len(cells) - i)))
                left -= share
                if share:
                    found.append((cell.distribution, cell.batch.take(slice(0, share))))
        return found


def check_inputs(inputs: Inputs, options: Options) -> None:
    """Raise unless there is something to explain."""
    if all(skipped_in(batch, options) == len(batch) for _, batch in inputs.batches):
        raise ValueError("replacement='absent': skips all of these inputs, since every vertex id occurs in them")


def file_name(problem: Distribution, index: int) -> str:
    """What the files of one input are called: its difficulty and its number."""
    words = [problem.name]
    for field, letter in (("spokes", "K"), ("lookahead", "L")):
        value = getattr(problem, field, None)
        if value is not None:
            words.append(f"{letter}{value:02d}")
    return "-".join([*words, f"{index:04d}"])


def explain_into(
    folder: Path,
    model: Any,
    inputs: Inputs,
    options: Options,
    *,
    source: dict[str, Any] | None = None,
    threads: int = 2,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[Circuit], dict[str, Any]]:
    """Explain what is not there yet; returns all circuits and the summary, which is also written."""
    open_folder(folder, model, inputs, options)
    source = {**(source or {}), "weights": weights_hash(model)}
    known = read_json(folder / SKIPPED, list) if (folder / SKIPPED).exists() else []
    skipped: set[str] = {str(name) for name in known}
    circuits: list[Circuit] = []
    asked: set[str] = set()
    computed, seconds = 0, 0.0
    for problem, batch in inputs.batches:
        paths = [folder / f"{file_name(problem, i)}.json" for i in range(len(batch))]
        asked |= {path.name for path in paths}
        for first, last, there in _stretches([path.exists() or path.name in skipped for path in paths]):
            if there:
                made = [i for i in range(first, last) if paths[i].exists()]
                circuits += [_load(paths[i], batch, i, options, source["weights"]) for i in made]
                if progress is not None:
                    progress(last - first)
                continue
            warm_up()
            began = time.perf_counter()
            part = batch.take(slice(first, last))
            for path, circuit in zip(
                paths[first:last], explain_all(model, part, options, threads=threads, source=source), strict=True
            ):
                if circuit is None:
                    skipped.add(path.name)
                    write_json(folder / SKIPPED, sorted(skipped))
                else:
                    circuit.save(path)
                    circuits.append(circuit)
                if progress is not None:
                    progress(1)
            seconds += time.perf_counter() - began
            computed += last - first
    if computed:
        pace: float | None = seconds / computed
    else:
        pace = _pace(folder / SUMMARY)
    summary = summarise(circuits, skipped=len(skipped & asked), seconds_per_input=pace)
    write_json(folder / SUMMARY, summary)
    return circuits, summary


def _load(path: Path, batch: Batch, index: int, options: Options, weights: str) -> Circuit:
    """The circuit of one input of a batch; another input's, model's or method's is refused."""
    circuit = load_circuit(path)
    settings = [field.name for field in fields(Options) if hasattr(circuit.method, field.name)]
    for what, there, asked in (
        ("of another input", circuit.input.tokens, tuple(batch.tokens[index].tolist())),
        ("of another model", circuit.model.get("weights", weights), weights),
        *((f"made with another {name}", getattr(circuit.method, name), getattr(options, name)) for name in settings),
    ):
        if there != asked:
            raise ValueError(f"path={str(path)!r}: is a circuit {what}; remove it, or choose another folder")
    return circuit


def _pace(summary: Path) -> float | None:
    """What an earlier summary says that an input took; a damaged one, which is made anew, says nothing."""
    try:
        found = read_json(summary, dict).get("seconds_per_input")
    except ValueError:
        return None
    return float(found) if isinstance(found, int | float) else None


def _stretches(flags: Sequence[bool]) -> list[tuple[int, int, bool]]:
    """Stretches of equal flags: first, end, flag."""
    edges = [0, *(i for i in range(1, len(flags)) if flags[i] != flags[i - 1]), len(flags)]
    return [(a, b, flags[a]) for a, b in pairwise(edges) if a < b]


def open_folder(folder: Path, model: Any, inputs: Inputs, options: Options) -> None:
    """Make the folder, or check that what is in it was made for the same thing."""
    about = {
        "format": FORMAT,
        "version": VERSION,
        "weights": weights_hash(model),
        "loops": getattr(getattr(model, "config", None), "loops", 1),
        "problems": [problem.to_dict() for problem in inputs.problems],
        "seed": inputs.seed,
        "options": asdict(options),
    }
    path = folder / ABOUT
    if path.exists():
        try:
            found = {"loops": 1, **read_json(path, dict)}
        except ValueError:
            raise ValueError(
                f"out={str(folder)!r}: its {ABOUT}, which says what the circuits were made with, cannot be read; "
                "choose another folder"
            ) from None
        for name, value in about.items():
            there = found.get(name)
            if there != value:
                shown = _difference(name, there, value)
                raise ValueError(f"out={str(folder)!r}: holds circuits made with {shown}; choose another folder")
        return
    try:
        if folder.is_dir() and any(not path.name.startswith(".pathmerge-") for path in folder.iterdir()):
            raise ValueError(f"out={str(folder)!r}: is not empty and has no {ABOUT}; choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"out={str(folder)!r}: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise ValueError(f"out={str(folder)!r}: cannot be written to")
    write_json(path, about)


def _difference(name: str, there: Any, asked: Any) -> str:
    if isinstance(there, dict) and isinstance(asked, dict):
        for key in {**asked, **there}:
            if there.get(key) != asked.get(key):
                return f"{key}={there.get(key)!r}, not {asked.get(key)!r}"
    if name in ("weights", "problems"):
        return f"other {name}"
    return f"{name}={there!r}, not {asked!r}"


def weights_hash(model: Any) -> str:
    """What identifies a model: its weights, or those of the modules that it holds, or else its tensors (beside modules,
    they may be notes that change); its class where it holds none."""
    weights = {
        f"{name}{inner}": value
        for name, module in _held(model, torch.nn.Module)
        for inner, value in module.state_dict().items()
    } or dict(_held(model, torch.Tensor))
    if not weights:
        return type(model).__name__
    digest = hashlib.sha256()
    for name, value in weights.items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _held(
    value: Any, kind: type[Kind], name: str = "", seen: frozenset[int] = frozenset()
) -> Iterator[tuple[str, Kind]]:
    """All of this kind that an object is or holds, in attributes, lists and dictionaries, by where it stands."""
    if isinstance(value, kind):
        yield name, value
        return
    if id(value) in seen or isinstance(value, torch.Tensor | np.ndarray | type):
        return
    parts = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
    if isinstance(value, list | tuple):
        parts = dict(enumerate(value))
    for part, inner in parts.items():
        yield from _held(inner, kind, f"{name}{part}.", seen | {id(value)})
