"""How well probes tell what a row reaches: measures of each row, summed over problems, and the table's rows from them.

Shapes: M rows, C candidates, R distances.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan, nan, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pathmerge.circuits.probe_labels import OPPOSITE, UNRELATED, Ask
from pathmerge.circuits.probe_table import ProbeRow

LEAST_PROBLEMS = 100
"""A cell that fewer test problems have rows for is left empty."""
_Z = NormalDist().inv_cdf(0.975)

# Places in a tally: sums over problems of what its rows add up to (s) and how many they are (n).
_S, _N, _SS, _SN, _NN, _PROBLEMS = range(6)
_AUC, _OPPOSITE, _ACCURACY, _WITHIN, _POSITIVES, _NEGATIVES = range(6)


class Kinds(NamedTuple):
    """Which candidates are of which kind, for each row and where it matters for each distance, as 0 and 1."""

    at: Tensor
    """At this distance, M x R x C."""
    near: Tensor
    """Within this distance."""
    far: Tensor
    """Further away, or unrelated."""
    sides: Tensor
    """Unrelated, opposite, M x C x 2."""

    @classmethod
    def of(cls, codes: np.ndarray, most: int) -> Kinds:
        code, distance = torch.from_numpy(codes)[:, None], torch.arange(1, most + 1)[:, None]
        near = (code >= 1) & (code <= distance)
        far = (code > distance) | (code == UNRELATED)
        sides = torch.stack([code[:, 0] == UNRELATED, code[:, 0] == OPPOSITE], dim=2)
        return cls((code == distance).double(), near.double(), far.double(), sides.double())


def measure(numbers: Tensor, kinds: Kinds) -> Tensor:
    """Six measures of each row at each distance, 6 x M x R; nan (0/0) where a row has not both kinds of candidates.

    `numbers` are the probes' outputs, M x (1 + R) x C: reachable at all, then within each distance.
    """
    at, near, far, sides = kinds
    said = (numbers > 0).double()
    reach = numbers[:, 0]
    # The share of unrelated (of opposite) candidates with a smaller number; equal ones count half.
    above = torch.sign(reach[:, :, None] - reach[:, None, :])
    rank = (1 + above @ sides / sides.sum(1, keepdim=True)) / 2
    count = at.sum(2)
    auc, opposite, hits = (at @ torch.cat([rank, said[:, 0, :, None]], dim=2) / count[:, :, None]).unbind(2)
    unrelated = sides[:, :, 0]
    negatives = unrelated.sum(1, keepdim=True).expand(count.shape)
    accuracy = (hits + 1 - (said[:, 0] * unrelated).sum(1, keepdim=True) / negatives) / 2
    within = ((said[:, 1:] * near).sum(2) / near.sum(2) + 1 - (said[:, 1:] * far).sum(2) / far.sum(2)) / 2
    counted = ~auc.isnan()
    return torch.stack([auc, opposite, accuracy, within, *(n.where(counted, nan) for n in (count, negatives))])


def sums_of(values: np.ndarray, problem: np.ndarray) -> np.ndarray:
    """Sums over problems, 6 x R x 6, of measures by row, 6 x M x R."""
    first = np.unique(problem, return_index=True)[1]
    if not len(first):
        return np.zeros((len(values), values.shape[2], 6))
    s = np.add.reduceat(np.nan_to_num(values), first, axis=1)
    n = np.add.reduceat(~np.isnan(values), first, axis=1, dtype=np.float64)
    return np.stack([a.sum(1) for a in (s, n, s * s, s * n, n * n, n > 0)], axis=-1)


def table_rows(tally: np.ndarray, ask: Ask) -> Iterator[ProbeRow]:
    for i, control in enumerate(ask.labels):
        for j, direction in enumerate(ask.directions):
            for layer in range(len(tally)):
                for r in range(ask.most):
                    cell = tally[layer, i, j, :, r]
                    auc, error = _mean(cell[_AUC])
                    yield ProbeRow(
                        control=control,
                        rows=ask.rows,
                        by=ask.by,
                        direction=direction,
                        layer=layer,
                        distance=r + 1,
                        positives=int(cell[_POSITIVES, _S]),
                        negatives=int(cell[_NEGATIVES, _S]),
                        auc=auc,
                        low=max(0.0, auc - _Z * error) if not isnan(auc) else nan,
                        high=min(1.0, auc + _Z * error) if not isnan(auc) else nan,
                        opposite=_mean(cell[_OPPOSITE])[0],
                        accuracy=_mean(cell[_ACCURACY])[0],
                        within=_mean(cell[_WITHIN])[0],
                    )


def _mean(sums: np.ndarray) -> tuple[float, float]:
    """The mean over rows and its standard error, problems being independent and rows of one problem not."""
    if sums[_PROBLEMS] < LEAST_PROBLEMS:
        return nan, nan
    mean = sums[_S] / sums[_N]
    spread = sums[_SS] - 2 * mean * sums[_SN] + mean**2 * sums[_NN]
    return float(mean), sqrt(max(0.0, spread)) / float(sums[_N])
