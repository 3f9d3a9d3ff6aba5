"""The circuit as it is saved, from its draft in arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import compress, pairwise, repeat
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from pathmerge.circuits.draft import Drafts, Listed
from pathmerge.circuits.files import Circuit, Feature, Input, Method, Operation, Reading, Row
from pathmerge.circuits.frame import Frames
from pathmerge.circuits.merges import DIRECTIONS
from pathmerge.circuits.options import Options
from pathmerge.circuits.reconstruct import KINDS
from pathmerge.kernels import digits as kernels
from pathmerge.parallel import uncollected
from pathmerge.problems.batch import Batch

PERTURBATIONS: tuple[tuple[Literal["zero", "maximum"], ...], ...] = ((), ("zero",), ("maximum",), ("zero", "maximum"))
"""By a number whose lowest bit says zero, the next maximum."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class Context:
    """What the circuits of a batch have in common."""

    batch: Batch
    tokens: Tensor
    """The model's."""
    options: Options
    about: dict[str, Any]
    """What a file says of the model."""

    @cached_property
    def problem(self) -> dict[str, Any]:
        return self.batch.distribution.to_dict()

    @cached_property
    def marks(self) -> dict[int, str]:
        layout = self.batch.distribution.layout
        return {layout.path: "PATH", layout.edge: "EDGE", layout.query: "QUERY"}

    def text(self, token: Any) -> str:
        """What a row shows: a vertex or a marker, or the two ends of an edge."""
        if self.tokens.ndim == 3:
            return "→".join(map(str, token[:2]))
        return self.marks.get(token) or str(token)


def assemble(made: Drafts, g: int, given: Context, index: int) -> Circuit:
    """The circuit of the g-th draft, input `index` of a batch."""
    options, frames = given.options, made.frames
    readings = cache(lambda: _readings(made, g))
    fields: dict[str, Callable[[], Any]] = {
        "input": lambda: _input(frames, g, given, index),
        "model": lambda: given.about,
        "prediction": lambda: int(made.prediction[g]),
        "logit": lambda: rounded(made.logit[g : g + 1])[0],
        "correct": lambda: bool(made.correct[g]),
        "method": lambda: Method(
            mode=options.mode,
            alpha=options.alpha,
            kappa1=options.kappa1,
            kappa2=options.kappa2,
            sets=options.sets,
            substitute=int(frames.substitutes[g]),
        ),
        "operations": lambda: _operations(made, g),
        "strict": lambda: readings()["strict"],
        "lenient": lambda: readings()["lenient"],
        "connected": lambda: made.connected[g],
        "passes": lambda: int(made.passes[g]),
        "audited": lambda: made.audited,
        "missed": lambda: int(made.missed[g]),
        "made_with": _versions,
    }

    def make(name: str) -> Any:
        with uncollected():
            return fields[name]()

    return Circuit.later(make)


def _operations(made: Drafts, g: int) -> tuple[Operation, ...]:
    low, high = made.begin[g : g + 2].tolist()
    vertices, positions = made.frames.names(g)
    layer, head, target, source, kind, way, distance = made.operations[low:high].T.tolist()
    names = (["vertex"] * len(vertices) + ["position"] * len(positions), vertices + positions)
    columns = (
        layer,
        head,
        map(positions.__getitem__, target),
        map(positions.__getitem__, source),
        rounded(made.weight[low:high]),
        map(PERTURBATIONS.__getitem__, (made.by[low:high] @ np.array([1, 2])).tolist()),
        _pairs(made.drop[low:high]),
        _pairs(made.change[low:high]),
        _features(*names, made.target_features, low, high),
        _features(*names, made.source_features, low, high),
        map(KINDS.__getitem__, kind),
        _grouped(made.matched, low, high, lambda own: made.matched.which[own].tolist()),
        map(DIRECTIONS.__getitem__, way),
        [None if steps < 0 else steps for steps in distance],
    )
    return tuple(_tuples(Operation, *columns))


def _readings(made: Drafts, g: int) -> dict[str, Reading]:
    """Both: many of their sets are the same."""
    own, frames = slice(*made.begin[g : g + 2].tolist()), made.frames
    both = {"strict": made.strict, "lenient": made.lenient}
    sets = np.concatenate([reading.sets[:, frames.first[g] : frames.first[g + 1]] for reading in both.values()])
    vertices, positions = frames.names(g)
    contents = _contents(vertices, sets)
    places = _contents(positions, sets[..., len(vertices) :]) if frames.has_positions else ()
    found: dict[str, Reading] = {}
    for number, (name, reading) in enumerate(both.items()):
        best, half = reading.maximal_vertex, slice(number * len(reading.sets), (number + 1) * len(reading.sets))
        found[name] = Reading(
            explained=bool(reading.explained[g]),
            links=_numbers(reading.links[own]),
            kept=_numbers(reading.kept[own]),
            maximal=_numbers(reading.maximal[own]),
            maximal_vertex=None if best is None else _numbers(best[own]),
            ranked=_numbers(reading.ranked[own]),
            sets=contents[half],
            position_sets=places[half],
            trust=reading.trust[g],
        )
    return found


