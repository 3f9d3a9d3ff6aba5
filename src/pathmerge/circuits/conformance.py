"""Is a model from outside given rightly? Tries everything `Explainable` promises, on a few inputs.

    report = pathmerge.check_model(my_model, batch, reference=my_network)
    print(report)

The defining bug of this field is the edit that silently does nothing, so each site is also shown to be live.
"""

from __future__ import annotations

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
    subject = as_explainable(model)
    tokens = subject.tokens(batch.take(slice(0, min(4, len(batch)))))
    if reference is None and subject is not model:
        reference = model
    return Report(tuple(_checks(subject, tokens, reference, batch.distribution.layout.max_vertices)))


def _checks(
    subject: Explainable, tokens: Tensor, reference: Callable[[Tensor], Tensor] | None, most: int
) -> Iterator[Check]:
    try:
        traces = [record(subject, row[None]) for row in tokens]
        together = record(subject, tokens)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        line = " ".join(str(error).split())[:200]
        yield Check("an ordinary pass", False, f"{type(error).__name__}: {line}")
        return
    yield Check("an ordinary pass", True, f"{len(traces)} inputs, {len(traces[0].rows)} rows, {subject.layers} layers")
    trace = traces[0]
    yield from _shapes(subject, trace)
    if reference is None:
        yield Check("the same logits as the model itself", True, "no reference was given to compare with", True)
    else:
        wanted = reference(tokens)
        apart = max(float((trace.logits[0] - row).abs().max()) for trace, row in zip(traces, wanted, strict=True))
        yield _near("the same logits as the model itself", apart)
    apart = float((together.logits - torch.cat([trace.logits for trace in traces])).abs().max())
    yield _near("each input by itself", apart)
    yield from _rows_alone(subject, trace)
    yield _near("a frozen replay gives the same logits", _replayed(trace))
    everything = torch.ones(subject.layers, *trace.layers[0].pattern.shape, dtype=torch.bool)
    yield _near(
        "masking nothing changes nothing", float((record_masked(trace, [everything]).logits - trace.logits).abs().max())
    )
    yield from _live(subject, traces)
    yield from _embedded(subject, traces[0].tokens, most)


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


def _replayed(trace: Trace) -> float:
    """The difference of logits when attention and gates are those recorded, and everything else is computed anew."""
    model, x = trace.model, trace.layers[0].x
    for at, layer in enumerate(trace.layers):
        _, _, v = model.project(at, x, trace.rows, queries=False)
        mixed = torch.einsum("hqs,shw->qhw", layer.pattern, v)
        x = model.update(at, x, mixed, layer.gate)
    return float((model.logits(x[-1:]) - trace.logits).abs().max())


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
        without = torch.zeros(tokens.shape[:2], dtype=torch.bool)
        without[0, -1] = True
        moved = (subject.embed(tokens, without) - plain).abs().amax(-1)[0]
        fine = bool(moved[-1] > LIVE) and bool((moved[:-1] == 0).all())
        yield Check("position embeddings are live", fine, "leaving one out changes its row and no other")
    else:
        same = tokens.clone()
        same[0, -2] = same[0, -1]
        rows = subject.embed(same)[0]
        yield _near("no position embeddings: equal tokens, equal rows", float((rows[-2] - rows[-1]).abs().max()))
