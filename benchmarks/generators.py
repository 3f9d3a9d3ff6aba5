"""How fast problems are drawn: `python benchmarks/generators.py [--seconds 2] [--sizes 64 128] [--markdown FILE]`

Batches of 1,024 come out of a `Stream` as tensors, with answers, difficulty and hash, on one and on two threads. Beside
them, measured in the same run: the pure-Python oracle generator on one core. The published generator's figures (SPEC
section 8: one core of a machine like ours) stand in the last columns; they were not measured here.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import oracles

import pathmerge as pm
from pathmerge.problems.distribution import Distribution
from pathmerge.stats import acceptance
from pathmerge.stream import Stream

BATCH = 1024
PUBLISHED: dict[str, dict[int, float]] = {
    "balanced": {32: 27e3, 64: 142e3, 98: 92e3, 128: 68e3, 256: 22e3},
    "naive": {32: 255e3, 64: 125e3, 98: 76e3, 128: 53e3, 256: 15e3},
    "dfs": {32: 733e3, 64: 362e3, 98: 199e3, 128: 134e3, 256: 40e3},
    "dfs naive": {32: 733e3, 64: 362e3, 98: 199e3, 128: 134e3, 256: 40e3},
    "selection-inference": {32: 332e3, 64: 116e3, 98: 48e3, 128: 27e3, 256: 4.4e3},
}


@dataclass(frozen=True)
class Row:
    name: str
    size: int
    one: float
    two: float
    acceptance: float
    lowest: float
    peak: int
    oracle: float


def distributions(size: int) -> dict[str, tuple[Distribution, Callable[[random.Random], object]]]:
    """Each distribution, and one draw of the oracle's version of it."""
    balanced = pm.Balanced(input_size=size)
    pairs = oracles.feasible_pairs(size, "selection-inference")
    stars = oracles.feasible_pairs(size, "star")
    dfs = pm.DFS(input_size=size)

    def draw_balanced(rng: random.Random) -> object:
        return oracles.balanced(rng, size, rng.randint(1, balanced.largest_lookahead))

    def draw_star(rng: random.Random) -> object:
        return oracles.star(rng, size, *rng.choice(stars))

    def draw_dfs(rng: random.Random) -> object:
        return oracles.dfs_balanced(rng, size, rng.randint(0, dfs.largest_backtrack))

    def draw_selection(rng: random.Random) -> object:
        frontier, branch = rng.choice(pairs)
        return oracles.selection_inference(rng, size, frontier, branch, rng.choice(("selection", "inference")))

    return {
        "balanced": (balanced, draw_balanced),
        "naive": (pm.Naive(input_size=size), lambda rng: oracles.naive(rng, size)),
        "star": (pm.Star(input_size=size), draw_star),
        "dfs": (dfs, draw_dfs),
        "dfs naive": (pm.DFS(input_size=size, mode="naive"), lambda rng: oracles.dfs_naive(rng, size)),
        "selection-inference": (pm.SelectionInference(input_size=size), draw_selection),
    }


def stream_rate(distribution: Distribution, threads: int, seconds: float) -> float:
    """Examples per second out of a stream that nobody else slows down; the best of three stretches."""
    best = 0.0
    with Stream(distribution, BATCH, threads=threads, ahead=2 * threads) as stream:
        for _ in range(8):
            next(stream)
        for _ in range(3):
            begin, batches = time.perf_counter(), 0
            while time.perf_counter() - begin < seconds / 3:
                next(stream)
                batches += 1
            best = max(best, batches * BATCH / (time.perf_counter() - begin))
    return best


def peak_bytes(distribution: Distribution) -> int:
    """The most memory that a stream on two threads holds at a time."""
    tracemalloc.start()
    with Stream(distribution, BATCH, threads=2, ahead=4) as stream:
        for _ in range(12):
            next(stream)
        peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def oracle_rate(draw: Callable[[random.Random], object], seconds: float) -> float:
    rng = random.Random(1)
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        draw(rng)
        count += 1
    return count / (time.perf_counter() - begin)


def measure(size: int, seconds: float) -> list[Row]:
    rows: list[Row] = []
    for name, (distribution, draw) in distributions(size).items():
        batch = distribution.sample(20_000)
        rates = acceptance(batch)
        by_chance = len(distribution.cells()) == 1
        overall = len(batch) / int(batch.attempts.sum())
        rows.append(
            Row(
                name=name,
                size=size,
                one=stream_rate(distribution, 1, seconds),
                two=stream_rate(distribution, 2, seconds),
                acceptance=overall,
                lowest=overall if by_chance else min(rates.values()),
                peak=peak_bytes(distribution),
                oracle=oracle_rate(draw, seconds / 2),
            )
        )
        print(format_row(rows[-1]), flush=True)
    return rows


HEADER = """\
| distribution | N | examples/s, 1 thread | 2 threads | acceptance (lowest cell) | peak memory | oracle, examples/s | \
2 threads / oracle | published, 1 core | 2 threads / published |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"""


def format_row(row: Row) -> str:
    published = PUBLISHED.get(row.name, {}).get(row.size)
    return (
        f"| {row.name} | {row.size} | {row.one:,.0f} | {row.two:,.0f} | {row.acceptance:.1%} ({row.lowest:.1%}) | "
        f"{row.peak / 1e6:.1f} MB | {row.oracle:,.0f} | {row.two / row.oracle:,.0f}x | "
        + (f"{published:,.0f} | {row.two / published:.1f}x |" if published else "- | - |")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each measurement")
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 64, 98, 128, 256, 512], help="input sizes N")
    parser.add_argument("--markdown", type=Path, help="write the table to this file too")
    options = parser.parse_args()
    machine = (
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    print(f"{machine}; batches of {BATCH} as tensors\n\n{HEADER}", flush=True)
    rows = [row for size in options.sizes for row in measure(size, options.seconds)]
    if options.markdown:
        options.markdown.write_text("\n".join([HEADER, *map(format_row, rows)]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
