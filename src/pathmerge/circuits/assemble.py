"""The circuit as it is saved: step V under both readings, and everything that is said of the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pathmerge.circuits.features import Responses
from pathmerge.circuits.files import Circuit, Feature, Input, Method, Mode, Operation, Reading, Row
from pathmerge.circuits.frame import Frame
from pathmerge.circuits.merges import DIRECTIONS, directions, maximal, maximal_vertex
from pathmerge.circuits.options import Options
from pathmerge.circuits.perturb import Important
from pathmerge.circuits.reconstruct import (
    COPY,
    KINDS,
    OTHER,
    TOKEN,
    Found,
    Reconstruction,
    downwards,
    holders,
    reconstruct,
)
from pathmerge.circuits.trace import Trace
from pathmerge.circuits.trust import trust
from pathmerge.problems.batch import Batch

WAYS = DIRECTIONS[:2]
PERTURBATIONS: dict[tuple[bool, ...], tuple[Literal["zero", "maximum"], ...]] = {
    (True, True): ("zero", "maximum"),
    (True, False): ("zero",),
    (False, True): ("maximum",),
}


def assemble(
    trace: Trace,
    frame: Frame,
    batch: Batch,
    index: int,
    options: Options,
    important: Sequence[Important],
    answers: Sequence[Responses],
    layers: Sequence[Found],
    passes: int,
    audit_result: tuple[int, int],
    about: dict[str, Any],
) -> Circuit:
    """Step V under both readings, and the circuit as it is saved."""
    strict = reconstruct(frame, layers, rule=options.sets)
    lenient = reconstruct(frame, layers, lenient=True, rule=options.sets)
    correct = trace.prediction in frame.answers
    explained = correct and frame.leads(set(strict.arrived), trace.prediction)
    seed = (options.seed, batch.first + index)
    chain = downwards(frame.rows, [found.operations for found in layers])
    return Circuit(
        input=_input(batch, index, frame, trace.tokens),
        model=about,
        prediction=trace.prediction,
        logit=_rounded(np.array([trace.logit]))[0],
        correct=correct,
        method=Method(
            mode=options.mode,
            alpha=options.alpha,
            kappa1=options.kappa1,
            kappa2=options.kappa2,
            sets=options.sets,
            substitute=frame.substitute,
        ),
        operations=tuple(_operations(trace, frame, important, answers, layers, lenient)),
        strict=_reading(trace, frame, layers, strict, explained, options, seed),
        lenient=_reading(trace, frame, layers, lenient, frame.leads(set(lenient.arrived), None), options, seed),
        connected=_connected(frame, chain[0], lenient, options.mode),
        passes=passes,
        audited=audit_result[0],
        missed=audit_result[1],
        made_with=_versions(),
    )


def _connected(frame: Frame, rows: np.ndarray, lenient: Reconstruction, mode: Mode) -> bool | None:
    if mode == "screened":
        return True if frame.leads(set(lenient.arrived), None) else None
    return frame.leads(set(holders(frame, rows)), None)


def _reading(
    trace: Trace,
    frame: Frame,
    layers: Sequence[Found],
    found: Reconstruction,
    explained: bool,
    options: Options,
    seed: Sequence[int],
) -> Reading:
    largest: list[int] = []
    best: list[int] = []
    ranked: list[int] = []
    ways, _ = directions(frame)
    offset = 0
    for layer, (part, kind, kept) in enumerate(zip(layers, found.kind, found.kept, strict=True)):
        sets = found.sets[layer]
        merges = np.flatnonzero(kept & (kind <= 1))
        where = ways[tuple(part.operations[merges, 1:].T)]
        for number, way in enumerate(WAYS):
            chosen = merges[where == number]
            pairs = part.operations[chosen, 1:]
            ranked += (chosen + offset).tolist()
            largest += (chosen + offset)[maximal(frame, sets, layer, pairs, way)].tolist()
            best += (chosen + offset)[maximal_vertex(frame, sets, pairs, way)].tolist()
        offset += len(part.operations)
    circuit = [part.operations[kept] for part, kept in zip(layers, found.kept, strict=True)]
    vertices, positions = np.array(frame.vertices), np.array(frame.positions)
    places = found.sets if frame.has_positions else []
    return Reading(
        explained=explained,
        links=tuple(np.flatnonzero(np.concatenate(found.links)).tolist()),
        kept=tuple(np.flatnonzero(np.concatenate(found.kept)).tolist()),
        maximal=tuple(sorted(largest)),
        maximal_vertex=tuple(sorted(best)) if options.mode == "exact" else None,
        ranked=tuple(sorted(ranked)),
        sets=tuple(tuple(tuple(vertices[row].tolist()) for row in sets[:, : len(vertices)]) for sets in found.sets),
        position_sets=tuple(
            tuple(tuple(positions[row].tolist()) for row in sets[:, len(vertices) :]) for sets in places
        ),
        trust=trust(trace, circuit, options.alpha, seed) if options.trust else None,
    )


def _operations(
    trace: Trace,
    frame: Frame,
    important: Sequence[Important],
    answers: Sequence[Responses],
    layers: Sequence[Found],
    reading: Reconstruction,
) -> Iterator[Operation]:
    ways, steps = directions(frame)
    for layer, (ops, response, found, kinds) in enumerate(zip(important, answers, layers, reading.kind, strict=True)):
        in_target, in_source = response.of(ops.operations)
        head, target, source = ops.operations.T
        sets = reading.sets[layer]
        held = zip(found.in_target & sets[target], found.in_source & sets[source], kinds.tolist(), strict=True)
        matched = [_matched(frame, *features) for features in held]
        columns = zip(
            ops.operations.tolist(),
            _rounded(trace.layers[layer].pattern.numpy()[head, target, source]),
            ops.by.tolist(),
            _rounded(ops.drop),
            _rounded(ops.change),
            _features(frame, found.in_target, in_target),
            _features(frame, found.in_source, in_source),
            kinds.tolist(),
            matched,
            ways[target, source].tolist(),
            steps[target, source].tolist(),
            strict=True,
        )
        for op, weight, by, drop, change, of_target, of_source, kind, vertices, way, distance in columns:
            yield Operation(
                layer=layer,
                head=op[0],
                target=frame.positions[op[1]],
                source=frame.positions[op[2]],
                weight=weight,
                by=PERTURBATIONS[tuple(by)],
                drop=_pair(drop),
                change=_pair(change),
                target_features=of_target,
                source_features=of_source,
                kind=KINDS[kind],
                matched=vertices,
                direction=DIRECTIONS[way],
                distance=None if distance < 0 else distance,
            )


def _features(frame: Frame, present: np.ndarray, change: np.ndarray) -> list[tuple[Feature, ...]]:
    """For each operation (S x F) the features it depends on."""
    names = frame.features
    found: list[list[Feature]] = [[] for _ in present]
    at, which = np.nonzero(present)
    for s, f, value in zip(at.tolist(), which.tolist(), _rounded(change[at, which]), strict=True):
        found[s].append(Feature(*names[f], value))
    return [tuple(features) for features in found]


def _matched(frame: Frame, in_target: np.ndarray, in_source: np.ndarray, kind: int) -> tuple[int, ...]:
    """The vertices that make an operation of this kind, from its features that its rows' sets hold."""
    if kind in (OTHER, COPY):
        return ()
    if kind == TOKEN:
        both = (in_target & in_source)[: len(frame.vertices)]
        return tuple(frame.vertices[i] for i in np.flatnonzero(both))
    one, other = frame.edge_features.T
    chosen = (in_target[one] & in_source[other]) | (in_target[other] & in_source[one])
    rows = frame.edge_features[chosen] - len(frame.vertices)
    return tuple(frame.held[row][0] for pair in rows for row in pair)


