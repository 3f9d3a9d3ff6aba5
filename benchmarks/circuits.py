"""Seconds per input of the circuit method, beside a brute force of our own measured in the same run.

    .venv/bin/python benchmarks/circuits.py [--models RUN_OR_NAME ...] [--sizes 32 48 64 98 128] [--threads 2]

Brute force is what the method's definition says: one whole pass through the model for every perturbation, batched, with
`model.run` and an edit. It is timed on a part of the passes and extrapolated (marked ~), since it takes hours at N=128.
Exact results above EXACT_LIMIT seconds are extrapolated in the same way from some operations of each layer.
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import Any

import numpy as np
import torch

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
SHIPPED = ["balanced-32", "balanced-32-tokens", "balanced-48-tokens", "balanced-64"]


def brute_force(model: Transformer, tokens: torch.Tensor, passes: int) -> float:
    """Seconds for all perturbations of one input, from `passes` of them, with both cores."""
    n = int((~model.padding(tokens)).sum())
    layer = max(0, model.layers // 2 - 1)
    copies = tokens.expand(passes, -1)

    def edit(pattern: torch.Tensor) -> torch.Tensor:
        pattern = pattern.clone()
        at = torch.arange(passes)
        row = at % pattern.shape[2]
        pattern[at, 0, row, (at * 7) % pattern.shape[3]] = 0
        return pattern / pattern.sum(-1, keepdim=True).clamp(min=1e-9)

    site = f"blocks.{layer}.attn.hook_pattern"
    with torch.no_grad():
        model.run(copies[:8], edits={site: lambda p: p.clone()})
        began = time.perf_counter()
        model.run(copies, edits={site: edit})
        each = (time.perf_counter() - began) / passes
    return each * 2 * model.heads * n * n * (model.layers - 1)


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


def timed(model: Any, batch: pm.Batch, mode: Any, threads: int, trust: bool = False) -> float:
    """Seconds per input, all objects of the result made (they are when first looked at)."""
    list(explain_all(model, batch.take(slice(0, threads)), mode=mode, trust=trust, threads=threads))
    began = time.perf_counter()
    operations = 0
    for circuit in explain_all(model, batch, mode=mode, trust=trust, audit=0, threads=threads):
        assert circuit is not None
        operations += len(circuit.operations)
    assert operations
    return (time.perf_counter() - began) / len(batch)


def row(name: str, model: Transformer, threads: int) -> None:
    """Measure and print one line of the table."""
    size = model.config.input_size
    longest = ((size - 5) // 3 - 1) // 2
    count = 384 if size <= 48 else 8 if size <= 64 else 2 * threads
    batch = pm.Balanced(input_size=size, lookahead=max(1, longest // 2)).sample(count, seed=1, split="test")
    torch.set_num_threads(threads)
    brute = brute_force(model, model.inputs(batch).tokens[:1], 256 if size <= 64 else 64)
    seconds, guessed = exact(model, batch, threads)
    screened = timed(model, batch, "screened", threads)
    trusted = timed(model, batch, "screened", threads, trust=True)
    (first,) = explain_all(model, batch[0], mode="screened", trust=False)
    assert first is not None
    used = (resource.getrusage(who).ru_maxrss / 1e6 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(
        f"| {size} | {model.layers} | {name} | ~{brute:.3g} s | {'~' if guessed else ''}{seconds:.3g} s "
        f"| {brute / seconds:.0f} | {screened:.3g} s | {brute / screened:.0f} | {trusted:.3g} s "
        f"| {first.passes:,} | {max(used):.2f} |",
        flush=True,
    )


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
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    trained = [load_trained(given) for given in options.models]
    print("| N | layers | model | brute force | exact | × | screened | × | with trust | passes | GB per process |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for size in options.sizes:
        layers = 4 if size <= 48 else 6
        models = [(title, model) for title, model in trained if model.config.input_size == size]
        for title, model in models or [("untrained", pm.OneHot(input_size=size, layers=layers).build(1))]:
            row(title, model, options.threads)
        row("compiled", pm.compiled(size, layers - 2), options.threads)
    for size, published in PUBLISHED.items():
        print(f"published code, one thread, N={size}: {published} s")


if __name__ == "__main__":
    main()
