"""Everything that is said of a circuit, still as arrays: step V under both readings, and what follows from it.

A circuit is some thousand small objects. To make them takes less time than to send them from one process to another, so
a worker sends this, and `pathmerge.circuits.assemble` makes the objects where they are wanted.

Shapes: S important operations of all layers, in their order; F features, n rows, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pathmerge.circuits.files import Mode, Trust
from pathmerge.circuits.frame import Frame
from pathmerge.circuits.merges import directions, full, full_of_vertex, radii
from pathmerge.circuits.options import Options
from pathmerge.circuits.perturb import Important
from pathmerge.circuits.reconstruct import (
    POSITION,
    TOKEN,
    Found,
    Reconstruction,
    downwards,
    holders,
    position_matches,
    reconstruct,
)
from pathmerge.circuits.trace import Trace
from pathmerge.circuits.trust import trust


@dataclass(frozen=True)
class Listed:
    """Some values for each operation: `value[k]` belongs to operation `at[k]`, in increasing order."""

    at: np.ndarray
    which: np.ndarray
    value: np.ndarray


@dataclass(frozen=True, kw_only=True)
class ReadingDraft:
    """`Reading`; each of its lists of operations as a mask of S."""

    explained: bool
    links: np.ndarray
    kept: np.ndarray
    ranked: np.ndarray
    maximal: np.ndarray
    maximal_vertex: np.ndarray | None
    sets: np.ndarray
    """L+1 x n x F."""
    trust: Trust | None


@dataclass(frozen=True, kw_only=True)
class Draft:
    """`Circuit`, but for what is the same of all inputs."""

    frame: Frame
    prediction: int
    logit: float
    correct: bool
    operations: np.ndarray
    """Layer, head, target, source, kind, direction, distance (-1: none), S x 7."""
    weight: np.ndarray
    by: np.ndarray
    drop: np.ndarray
    change: np.ndarray
    target_features: Listed
    """Feature and change of the product."""
    source_features: Listed
    matched: Listed
    """Vertices (in `which`)."""
    strict: ReadingDraft
    lenient: ReadingDraft
    connected: bool | None
    passes: int
    audited: int
    missed: int


def draft(
    trace: Trace,
    g: int,
    frame: Frame,
    options: Options,
    important: Sequence[Important],
    layers: Sequence[Found],
    passes: int,
    audit_result: tuple[int, int],
    seed: Sequence[int],
) -> Draft:
    """What is said of the important operations, and their features, of input g. `seed`: for the random circuits."""
    strict = reconstruct(frame, layers, rule=options.sets)
    lenient = reconstruct(frame, layers, lenient=True, rule=options.sets)
    prediction = int(trace.predictions[g])
    correct = prediction in frame.answers
    explained = correct and frame.leads(set(strict.arrived), prediction)
    leniently = frame.leads(set(lenient.arrived), None)
    found = np.concatenate([part.operations for part in layers])
    ways, steps = (values[found[:, 1], found[:, 2]] for values in directions(frame))
    at_layer = np.repeat(np.arange(len(layers)), [len(part.operations) for part in layers])
    operations = np.column_stack([at_layer, found])
    kind = np.concatenate(lenient.kind)
    weight = [
        layer.pattern.numpy()[head, trace.first[g] + target, source]
        for layer, (head, target, source) in zip(trace.layers, (part.operations.T for part in layers), strict=True)
    ]
    alone = trace.one(g) if options.trust else None
    radius = radii(frame, np.array([strict.sets[:-1], lenient.sets[:-1]]))
    large = (full(frame, radius), full_of_vertex(frame, radius) if options.mode == "exact" else None)
    given = (options, operations, ways, large, seed)
    return Draft(
        frame=replace(frame),  # without what it has worked out
        prediction=prediction,
        logit=float(trace.best[g]),
        correct=correct,
        operations=np.column_stack([operations, kind, ways, steps]),
        weight=np.concatenate(weight),
        **{name: np.concatenate([getattr(part, name) for part in important]) for name in ("by", "drop", "change")},
        target_features=_features([(part.in_target, part.target_change) for part in layers]),
        source_features=_features([(part.in_source, part.source_change) for part in layers]),
        matched=_matched(frame, layers, lenient, kind),
        strict=_reading(alone, layers, strict, explained, 0, *given),
        lenient=_reading(alone, layers, lenient, leniently, 1, *given),
        connected=_connected(frame, layers, leniently, options.mode),
        passes=passes,
        audited=audit_result[0],
        missed=audit_result[1],
    )


def _connected(frame: Frame, layers: Sequence[Found], leniently: bool, mode: Mode) -> bool | None:
    if mode == "screened":
        return True if leniently else None
    chain = downwards(frame.rows, [part.operations for part in layers])
    return frame.leads(set(holders(frame, chain[0])), None)


def _reading(
    trace: Trace | None,
    layers: Sequence[Found],
    found: Reconstruction,
    explained: bool,
    number: int,
    options: Options,
    operations: np.ndarray,
    ways: np.ndarray,
    large: tuple[np.ndarray, np.ndarray | None],
    seed: Sequence[int],
) -> ReadingDraft:
    """`operations`: layer, head, target, source, S x 4; `ways`: the direction of each; `large`: which sets are as large
    as can be, and no smaller than those of other rows of their vertex, 2 x readings x L x n, this one's by `number`."""
    layer, _, target, source = operations.T
    kept = np.concatenate(found.kept)
    ranked = kept & (np.concatenate(found.kind) <= POSITION) & (ways <= 1)
    way = np.minimum(ways, 1)

    def merging(enough: np.ndarray) -> np.ndarray:
        return ranked & enough[way, number, layer, target] & enough[way, number, layer, source]

    circuit = [part.operations[own] for part, own in zip(layers, found.kept, strict=True)]
    return ReadingDraft(
        explained=explained,
        links=np.concatenate(found.links),
        kept=kept,
        ranked=ranked,
        maximal=merging(large[0]),
        maximal_vertex=None if large[1] is None else merging(large[1]),
        sets=np.stack(found.sets),
        trust=None if trace is None else trust(trace, circuit, options.alpha, seed),
    )


def _features(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> Listed:
    """The features that are present (S x F), and how much they change the product."""
    present, change = (np.concatenate(both) for both in zip(*parts, strict=True))
    at, which = np.nonzero(present)
    return Listed(at, which, change[at, which])


def _matched(frame: Frame, layers: Sequence[Found], reading: Reconstruction, kind: np.ndarray) -> Listed:
    """The vertices that make a merge, from the features that its rows' sets hold."""
    both = zip(layers, reading.sets[:-1], strict=True)
    held = [
        (part.in_target & now[part.operations[:, 1]], part.in_source & now[part.operations[:, 2]]) for part, now in both
    ]
    in_target, in_source = (np.concatenate(side) for side in zip(*held, strict=True))
    vertices = len(frame.vertices)
    tokens = (in_target & in_source)[:, :vertices] & (kind == TOKEN)[:, None]
    by_token, which = np.nonzero(tokens)
    by_position, edge = np.nonzero(position_matches(frame, in_target, in_source) & (kind == POSITION)[:, None])
    ends = frame.vertex_of_row[frame.edge_features[edge] - vertices]
    at = np.concatenate([by_token, np.repeat(by_position, 2)])
    found = np.concatenate([np.array(frame.vertices)[which], ends.reshape(-1)])
    order = np.argsort(at, kind="stable")
    return Listed(at[order], found[order], np.empty(0))
