"""A circuit as a file: typed, versioned JSON, one schema.

Choices a reader could not guess:
- Rows are named by their position in the input, layers are counted from 0; `sets` has one entry more than there are
  layers: before each, and after the last.
- What does not depend on how strictly one reads (importance, features, direction) stands in the operation; what does
  (which are kept, the sets, explained, trust) in one `Reading` each.
- In a screened result `operations` are those that were candidates and turned out important; in an exact one, all
  important ones, those too that are neither merge nor copy.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pathmerge.circuits.coherent import check_coherent
from pathmerge.circuits.options import Mode as Mode
from pathmerge.circuits.options import SetRule
from pathmerge.disk import written_whole

FORMAT = "pathmerge circuit"
VERSION = 1

Kind = Literal["token", "position", "copy", "other"]
Direction = Literal["forward", "backward", "same", "across", "none"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the input that is not padding."""

    position: int
    text: str
    """What stands there: a vertex id, EDGE, QUERY, PATH, or for edge tokens "u→v"."""
    vertices: tuple[int, ...]
    """The vertices it holds; the first is the one it stands for."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """The problem and where it comes from."""

    tokens: tuple[int, ...]
    """The symbolic tokens, padding included."""
    edges: tuple[tuple[int, int], ...]
    start: int
    goal: int
    answers: tuple[int, ...]
    lookahead: int
    rows: tuple[Row, ...]
    problem: dict[str, Any]
    """The distribution it was drawn from."""
    key: dict[str, Any]
    """Seed, split, stream and index: draws the same input again."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """How the circuit was found."""

    mode: Mode
    alpha: float
    kappa1: float
    kappa2: float
    sets: SetRule
    substitute: int
    """The token that stood in for perturbed vertices: an id that does not occur, or 0 where all do."""


class Feature(NamedTuple):
    """A feature of the input that an operation depends on, and how much perturbing it changes the product q·k.

    (A circuit can have ten thousand, and thousands of operations: named tuples are made in a tenth of the time of
    dataclasses.)
    """

    kind: Literal["vertex", "position"]
    value: int
    change: float


class Operation(NamedTuple):
    """An important attention operation: row `target` reads row `source`."""

    layer: int
    head: int
    target: int
    source: int
    weight: float
    """Its attention weight."""
    by: tuple[Literal["zero", "maximum"], ...]
    """The perturbations under which it is important."""
    drop: tuple[float | None, float | None]
    """The fall of the prediction's logit under each perturbation (zero, maximum); none: not measured (screened)."""
    change: tuple[float | None, float | None]
    """The largest change of the product of an important last-layer operation, likewise."""
    target_features: tuple[Feature, ...]
    source_features: tuple[Feature, ...]
    kind: Kind
    matched: tuple[int, ...]
    """The vertices by which it matches (token), or whose two ends it joins (position)."""
    direction: Direction
    distance: int | None
    """Steps between the vertices of its rows, in its direction."""


@dataclass(frozen=True, kw_only=True)
class Trust:
    """Whether the circuit is what the model uses; each beside the same of a random circuit of equal size per layer."""

    sufficient: bool
    """The prediction stays with everything outside the circuit masked."""
    random_sufficient: bool
    complete: bool
    """The prediction stays with the circuit masked (false is good)."""
    random_complete: bool
    minimal: float | None
    """The share of kept operations whose removal from the bare circuit costs more than α; none if there are none."""
    random_minimal: float | None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The circuit under one reading of the rules; numbers refer to `Circuit.operations`."""

    explained: bool
    links: tuple[int, ...]
    """Operations that carry their source's set over to their target."""
    kept: tuple[int, ...]
    """Those of them that lead on to the last row: the circuit."""
    maximal: tuple[int, ...]
    """Kept merges of the largest sets there can be at that layer."""
    maximal_vertex: tuple[int, ...] | None
    """Kept merges of sets no smaller than those of other rows of the same vertex; none in a screened result, which does
    not know the other rows' sets."""
    ranked: tuple[int, ...]
    """Kept merges, forward or backward: those of which `maximal` can be said."""
    sets: tuple[tuple[tuple[int, ...], ...], ...]
    """The vertices in each row's set: before each layer and after the last, in the order of `Input.rows`."""
    position_sets: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """The positions in each row's set, likewise; none where the model has no position embeddings."""
    trust: Trust | None


@dataclass(frozen=True, kw_only=True)
class Circuit:
    """What a model computes on one input, as far as the method sees it."""

    input: Input
    model: dict[str, Any]
    """What was explained: its kind, layers, heads, and where it comes from."""
    prediction: int
    logit: float
    correct: bool
    method: Method
    operations: tuple[Operation, ...]
    strict: Reading
    """SPEC's reading: an operation counts if all features it depends on are contained in its rows' sets."""
    lenient: Reading
    """The published code's reading: dependencies beyond those that match do not matter."""
    connected: bool | None
    """Whether important operations of any kind connect a whole start→goal path with the answer; none: not known, the
    result is screened."""
    passes: int
    """Perturbed passes that were computed."""
    audited: int
    """Screened: how many operations, drawn among those not found important, were measured exactly after all."""
    missed: int
    """How many of these would be kept: the screen should not have left them out."""
    made_with: dict[str, str]

    @classmethod
    def later(cls, make: Callable[[str], Any]) -> Circuit:
        """A circuit of which `make` gives each field, by its name, when it is first asked for: it is some thousand
        small objects, and of many circuits only the verdict is looked at."""
        waiting = cls.__new__(cls)
        waiting.__dict__["_make"] = make
        return waiting

    def __getattr__(self, name: str) -> Any:
        make, names = self.__dict__.get("_make"), type(self).__dataclass_fields__
        if make is None or name not in names:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        value = self.__dict__[name] = make(name)
        if names.keys() <= self.__dict__.keys():
            self.__dict__.pop("_make", None)  # and what it is made from
        return value

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    def explained(self) -> bool:
        """Whether exponential path-merging explains the prediction, strictly."""
        return self.strict.explained

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **_plain(self)}

    def save(self, path: Path | str) -> None:
        """Write the circuit as JSON; the file appears only when it is whole."""
        path = Path(path)
        if path.suffix != ".json":
            raise ValueError(f"path={str(path)!r}: the name must end in .json")
        with written_whole(path, "path") as temporary:
            temporary.write_text(_text(self) + "\n", encoding="utf-8")


