"""From a model and an input to a circuit: steps I to V in order, and everything that is said of the result.

Choices a reader could not guess:
- Inputs are independent, so each is one process's work (a fork, where the system has it): much of the work is Python's,
  and threads would wait for each other. Torch uses one core for it.
- `exact` measures every operation. `screened` first finds out, without perturbing anything, which operations could be
  part of a circuit at all, and measures only those (`pathmerge.circuits.screen`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pathmerge.circuits.assemble import assemble
from pathmerge.circuits.draft import Draft, draft
from pathmerge.circuits.features import Responses, dependencies, responses
from pathmerge.circuits.files import Circuit
from pathmerge.circuits.frame import Frame, frame_of
from pathmerge.circuits.options import Options
from pathmerge.circuits.perturb import Important, all_operations, decide, effects, important_last, limit
from pathmerge.circuits.reconstruct import Found, reconstruct
from pathmerge.circuits.screen import audit, joined, measure_candidates
from pathmerge.circuits.subject import Explainable, as_explainable
from pathmerge.circuits.trace import Trace, record
from pathmerge.errors import check_range
from pathmerge.models.transformer import Transformer
from pathmerge.parallel import forked
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import SearchDistribution


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

    def one(index: int) -> Draft | None:
        with torch.inference_mode():
            return _explain(subject, batch, index, tokens[index], options)

    if threads > 1:
        warm_up()
    for index, made in enumerate(forked(one, range(len(batch)), threads)):
        yield None if made is None else assemble(made, batch, index, tokens[index], options, about)


@cache
def warm_up() -> None:
    """Compile the kernels once, in this process: its copies would each do it, and it would count as theirs."""
    from pathmerge.models.config import OneHot
    from pathmerge.problems.star import Star

    batch = Star(input_size=14).sample(1)
    for mode in ("exact", "screened"):
        list(explain_all(OneHot(input_size=14, layers=3).build(), batch, mode=mode, threads=1))


def check_problem(batch: Batch) -> None:
    """Raise unless these are search problems in symbolic tokens: others have no path from start to goal to explain."""
    problem = batch.distribution
    if not isinstance(problem, SearchDistribution) or problem.name == "language":
        raise ValueError(f"problem={problem.name!r}: must be one of naive, balanced, star; circuits explain a search")


def describe(model: Any, subject: Explainable) -> dict[str, Any]:
    """What a circuit file says of its model."""
    kind = model.config.to_dict() if isinstance(model, Transformer) else {"name": type(model).__name__}
    return {**kind, "layers": subject.layers, "heads": subject.heads, "head_width": subject.head_width}


def _explain(subject: Explainable, batch: Batch, index: int, tokens: Tensor, options: Options) -> Draft | None:
    trace = record(subject, tokens)
    frame = frame_of(batch, index, tokens, trace.rows, subject.has_positions)
    if frame.substitute == 0 and options.replacement == "absent":
        return None
    answers = responses(trace, frame)
    audited = missed = 0
    if options.mode == "exact":
        important, passes = measure_all(trace, options)
    else:
        thresholds = (options.alpha, options.kappa1, options.kappa2)
        important, passes = measure_candidates(trace, frame, answers, *thresholds)
        audited = _audited(options, frame) if subject.layers > 1 else 0
    layers = [why(trace, *pair, options.kappa2) for pair in zip(important, answers, strict=True)]
    if audited:
        missed = _missed(trace, frame, answers, important, audited, options, batch.first + index)
    return draft(
        trace, frame, options, important, layers, passes, (audited, missed), (options.seed, batch.first + index)
    )


def _audited(options: Options, frame: Frame) -> int:
    return options.audit if options.audit is not None else 32 if frame.width > 48 else 0


def _missed(
    trace: Trace,
    frame: Frame,
    answers: list[Responses],
    important: list[Important],
    count: int,
    options: Options,
    index: int,
) -> int:
    """How many of some more operations would be part of the circuit (lenient, which contains the strict one)."""
    more = audit(trace, important, count, options.alpha, options.kappa1, (options.seed, index))
    found = [*(joined(*pair) for pair in zip(important[:-1], more, strict=True)), important[-1]]
    layers = [why(trace, *pair, options.kappa2) for pair in zip(found, answers, strict=True)]
    kept = reconstruct(frame, layers, lenient=True, rule=options.sets).kept
    return sum(int(kept[layer][len(important[layer].operations) :].sum()) for layer in range(len(more)))


def measure_all(trace: Trace, options: Options) -> tuple[list[Important], int]:
    """Steps II and III on every operation; also how many passes it took."""
    last = trace.model.layers - 1
    final = important_last(trace, options.alpha)
    watched = final.operations[:, [0, 2]]
    found: list[Important] = []
    passes = 0
    for layer in range(last):
        operations = all_operations(trace, layer)
        passes += len(operations)
        found.append(decide(effects(trace, layer, operations, watched), options.alpha, limit(trace, options.kappa1)))
    return [*found, final], passes


def why(trace: Trace, important: Important, answers: Responses, kappa2: float) -> Found:
    """Step IV for the important operations of a layer."""
    target, source = answers.of(important.operations)
    falls = important.by[:, 0]
    return Found(
        operations=important.operations,
        in_target=dependencies(target, falls, limit(trace, kappa2)),
        in_source=dependencies(source, falls, limit(trace, kappa2)),
        target_change=target,
        source_change=source,
    )
