"""From a model and an input to a circuit: steps I to V in order, and everything that is said of the result.

Choices a reader could not guess:
- Inputs are independent, so each is one process's work (a fork, where the system has it): much of the work is Python's,
  and threads would wait for each other. Torch uses one core for it.
- `exact` measures every operation. `screened` first finds out, without perturbing anything, which operations could be
  part of a circuit at all, and measures only those (`pathmerge.circuits.screen`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pathmerge.circuits.features import Responses, dependencies, responses
from pathmerge.circuits.files import Circuit, Feature, Input, Method, Mode, Operation, Reading, Row
from pathmerge.circuits.frame import Frame, frame_of
from pathmerge.circuits.merges import DIRECTIONS, directions, maximal, maximal_vertex
from pathmerge.circuits.options import Options
from pathmerge.circuits.perturb import Important, all_operations, decide, effects, important_last, limit
from pathmerge.circuits.reconstruct import (
    COPY,
    KINDS,
    OTHER,
    TOKEN,
    Found,
    Reconstruction,
    downwards,
    holders,
    reconstruct,
)
from pathmerge.circuits.screen import audit, joined, measure_candidates
from pathmerge.circuits.subject import Explainable, as_explainable
from pathmerge.circuits.trace import Trace, record
from pathmerge.circuits.trust import trust
from pathmerge.models.transformer import Transformer
from pathmerge.parallel import forked
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import SearchDistribution

WAYS = DIRECTIONS[:2]
PERTURBATIONS: dict[tuple[bool, ...], tuple[Literal["zero", "maximum"], ...]] = {
    (True, True): ("zero", "maximum"),
    (True, False): ("zero",),
    (False, True): ("maximum",),
}


def explain(model: Any, example: Batch, options: Options | None = None, **settings: Any) -> Circuit:
    """The circuit of one input, `batch[i]`; settings are the fields of `Options`."""
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
    options = Options(**settings) if options is None else options
    subject = as_explainable(model)
    check_problem(batch)
    tokens = subject.tokens(batch)
    about = {**describe(model, subject), **(source or {})}

    def one(index: int) -> Circuit | None:
        with torch.inference_mode():
            return _explain(subject, batch, index, tokens[index], options, about)

    if threads > 1:
        warm_up()
    yield from forked(one, range(len(batch)), threads)


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


def _explain(
    subject: Explainable, batch: Batch, index: int, tokens: Tensor, options: Options, about: dict[str, Any]
) -> Circuit | None:
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
    return assemble(trace, frame, batch, index, options, important, answers, layers, passes, (audited, missed), about)


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
    more = audit(trace, frame, important, count, options.alpha, options.kappa1, (options.seed, index))
    found = [joined(*pair) for pair in zip(important, [*more, important[-1]], strict=True)]
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
    )


def assemble(
    trace: Trace,
    frame: Frame,
    batch: Batch,
    index: int,
    options: Options,
    important: Sequence[Important],
    answers: Sequence[Responses],
    layers: Sequence[Found],
    passes: int,
    audit_result: tuple[int, int],
    about: dict[str, Any],
) -> Circuit:
    """Step V under both readings, and the circuit as it is saved."""
    strict = reconstruct(frame, layers, rule=options.sets)
    lenient = reconstruct(frame, layers, lenient=True, rule=options.sets)
    correct = trace.prediction in frame.answers
    explained = correct and frame.leads(set(strict.arrived), trace.prediction)
    seed = (options.seed, batch.first + index)
    chain = downwards(frame.rows, [found.operations for found in layers])
    return Circuit(
        input=_input(batch, index, frame, trace.tokens),
        model=about,
        prediction=trace.prediction,
        logit=_rounded(np.array([trace.logit]))[0],
        correct=correct,
        method=Method(
            mode=options.mode,
            alpha=options.alpha,
            kappa1=options.kappa1,
            kappa2=options.kappa2,
            sets=options.sets,
            substitute=frame.substitute,
        ),
        operations=tuple(_operations(trace, frame, important, answers, layers, lenient)),
        strict=_reading(trace, frame, layers, strict, explained, options, seed),
        lenient=_reading(trace, frame, layers, lenient, frame.leads(set(lenient.arrived), None), options, seed),
        connected=_connected(frame, chain[0], lenient, options.mode),
        passes=passes,
        audited=audit_result[0],
        missed=audit_result[1],
        made_with=_versions(),
    )


def _connected(frame: Frame, rows: np.ndarray, lenient: Reconstruction, mode: Mode) -> bool | None:
    if mode == "screened":
        return True if frame.leads(set(lenient.arrived), None) else None
    return frame.leads(set(holders(frame, rows)), None)


def _reading(
    trace: Trace,
    frame: Frame,
    layers: Sequence[Found],
    found: Reconstruction,
    explained: bool,
    options: Options,
    seed: Sequence[int],
) -> Reading:
    largest: list[int] = []
    best: list[int] = []
    ranked: list[int] = []
    ways, _ = directions(frame)
    offset = 0
    for layer, (part, kind, kept) in enumerate(zip(layers, found.kind, found.kept, strict=True)):
        sets = found.sets[layer]
        merges = np.flatnonzero(kept & (kind <= 1))
        where = ways[tuple(part.operations[merges, 1:].T)]
        for number, way in enumerate(WAYS):
            chosen = merges[where == number]
            pairs = part.operations[chosen, 1:]
            ranked += (chosen + offset).tolist()
            largest += (chosen + offset)[maximal(frame, sets, layer, pairs, way)].tolist()
            best += (chosen + offset)[maximal_vertex(frame, sets, pairs, way)].tolist()
        offset += len(part.operations)
    circuit = [part.operations[kept] for part, kept in zip(layers, found.kept, strict=True)]
    vertices, positions = np.array(frame.vertices), np.array(frame.positions)
    places = found.sets if frame.has_positions else []
    return Reading(
        explained=explained,
        links=tuple(np.flatnonzero(np.concatenate(found.links)).tolist()),
        kept=tuple(np.flatnonzero(np.concatenate(found.kept)).tolist()),
        maximal=tuple(sorted(largest)),
        maximal_vertex=tuple(sorted(best)) if options.mode == "exact" else None,
        ranked=tuple(sorted(ranked)),
        sets=tuple(tuple(tuple(vertices[row].tolist()) for row in sets[:, : len(vertices)]) for sets in found.sets),
        position_sets=tuple(
            tuple(tuple(positions[row].tolist()) for row in sets[:, len(vertices) :]) for sets in places
        ),
        trust=trust(trace, circuit, options.alpha, seed) if options.trust else None,
    )


def _operations(
    trace: Trace,
    frame: Frame,
    important: Sequence[Important],
    answers: Sequence[Responses],
    layers: Sequence[Found],
    reading: Reconstruction,
) -> Iterator[Operation]:
    ways, steps = directions(frame)
    for layer, (ops, response, found, kinds) in enumerate(zip(important, answers, layers, reading.kind, strict=True)):
        in_target, in_source = response.of(ops.operations)
        head, target, source = ops.operations.T
        columns = zip(
            ops.operations.tolist(),
            _rounded(trace.layers[layer].pattern.numpy()[head, target, source]),
            ops.by.tolist(),
            _rounded(ops.drop),
            _rounded(ops.change),
            _features(frame, found.in_target, in_target),
            _features(frame, found.in_source, in_source),
            kinds.tolist(),
            ways[target, source].tolist(),
            steps[target, source].tolist(),
            strict=True,
        )
        for s, (op, weight, by, drop, change, of_target, of_source, kind, way, distance) in enumerate(columns):
            yield Operation(
                layer=layer,
                head=op[0],
                target=frame.positions[op[1]],
                source=frame.positions[op[2]],
                weight=weight,
                by=PERTURBATIONS[tuple(by)],
                drop=tuple(drop),
                change=tuple(change),
                target_features=of_target,
                source_features=of_source,
                kind=KINDS[kind],
                matched=_matched(frame, kind, found.in_target[s], found.in_source[s]),
                direction=DIRECTIONS[way],
                distance=None if distance < 0 else distance,
            )


def _features(frame: Frame, present: np.ndarray, change: np.ndarray) -> list[tuple[Feature, ...]]:
    """For each operation (S x F) the features it depends on."""
    names = frame.features
    found: list[list[Feature]] = [[] for _ in present]
    at, which = np.nonzero(present)
    for s, f, value in zip(at.tolist(), which.tolist(), _rounded(change[at, which]), strict=True):
        found[s].append(Feature(*names[f], value))
    return [tuple(features) for features in found]


def _matched(frame: Frame, kind: int, in_target: np.ndarray, in_source: np.ndarray) -> tuple[int, ...]:
    if kind in (OTHER, COPY):
        return ()
    if kind == TOKEN:
        both = (in_target & in_source)[: len(frame.vertices)]
        return tuple(frame.vertices[i] for i in np.flatnonzero(both))
    one, other = frame.edge_features.T
    chosen = (in_target[one] & in_source[other]) | (in_target[other] & in_source[one])
    rows = frame.edge_features[chosen] - len(frame.vertices)
    return tuple(frame.held[row][0] for pair in rows for row in pair)


def _input(batch: Batch, index: int, frame: Frame, tokens: Tensor) -> Input:
    layout = batch.distribution.layout
    marks = {layout.path: "PATH", layout.edge: "EDGE", layout.query: "QUERY"}
    texts = []
    for at, held in zip(frame.positions, frame.held, strict=True):
        if tokens.ndim == 2:
            texts.append("→".join(str(int(v)) for v in tokens[at, :2]))
        else:
            texts.append(str(held[0]) if held else marks.get(int(tokens[at]), str(int(tokens[at]))))
    rows = zip(frame.positions, texts, frame.held, strict=True)
    key = batch.key
    return Input(
        tokens=tuple(batch.tokens[index].tolist()),
        edges=frame.edges,
        start=frame.start,
        goal=frame.goal,
        answers=tuple(sorted(frame.answers)),
        lookahead=int(batch.lookahead[index]),
        rows=tuple(Row(position=p, text=text, vertices=held) for p, text, held in rows),
        problem=batch.distribution.to_dict(),
        key={"seed": key.seed, "split": key.split, "stream": key.stream, "index": batch.first + index},
    )


def _rounded(values: np.ndarray) -> list[Any]:
    """As Python's numbers with six digits: what float32 knows."""
    wide = np.asarray(values, np.float64)
    with np.errstate(divide="ignore"):
        digits = 5 - np.floor(np.log10(np.abs(wide)))
    factor = 10.0 ** np.where(np.isfinite(digits), np.clip(digits, -300, 300), 0)
    return (np.round(wide * factor) / factor).tolist()


def _versions() -> dict[str, str]:
    from pathmerge.version import __version__

    return {"pathmerge": __version__, "torch": torch.__version__, "numpy": np.__version__}
