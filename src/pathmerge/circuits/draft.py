"""Everything that is said of some circuits, still as arrays: step V under both readings, and what follows from it.

A circuit is some thousand small objects. To make them takes less time than to send them from one process to another, so
a worker sends this, and `pathmerge.circuits.assemble` makes the objects where they are wanted. Arrays hold all inputs
that are worked on together: a few operations on long arrays instead of hundreds on short ones.

Shapes: G inputs, R rows of all inputs, S important operations of all inputs and layers, in their order; F features, L
layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pathmerge.circuits.features import Responses
from pathmerge.circuits.files import Trust
from pathmerge.circuits.frame import Frames
from pathmerge.circuits.merges import directions, full, full_of_vertex, radii
from pathmerge.circuits.options import Options
from pathmerge.circuits.perturb import Important
from pathmerge.circuits.reconstruct import POSITION, TOKEN, Found, Reconstruction, downwards, lead, reconstruct
from pathmerge.circuits.trace import Trace
from pathmerge.circuits.trust import trust
from pathmerge.kernels import links as kernels


@dataclass(frozen=True)
class Listed:
    """Some values for each operation: those of operation s from first[s] on."""

    first: np.ndarray
    which: np.ndarray
    value: np.ndarray


@dataclass(frozen=True, kw_only=True)
class ReadingDraft:
    """`Reading` of each input; each of its lists of operations as a mask of S."""

    explained: np.ndarray
    links: np.ndarray
    kept: np.ndarray
    ranked: np.ndarray
    maximal: np.ndarray
    maximal_vertex: np.ndarray | None
    sets: np.ndarray
    """L+1 x R x F."""
    trust: Sequence[Trust | None]


@dataclass(frozen=True, kw_only=True)
class Drafts:
    """`Circuit` of each input, but for what is the same of all of them."""

    frames: Frames
    prediction: np.ndarray
    logit: np.ndarray
    correct: np.ndarray
    begin: np.ndarray
    """Input g owns operations begin[g]..begin[g+1]-1."""
    operations: np.ndarray
    """Layer, head, target, source (rows of their input), kind, direction, distance (-1: none), S x 7."""
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
    connected: Sequence[bool | None]
    passes: np.ndarray
    audited: int
    missed: np.ndarray


def draft(
    trace: Trace,
    frames: Frames,
    options: Options,
    important: Important,
    found: Found,
    answers: Sequence[Responses],
    passes: np.ndarray,
    audited: tuple[int, np.ndarray],
    seeds: Sequence[Sequence[int]],
) -> Drafts:
    """What is said of the important operations, and their features. `seeds`: for each input's random circuits."""
    layers = trace.model.layers
    strict = reconstruct(frames, found, layers, rule=options.sets)
    lenient = reconstruct(frames, found, layers, lenient=True, rule=options.sets)
    correct = frames.answers[np.arange(len(frames)), trace.predictions]
    explained = correct & lead(frames, strict.reached, np.where(correct, trace.predictions, 0))
    leniently = lead(frames, lenient.reached)
    layer, head, target, source = found.operations.T
    zero = frames.first[frames.owner[target]]
    ways, steps = directions(frames, target, zero + source)
    radius = radii(frames, np.stack([strict.sets[:-1], lenient.sets[:-1]]))
    large = (full(frames, radius), full_of_vertex(frames, radius) if options.mode == "exact" else None)
    trusts = _trusts(trace, found, (strict, lenient), options, seeds)
    weight = np.empty(len(layer), np.float32)
    for at, recorded in enumerate(trace.layers):
        which = np.flatnonzero(layer == at)
        weight[which] = recorded.pattern.numpy()[head[which], target[which], source[which]]
    return Drafts(
        frames=replace(frames),  # without what it has worked out
        prediction=trace.predictions,
        logit=trace.best,
        correct=correct,
        begin=found.begin,
        operations=np.column_stack([layer, head, target - zero, source, lenient.kind, ways, steps]).astype(np.int32),
        weight=weight,
        by=important.by,
        drop=important.drop,
        change=important.change,
        target_features=_features(frames, found, answers, in_source=False),
        source_features=_features(frames, found, answers, in_source=True),
        matched=_matched(frames, found, lenient),
        strict=_reading(strict, explained, trusts[0], 0, frames, found, ways, large),
        lenient=_reading(lenient, leniently, trusts[1], 1, frames, found, ways, large),
        connected=_connected(frames, found, leniently, layers, options),
        passes=passes,
        audited=audited[0],
        missed=audited[1],
    )


