"""Problem files: NPZ, Parquet or JSONL, with a header that says how to make them again.

Choices a reader could not guess:
- The header is one JSON object: format, version, the full config, the key, the first example and the count. It is the
  array `header` of an NPZ, the schema metadata `pathmerge` of a Parquet file, the first line of a JSONL file.
- Small integer types on disk, int64 in memory. In JSONL `answers` are the vertices themselves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pathmerge.disk import check_output, written_whole
from pathmerge.distributions import distribution_from_dict
from pathmerge.encodings.language import ATOM_WIDTH
from pathmerge.errors import check_range
from pathmerge.heldout import HeldOut
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import Distribution
from pathmerge.rng import MAX_INDEX, Key

FORMAT = "pathmerge problems"
VERSION = 1
SUFFIXES = (".npz", ".parquet", ".jsonl")
_TYPES = {"answers": np.bool_, "identity": np.uint64, "redraws": np.int32}


@dataclass(frozen=True, kw_only=True)
class ProblemFile:
    """A problem file in memory: its header, and its columns by name."""

    path: Path
    header: dict[str, Any]
    distribution: Distribution
    key: Key
    first: int
    columns: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.columns["label"])

    @property
    def held_out(self) -> HeldOut:
        """Its problems as a held-out set."""
        return HeldOut.of(self.columns["identity"])


def digest(held_out: HeldOut) -> str:
    """What identifies a held-out set."""
    return hashlib.sha256(held_out.identities.astype("<u8").tobytes()).hexdigest()[:16]


def make_header(batch: Batch) -> dict[str, Any]:
    """Everything needed to draw the batch again, and to read it."""
    from pathmerge import __version__

    layout, held_out = batch.distribution.layout, batch.held_out
    return {
        "format": FORMAT,
        "version": VERSION,
        "pathmerge": __version__,
        "distribution": batch.distribution.to_dict(),
        "key": {"seed": batch.key.seed, "split": batch.key.split, "stream": batch.key.stream},
        "first": batch.first,
        "count": len(batch),
        "held_out": None if held_out is None else {"problems": len(held_out), "digest": digest(held_out)},
        "tokens": {"path": layout.path, "edge": layout.edge, "pad": layout.pad, "query": layout.query}
        if batch.distribution.name != "language"
        else "words of pathmerge.encodings.language",
    }


def write_problems(batch: Batch, path: Path | str) -> None:
    """Write a batch; the suffix of `path` chooses the format."""
    path = Path(path)
    check_output("out", path, SUFFIXES)
    header = json.dumps(make_header(batch))
    columns = {name: column.astype(_TYPES.get(name, np.int16)) for name, column in batch.to_columns().items()}
    with written_whole(path) as temporary:
        match path.suffix:
            case ".npz":
                np.savez_compressed(temporary, header=np.array(header), allow_pickle=False, **columns)
            case ".parquet":
                _write_parquet(temporary, header, columns)
            case _:
                _write_jsonl(temporary, header, columns)


def _write_parquet(path: Path, header: str, columns: dict[str, np.ndarray]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = [
        pa.FixedSizeListArray.from_arrays(pa.array(column.reshape(-1)), column.shape[1])
        if column.ndim == 2
        else pa.array(column)
        for column in columns.values()
    ]
    table = pa.table(dict(zip(columns, arrays, strict=True)))
    pq.write_table(table.replace_schema_metadata({"pathmerge": header}), path)


def _write_jsonl(path: Path, header: str, columns: dict[str, np.ndarray]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps({"header": json.loads(header)}) + "\n")
        for row in range(len(columns["label"])):
            values = {
                name: np.flatnonzero(column[row]).tolist() if name == "answers" else column[row].tolist()
                for name, column in columns.items()
            }
            file.write(json.dumps(values) + "\n")


def read_problems(path: Path | str, field: str = "file") -> ProblemFile:
    """Read a problem file and check that it is one: format, version, columns and shapes; not its content."""
    path = Path(path)
    name = f"{field}={str(path)!r}"
    if not path.is_file():
        raise ValueError(f"{name}: no such file")
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{name}: the name must end in one of {', '.join(SUFFIXES)}")
    readers: dict[str, Callable[[Path], tuple[Any, dict[str, np.ndarray]]]] = {
        ".npz": _read_npz,
        ".parquet": _read_parquet,
        ".jsonl": _read_jsonl,
    }
    try:
        header, columns = readers[path.suffix](path)
    except Exception as error:  # whatever zip, zlib, numpy, arrow or json make of foreign bytes
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{name}: cannot be read as a problem file, foreign or damaged ({reason})") from None
    try:
        return _checked(path, header, columns)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _read_npz(path: Path) -> tuple[Any, dict[str, np.ndarray]]:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
        return json.loads(str(data["header"])), {name: data[name] for name in data.files if name != "header"}


def _read_parquet(path: Path) -> tuple[Any, dict[str, np.ndarray]]:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    header = json.loads((table.schema.metadata or {})[b"pathmerge"])
    columns: dict[str, np.ndarray] = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if hasattr(column, "flatten") and hasattr(column.type, "list_size"):
            columns[name] = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), column.type.list_size)
        else:
            columns[name] = column.to_numpy(zero_copy_only=False)
    return header, columns


def _read_jsonl(path: Path) -> tuple[Any, dict[str, np.ndarray]]:
    with path.open(encoding="utf-8") as file:
        header = json.loads(file.readline())["header"]
        rows = [json.loads(line) for line in file]
    distribution = distribution_from_dict(header["distribution"])
    columns: dict[str, np.ndarray] = {}
    for name, shape in _column_shapes(distribution, len(rows)).items():
        values = [row[name] for row in rows]
        if name == "answers":
            values = [_mark(row, distribution.layout.vocabulary_size) for row in values]
        _only_whole_numbers(name, values)
        kind = _TYPES.get(name, np.int64)
        columns[name] = np.array(values, kind) if rows else np.zeros(shape, kind)
    return header, columns


def _mark(vertices: Any, width: int) -> list[bool]:
    """A list of vertices as truth values."""
    if not isinstance(vertices, list) or len(set(vertices)) != len(vertices):
        raise ValueError(f"answers={vertices!r}: must be a list of different vertices")
    marks = [False] * width
    for vertex in vertices:
        marks[check_range("answers", vertex, 1, width - 1)] = True
    return marks


def _only_whole_numbers(name: str, values: Any) -> None:
    if isinstance(values, list):
        for value in values:
            _only_whole_numbers(name, value)
    elif not isinstance(values, int):
        raise ValueError(f"{name}={values!r}: must be a whole number")


def _column_shapes(distribution: Distribution, count: int) -> dict[str, tuple[int, ...]]:
    """The columns that a file of this many problems must have."""
    single = ("label", *distribution.columns, "start", "goal", "current", "identity", "redraws")
    shapes: dict[str, tuple[int, ...]] = {
        "tokens": (count, distribution.width),
        "answers": (count, distribution.layout.vocabulary_size),
        **dict.fromkeys(single, (count,)),
    }
    if distribution.name == "language":
        shapes |= {"atoms": (count, distribution.layout.max_vertices + 1), "label_tokens": (count, ATOM_WIDTH)}
    return shapes


def _checked(path: Path, header: Any, columns: dict[str, np.ndarray]) -> ProblemFile:
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError(f"not a problem file: the header's format must be {FORMAT!r}")
    if header.get("version") is True or header.get("version") != VERSION:
        raise ValueError(f"version={header.get('version')!r}: this pathmerge reads version {VERSION}")
    try:
        distribution = distribution_from_dict(header["distribution"])
        key = Key(seed=header["key"]["seed"], split=header["key"]["split"], stream=header["key"]["stream"])
        first = check_range("first", header["first"], 0, MAX_INDEX)
        count = check_range("count", header["count"], 0, MAX_INDEX)
        held_out = header["held_out"]
        if held_out is not None and not isinstance(held_out["digest"], str):
            raise TypeError("held_out has no digest")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the header is damaged: {error}") from None
    for name, shape in _column_shapes(distribution, count).items():
        if name not in columns:
            raise ValueError(f"the column {name!r} is missing")
        if not isinstance(columns[name], np.ndarray) or columns[name].dtype.kind not in "biu":
            raise ValueError(f"the column {name!r} must hold whole numbers")
        if columns[name].shape != shape:
            raise ValueError(f"the column {name!r} has shape {columns[name].shape}, the header says {shape}")
    return ProblemFile(path=path, header=header, distribution=distribution, key=key, first=first, columns=columns)
