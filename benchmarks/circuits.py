"""Seconds per input of the circuit method, beside a brute force of our own measured in the same run.

    .venv/bin/python benchmarks/circuits.py [--models RUN_OR_NAME ...] [--sizes 32 48 128] [--inputs 1024] [--avx2]

Brute force is what the method's definition says: one whole pass through the model for every perturbation, batched, with
`model.run` and an edit. Above N=48 it is timed on a part of the passes and extrapolated (marked ~): at N=128 it takes
minutes. The last lines say how the cost grows with the input size, from the smallest to the largest.
Exact results above EXACT_LIMIT seconds are extrapolated in the same way from some operations of each layer.
GFLOP/s are torch's in products of 2048 x 2048, just before and after the screened circuits were timed: a shared machine
is a third faster in one minute than in another. `--avx2` measures with the vector instructions of the machine that the
goals were set for, torch's and the kernels' (which are compiled anew for it).
"""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import time
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from processor import only_avx2

import pathmerge as pm
from pathmerge.circuits.explain import explain_all
from pathmerge.circuits.perturb import all_operations, important_last, measure
from pathmerge.circuits.subject import as_explainable
from pathmerge.circuits.trace import record
from pathmerge.models.transformer import Transformer
from pathmerge.zoo.shelf import names

PUBLISHED = {32: 3.2, 48: 14.0}
"""Seconds for one circuit, one thread, published code (SPEC section 8)."""
EXACT_LIMIT = 20.0
SHIPPED = [
    "balanced-32", "balanced-32-tokens", "balanced-32-plain", "balanced-48-tokens", "balanced-64", "balanced-128"
]  # fmt: skip
WHOLE = 48
"""Up to this input size brute force is timed as a whole."""


class Measured(NamedTuple):
    """A line of the table."""

    name: str
    size: int
    exact: float
    guessed: bool
    """Whether exact is extrapolated."""
    screened: float


