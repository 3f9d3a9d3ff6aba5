"""Is a model from outside given rightly? Tries everything `Explainable` promises, on a few inputs.

    report = pathmerge.check_model(my_model, batch, reference=my_network)
    print(report)

The defining bug of this field is the edit that silently does nothing, so each site is also shown to be live.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathmerge.circuits.perturb import NOTHING, all_operations, measure
from pathmerge.circuits.subject import Explainable, as_explainable
from pathmerge.circuits.trace import Trace, record, record_masked
from pathmerge.problems.batch import Batch

CLOSE = 1e-3
"""Logits of two ways to compute the same in float32 differ by less."""
LIVE = 1e-6
POSITIONS = 32
"""How many positions are left out, one at a time."""


@dataclass(frozen=True)
class Check:
    """One promise, and whether it is kept."""

    name: str
    passed: bool
    detail: str
    left_out: bool = False


@dataclass(frozen=True)
class Report:
    """All promises; prints as a list."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def __str__(self) -> str:
        words = ("left out" if c.left_out else "ok" if c.passed else "FAILED" for c in self.checks)
        return "\n".join(f"{word:8}  {c.name}: {c.detail}" for word, c in zip(words, self.checks, strict=True))


@torch.no_grad()
def check_model(model: Any, batch: Batch, *, reference: Callable[[Tensor], Tensor] | None = None) -> Report:
    """Try all that circuits ask of a model on the first problems of a batch.

    `reference`: the model's own logits, B x V, from the tokens that `model.tokens(batch)` gives; without it, the check
    that both compute the same is left out, and the report says so (ours are compared with their own forward pass).
    """
    if not isinstance(batch, Batch):
        raise ValueError(f"batch={type(batch).__name__}: must be a batch of problems, distribution.sample(...)")
    subject = as_explainable(model)
    tokens = subject.tokens(batch.take(slice(0, min(4, len(batch)))))
    if reference is None and subject is not model:
        reference = model
    return Report(tuple(_checks(subject, tokens, reference, batch.distribution.layout.max_vertices)))


def _checks(
    subject: Explainable, tokens: Tensor, reference: Callable[[Tensor], Tensor] | None, most: int
) -> Iterator[Check]:
    traces: list[Trace] = []
    yield from _tried("an ordinary pass", lambda: _ordinary(subject, tokens, traces))
    if not traces:
        return
    trace = traces[0]
    shapes = list(_tried("shapes", lambda: _shapes(subject, trace)))
    yield from shapes
    if not all(check.passed for check in shapes):
        return
    for name, check in (
        ("the same logits as the model itself", lambda: _compared(traces, tokens, reference)),
        ("each input by itself", lambda: _inputs_alone(subject, tokens, traces)),
        ("each row by itself", lambda: _rows_alone(subject, trace)),
        ("a frozen replay gives the same logits", lambda: _replayed(trace)),
        ("masking nothing changes nothing", lambda: _unmasked(subject, trace)),
        ("every site is live", lambda: _live(subject, traces)),
        ("what is embedded", lambda: _embedded(subject, trace.tokens, most)),
    ):
        yield from _tried(name, check)


