"""Linear probes: does the residual stream of the row of vertex u tell which vertices u reaches, or which reach u?

Beyond the paper: path-merging (its section 4) predicts that the distance a row knows of doubles with each layer.

Choices a reader could not guess:
- A probe is one linear map from a row's residual to a number for each candidate, fitted by ridge regression to
  "reachable from u" and scored by distance. Candidates are the other vertices of the graph, by their ids, or its other
  edges, by their places in the input: models keep track of both. An edge is at distance r if it is step r of a shortest
  walk: forward, its source is r - 1 steps from u. Whether a vertex or a place is in use is no part of the question.
- Labels are taken relative to their mean over the row's candidates, and every score compares candidates of the same
  row. So nothing is gained by knowing how much u reaches; a row that holds u alone gives 0.5, because ids and the order
  of edges are random. A number above 0 says "reachable": the chance is then above the row's mean, the best rule for
  balanced accuracy. The probe is given the row's own id (or place) too, so that it can discount the row's own mark.
- Negatives are candidates unrelated to u, neither reachable nor reaching. What reaches u is not among them: a row that
  knows these would rule them out, and seem to know what u reaches. They have a column of their own, `opposite`.
- Control `elsewhere`: the same residuals, the labels of another vertex u' of the same graph. It measures what is said
  of v without naming u: a row that has counted v's edges guesses well what reaches most vertices. `shuffled`: fitted to
  and scored on labels permuted within each row, a check of the method alone. `untrained`: the same config in PyTorch's
  default initialisation; `initial`: in its own, if that is another one, since matching equal tokens is knowledge too.
- Ridge strengths are chosen on a fifth of the fitting problems, one for each relation and layer. The test problems are
  another split, without those that are among the fitting ones too.
- A value is a mean over rows that have both kinds of candidates, each row counting once; its interval takes problems,
  not rows, as independent.

Shapes: B problems, M rows, C candidates, P features, S kinds of labels, W directions, R distances, K = S·W·(1 + R)·C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pathmerge.circuits.probe_labels import ABSENT, HELD, SELF, UNRELATED, Ask, Part, Parts
from pathmerge.circuits.probe_scores import LEAST_PROBLEMS, Kinds, measure, sums_of, table_rows
from pathmerge.circuits.probe_table import (
    CANDIDATES,
    CONTROLS,
    DIRECTIONS,
    ROW_KINDS,
    Candidates,
    Direction,
    ProbeRow,
    ProbeTable,
    RowKind,
)
from pathmerge.errors import check_choice, check_range
from pathmerge.models.config import Edges
from pathmerge.models.transformer import Transformer
from pathmerge.parallel import Workers
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import Distribution
from pathmerge.rng import MAX_SEED

STRENGTHS = tuple(10.0**power for power in range(-6, 2))
"""Of the ridge, in units of a standardised feature's variance."""


def probe(
    model: Transformer,
    problem: Distribution,
    *,
    count: int = 2000,
    seed: int = 0,
    direction: Direction | Literal["both"] = "both",
    rows: RowKind = "all",
    by: Candidates = "vertex",
    controls: Sequence[str] = CONTROLS,
    threads: int = 2,
    progress: Callable[[int], None] | None = None,
) -> ProbeTable:
    """Fit probes on `count` problems (split validation) and score them on as many others (split test).

    `rows`: all that hold a vertex, or those of an edge's source or target, of start or goal in the query, or the last.
    The last row stands for the vertex it holds; with "answer" it is asked about the goal. In the edge-token model a row
    stands for its source, with "target" for its target; the query's row (goal → start) is the row of both.
    `by`: whether the row is asked about vertices by their ids or about edges by their places.
    `progress` is called with the number of problems just read: 2·count for this model and for each of the
    controls `untrained` and `initial`.
    """
    check_choice("direction", direction, ("both", *DIRECTIONS))
    check_choice("rows", rows, ROW_KINDS)
    check_choice("by", by, CANDIDATES)
    if by == "edge" and isinstance(model.config, Edges):
        raise ValueError("by='edge': a model of edge tokens knows no places; must be 'vertex'")
    controls = (controls,) if isinstance(controls, str) else tuple(controls)
    for control in controls:
        check_choice("controls", control, CONTROLS)
    splits, repeated = check_probes(model, problem, count=count, seed=seed, threads=threads)
    ask = Ask(
        rows=rows,
        by=by,
        directions=DIRECTIONS if direction == "both" else (direction,),
        labels=("model", *(name for name in ("shuffled", "elsewhere") if name in controls)),
        seed=seed,
    )
    found: list[ProbeRow] = []
    with Workers(threads if model.ln_final.weight.device.type == "cpu" else 1) as workers:
        fitting, testing = (Parts(batch, model, ask) for batch in splits)
        ask = replace(ask, most=_most_distance(workers, testing, repeated))
        found += _probe(workers, model, fitting, testing, repeated, ask, progress)
        others = {"untrained": model.config.without_prior()}
        if model.config.initialisation != "default":
            others["initial"] = model.config
        for name in ("untrained", "initial"):
            if name in controls and name in others:
                other = others[name].build(seed).to(model.ln_final.weight.device)
                found += _probe(workers, other, fitting, testing, repeated, replace(ask, labels=(name,)), progress)
    return ProbeTable(rows=tuple(found))