def brute_force(model: Transformer, tokens: torch.Tensor) -> tuple[float, bool]:
    """Seconds for all perturbations of one input with both cores, and whether extrapolated from some of the passes."""
    n = int((~model.padding(tokens)).sum())
    whole = model.config.input_size <= WHOLE
    layers = range(model.layers - 1) if whole else [max(0, model.layers // 2 - 1)]
    each = model.heads * n * n
    parts = range(0, each, 256) if whole else [0]
    size = 256 if model.config.input_size <= 64 else 64
    done, seconds = 0, 0.0
    with torch.no_grad():
        model.run(tokens.expand(8, -1))
        for layer in layers:
            for first in parts:
                at = torch.arange(first, min(first + size, each))
                for most in (False, True):
                    edits = {f"blocks.{layer}.attn.hook_pattern": partial(edited, at=at, n=n, most=most)}
                    began = time.perf_counter()
                    model.run(tokens.expand(len(at), -1), edits=edits)
                    seconds += time.perf_counter() - began
                    done += len(at)
    return seconds * 2 * each * (model.layers - 1) / done, not whole


def edited(pattern: torch.Tensor, at: torch.Tensor, n: int, most: bool) -> torch.Tensor:
    """Each copy's attention with another operation at zero, or at its row's maximum; rows renormalised."""
    pattern = pattern.clone()
    head, row, source = at // (n * n), at // n % n, at % n
    places = torch.arange(len(at)), head, pattern.shape[2] - n + row, pattern.shape[3] - n + source
    pattern[places] = pattern[places[0], head, places[2]].amax(-1) if most else 0.0
    return pattern / pattern.sum(-1, keepdim=True).clamp(min=1e-9)


def exact(model: Any, batch: pm.Batch, threads: int) -> tuple[float, bool]:
    """Seconds per input, and whether extrapolated from a part of the operations."""
    subject = as_explainable(model)
    tokens = subject.tokens(batch)[:1]
    torch.set_num_threads(1)
    trace = record(subject, tokens)
    watched = important_last(trace, 0.4).operations
    estimate = 0.0
    for layer in range(subject.layers - 1):
        operations = all_operations(trace, layer)
        some = operations[np.linspace(0, len(operations) - 1, min(256, len(operations))).astype(int)]
        measure(trace, layer, some[:16], watched)
        began = time.perf_counter()
        measure(trace, layer, some, watched)
        estimate += (time.perf_counter() - began) * len(operations) / len(some)
    if estimate > EXACT_LIMIT * threads:
        return estimate / threads, True
    return timed(model, batch, "exact", threads), False


def timed(model: Any, batch: pm.Batch, mode: Any, threads: int, trust: bool = False, look: str = "operations") -> float:
    """Seconds per input, with the objects of a field made (they are when first looked at): `operations` are nearly all
    there are, `explained` is the verdict. The median of three where a measurement takes a second or two, since machines
    are shared."""
    list(explain_all(model, batch.take(slice(0, threads)), mode=mode, trust=trust, threads=threads))
    found: list[float] = []
    while len(found) < 3 and (not found or found[0] * len(batch) < 10):
        began = time.perf_counter()
        for circuit in explain_all(model, batch, mode=mode, trust=trust, audit=0, threads=threads):
            assert getattr(circuit, look) is not None
        found.append((time.perf_counter() - began) / len(batch))
    return statistics.median(found)


def row(name: str, model: Transformer, threads: int, inputs: int) -> Measured:
    """Measure and print one line of the table, from so many inputs of up to 48 tokens."""
    size = model.config.input_size
    longest = ((size - 5) // 3 - 1) // 2
    count = inputs if size <= 48 else 4 * threads
    batch = pm.Balanced(input_size=size, lookahead=max(1, longest // 2)).sample(count, seed=1, split="test")
    torch.set_num_threads(threads)
    brute, part = brute_force(model, model.inputs(batch).tokens[:1])
    seconds, guessed = exact(model, batch.take(slice(0, 384)), threads)
    verdicts = timed(model, batch, "screened", threads, look="explained")
    before = library_rate(threads)
    screened = timed(model, batch, "screened", threads)
    rate = (before + library_rate(threads)) / 2
    trusted = timed(model, batch, "screened", threads, trust=True)
    (first,) = explain_all(model, batch[0], mode="screened", trust=False)
    assert first is not None
    used = (resource.getrusage(who).ru_maxrss / 1e6 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    guess, estimate = ("~" if extrapolated else "" for extrapolated in (part, guessed))
    print(
        f"| {size} | {model.layers} | {name} | {guess}{brute:.3g} s | {estimate}{seconds:.3g} s "
        f"| {brute / seconds:.0f} | {verdicts:.3g} s | {screened:.3g} s | {rate:.0f} | {brute / screened:.0f} "
        f"| {trusted:.3g} s "
        f"| {first.passes:,} | {max(used):.2f} |",
        flush=True,
    )
    return Measured(f"{name} (N={size}, {model.layers} layers)", size, seconds, guessed, screened)


def library_rate(threads: int) -> float:
    """GFLOP/s of this machine as it is now, in products of 2048 x 2048 numbers."""
    torch.set_num_threads(threads)
    matrix, found = torch.ones(2048, 2048), list[float]()
    for _ in range(6):
        began = time.perf_counter()
        torch.mm(matrix, matrix)
        found.append(2 * 2048**3 / (time.perf_counter() - began) / 1e9)
    return statistics.median(found)


def grows(rows: list[Measured]) -> None:
    """Print the power of the input size with which the cost grows, from the first model to the last."""
    small, large = rows[0], rows[-1]
    if small.size < large.size:
        ratio = math.log(large.size / small.size)
        power, screened = math.log(large.exact / small.exact) / ratio, math.log(large.screened / small.screened) / ratio
        guess = "~" if small.guessed or large.guessed else ""
        print(f"{small.name} to {large.name}: exact grows as N^{guess}{power:.1f}, screened as N^{screened:.1f}")


def load_trained(given: str) -> tuple[str, Transformer]:
    """What a model is called in the table, and the model."""
    if given in names():
        return given, pm.load(given)
    run = pm.load_run(given)
    return f"{run.examples:,} examples", run.model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=SHIPPED, help="runs or shipped models; sizes without: untrained")
    parser.add_argument("--sizes", nargs="*", type=int, default=[32, 48, 64, 98, 128])
    parser.add_argument("--inputs", type=int, default=1024, help="up to 48 tokens; starting two processes takes 0.05 s")
    parser.add_argument("--compiled", action=argparse.BooleanOptionalAction, default=True, help="compiled models, too")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--avx2", action="store_true", help="no wider instructions than AVX2")
    options = parser.parse_args()
    if options.avx2:
        only_avx2()
    trained = [load_trained(given) for given in options.models]
    columns = (
        "N", "layers", "model", "brute force", "exact", "×", "verdict", "screened", "GFLOP/s", "×", "with trust",
        "passes", "GB per process",
    )  # fmt: skip
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|")
    found: dict[str, list[Measured]] = {"trained": [], "compiled": []}
    for size in options.sizes:
        layers = 4 if size <= 48 else 6
        models = [(title, model) for title, model in trained if model.config.input_size == size]
        for title, model in models or [("untrained", pm.OneHot(input_size=size, layers=layers).build(1))]:
            measured = row(title, model, options.threads, options.inputs)
            if title != "untrained":
                found["trained"].append(measured)
        if options.compiled:
            compiled = pm.compiled(size, layers - 2)
            found["compiled"].append(row("compiled", compiled, options.threads, options.inputs))
    for rows in found.values():
        if rows:
            grows(rows)
    for size, published in PUBLISHED.items():
        print(f"published code, one thread, N={size}: {published} s")


if __name__ == "__main__":
    main()