def _numbers(mask: np.ndarray) -> tuple[int, ...]:
    return tuple(mask.nonzero()[0].tolist())


def _contents(names: Sequence[int], sets: np.ndarray) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """What each row's set holds (layers x n x F), by name. Few rows' change in a layer, so there are few different
    ones."""
    layers, rows, width = len(sets), sets.shape[1], len(names)
    each: list[bytes] = np.ascontiguousarray(sets[..., :width]).view(f"V{width}").ravel().tolist()
    known = {one: tuple(compress(names, one)) for one in set(each)}
    found = tuple(map(known.__getitem__, each))
    return tuple(found[at : at + rows] for at in range(0, layers * rows, rows))


def _features(
    kinds: Sequence[str], values: Sequence[int], listed: Listed, low: int, high: int
) -> list[tuple[Feature, ...]]:
    """For each operation the features it depends on; they are numbers of these kinds and values."""

    def made(own: slice) -> Iterable[Feature]:
        which = listed.which[own].tolist()
        parts = (map(kinds.__getitem__, which), map(values.__getitem__, which), rounded(listed.value[own]))
        return _tuples(Feature, *parts)

    return _grouped(listed, low, high, made)


def _tuples(kind: type[Value], *columns: Iterable[Any]) -> Iterator[Value]:
    """Named tuples from their fields, column by column; five times as fast as calling the type for each."""
    make: Any = tuple.__new__
    return map(make, repeat(kind), zip(*columns, strict=True))


def _grouped(listed: Listed, low: int, high: int, make: Callable[[slice], Iterable[Value]]) -> list[tuple[Value, ...]]:
    """For each of the operations low..high-1 its values, made for all of them at once."""
    limits = listed.first[low : high + 1]
    begin, end = limits[[0, -1]].tolist()
    values = tuple(make(slice(begin, end)))
    return [values[low:high] for low, high in pairwise((limits - begin).tolist())]


def _input(frames: Frames, g: int, given: Context, index: int) -> Input:
    batch, key = given.batch, given.batch.key
    own = slice(*frames.first[g : g + 2].tolist())
    positions = frames.positions[own].tolist()
    here = given.tokens[index].numpy()[positions].tolist()
    return Input(
        tokens=tuple(batch.tokens[index].tolist()),
        edges=tuple((u, v) for u, v in frames.edges[g].tolist() if u),
        start=int(frames.start[g]),
        goal=int(frames.goal[g]),
        answers=tuple(frames.answers[g].nonzero()[0].tolist()),
        lookahead=int(batch.lookahead[index]),
        rows=tuple(map(_row, positions, map(given.text, here), map(tuple, frames.held[own].tolist()))),
        problem=dict(given.problem),
        key={"seed": key.seed, "split": key.split, "stream": key.stream, "index": batch.first + index},
    )


@lru_cache(maxsize=2**16)
def _row(position: int, text: str, held: tuple[int, int]) -> Row:
    """A row is one of some hundred that all inputs of a size are made of."""
    return Row(position=position, text=text, vertices=tuple(v for v in held if v))


def _pairs(values: np.ndarray) -> list[tuple[float | None, float | None]]:
    """Two numbers for each operation; none where one was not measured."""
    columns: list[list[float | None]] = []
    for column in values.T:
        numbers = rounded(column)
        columns.append([None if v != v else v for v in numbers] if np.isnan(column).any() else [*numbers])
    return list(zip(*columns, strict=True))


def rounded(values: np.ndarray) -> list[float]:
    """Numbers with six digits: what float32 knows."""
    found = np.empty(len(values))
    kernels.rounded(np.ascontiguousarray(values), _POWERS, found)
    return found.tolist()


_POWERS = 10.0 ** np.arange(-40, 52)
"""By which a float32 is multiplied to have six digits before the point, from 1e-40 on."""


@cache
def _versions() -> dict[str, str]:
    from pathmerge.version import __version__

    return {"pathmerge": __version__, "torch": torch.__version__, "numpy": np.__version__}