def _input(batch: Batch, index: int, frame: Frame, tokens: Tensor) -> Input:
    layout = batch.distribution.layout
    marks = {layout.path: "PATH", layout.edge: "EDGE", layout.query: "QUERY"}
    texts = []
    for at, held in zip(frame.positions, frame.held, strict=True):
        if tokens.ndim == 2:
            texts.append("→".join(str(int(v)) for v in tokens[at, :2]))
        else:
            texts.append(str(held[0]) if held else marks.get(int(tokens[at]), str(int(tokens[at]))))
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


def _pair(values: list[float]) -> tuple[float | None, float | None]:
    """Two numbers; none where one was not measured."""
    zero, maximum = (None if value != value else value for value in values)
    return zero, maximum


def _rounded(values: np.ndarray) -> list[Any]:
    """As Python's numbers with six digits: what float32 knows."""
    wide = np.asarray(values, np.float64)
    with np.errstate(divide="ignore"):
        digits = 5 - np.floor(np.log10(np.abs(wide)))
    factor = 10.0 ** np.where(np.isfinite(digits), np.clip(digits, -300, 300), 0)
    return (np.round(wide * factor) / factor).tolist()


def _versions() -> dict[str, str]:
    from pathmerge.version import __version__

    return {"pathmerge": __version__, "torch": torch.__version__, "numpy": np.__version__}
