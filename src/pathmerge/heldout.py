"""Held-out problems: what evaluation uses and the training stream must never show.

Choices a reader could not guess:
- A cell (a distribution of one difficulty) holds out the problems of the longest prefix of its stream, at most `count`
  examples, that has no more distinct problems than 5% of the cell. The evaluation set of the cell is that prefix.
- The size of a cell comes from a formula where there is one (star); elsewhere from a lower bound, by draws of a stream
  kept for this purpose. Few or no repeats among n draws mean many problems: n²/2 pairs with r repeats give at least
  n²/2 divided by an upper bound of r's mean (99.9%), since unequal chances only make repeats likelier. Where that does
  not suffice, draws go on until enough distinct problems were met or new draws hardly meet new ones.
- A cell that cannot hold out `count` examples is named in `too_small`; a smaller prefix is held out.
- Problems are known by their 64-bit canonical hash. The guard sits inside the kernels (an open-addressing table), so a
  look-up costs nanoseconds and a hit is redrawn in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, UInt64

from pathmerge.errors import check_range, whole
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import Distribution
from pathmerge.problems.python_distribution import PythonDistribution
from pathmerge.rng import MAX_STREAM, Split

LARGEST_SHARE = 0.05
NONE_HELD = "has too few problems to hold any out; choose a larger size"
_CENSUS_STREAM = MAX_STREAM
_CENSUS_CHUNK = 2**17
_FIRST_CENSUS = 2**13


@dataclass(frozen=True, kw_only=True)
class HeldOutCell:
    """One difficulty's evaluation set."""

    batch: Batch
    requested: int
    distinct: int
    """Distinct problems in the batch."""
    problems: int
    """How many distinct problems the cell has: exactly, or at least."""
    exact: bool
    mass: float
    """The share of the cell's draws that meet a held-out problem: what the training stream will redraw."""

    @property
    def distribution(self) -> Distribution:
        return self.batch.distribution

    @property
    def scarce(self) -> bool:
        """Whether it has too few problems to hold out as many as were asked for: training repeats the others."""
        return len(self.batch) < self.requested

    def describe(self) -> str:
        size = f"{self.problems:,}" if self.exact else f"at least {self.problems:,}"
        return (
            f"{self.distribution.describe()}: {len(self.batch):,} of {self.requested:,} examples held out "
            f"({self.distinct:,} of {size} distinct problems, {self.mass:.1%} of draws; "
            f"at most {LARGEST_SHARE:.0%} of the problems)"
        )


@dataclass(frozen=True)
class HeldOut:
    """A set of problems known by their hash, and the cells it was made from."""

    identities: UInt64[np.ndarray, " problems"]
    """Sorted, without repeats."""
    cells: tuple[HeldOutCell, ...] = ()

    def __len__(self) -> int:
        return len(self.identities)

    def __add__(self, other: HeldOut) -> HeldOut:
        return HeldOut(np.union1d(self.identities, other.identities), self.cells + other.cells)

    def __contains__(self, identity: int) -> bool:
        if not 0 < identity < 2**64:
            return False
        at = np.searchsorted(self.identities, np.uint64(identity))
        return bool(at < len(self) and self.identities[at] == np.uint64(identity))

    def has(self, identities: UInt64[np.ndarray, " given"]) -> Bool[np.ndarray, " given"]:
        """Which of these are in the set."""
        if not len(self):
            return np.zeros(len(identities), bool)
        at = np.minimum(np.searchsorted(self.identities, identities), len(self) - 1)
        return self.identities[at] == identities

    @cached_property
    def table(self) -> UInt64[np.ndarray, " places"]:
        """The hash table the kernels look into, at most a quarter full."""
        from pathmerge.kernels.fill import insert

        table = np.zeros(max(4, 1 << (4 * len(self)).bit_length()), np.uint64)
        insert(table, self.identities)
        return table

    @property
    def too_small(self) -> list[HeldOutCell]:
        """The cells that could not hold out as many examples as asked for."""
        return [cell for cell in self.cells if len(cell.batch) < cell.requested]

    @classmethod
    def of(cls, identities: Iterable[int] | np.ndarray) -> HeldOut:
        """From hashes, for instance the `identity` column of a file."""
        found = identities if isinstance(identities, np.ndarray) else [whole("identity", i) for i in identities]
        hashes = np.asarray(found)
        if hashes.size and hashes.dtype.kind not in "iu":
            raise ValueError(f"identities: have type {hashes.dtype}, must be whole numbers")
        return cls(np.unique(hashes.astype(np.uint64)))