def check_probes(
    model: Transformer, problem: Distribution, *, count: int = 2000, seed: int = 0, threads: int = 2
) -> tuple[list[Batch], np.ndarray]:
    """The problems to fit probes on and to score them on, and which of the second are among the first; raises if the
    model or the problems do not allow it."""
    if not isinstance(model, Transformer):
        raise ValueError(f"model={type(model).__name__}: must be a model of pathmerge, such as load_run(path).model")
    if not isinstance(problem, Distribution):
        raise ValueError(f"problem={problem!r}: must be a distribution, such as Balanced(input_size=32)")
    if problem.name == "language":
        raise ValueError(f"problem={problem.describe()}: a row of text is no vertex; must be of symbolic tokens")
    check_range("count", count, 2 * LEAST_PROBLEMS, 10**7)
    check_range("seed", seed, 0, MAX_SEED)
    splits = [problem.sample(count, seed=seed, split=split, threads=threads) for split in ("validation", "test")]
    repeated = np.isin(splits[1].identity, splits[0].identity)
    new = len(repeated) - int(repeated.sum())
    if new < LEAST_PROBLEMS:
        raise ValueError(
            f"problem={problem.describe()}: has so few problems that only {new} of {count} test problems differ from "
            f"those that probes are fitted to, must be {LEAST_PROBLEMS}; take larger graphs or all lookaheads"
        )
    return splits, repeated


def _most_distance(workers: Workers, parts: Parts, repeated: np.ndarray) -> int:
    """The largest distance that enough problems have a row for."""

    def count(number: int) -> np.ndarray:
        part = parts[number]
        new = ~repeated[parts.starts[number] + part.problem]
        counts = np.zeros((len(parts.ask.directions), parts.vertices + 2), np.int64)
        for codes, into in zip(part.codes["model"], counts, strict=True):
            scored = new & (codes == UNRELATED).any(1)
            for distance in range(1, len(into)):
                into[distance] = len(np.unique(part.problem[scored & (codes == distance).any(1)]))
        return counts

    enough = np.sum(list(workers.map(count, range(len(parts.starts)))), axis=0) >= LEAST_PROBLEMS
    if not enough.any():
        raise ValueError(
            f"rows={parts.ask.rows!r}: fewer than {LEAST_PROBLEMS} of {len(repeated) - repeated.sum()} test problems "
            f"have such a row with both a related and an unrelated {parts.ask.by}; ask for other rows or a larger count"
        )
    return int(np.nonzero(enough)[1].max())


def _probe(
    workers: Workers,
    model: Transformer,
    fitting: Parts,
    testing: Parts,
    repeated: np.ndarray,
    ask: Ask,
    progress: Callable[[int], None] | None,
) -> Iterator[ProbeRow]:
    """Fit and score the probes of one model."""
    sums: list[list[Tensor]] = [[], []]
    for number, moments in enumerate(workers.map(partial(_moments, model, fitting, ask), range(len(fitting.starts)))):
        into = sums[number % HELD == HELD - 1]
        if into:
            for total, new in zip(into, moments, strict=True):
                total += new
        else:
            into += moments
        if progress is not None:
            progress(min(fitting.size, len(fitting.batch) - fitting.starts[number]))
    groups = len(ask.labels) * len(ask.directions) * (1 + ask.most)
    (gram, cross), (held_gram, held_cross) = sums
    weights = [_solve(*moments, groups) for moments in zip(gram, cross, held_gram, held_cross, strict=True)]
    tally: np.ndarray | None = None
    score = partial(_score, model, testing, repeated, ask, weights)
    for number, part in enumerate(workers.map(score, range(len(testing.starts)))):
        tally = part if tally is None else tally + part
        if progress is not None:
            progress(min(testing.size, len(testing.batch) - testing.starts[number]))
    assert tally is not None
    return table_rows(tally, ask)