def _tried(name: str, check: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """The checks, or that they could not be carried out: a model from outside may raise anything."""
    try:
        yield from check()
    except Exception as error:
        line = " ".join(str(error).split())[:200]
        yield Check(name, False, f"{type(error).__name__}: {line}")


def _ordinary(subject: Explainable, tokens: Tensor, traces: list[Trace]) -> Iterator[Check]:
    traces += [record(subject, row[None]) for row in tokens]
    yield Check("an ordinary pass", True, f"{len(traces)} inputs, {len(traces[0].rows)} rows, {subject.layers} layers")


def _compared(traces: list[Trace], tokens: Tensor, reference: Callable[[Tensor], Tensor] | None) -> Iterator[Check]:
    name = "the same logits as the model itself"
    if reference is None:
        yield Check(name, True, "no reference was given to compare with", True)
        return
    wanted, ours = reference(tokens), torch.cat([trace.logits for trace in traces])
    if wanted.shape != ours.shape:
        given, must = (" x ".join(map(str, logits.shape)) for logits in (wanted, ours))
        yield Check(name, False, f"the reference gives {given} logits, must be {must}")
    else:
        yield _near(name, float((ours - wanted).abs().max()))


def _inputs_alone(subject: Explainable, tokens: Tensor, traces: list[Trace]) -> Iterator[Check]:
    """An input's result must not depend on which other inputs are computed with it."""
    alone = torch.cat([trace.logits for trace in traces])
    yield _near("each input by itself", float((record(subject, tokens).logits - alone).abs().max()))


def _unmasked(subject: Explainable, trace: Trace) -> Iterator[Check]:
    everything = torch.ones(subject.layers, *trace.layers[0].pattern.shape, dtype=torch.bool)
    apart = float((record_masked(trace, [everything]).logits - trace.logits).abs().max())
    yield _near("masking nothing changes nothing", apart)


def _near(name: str, apart: float) -> Check:
    return Check(name, apart < CLOSE, f"largest difference {apart:.2g}, must be below {CLOSE:g}")


def _shapes(subject: Explainable, trace: Trace) -> Iterator[Check]:
    n, layer = len(trace.rows), trace.layers[0]
    for name, value, dimensions in (
        ("queries", layer.q, (n, subject.heads, None)),
        ("keys", layer.k, (n, subject.heads, layer.q.shape[-1])),
        ("values", layer.v, (n, subject.heads, None)),
        ("residual rows", trace.last, (n, layer.x.shape[-1])),
        ("gates", layer.gate, (n, None)),
        ("logits", trace.logits, (1, None)),
    ):
        shape = tuple(value.shape)
        fits = len(shape) == len(dimensions) and all(b in (None, a) for a, b in zip(shape, dimensions, strict=True))
        wanted = " x ".join("any" if size is None else str(size) for size in dimensions)
        yield Check(f"shape of {name}", fits, f"{' x '.join(map(str, shape))}, must be {wanted}")


def _rows_alone(subject: Explainable, trace: Trace) -> Iterator[Check]:
    """A row's result must not depend on which other rows are computed with it."""
    some = torch.arange(0, len(trace.rows), 2)
    worst = 0.0
    for at, layer in enumerate(trace.layers):
        parts = subject.project(at, layer.x[some], trace.rows[some])
        for part, whole in zip(parts, (layer.q, layer.k, layer.v), strict=True):
            assert part is not None
            worst = max(worst, float((part - whole[some]).abs().max()))
        after = trace.layers[at + 1].x if at + 1 < len(trace.layers) else trace.last
        part = subject.update(at, layer.x[some], layer.mixed[some])
        worst = max(worst, float((part - after[some]).abs().max()))
    yield _near("each row by itself", worst)


def _replayed(trace: Trace) -> Iterator[Check]:
    """The difference of logits when attention and gates are those recorded, and everything else is computed anew."""
    model, x = trace.model, trace.layers[0].x
    for at, layer in enumerate(trace.layers):
        _, _, v = model.project(at, x, trace.rows, queries=False)
        mixed = torch.einsum("hqs,shw->qhw", layer.pattern, v)
        x = model.update(at, x, mixed, layer.gate)
    apart = float((model.logits(x[-1:]) - trace.logits).abs().max())
    yield _near("a frozen replay gives the same logits", apart)


def _live(subject: Explainable, traces: list[Trace]) -> Iterator[Check]:
    """Everything the method perturbs must be able to change something."""
    for layer in range(subject.layers):
        moved = 0.0
        for trace in traces:
            operations = all_operations(trace, layer)
            outcome = measure(trace, layer, operations[operations[:, 1] == len(trace.rows) - 1], NOTHING)
            if len(outcome.logit):
                moved = max(moved, float(abs(outcome.logit - trace.best).max()))
        said = f"a perturbed weight moves the logit by {moved:.2g}"
        yield Check(f"attention of layer {layer} is live", moved > LIVE, said)
    for layer in range(subject.layers):
        moved = 0.0
        for trace in traces:
            at = trace.layers[layer]
            other = subject.update(layer, at.x, at.mixed, torch.zeros_like(at.gate))
            moved = max(moved, float((other - subject.update(layer, at.x, at.mixed)).abs().max()))
        said = f"closing it moves the residual stream by {moved:.2g}"
        yield Check(f"gate of layer {layer} is live", moved > LIVE, said)


def _embedded(subject: Explainable, tokens: Tensor, most: int) -> Iterator[Check]:
    """What step IV perturbs, vertices and positions, must change the rows it stands in and no other."""
    edges = tokens.dim() == 3
    plain = subject.embed(tokens)
    ends = tokens[..., :2] if edges else tokens[..., None]
    where = ends == ends[0, -1, 0]  # the last row of every input holds a vertex
    replaced = tokens.clone()
    (replaced[..., :2] if edges else replaced[..., None])[where] = 0
    moved = (subject.embed(replaced) - plain).abs().amax(-1)[0] > LIVE
    fine = bool((moved == where[0].any(-1)).all())
    yield Check("vertices are live", fine, "replacing one changes the rows that hold it and no other")
    ids = torch.arange(most + 1)
    copies = tokens.repeat(len(ids), *[1] * (tokens.dim() - 1))
    (copies[:, -1, 0] if edges else copies[:, -1]).copy_(ids)
    apart = float(torch.pdist(subject.embed(copies)[:, -1]).min())
    said = f"tokens 0 (which may stand in for a vertex) to {most} in the last row are {apart:.2g} apart or more"
    yield Check("token 0 and all vertices differ", apart > LIVE, said)
    if subject.has_positions:
        # As step IV asks for it: many copies of an input, each without another position.
        count = min(POSITIONS, tokens.shape[1])
        left_out = torch.linspace(0, tokens.shape[1] - 1, count).round().long()
        without = torch.zeros(count, tokens.shape[1], dtype=torch.bool)
        without[torch.arange(count), left_out] = True
        copies = tokens.repeat(count, *[1] * (tokens.dim() - 1))
        moved = (subject.embed(copies, without) - plain).abs().amax(-1)
        fine = bool((moved[without] > LIVE).all()) and bool((moved[~without] == 0).all())
        yield Check("position embeddings are live", fine, "leaving one out changes its row and no other")
        # Without any positions equal tokens are equal rows, wherever they stand, and others are not.
        rows = torch.arange(tokens.shape[1]) % (most + 1)
        ordered = tokens.clone()
        (ordered[0, :, 0] if edges else ordered[0]).copy_(rows)
        if edges:
            ordered[0, :, 1:] = tokens[0, -1, 1:]
        found = subject.embed(ordered, torch.ones(1, tokens.shape[1], dtype=torch.bool))[0]
        differ = torch.cdist(found, found, p=math.inf) > LIVE
        fine = bool((differ == (rows[:, None] != rows)).all())
        yield Check("without positions a row is its token", fine, "equal tokens give equal rows, others do not")
    else:
        same = tokens.clone()
        same[0, -2] = same[0, -1]
        rows = subject.embed(same)[0]
        yield _near("no position embeddings: equal tokens, equal rows", float((rows[-2] - rows[-1]).abs().max()))
