"""What explaining will cost, before it is done: passes, memory and time, from a measurement of a few passes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pathmerge.circuits import perturb
from pathmerge.circuits.explain import check_problem, explain_all, skipped_in, together, warm_up
from pathmerge.circuits.files import Circuit
from pathmerge.circuits.frame import frames_of
from pathmerge.circuits.options import Mode, Options
from pathmerge.circuits.perturb import all_operations, important_last, measure
from pathmerge.circuits.results import Inputs
from pathmerge.circuits.subject import as_explainable
from pathmerge.circuits.summary import mean
from pathmerge.circuits.trace import Trace, record
from pathmerge.heldout import NONE_HELD
from pathmerge.parallel import Workers
from pathmerge.problems.batch import Batch

TIMED = 128
"""Passes of each layer that are timed."""
SLOW = 2.0
"""Seconds: if one input takes longer, no more are explained for an estimate."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Estimates for one command."""

    inputs: int
    """That are explained: without those that `replacement="absent"` skips."""
    rounds: int
    """How often each of them is: once, or for each setting of a sweep, or each checkpoint of a history."""
    mode: Mode
    rows: int
    layers: int
    brute_force: int
    """Passes through the whole model that perturbing every operation would take, per input."""
    passes: int
    """Perturbed passes, per input."""
    seconds: float
    """Per input, with all threads at work."""
    memory: float
    """Bytes at the highest, all threads together, besides Python and torch (about 0.4 GB)."""

    @property
    def total(self) -> float:
        """Seconds for all inputs."""
        return self.seconds * self.inputs * self.rounds


@torch.no_grad()
def plan(model: Any, inputs: Inputs, options: Options, threads: int, rounds: int = 1) -> Plan:
    """Estimates from the first inputs: a whole screened explanation of as many as are worked on at once, or of one that
    takes long, files written; or a few timed passes of each layer of the first."""
    subject = as_explainable(model)
    batches = [batch for _, batch in inputs.batches]
    if not batches:
        raise ValueError(f"input_size={inputs.problems[0].input_size}: {NONE_HELD}")
    for batch in batches:
        check_problem(batch)
    longest = max(batches, key=lambda batch: int((batch.edges[0, :, 0] > 0).sum()))
    tokens = subject.tokens(longest)[0]
    trace = record(subject, tokens[None])
    frames = frames_of(longest, np.zeros(1, np.int64), trace, subject.has_positions)
    n, heads = len(trace.rows), subject.heads
    size = together(len(longest), len(tokens), subject, threads)
    with Workers(1):
        if options.mode == "screened":
            warm_up()
            computed, made = _explained(model, longest.take(slice(0, 1)), options)
            if computed < SLOW:
                computed, made = _explained(model, longest.take(slice(0, size)), options)
            # One process writes what all of them find.
            seconds = (computed / threads + _written(made)) / max(1, len(made))
            passes = round(mean([circuit.passes for circuit in made]) or 0)
        else:
            watched = important_last(trace, options.alpha).operations
            layers = [(layer, all_operations(trace, layer)) for layer in range(subject.layers - 1)]
            seconds = sum(_timed(trace, layer, operations, watched) for layer, operations in layers) / threads
            passes = sum(len(operations) for _, operations in layers)
    features = int(frames.features[0])
    stored = 4 * heads * n * n * features * 2 * subject.layers
    frozen = 4 * features * n * (2 * heads * trace.layers[0].k.shape[-1] + 6 * trace.layers[0].x.shape[-1])
    working = 4 * 12 * max(perturb.CHUNK, 16 * n * heads * trace.layers[0].v.shape[-1])
    return Plan(
        inputs=sum(len(batch) - skipped_in(batch, options) for batch in batches),
        rounds=rounds,
        mode=options.mode,
        rows=n,
        layers=subject.layers,
        brute_force=2 * heads * n * n * (subject.layers - 1) + 2 * heads * n,
        passes=passes,
        seconds=seconds,
        memory=float(threads * (size * (stored + frozen) + working)),
    )


def _explained(model: Any, batch: Batch, options: Options) -> tuple[float, list[Circuit]]:
    """The seconds that a batch takes one process, and its circuits."""
    began = time.perf_counter()
    circuits = list(explain_all(model, batch, options, threads=1))
    return time.perf_counter() - began, [circuit for circuit in circuits if circuit is not None]


def _written(circuits: Sequence[Circuit]) -> float:
    """The seconds that their files take."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for number, circuit in enumerate(circuits):
            circuit.save(Path(folder) / f"{number}.json")
    return time.perf_counter() - began


def _timed(trace: Trace, layer: int, operations: np.ndarray, watched: np.ndarray) -> float:
    """The seconds that all passes of a layer will take, from some of them."""
    some = operations[np.linspace(0, len(operations) - 1, min(TIMED, len(operations))).astype(int)]
    measure(trace, layer, some[:16], watched)
    began = time.perf_counter()
    measure(trace, layer, some, watched)
    return (time.perf_counter() - began) * len(operations) / max(1, len(some))