def _features(model: Transformer, part: Part) -> Iterator[Tensor]:
    """For each layer the features of the rows, M x P: the residual, which candidate is its own, 1."""
    sites = [f"blocks.{layer}.hook_resid_pre" for layer in range(model.layers)]
    sites.append(f"blocks.{model.layers - 1}.hook_resid_post")
    with torch.no_grad():  # a setting of each thread
        record = model.run(part.tokens, record=sites).record
    own = torch.nn.functional.pad(torch.from_numpy(part.own).double(), (0, 1), value=1.0)
    for site in sites:
        yield torch.cat([record[site][part.problem, part.place].cpu().double(), own], dim=1)


def _targets(codes: np.ndarray, most: int) -> np.ndarray:
    """Reachable at all, within 1, ..., within `most` steps, relative to the row's mean: M x (1 + most) x C."""
    candidate = (codes != SELF) & (codes != ABSENT)
    reach = np.array([np.iinfo(np.int16).max, *range(1, most + 1)])[:, None]
    label = (codes >= 1)[:, None] & (codes[:, None] <= reach)
    mean = label.sum(2) / np.maximum(1, candidate.sum(1))[:, None]
    return np.where(candidate[:, None], label - mean[:, :, None], 0.0)


def _moments(model: Transformer, parts: Parts, ask: Ask, number: int) -> list[Tensor]:
    """Sums of features x features (layers x P x P) and of features x targets (layers x P x K)."""
    part = parts[number]
    target = np.stack([[_targets(codes, ask.most) for codes in part.codes[name]] for name in ask.labels])
    y = torch.from_numpy(np.moveaxis(target, 2, 0).reshape(len(part.problem), -1))
    features = list(_features(model, part))
    return [torch.stack([x.T @ x for x in features]), torch.stack([x.T @ y for x in features])]


def _solve(gram: Tensor, cross: Tensor, held_gram: Tensor, held_cross: Tensor, groups: int) -> Tensor:
    """Ridge weights from all moments, P x K; the strength for each group of targets is the best on the held part."""
    tried = _ridge(gram, cross)
    # Squared error on the held part, without the constant that no strength changes.
    errors = (tried * (held_gram @ tried - 2 * held_cross)).sum(1).view(len(STRENGTHS), groups, -1).sum(2)
    final = _ridge(gram + held_gram, cross + held_cross).view(len(STRENGTHS), len(gram), groups, -1)
    return final[errors.argmin(0), :, torch.arange(groups)].transpose(0, 1).reshape(cross.shape)


def _ridge(gram: Tensor, cross: Tensor) -> Tensor:
    """Weights for each strength; features are standardised, the last one is the constant and not shrunk."""
    n, level = gram[-1, -1], cross[-1] / gram[-1, -1]
    mean = gram[-1, :-1] / n
    covariance = gram[:-1, :-1] / n - mean.outer(mean)
    variance = covariance.diagonal()
    # A feature that does not vary (but for rounding) is left out.
    scale = torch.where(variance > 1e-10 * (1 + mean**2), variance, torch.inf).rsqrt()
    values, vectors = torch.linalg.eigh(covariance * scale.outer(scale))
    aim = vectors.T @ (scale[:, None] * (cross[:-1] / n - mean.outer(level)))
    shrunk = aim / (values.clamp(min=0) + torch.tensor(STRENGTHS)[:, None])[:, :, None]
    slopes = scale[:, None] * (vectors @ shrunk)
    return torch.cat([slopes, (level - mean @ slopes)[:, None]], dim=1)


def _score(
    model: Transformer, parts: Parts, repeated: np.ndarray, ask: Ask, weights: Sequence[Tensor], number: int
) -> np.ndarray:
    """The tally of one part: layers x S x W x 6 measures x R x 6 sums."""
    part = parts[number]
    new = ~repeated[parts.starts[number] + part.problem]
    problem = part.problem[new]
    asked = [(i, j) for i in range(len(ask.labels)) for j in range(len(ask.directions))]
    kinds = {(i, j): Kinds.of(part.codes[ask.labels[i]][j][new], ask.most) for i, j in asked}
    found: list[np.ndarray] = []
    for x, w in zip(_features(model, part), weights, strict=True):
        numbers = (x[new] @ w).view(len(problem), len(ask.labels), len(ask.directions), 1 + ask.most, -1)
        found += [sums_of(measure(numbers[:, i, j], kinds[i, j]).numpy(), problem) for i, j in asked]
    shape = (len(weights), len(ask.labels), len(ask.directions), *found[0].shape)
    return np.stack(found).reshape(shape)