def _connected(
    frames: Frames, found: Found, leniently: np.ndarray, layers: int, options: Options
) -> Sequence[bool | None]:
    if options.mode == "screened":
        return [True if so else None for so in leniently]
    _, reached = downwards(frames, found, np.ones(len(found.operations), bool), layers)
    return lead(frames, reached).tolist()


def _reading(
    made: Reconstruction,
    explained: np.ndarray,
    trusts: Sequence[Trust | None],
    number: int,
    frames: Frames,
    found: Found,
    ways: np.ndarray,
    large: tuple[np.ndarray, np.ndarray | None],
) -> ReadingDraft:
    """`ways`: the direction of each operation; `large`: which sets are as large as can be, and no smaller than those of
    other rows of their vertex, 2 x readings x L x R, this one's by `number`."""
    layer, _, target, source = found.operations.T
    ranked = made.kept & (made.kind <= POSITION) & (ways <= 1)
    at = np.flatnonzero(ranked)
    layer, target, way = layer[at], target[at], ways[at]
    source = source[at] + frames.first[frames.owner[target]]

    def merging(enough: np.ndarray) -> np.ndarray:
        chosen = np.zeros(len(ranked), bool)
        chosen[at] = enough[way, number, layer, target] & enough[way, number, layer, source]
        return chosen

    return ReadingDraft(
        explained=explained,
        links=made.links,
        kept=made.kept,
        ranked=ranked,
        maximal=merging(large[0]),
        maximal_vertex=None if large[1] is None else merging(large[1]),
        sets=made.sets,
        trust=trusts,
    )


def _trusts(
    trace: Trace, found: Found, readings: Sequence[Reconstruction], options: Options, seeds: Sequence[Sequence[int]]
) -> Sequence[Sequence[Trust | None]]:
    """For each reading and input."""
    if not options.trust:
        return [[None] * len(trace) for _ in readings]
    return trust(trace, [found.operations[reading.kept] for reading in readings], options.alpha, seeds)


def _features(frames: Frames, found: Found, answers: Sequence[Responses], *, in_source: bool) -> Listed:
    """The features that operations depend on in one of their rows, and how much they change the product."""
    present = found.in_source if in_source else found.in_target
    first = np.concatenate([[0], np.cumsum(present.sum(1))])
    which, value = np.empty(first[-1], np.int32), np.empty(first[-1], np.float32)
    for layer, given in enumerate(answers):
        kernels.changes(
            frames.rules, frames.owner, found.operations, present, first, layer, given.after, given.shift,
            given.products, given.source if in_source else given.target, in_source, which, value,
        )  # fmt: skip
    return Listed(first, which, value)


def _limits(at: np.ndarray, count: int) -> np.ndarray:
    """Where the entries of each operation begin, and end, among some in increasing order."""
    return np.concatenate([[0], np.cumsum(np.bincount(at, minlength=count))])


def _matched(frames: Frames, found: Found, reading: Reconstruction) -> Listed:
    """The vertices that make a merge, from the features that its rows' sets hold."""
    by_token, which = np.nonzero(reading.by_token & (reading.kind == TOKEN)[:, None])
    by_edge, edge = np.nonzero(reading.by_edge & (reading.kind == POSITION)[:, None])
    owner = frames.owner[found.operations[:, 2]]
    slots = frames.first[owner[by_edge]] + frames.slots[owner[by_edge], edge]
    ends = frames.held[slots[:, None] + np.array([1, 2]), 0]
    at = np.concatenate([by_token, np.repeat(by_edge, 2)])
    vertices = np.concatenate([frames.vertices[owner[by_token], which], ends.reshape(-1)])
    return Listed(_limits(at, len(owner)), vertices[np.argsort(at, kind="stable")], np.empty(0))