def hold_out(
    distributions: Sequence[Distribution],
    count: int = 4000,
    *,
    seed: int = 0,
    split: Split = "test",
    held_out: HeldOut | None = None,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> HeldOut:
    """Hold out `count` examples of each difficulty of each distribution, as far as the cells are large enough.

    Problems in `held_out` (another split's) are redrawn: the two sets have none in common.
    """
    check_range("count", count, 1, 10**9)
    cells: list[HeldOutCell] = []
    for distribution in distributions:
        for cell in distribution.fixed():
            cells.append(_hold_out_cell(cell, count, seed, split, held_out, threads))
            if progress is not None:
                progress(1)
    found = [cell.batch.identity for cell in cells]
    return HeldOut(np.unique(np.concatenate(found)) if found else np.zeros(0, np.uint64), tuple(cells))


def _hold_out_cell(
    cell: Distribution, count: int, seed: int, split: Split, held_out: HeldOut | None, threads: int | None
) -> HeldOutCell:
    batch = cell.sample(count, seed=seed, split=split, held_out=held_out, threads=threads)
    _, first_seen = np.unique(batch.identity, return_index=True)
    new = np.zeros(count, np.int64)
    new[first_seen] = 1
    distinct = np.cumsum(new)
    exact = cell.problem_count()
    enough = int(np.ceil(distinct[-1] / LARGEST_SHARE))
    met, least = _census(cell, enough, seed, split, threads) if exact is None else (np.zeros(0, np.uint64), 0)
    problems = exact if exact is not None else least
    kept = int(np.searchsorted(distinct, int(problems * LARGEST_SHARE), side="right"))
    held = int(distinct[kept - 1]) if kept else 0
    return HeldOutCell(
        batch=batch.take(slice(0, kept)),
        requested=count,
        distinct=held,
        problems=problems,
        exact=exact is not None,
        mass=held / problems if exact is not None else float(np.isin(met, batch.identity[:kept]).mean()),
    )


def _census(cell: Distribution, enough: int, seed: int, split: Split, threads: int | None) -> tuple[np.ndarray, int]:
    """Draws of a cell, and how many distinct problems it has at least; goes on drawing until that is `enough`, or until
    new draws hardly meet new ones."""
    problems = getattr(cell, "symbolic", cell)  # the sentences of a language problem are not needed to count it
    begin = _FIRST_CENSUS
    if isinstance(problems, PythonDistribution):  # slow, so no more than what shows enough if there is no repeat
        begin = min(begin, max(512, math.isqrt(32 * enough)))
    met = problems.sample(begin, seed=seed, split=split, stream=_CENSUS_STREAM, threads=threads).identity
    least = _least_problems(met)
    if least >= enough:
        return met, least
    distinct = len(np.unique(met))
    while True:
        before, until = distinct, len(met) + max(2 * enough, 4096)
        while len(met) < until:
            drawn = min(_CENSUS_CHUNK, until - len(met))
            batch = problems.sample(
                drawn, seed=seed, split=split, stream=_CENSUS_STREAM, first=len(met), threads=threads
            )
            met = np.concatenate([met, batch.identity])
        distinct = len(np.unique(met))
        if distinct >= enough or distinct - before < max(2 * enough, 4096) // 100:
            return met, distinct


def _least_problems(met: np.ndarray) -> int:
    """A lower bound (99.9%) on the number of distinct problems from repeats among draws."""
    _, times = np.unique(met, return_counts=True)
    repeats = int((times * (times - 1) // 2).sum())
    likely = repeats + 7 + 4 * np.sqrt(repeats + 1)  # above the 99.9% limit for the mean of a Poisson count
    return int(len(met) * (len(met) - 1) / 2 / likely)
