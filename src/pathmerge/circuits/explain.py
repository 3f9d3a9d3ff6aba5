"""From a model and an input to a circuit: steps I to V in order, and everything that is said of the result.

Choices a reader could not guess:
- Inputs are independent, so processes (forks, where the system has them) share them out: much of the work is Python's,
  and threads would wait for each other. Torch uses one core for it.
- A process works on a few inputs at once: on one of 32 tokens, half of the time goes into calling small operations.
- `exact` measures every operation. `screened` first finds out, without perturbing anything, which operations could be
  part of a circuit at all, and measures only those (`pathmerge.circuits.screen`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pathmerge.circuits.assemble import Context, assemble
from pathmerge.circuits.draft import Drafts, draft
from pathmerge.circuits.features import Responses, responses
from pathmerge.circuits.files import Circuit
from pathmerge.circuits.frame import Frames, frames_of
from pathmerge.circuits.options import Options
from pathmerge.circuits.perturb import (
    Important,
    all_operations,
    by_input,
    decide,
    effects,
    important_last,
    limit,
    passes_of,
)
from pathmerge.circuits.reconstruct import Found, reconstruct
from pathmerge.circuits.screen import SURE, audit, joined, measure_candidates
from pathmerge.circuits.subject import Explainable, as_explainable
from pathmerge.circuits.trace import Trace, record
from pathmerge.errors import check_range
from pathmerge.kernels import links
from pathmerge.kernels.compile import CIRCUITS, mark_compiled
from pathmerge.models.transformer import Transformer
from pathmerge.parallel import forked
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import SearchDistribution

TOGETHER = 32
"""Inputs that a process works on at once."""
RESPONSES = 2**24
"""Numbers in all responses of these inputs."""


def explain(model: Any, example: Batch, options: Options | None = None, **settings: Any) -> Circuit:
    """The circuit of one input, `batch[i]`; settings are the fields of `Options`."""
    if not isinstance(example, Batch):
        raise ValueError(f"example={type(example).__name__}: must be one problem of a batch, batch[i]")
    if len(example) != 1:
        raise ValueError(f"example: {len(example)} problems given, must be one, batch[i]; explain_all takes many")
    found = next(iter(explain_all(model, example, options, threads=1, **settings)))
    if found is None:
        raise ValueError("example: every vertex id occurs in it; replacement='absent' needs one that does not")
    return found


def explain_all(
    model: Any,
    batch: Batch,
    options: Options | None = None,
    *,
    threads: int = 2,
    source: dict[str, Any] | None = None,
    **settings: Any,
) -> Iterator[Circuit | None]:
    """The circuits of a batch, in order; none for an input that `replacement="absent"` skips.

    `source` is what the files say of the model: its name, its run.
    """
    options = replace(options or Options(), **settings)
    check_range("threads", threads, 1, 1024)
    if not isinstance(batch, Batch):
        raise ValueError(f"batch={type(batch).__name__}: must be a batch of problems, distribution.sample(...)")
    subject = as_explainable(model)
    check_problem(batch)
    tokens = subject.tokens(batch)
    about = {**describe(model, subject), **(source or {})}

    def some(indices: range) -> tuple[list[int], Drafts | None]:
        with torch.inference_mode():
            return _explain(subject, batch, indices, tokens[indices.start : indices.stop], options)

    if threads > 1:
        warm_up()
    size = together(len(batch), tokens.shape[1], subject, threads)
    groups = [range(low, min(low + size, len(batch))) for low in range(0, len(batch), size)]
    given = Context(batch, tokens, options, about)
    for indices, (kept, drafts) in zip(groups, forked(some, groups, threads), strict=True):
        places = {index: g for g, index in enumerate(kept)}
        for index in indices:
            if drafts is None or index not in places:
                yield None
            else:
                yield assemble(drafts, places[index], given, index)


def together(inputs: int, width: int, subject: Explainable, threads: int) -> int:
    """How many inputs of so many tokens a process works on at once: enough to keep the calls few, few enough for every
    process to have several turns and for the responses, the largest arrays, to stay small."""
    numbers = 2 * subject.layers * subject.heads * width**2 * (width + width // 3)
    share = inputs if threads == 1 else inputs // (2 * threads)
    return max(1, min(TOGETHER, RESPONSES // numbers, share))


@cache
def warm_up() -> None:
    """Compile the kernels once, in this process: its copies would each do it, and it would count as theirs. Models of
    one head and of several have kernels of their own, and so have passes that leave most rows as they are, which sharp
    attention brings about."""
    from pathmerge.models.config import OneHot
    from pathmerge.problems.star import Star

    batch = Star(input_size=14).sample(1)
    for heads, mode in itertools.product((1, 2), ("exact", "screened")):
        model = OneHot(input_size=14, layers=3, heads=heads, initialisation="matching", matching=30.0).build()
        for circuit in explain_all(model, batch, mode=mode, threads=1):
            assert circuit is not None
            assert circuit.operations is not None  # objects, too
    mark_compiled(CIRCUITS)


def skipped_in(batch: Batch, options: Options) -> int:
    """How many inputs `replacement="absent"` skips, since every vertex id occurs in them."""
    if options.replacement != "absent":
        return 0
    most = batch.distribution.layout.max_vertices
    return sum(len(np.unique(edges[edges > 0])) == most for edges in batch.edges)


def check_problem(batch: Batch) -> None:
    """Raise unless these are search problems in symbolic tokens: others have no path from start to goal to explain."""
    problem = batch.distribution
    if not isinstance(problem, SearchDistribution) or problem.name == "language":
        raise ValueError(f"problem={problem.name!r}: must be one of naive, balanced, star; circuits explain a search")


def describe(model: Any, subject: Explainable) -> dict[str, Any]:
    """What a circuit file says of its model."""
    kind = model.config.to_dict() if isinstance(model, Transformer) else {"name": type(model).__name__}
    return {**kind, "layers": subject.layers, "heads": subject.heads, "head_width": subject.head_width}


def _explain(
    subject: Explainable, batch: Batch, indices: range, tokens: Tensor, options: Options
) -> tuple[list[int], Drafts | None]:
    """The inputs of a batch, among those whose tokens are given, that are not skipped, and their drafts."""
    part, places = batch.take(slice(indices.start, indices.stop)), np.arange(len(indices))
    trace = record(subject, tokens)
    frames = frames_of(part, places, trace, subject.has_positions)
    if options.replacement == "absent" and not frames.substitutes.all():
        places = np.flatnonzero(frames.substitutes)
        if not len(places):
            return [], None
        trace = record(subject, tokens[torch.from_numpy(places)])
        frames = frames_of(part, places, trace, subject.has_positions)
    kept = [indices[place] for place in places]
    final = important_last(trace, options.alpha)
    answers = responses(trace, frames, final.operations)
    if options.mode == "exact":
        layers, passes = measure_all(trace, final, options)
    else:
        layers, passes = measure_candidates(trace, frames, answers, final, options)
    seeds = [(options.seed, batch.first + index) for index in kept]
    important, found = why(trace, frames, layers, answers, options.kappa2)
    audited = _audited(options, frames) if subject.layers > 1 else 0
    missed = np.zeros(len(kept), np.int64)
    if audited:
        missed = _missed(trace, frames, answers, layers, audited, options, seeds)
    return kept, draft(trace, frames, options, important, found, answers, passes, (audited, missed), seeds)


def _audited(options: Options, frames: Frames) -> int:
    if options.mode == "exact":
        return 0
    return options.audit if options.audit is not None else 32 if frames.width > SURE else 0


def _missed(
    trace: Trace,
    frames: Frames,
    answers: Sequence[Responses],
    layers: Sequence[Important],
    count: int,
    options: Options,
    seeds: Sequence[Sequence[int]],
) -> np.ndarray:
    """How many of some more operations of each input would be part of its circuit (lenient, which contains the strict
    one)."""
    more = audit(trace, layers, count, options.alpha, options.kappa1, seeds)
    both = [*(joined(*pair) for pair in zip(layers[:-1], more, strict=True)), layers[-1]]
    _, found = why(trace, frames, both, answers, options.kappa2)
    kept = reconstruct(frames, found, len(layers), lenient=True, rule=options.sets).kept
    known = {(at, *operation) for at, old in enumerate(layers) for operation in old.operations.tolist()}
    lost = [s for s in np.flatnonzero(kept).tolist() if tuple(found.operations[s].tolist()) not in known]
    return np.bincount(trace.owner[found.operations[lost, 2]], minlength=len(trace))


def measure_all(trace: Trace, final: Important, options: Options) -> tuple[list[Important], np.ndarray]:
    """Step III on every operation, for each layer, with those of the last one; also how many passes it took for each
    input."""
    last = trace.model.layers - 1
    found: list[Important] = []
    passes = np.zeros(len(trace), np.int64)
    for layer in range(last):
        operations = all_operations(trace, layer)
        passes += passes_of(trace, operations)
        measured = effects(trace, layer, operations, final.operations)
        found.append(decide(measured, options.alpha, limit(trace, options.kappa1)))
    return [*found, final], passes


def why(
    trace: Trace, frames: Frames, layers: Sequence[Important], answers: Sequence[Responses], kappa2: float
) -> tuple[Important, Found]:
    """The important operations of all layers, input by input, and step IV for them."""
    important, begin = by_input(trace, layers)
    operations, shape = important.operations, (len(important.operations), frames.initial.shape[1])
    in_target, in_source = np.zeros(shape, bool), np.zeros(shape, bool)
    for layer, given in enumerate(answers):
        which = np.flatnonzero(operations[:, 0] == layer)
        links.depend(
            frames.rules, frames.owner, operations, which, important.by, given.after, given.shift, given.products,
            given.target, given.source, np.float32(limit(trace, kappa2)), in_target, in_source,
        )  # fmt: skip
    return important, Found(operations=operations, begin=begin, in_target=in_target, in_source=in_source)
