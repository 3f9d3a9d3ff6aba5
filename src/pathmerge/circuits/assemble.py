"""The circuit as it is saved, from its draft in arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache, partial
from itertools import pairwise
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from pathmerge.circuits.draft import Draft, Listed, ReadingDraft
from pathmerge.circuits.files import Circuit, Feature, Input, Method, Operation, Reading, Row
from pathmerge.circuits.frame import Frame
from pathmerge.circuits.merges import DIRECTIONS
from pathmerge.circuits.options import Options
from pathmerge.circuits.reconstruct import KINDS
from pathmerge.problems.batch import Batch

PERTURBATIONS: tuple[tuple[Literal["zero", "maximum"], ...], ...] = ((), ("zero",), ("maximum",), ("zero", "maximum"))
"""By a number whose lowest bit says zero, the next maximum."""

Value = TypeVar("Value")


def assemble(made: Draft, batch: Batch, index: int, tokens: Tensor, options: Options, about: dict[str, Any]) -> Circuit:
    """The circuit of input `index` of a batch. `tokens`: the model's; `about`: what the file says of the model."""
    return Circuit(
        input=_input(batch, index, made.frame, tokens),
        model=about,
        prediction=made.prediction,
        logit=next(_rounded(np.array(made.logit))).item(),
        correct=made.correct,
        method=Method(
            mode=options.mode,
            alpha=options.alpha,
            kappa1=options.kappa1,
            kappa2=options.kappa2,
            sets=options.sets,
            substitute=made.frame.substitute,
        ),
        operations=_operations(made),
        strict=_reading(made.frame, made.strict),
        lenient=_reading(made.frame, made.lenient),
        connected=made.connected,
        passes=made.passes,
        audited=made.audited,
        missed=made.missed,
        made_with=_versions(),
    )


def _operations(made: Draft) -> tuple[Operation, ...]:
    count = len(made.operations)
    layer, head, target, source, kind, way, distance = made.operations.T.tolist()
    targets, sources = made.target_features, made.source_features
    parts = (made.weight, made.drop, made.change, targets.value, sources.value)
    weight, drop, change, in_target, in_source = _rounded(*parts)
    columns = (
        layer,
        head,
        map(made.frame.positions.__getitem__, target),
        map(made.frame.positions.__getitem__, source),
        weight.tolist(),
        map(PERTURBATIONS.__getitem__, (made.by @ np.array([1, 2])).tolist()),
        _pairs(drop),
        _pairs(change),
        _features(made.frame, targets, in_target, count),
        _features(made.frame, sources, in_source, count),
        map(KINDS.__getitem__, kind),
        _grouped(made.matched.which.tolist(), made.matched.at, count),
        map(DIRECTIONS.__getitem__, way),
        [None if steps < 0 else steps for steps in distance],
    )
    return tuple(_tuples(Operation, *columns))


def _reading(frame: Frame, made: ReadingDraft) -> Reading:
    vertices = len(frame.vertices)
    places = made.sets[..., vertices:] if frame.has_positions else made.sets[:0]
    best = made.maximal_vertex
    return Reading(
        explained=made.explained,
        links=_numbers(made.links),
        kept=_numbers(made.kept),
        maximal=_numbers(made.maximal),
        maximal_vertex=None if best is None else _numbers(best),
        ranked=_numbers(made.ranked),
        sets=_contents(np.array(frame.vertices), made.sets[..., :vertices]),
        position_sets=_contents(np.array(frame.positions), places),
        trust=made.trust,
    )


def _numbers(mask: np.ndarray) -> tuple[int, ...]:
    return tuple(np.flatnonzero(mask).tolist())


def _contents(names: np.ndarray, sets: np.ndarray) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """What each row's set holds before each layer (L+1 x n x F), by name."""
    layers, rows, _ = sets.shape
    at, which = np.nonzero(sets.reshape(layers * rows, len(names)))
    each = _grouped(names[which].tolist(), at, layers * rows)
    return tuple(tuple(each[layer * rows : (layer + 1) * rows]) for layer in range(layers))


def _features(frame: Frame, listed: Listed, changes: np.ndarray, count: int) -> list[tuple[Feature, ...]]:
    """For each operation the features it depends on."""
    kinds, values = zip(*frame.features, strict=True)
    which = listed.which.tolist()
    found = _tuples(Feature, map(kinds.__getitem__, which), map(values.__getitem__, which), changes.tolist())
    return _grouped(found, listed.at, count)


def _tuples(kind: type[Value], *columns: Iterable[Any]) -> Iterator[Value]:
    """Named tuples from their fields, column by column; four times as fast as calling the type for each."""
    make: Any = partial(tuple.__new__, kind)  # pyright: ignore[reportArgumentType]
    return map(make, zip(*columns, strict=True))


def _grouped(values: Iterable[Value], at: np.ndarray, count: int) -> list[tuple[Value, ...]]:
    """For each number below `count`, the values that belong to it; `at` is in increasing order."""
    values = tuple(values)
    limits = np.searchsorted(at, np.arange(count + 1)).tolist()
    return [values[low:high] for low, high in pairwise(limits)]


def _input(batch: Batch, index: int, frame: Frame, tokens: Tensor) -> Input:
    layout = batch.distribution.layout
    marks = {layout.path: "PATH", layout.edge: "EDGE", layout.query: "QUERY"}
    texts = []
    for here, held in zip(tokens[list(frame.positions)].tolist(), frame.held, strict=True):
        if tokens.ndim == 2:
            texts.append("→".join(str(v) for v in here[:2]))
        else:
            texts.append(str(held[0]) if held else marks.get(here, str(here)))
    rows = zip(frame.positions, texts, frame.held, strict=True)
    key = batch.key
    return Input(
        tokens=tuple(batch.tokens[index].tolist()),
        edges=frame.edges,
        start=frame.start,
        goal=frame.goal,
        answers=tuple(sorted(frame.answers)),
        lookahead=int(batch.lookahead[index]),
        rows=tuple(Row(position=p, text=text, vertices=held) for p, text, held in rows),
        problem=batch.distribution.to_dict(),
        key={"seed": key.seed, "split": key.split, "stream": key.stream, "index": batch.first + index},
    )


def _pairs(values: np.ndarray) -> list[tuple[float | None, float | None]]:
    """Two numbers for each operation; none where one was not measured."""
    missing = np.isnan(values)
    if missing.any():
        values = values.astype(object)
        values[missing] = None
    return list(zip(*values.T.tolist(), strict=True)) if len(values) else []


def _rounded(*parts: np.ndarray) -> Iterator[np.ndarray]:
    """Arrays with six digits: what float32 knows."""
    wide = np.concatenate([part.reshape(-1) for part in parts], dtype=np.float64)
    with np.errstate(divide="ignore"):
        digits = 5 - np.floor(np.log10(np.abs(wide)))
    factor = 10.0 ** np.where(np.isfinite(digits), np.clip(digits, -300, 300), 0)
    found = np.split(np.round(wide * factor) / factor, np.cumsum([part.size for part in parts])[:-1])
    return (own.reshape(part.shape) for own, part in zip(found, parts, strict=True))


@cache
def _versions() -> dict[str, str]:
    from pathmerge.version import __version__

    return {"pathmerge": __version__, "torch": torch.__version__, "numpy": np.__version__}
