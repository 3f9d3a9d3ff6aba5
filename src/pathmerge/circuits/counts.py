"""Many circuits of one model, counted: what the figures show, as numbers with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import nan, sqrt
from statistics import NormalDist
from typing import Literal

import numpy as np

from pathmerge.circuits.files import Circuit, Direction, Operation, Reading
from pathmerge.circuits.picture import path_of
from pathmerge.errors import check_choice, check_range
from pathmerge.evaluation.accuracy import wilson

ReadingName = Literal["strict", "lenient"]
READINGS: tuple[ReadingName, ...] = ("strict", "lenient")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A share or mean with its 95% interval; not a number where there is nothing to count."""

    value: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, kw_only=True)
class Places:
    """Kept merges between rows of vertices on the path, by layer, source's place and target's."""

    reading: ReadingName
    length: int
    """Steps of the paths."""
    circuits: int
    of: int
    """How many circuits have paths of this length, of how many."""
    counts: np.ndarray
    """Layers x sources x targets; place 0 is the start."""

    def shares(self) -> np.ndarray:
        """Normalised for each target: what part of its merges comes from which source; nan where it has none."""
        totals = self.counts.sum(1, keepdims=True)
        return np.divide(self.counts, totals, out=np.full(self.counts.shape, nan), where=totals > 0)


def lookahead_shares(circuits: Sequence[Circuit]) -> dict[int, dict[str, Estimate]]:
    """For each lookahead: "correct", and for each reading "explained", "maximal" and "maximal_vertex", as in
    "strict explained"."""
    check_circuits(circuits)
    found: dict[int, dict[str, Estimate]] = {}
    for lookahead in sorted({circuit.input.lookahead for circuit in circuits}):
        group = [circuit for circuit in circuits if circuit.input.lookahead == lookahead]
        row = {"correct": _share(sum(circuit.correct for circuit in group), len(group))}
        for name in READINGS:
            readings = [_reading(circuit, name) for circuit in group]
            row[f"{name} explained"] = _share(sum(reading.explained for reading in readings), len(group))
            row[f"{name} maximal"] = _pooled([(reading.maximal, reading.ranked) for reading in readings])
            known = [(best, reading.ranked) for reading in readings if (best := reading.maximal_vertex) is not None]
            row[f"{name} maximal_vertex"] = _pooled(known)
        found[lookahead] = row
    return found


def merge_places(circuits: Sequence[Circuit], reading: ReadingName, *, length: int | None = None) -> Places:
    """Count kept merges by the places of their rows' vertices on the path."""
    layers = check_circuits(circuits, reading)
    paths = [path_of(circuit) for circuit in circuits]
    groups = Counter(len(path) - 1 for path in paths)
    if length is None:
        common = [steps for steps, count in groups.items() if 3 * count >= len(circuits)]
        length = max(common) if common else max(groups, key=lambda steps: (groups[steps], steps))
    check_range("length", length, 1, 10**6)
    if length not in groups:
        raise ValueError(f"length={length}: no circuit has such a path, must be one of {sorted(groups)}")
    counts = np.zeros((layers, length + 1, length + 1), np.int64)
    for circuit, path in zip(circuits, paths, strict=True):
        if len(path) - 1 != length:
            continue
        place_of = {vertex: place for place, vertex in enumerate(path)}
        held = {row.position: row.vertices for row in circuit.input.rows}
        for merge in kept_merges(circuit, reading):
            ends = [place_of.get(held[at][0]) if held[at] else None for at in (merge.source, merge.target)]
            if None not in ends:
                counts[merge.layer, ends[0], ends[1]] += 1
    return Places(reading=reading, length=length, circuits=groups[length], of=len(circuits), counts=counts)


def merge_distances(circuits: Sequence[Circuit], reading: ReadingName) -> list[Counter[tuple[Direction, int]]]:
    """For each layer, how many kept merges go which way and how many steps (0 where there is no distance)."""
    found: list[Counter[tuple[Direction, int]]] = [Counter() for _ in range(check_circuits(circuits, reading))]
    for circuit in circuits:
        for merge in kept_merges(circuit, reading):
            found[merge.layer][merge.direction, merge.distance or 0] += 1
    return found


def trust_estimates(circuits: Sequence[Circuit]) -> dict[str, Estimate]:
    """For each reading the fields of `Trust`, as in "strict sufficient", over the circuits that have them."""
    check_circuits(circuits)
    found: dict[str, Estimate] = {}
    for name in READINGS:
        trusts = [trust for circuit in circuits if (trust := _reading(circuit, name).trust) is not None]
        for field in ("sufficient", "random_sufficient", "complete", "random_complete"):
            found[f"{name} {field}"] = _share(sum(getattr(trust, field) for trust in trusts), len(trusts))
        for field in ("minimal", "random_minimal"):
            values = [value for trust in trusts if (value := getattr(trust, field)) is not None]
            found[f"{name} {field}"] = _mean(values)
    return found


def kept_merges(circuit: Circuit, reading: ReadingName) -> list[Operation]:
    """The operations of a circuit that are merges; copies are not."""
    kept = [circuit.operations[i] for i in _reading(circuit, reading).kept]
    return [operation for operation in kept if operation.kind in ("token", "position")]


def _reading(circuit: Circuit, name: ReadingName) -> Reading:
    return circuit.strict if name == "strict" else circuit.lenient


def check_circuits(circuits: Sequence[Circuit], reading: str = "strict") -> int:
    """Raise unless there is something to draw; the number of layers."""
    check_choice("reading", reading, READINGS)
    if not circuits:
        raise ValueError("circuits=[]: must hold at least one circuit")
    layers = {len(circuit.strict.sets) - 1 for circuit in circuits}
    if len(layers) > 1:
        raise ValueError(f"circuits: of models with {sorted(layers)} layers, must be of one model")
    if not any(circuit.operations for circuit in circuits):
        raise ValueError(f"circuits: none of the {len(circuits)} holds an operation, at least one must")
    return layers.pop()


def _share(hits: int, count: int) -> Estimate:
    low, high = wilson(hits, count)
    return Estimate(value=hits / count if count else nan, low=low, high=high, count=count)


def _pooled(pairs: Sequence[tuple[Collection[int], Collection[int]]]) -> Estimate:
    """The share of the first of all the second."""
    return _share(sum(len(hits) for hits, _ in pairs), sum(len(those) for _, those in pairs))


def student(freedom: int) -> float:
    """The 0.975 quantile of Student's distribution: exact for 1 and 2 degrees of freedom, above to within 1%."""
    if freedom <= 2:
        return 12.7062 if freedom == 1 else 4.30265
    z = NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom ** (i + 1) for i, term in enumerate(terms))


def _mean(values: Sequence[float]) -> Estimate:
    """The mean with Student's interval, cut off at 0 and 1; without an interval for fewer than two values."""
    count = len(values)
    mean = sum(values) / count if count else nan
    if count < 2:
        return Estimate(value=mean, low=nan, high=nan, count=count)
    half = student(count - 1) * float(np.std(values, ddof=1)) / sqrt(count)
    return Estimate(value=mean, low=max(0.0, mean - half), high=min(1.0, mean + half), count=count)
