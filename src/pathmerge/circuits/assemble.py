"""The circuit as it is saved, from its draft in arrays."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
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
        logit=_rounded(np.array(made.logit)).item(),
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
    positions, count = made.frame.positions, len(made.operations)
    columns = zip(
        made.operations.tolist(),
        _rounded(made.weight).tolist(),
        (made.by @ np.array([1, 2])).tolist(),
        _pairs(made.drop),
        _pairs(made.change),
        _features(made.frame, made.target_features, count),
        _features(made.frame, made.source_features, count),
        _grouped(made.matched.which.tolist(), made.matched.at, count),
        strict=True,
    )
    return tuple(
        Operation(
            layer=layer,
            head=head,
            target=positions[target],
            source=positions[source],
            weight=weight,
            by=PERTURBATIONS[by],
            drop=drop,
            change=change,
            target_features=of_target,
            source_features=of_source,
            kind=KINDS[kind],
            matched=matched,
            direction=DIRECTIONS[way],
            distance=None if distance < 0 else distance,
        )
        for (
            (layer, head, target, source, kind, way, distance), weight, by, drop, change, of_target, of_source, matched
        ) in columns
    )  # fmt: skip


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


def _features(frame: Frame, listed: Listed, count: int) -> list[tuple[Feature, ...]]:
    """For each operation the features it depends on."""
    names = frame.features
    kinds, values = zip(*(names[f] for f in listed.which.tolist()), strict=True) if len(listed.which) else ((), ())
    return _grouped(map(Feature, kinds, values, _rounded(listed.value).tolist()), listed.at, count)


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
    found = _rounded(values)
    missing = np.isnan(found)
    if missing.any():
        found = found.astype(object)
        found[missing] = None
    return list(map(tuple, found.tolist()))


def _rounded(values: np.ndarray) -> np.ndarray:
    """With six digits: what float32 knows."""
    wide = np.asarray(values, np.float64)
    with np.errstate(divide="ignore"):
        digits = 5 - np.floor(np.log10(np.abs(wide)))
    factor = 10.0 ** np.where(np.isfinite(digits), np.clip(digits, -300, 300), 0)
    return np.round(wide * factor) / factor


@cache
def _versions() -> dict[str, str]:
    from pathmerge.version import __version__

    return {"pathmerge": __version__, "torch": torch.__version__, "numpy": np.__version__}