def load_circuit(path: Path | str) -> Circuit:
    """Read what `Circuit.save` wrote."""
    path = Path(path)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"path={str(path)!r}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ValueError(f"path={str(path)!r}: not JSON, or cut off; it must be a whole circuit file") from None
    try:
        return circuit_from_dict(values)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"path={str(path)!r}: {error}") from None


def circuit_from_dict(values: Any) -> Circuit:
    """The inverse of `Circuit.to_dict`; another format or version, missing, unknown or ill-typed fields and parts that
    contradict each other are errors."""
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise ValueError(f"not a {FORMAT}")
    if type(values.get("version")) is not int or values["version"] != VERSION:
        raise ValueError(f"version={values.get('version')!r}: this program reads version {VERSION}")
    rest = {key: value for key, value in values.items() if key not in ("format", "version")}
    circuit: Circuit = _read(Circuit, rest, "circuit")
    check_coherent(circuit)
    return circuit


def _plain(value: Any) -> Any:
    """Plain JSON of a field. A circuit has ten thousand and more, so what is commonest comes first, and a tuple that
    begins with a plain value holds nothing else."""
    kind = type(value)
    if kind in _SIMPLE:
        return value
    if kind is tuple:
        return list(value) if not value or type(value[0]) in _SIMPLE else [_plain(item) for item in value]
    if kind is Feature:
        return dict(zip(Feature._fields, value, strict=True))
    if kind is Operation:
        return {name: _plain(item) for name, item in zip(Operation._fields, value, strict=True)}
    return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}


def _text(circuit: Circuit) -> str:
    """The JSON of `Circuit.to_dict`. Nearly all of it are operations; put together by hand it takes a third of the time
    (numbers and words of this module only, so nothing has to be escaped)."""
    parts: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    parts |= {field.name: getattr(circuit, field.name) for field in dataclasses.fields(circuit)}
    operations = f"[{','.join(map(_operation_text, circuit.operations))}]"
    if "nan" in operations or "inf" in operations:
        raise ValueError("circuit.operations: a number is infinite or none")
    texts = {name: operations if name == "operations" else _dumps(_plain(value)) for name, value in parts.items()}
    return f"{{{','.join(f'{_dumps(name)}:{text}' for name, text in texts.items())}}}"


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _operation_text(given: Operation) -> str:
    by, matched = ",".join([f'"{name}"' for name in given.by]), ",".join(map(str, given.matched))
    (drop, other_drop), (change, other_change) = given.drop, given.change
    return (
        f'{{"layer":{given.layer},"head":{given.head},"target":{given.target},"source":{given.source},'
        f'"weight":{given.weight},"by":[{by}],'
        f'"drop":[{_number(drop)},{_number(other_drop)}],"change":[{_number(change)},{_number(other_change)}],'
        f'"target_features":[{_features_text(given.target_features)}],'
        f'"source_features":[{_features_text(given.source_features)}],'
        f'"kind":"{given.kind}","matched":[{matched}],"direction":"{given.direction}",'
        f'"distance":{_number(given.distance)}}}'
    )


def _features_text(features: Sequence[Feature]) -> str:
    return ",".join([f'{{"kind":"{kind}","value":{value},"change":{change}}}' for kind, value, change in features])


def _number(value: float | None) -> str:
    return "null" if value is None else str(value)


def _read(kind: Any, value: Any, where: str) -> Any:
    """A value of this type from plain JSON."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    wrong = ValueError(f"{where}={str(value)[:40]!r}: must be {getattr(kind, '__name__', kind)}")
    if dataclasses.is_dataclass(kind) or kind in (Feature, Operation):
        if not isinstance(value, dict):
            raise wrong
        hints = _hints(kind)
        for name in {**hints, **value}:
            if name not in hints or name not in value:
                raise ValueError(f"{where}.{name}: {'unknown' if name in value else 'missing'}")
        return kind(**{name: _read(hint, value[name], f"{where}.{name}") for name, hint in hints.items()})  # pyright: ignore[reportCallIssue]
    if origin is tuple:
        if not isinstance(value, list) or (inner[-1] is not ... and len(value) != len(inner)):
            raise wrong
        kinds = [inner[0]] * len(value) if inner[-1] is ... else inner
        return tuple(_read(k, item, f"{where}[{i}]") for i, (k, item) in enumerate(zip(kinds, value, strict=True)))
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _read(next(k for k in inner if k is not type(None)), value, where)
    if origin is Literal:
        if value not in inner:
            raise ValueError(f"{where}={str(value)[:40]!r}: must be one of {', '.join(map(str, inner))}")
        return value
    if origin is dict:
        if not isinstance(value, dict):
            raise wrong
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise wrong
    return value


def _hints(kind: Any) -> dict[str, Any]:
    found = _HINTS.get(kind)
    if found is None:
        found = _HINTS[kind] = typing.get_type_hints(kind)
    return found


_HINTS: dict[Any, dict[str, Any]] = {}
_SIMPLE = frozenset({bool, int, float, str, type(None), dict})
