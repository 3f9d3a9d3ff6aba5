"""The screened way: find out first which operations can be part of a circuit at all, and perturb only those.

Step IV does not need to know what is important: one frozen pass for each feature gives the features of *every*
operation. One whose features make it neither a merge nor a copy is discarded whatever its importance, and so is one
that does not lead to the last row. So, from the last layer downwards, only operations into rows that a chain reaches,
and whose features would make them a link, are perturbed, each exactly. Nothing is estimated, so nothing can be missed,
but for rows changed by less than SKIP, which later layers leave out; `audit` measures that.

What is not known of a screened result: important operations that are neither merge nor copy, the sets of rows that no
chain reaches, and what the maximum does to an operation that is important under zero already.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pathmerge.circuits.features import Responses
from pathmerge.circuits.frame import Frame
from pathmerge.circuits.perturb import MAXIMUM, ZERO, Important, decide, effects, important_last, limit
from pathmerge.circuits.trace import Trace
from pathmerge.kernels import links

SKIP = 1e-6
"""A row changed by less is taken for unchanged."""


def measure_candidates(
    trace: Trace, frame: Frame, answers: list[Responses], alpha: float, kappa1: float, kappa2: float
) -> tuple[list[Important], int]:
    """The important operations among all that can be links on a chain to the last row, and the passes it took."""
    possible = candidates(trace, frame, answers, limit(trace, kappa2))
    last = trace.model.layers - 1
    final = important_last(trace, alpha)
    reached = np.zeros(frame.rows, bool)
    reached[-1] = True
    reached[_sources(final, possible[last], reached)] = True
    watched = final.operations[:, [0, 2]]
    found, passes = [final], 0
    for layer in reversed(range(last)):
        chosen = possible[layer] & reached[None, :, None, None]
        measured, count = _measure(trace, layer, chosen, watched, alpha, limit(trace, kappa1))
        passes += count
        found.append(measured)
        reached[_sources(measured, possible[layer], reached)] = True
    return found[::-1], passes


def audit(
    trace: Trace, found: list[Important], count: int, alpha: float, kappa1: float, seed: Sequence[int]
) -> list[Important]:
    """What measuring some more operations of the layers below the last finds: drawn at random among those not found
    important, each measured exactly. For each layer, the important ones among them."""
    choose = np.random.default_rng([*seed, 1])
    last = trace.model.layers - 1
    watched = found[last].operations[:, [0, 2]]
    there = np.broadcast_to(trace.allowed.numpy(), (last, *trace.layers[0].pattern.shape)).copy()
    for layer in range(last):
        there[layer][tuple(found[layer].operations.T)] = False
    every = np.argwhere(there)
    chosen = every[choose.choice(len(every), min(count, len(every)), replace=False)]
    more: list[Important] = []
    for layer in range(last):
        operations = chosen[chosen[:, 0] == layer, 1:]
        both = np.concatenate([np.insert(operations, 3, kind, axis=1) for kind in (ZERO, MAXIMUM)])
        more.append(decide(effects(trace, layer, both, watched), alpha, limit(trace, kappa1)))
    return more


def joined(one: Important, other: Important) -> Important:
    """The operations of both."""
    names = ("operations", "by", "drop", "change")
    return Important(**{name: np.concatenate([getattr(one, name), getattr(other, name)]) for name in names})


def _measure(
    trace: Trace, layer: int, chosen: np.ndarray, watched: np.ndarray, alpha: float, threshold: float
) -> tuple[Important, int]:
    """Perturb candidates to zero, and to the maximum where that can still decide something; elsewhere it stays nan."""
    operations = np.argwhere(chosen.any(-1))
    to_zero = np.insert(operations, 3, ZERO, axis=1)
    first = effects(trace, layer, to_zero, watched, SKIP)
    by_zero = (first.drop[..., ZERO] > alpha) | (first.change[..., ZERO] > threshold)
    open_still = chosen[..., 1] & ~by_zero
    to_maximum = np.insert(np.argwhere(open_still), 3, MAXIMUM, axis=1)
    second = effects(trace, layer, to_maximum, watched, SKIP)
    for one, other in ((first.drop, second.drop), (first.change, second.change)):
        one[..., MAXIMUM] = np.where(open_still, other[..., MAXIMUM], np.nan)
    return decide(first, alpha, threshold), len(to_zero) + len(to_maximum)


def _sources(important: Important, possible: np.ndarray, reached: np.ndarray) -> np.ndarray:
    """The source rows of the important operations that link into reached rows."""
    head, target, source = important.operations.T
    links = np.where(important.by[:, 0], *possible[head, target, source].T)
    return source[links & reached[target]]


def candidates(trace: Trace, frame: Frame, answers: list[Responses], threshold: float) -> list[np.ndarray]:
    """For each layer, which operations could be a merge or copy with the largest sets that any choice of important
    operations allows, H x n x n x 2: if important under zero (features must fall), and if only under maximum (rise)."""
    sets = frame.initial
    found: list[np.ndarray] = []
    for response, layer in zip(answers, trace.layers, strict=True):
        possible = np.empty((*layer.pattern.shape, 2), bool)
        links.linkable(
            response.target, response.source, np.float32(threshold), sets, len(frame.vertices), frame.edge_features,
            frame.query_features, layer.allowed.numpy(), possible,
        )  # fmt: skip
        found.append(possible)
        following = sets.copy()
        _, target, source = np.nonzero(possible.any(-1))
        np.logical_or.at(following, target, sets[source])
        sets = following
    return found
