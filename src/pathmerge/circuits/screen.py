"""The screened way: find out first which operations can be part of a circuit at all, and perturb only those.

Step IV does not need to know what is important: one frozen pass for each feature gives the features of *every*
operation. One whose features make it neither a merge nor a copy is discarded whatever its importance, and so is one
that does not lead to the last row. So, from the last layer downwards, only operations into rows that a chain reaches,
and whose features would make them a link, are perturbed, each exactly. On inputs of up to SURE tokens nothing is
estimated, so nothing can be missed, but for rows changed by less than SKIP, which later layers leave out.

On longer inputs most of the work would be to set to zero what is nearly zero already: at N=128 two thirds of these
perturbations move their row by less than FAINT of its size. What they do is estimated: no more, in proportion to how
far they move their row, than the strongest of the same layer and input that move theirs by more. Where MARGIN times
that is still too little to matter, the operation counts as not important under zero. `audit` measures what is lost.

What is not known of a screened result: important operations that are neither merge nor copy, the sets of rows that no
chain reaches, and what the maximum does to an operation that is important under zero already.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pathmerge.circuits.features import Responses
from pathmerge.circuits.frame import Frames
from pathmerge.circuits.options import Options
from pathmerge.circuits.perturb import (
    MAXIMUM,
    ZERO,
    Important,
    decide,
    effects,
    limit,
    measure,
    passes_of,
    shifts,
)
from pathmerge.circuits.trace import Trace
from pathmerge.kernels import links

SKIP = 1e-6
"""A row changed by less is taken for unchanged."""
SURE = 48
"""Tokens up to which no effect is estimated."""
FAINT = 5e-3
MARGIN = 5.0
FEWEST = 16
"""Perturbations of an input and layer that must be stronger, for an estimate of those that are not."""


def measure_candidates(
    trace: Trace,
    frames: Frames,
    answers: Sequence[Responses],
    final: Important,
    options: Options,
) -> tuple[list[Important], np.ndarray]:
    """For each layer, the important operations among all that can be links on a chain to the last row, and the passes
    it took for each input. `final`: those of the last layer."""
    possible = candidates(trace, frames, answers, limit(trace, options.kappa2))
    last, thresholds = trace.model.layers - 1, (options.alpha, limit(trace, options.kappa1))
    estimated = frames.width > SURE and options.alpha > 0
    reached = np.zeros(len(trace.rows), bool)
    reached[trace.first[1:] - 1] = True
    reached[_sources(trace, final, possible[last], reached)] = True
    found, passes = [final], np.zeros(len(trace), np.int64)
    for layer in reversed(range(last)):
        chosen = possible[layer] & reached[None, :, None, None]
        measured, operations = _measure(trace, layer, chosen, final.operations, thresholds, estimated)
        passes += passes_of(trace, operations)
        found.append(measured)
        reached[_sources(trace, measured, possible[layer], reached)] = True
    return found[::-1], passes


def audit(
    trace: Trace,
    found: Sequence[Important],
    count: int,
    alpha: float,
    kappa1: float,
    seeds: Sequence[Sequence[int]],
) -> list[Important]:
    """What measuring `count` more operations of each input, in the layers below the last, finds: drawn at random among
    those not found important, each measured exactly. For each layer, the important ones among them."""
    last, heads = trace.model.layers - 1, trace.model.heads
    watched = found[last].operations
    there = np.broadcast_to(trace.allowed.numpy(), (last, heads, *trace.allowed.shape)).copy()
    for layer in range(last):
        there[layer][tuple(found[layer].operations.T)] = False
    chosen: list[np.ndarray] = []
    for seed, (low, high) in zip(seeds, pairwise(trace.first.tolist()), strict=True):
        every = np.argwhere(there[:, :, low:high])
        choose = np.random.default_rng([*seed, 1])
        mine = every[choose.choice(len(every), min(count, len(every)), replace=False)]
        chosen.append(mine + np.array([0, 0, low, 0]))
    more: list[Important] = []
    for layer in range(last):
        operations = np.concatenate([mine[mine[:, 0] == layer, 1:] for mine in chosen])
        both = np.concatenate([np.insert(operations, 3, kind, axis=1) for kind in (ZERO, MAXIMUM)])
        more.append(decide(effects(trace, layer, both, watched), alpha, limit(trace, kappa1)))
    return more


def joined(one: Important, other: Important) -> Important:
    """The operations of both."""
    names = ("operations", "by", "drop", "change")
    return Important(**{name: np.concatenate([getattr(one, name), getattr(other, name)]) for name in names})


def _measure(
    trace: Trace,
    layer: int,
    chosen: np.ndarray,
    watched: np.ndarray,
    thresholds: tuple[float, float],
    estimated: bool,
) -> tuple[Important, np.ndarray]:
    """Perturb candidates to zero, and to the maximum where that can still decide something; also all these
    perturbations. What is not measured stays nan. `thresholds`: of the fall of the logit, and of the change."""
    operations = np.argwhere(chosen[..., ZERO] | chosen[..., MAXIMUM])
    drop, change = np.full((2, len(operations), 2), np.nan, np.float32)
    owner = trace.owner[operations[:, 1]]
    best, (alpha, threshold) = trace.best[owner], thresholds

    def perturbed(places: np.ndarray, kind: int) -> np.ndarray:
        passes = np.insert(operations[places], 3, kind, axis=1)
        outcome = measure(trace, layer, passes, watched, SKIP)
        drop[places, kind], change[places, kind] = best[places] - outcome.logit, outcome.change
        return passes

    if estimated:
        shift = shifts(trace, layer, np.insert(operations, 3, ZERO, axis=1))
        faint = shift < FAINT
        strong = perturbed(np.flatnonzero(~faint), ZERO)
        effect = np.fmax(abs(drop[:, ZERO]) / alpha, change[:, ZERO] / threshold)
        more = perturbed(np.flatnonzero(faint & _could_matter(owner, shift, effect)), ZERO)
        to_zero = np.concatenate([strong, more])
    else:
        to_zero = perturbed(np.arange(len(operations)), ZERO)
    by_zero = (drop[:, ZERO] > alpha) | (change[:, ZERO] > threshold)
    to_maximum = perturbed(np.flatnonzero(chosen[..., MAXIMUM][tuple(operations.T)] & ~by_zero), MAXIMUM)
    by = (drop > alpha) | (change > threshold)
    found = by.any(-1)
    important = Important(operations=operations[found], by=by[found], drop=drop[found], change=change[found])
    return important, np.concatenate([to_zero, to_maximum])


def _could_matter(owner: np.ndarray, shift: np.ndarray, effect: np.ndarray) -> np.ndarray:
    """Which perturbations, of inputs `owner`, could have an effect of 1 by estimate, from those whose effect is known
    (the others': nan)."""
    known = np.flatnonzero(~np.isnan(effect))
    steepest = np.zeros(owner.max(initial=0) + 1)
    np.fmax.at(steepest, owner[known], effect[known] / shift[known])
    few = np.bincount(owner[known], minlength=len(steepest)) < FEWEST
    return few[owner] | (MARGIN * steepest[owner] * shift >= 1)


def _sources(trace: Trace, important: Important, possible: np.ndarray, reached: np.ndarray) -> np.ndarray:
    """The source rows of the important operations that link into reached rows."""
    head, target, source = important.operations.T
    links = np.where(important.by[:, 0], *possible[head, target, source].T)
    return (source + trace.first[trace.owner[target]])[links & reached[target]]


def candidates(trace: Trace, frames: Frames, answers: Sequence[Responses], threshold: float) -> list[np.ndarray]:
    """For each layer, which operations could be a merge or copy with the largest sets that any choice of important
    operations allows, H x R x n x 2: if important under zero (features must fall), and if only under maximum (rise)."""
    found = [np.zeros((*layer.pattern.shape, 2), bool) for layer in trace.layers]
    sets = frames.initial
    for given, layer, possible in zip(answers, trace.layers, found, strict=True):
        following = sets.copy()
        links.linkable(
            frames.rules, given.after, given.shift, given.products, given.target, given.source, np.float32(threshold),
            sets, layer.allowed.numpy(), possible, following,
        )  # fmt: skip
        sets = following
    return found
