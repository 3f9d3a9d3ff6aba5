"""How each claim is decided from rows: a function for each, giving what it found and whether that is enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, log
from statistics import mean

import numpy as np

from pathmerge.studies.lookahead_histogram import totals
from pathmerge.studies.study import Row, distinct, numbers, where

Rows = Mapping[str, Sequence[Row]]


class NotEnough(Exception):  # noqa: N818 - it is no error of anyone's
    """There are too few results to decide."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a rule looked at."""

    holds: bool
    fails: bool
    evidence: str


def _model(rows: Rows, trained_on: str, *, part: bool = False) -> list[Row]:
    """The rows of the model trained on this; `part`: on balanced problems of some lookaheads only."""
    cells = where(rows["sensitivity"], kind="cell", judge="model")
    names = [str(name) for name in distinct(cells, "trained_on")]
    name = next((n for n in names if n.startswith("balanced, ")), None) if part else trained_on
    found = where(cells, trained_on=name)
    if not found:
        raise NotEnough(f"sensitivity: no model trained on {trained_on}")
    return found


def _by_lookahead(cells: Sequence[Row]) -> dict[int, Row]:
    found = where(cells, distribution="balanced")
    return {int(row["lookahead"]): row for row in found if row.get("lookahead") is not None}


def _each(cells: Mapping[int, Row]) -> str:
    return ", ".join(f"L={steps} {row['accuracy']:.3f}" for steps, row in cells.items())


def balanced_is_learned(rows: Rows) -> Found:
    cells = _by_lookahead(_model(rows, "balanced"))
    worst = min(row["accuracy"] for row in cells.values())
    below = any(row["high"] < 0.98 for row in cells.values())
    return Found(holds=worst >= 0.98, fails=below, evidence=f"accuracy {_each(cells)}")


def naive_fails(rows: Rows) -> Found:
    naive, balanced = _by_lookahead(_model(rows, "naive")), _by_lookahead(_model(rows, "balanced"))
    last = max(naive)
    here, there = naive[last]["accuracy"], balanced[last]["accuracy"]
    evidence = f"trained on naive: {_each(naive)}; trained on balanced, at L={last}: {there:.3f}"
    return Found(holds=here < 0.9 and there - here >= 0.1, fails=here >= 0.98, evidence=evidence)


def star_transfers_in_part(rows: Rows) -> Found:
    cells = _model(rows, "star")
    own = where(cells, distribution="star", difficulty="all")[0]["accuracy"]
    balanced = mean(row["accuracy"] for row in _by_lookahead(cells).values())
    guess = where(rows["sensitivity"], kind="cell", judge="random child", trained_on="star", distribution="balanced")
    if not guess:
        raise NotEnough("sensitivity: no baseline that guesses a child")
    chance = mean(row["accuracy"] for row in _by_lookahead(guess).values())
    evidence = f"trained on stars: {own:.3f} on stars, {balanced:.3f} on balanced (guessing a child: {chance:.3f})"
    holds = own >= 0.9 and chance + 0.02 < balanced < 0.95
    return Found(holds=holds, fails=balanced >= 0.98 or balanced <= chance, evidence=evidence)


def part_generalises_a_little(rows: Rows) -> Found:
    found = _model(rows, "", part=True)
    seen = int(str(found[0]["trained_on"]).rpartition(" ")[2])
    cells = _by_lookahead(found)
    last = max(cells)
    if last <= seen + 1:
        raise NotEnough(f"sensitivity: no lookahead beyond {seen + 1}")
    near, far = cells[seen + 1]["accuracy"], cells[last]["accuracy"]
    evidence = f"trained up to {seen}: {_each(cells)}"
    return Found(holds=near >= 0.9 > far, fails=near < 0.9 or far >= 0.9, evidence=evidence)


def circuits_explain(rows: Rows) -> Found:
    cells = where(rows["circuits"], kind="cell")
    trained = where(cells, trained_on="balanced", distribution="balanced")
    blank = [row for row in cells if str(row["trained_on"]).startswith("nothing")]
    if not trained or not blank:
        raise NotEnough("circuits: a model is missing")
    strict, lenient = mean(numbers(trained, "explained")), mean(numbers(trained, "lenient"))
    control = mean(numbers(blank, "explained"))
    counted = sum(int(row["inputs"]) for row in trained)
    evidence = (
        f"trained on balanced: {strict:.2f} strictly, {lenient:.2f} leniently ({counted} inputs); "
        f"untrained: {control:.2f} strictly, {mean(numbers(blank, 'lenient')):.2f} leniently"
    )
    return Found(holds=strict >= 0.9 and control <= 0.02, fails=lenient < 0.9 or control > 0.1, evidence=evidence)


def merges_not_maximal(rows: Rows) -> Found:
    trained = where(rows["circuits"], kind="cell", trained_on="balanced", distribution="balanced")
    values = numbers(trained, "maximal")
    if not values:
        raise NotEnough("circuits: no merges to rank")
    share = mean(values)
    vertex = numbers(trained, "maximal_vertex")
    also = f"; by vertex {mean(vertex):.2f}" if vertex else ""
    evidence = f"{share:.2f} of the merges are maximal (lenient circuits, mean over lookaheads{also})"
    return Found(holds=share < 0.8, fails=share > 0.95, evidence=evidence)


def _ends(rows: Sequence[Row], column: str) -> dict[int | str, list[Row]]:
    found = {value: where(rows, kind="end", **{column: value}) for value in distinct(rows, column)}
    if len(found) < 2 or not all(found.values()):
        raise NotEnough("fewer than two sizes are done")
    return found


def _converged(ends: Sequence[Row]) -> float:
    return sum(end.get("converged_at") is not None for end in ends) / len(ends)


def size_hurts(rows: Sequence[Row]) -> Found:
    ends = _ends(rows, "vertices")
    shares = {size: _converged(group) for size, group in ends.items()}
    losses = {size: min(numbers(group, "valid_loss"), default=float("nan")) for size, group in ends.items()}
    small, large = min(ends, key=int), max(ends, key=int)
    evidence = "; ".join(
        f"V={size}: {_converged(group):.2f} of {len(group)} seed(s) converged, least validation loss {losses[size]:.3g}"
        for size, group in ends.items()
    )
    vanishes = shares[small] >= 2 / 3 and shares[large] <= 1 / 3
    grows = losses[large] >= 10 * losses[small]
    return Found(holds=vanishes and grows, fails=shares[large] >= 2 / 3, evidence=evidence)


def _halved_at(rows: Sequence[Row]) -> float:
    """Examples until the training loss is half of that at the first point, mean over seeds; infinite if never."""
    found: list[float] = []
    for seed in distinct(rows, "seed"):
        points = where(rows, kind="point", seed=seed)
        half = points[0]["train_loss"] / 2
        found.append(next((float(point["examples"]) for point in points if point["train_loss"] <= half), float("inf")))
    return mean(found)


def width_does_not_help(rows: Rows) -> Found:
    ends = _ends(rows["model-size"], "hidden")
    narrow, wide = min(ends, key=int), max(ends, key=int)
    shares = {hidden: _converged(group) for hidden, group in ends.items()}
    losses = {hidden: min(numbers(group, "valid_loss"), default=float("nan")) for hidden, group in ends.items()}
    halved = {hidden: _halved_at(where(rows["model-size"], hidden=hidden)) for hidden in ends}
    evidence = "; ".join(
        f"hidden {hidden}: {shares[hidden]:.2f} of {len(group)} seed(s) converged, least validation loss "
        f"{losses[hidden]:.3g}, training loss halved after {halved[hidden]:,.0f} examples"
        for hidden, group in ends.items()
    )
    worse = shares[wide] <= shares[narrow] and losses[wide] >= losses[narrow] / 2
    better = shares[wide] - shares[narrow] >= 0.5 or losses[wide] < losses[narrow] / 2
    sooner = halved[wide] < inf and halved[wide] <= halved[narrow]
    return Found(holds=worse and sooner, fails=better, evidence=evidence)


def _last_loss(rows: Sequence[Row], column: str = "test_loss") -> float:
    """The least, over seeds, of the last value of a column."""
    found: list[float] = []
    for seed in distinct(rows, "seed"):
        values = numbers(where(rows, kind="point", seed=seed), column)
        found += values[-1:]
    if not found:
        raise NotEnough(f"no {column} yet")
    return min(found)


def _reached(rows: Sequence[Row], loss: float, axis: str) -> float:
    """The least examples or FLOPs, over seeds, after which the test loss was this low."""
    found = [
        float(point[axis])
        for point in where(rows, kind="point")
        if point.get("test_loss") is not None and point["test_loss"] <= loss
    ]
    return min(found, default=float("inf"))


def dfs_struggles(rows: Rows) -> Found:
    sizes = {
        size: _last_loss(where(rows["dfs-size"], vertices=size)) for size in distinct(rows["dfs-size"], "vertices")
    }
    models = distinct(rows["dfs-model"], "model")
    if len(sizes) < 2 or len(models) < 2:
        raise NotEnough("fewer than two sizes or models are done")
    grows = sizes[max(sizes)] >= 2 * sizes[min(sizes)]
    own = {model: where(rows["dfs-model"], model=model) for model in models}
    least = [min(numbers(where(found, kind="point"), "test_loss"), default=inf) for found in own.values()]
    target = max(least)
    if target == inf:
        raise NotEnough("dfs-model: a model has no test loss yet")
    small, large = models[0], models[-1]
    cost = {
        axis: (_reached(own[small], target, axis), _reached(own[large], target, axis)) for axis in ("examples", "flops")
    }
    trades = cost["examples"][1] < cost["examples"][0] and cost["flops"][1] > cost["flops"][0]
    by_size = ", ".join(f"V={size} {loss:.3g}" for size, loss in sizes.items())
    evidence = (
        f"least last test loss {by_size}; to a test loss of {target:.3g}, {small}: {cost['examples'][0]:,.0f} examples "
        f"and {cost['flops'][0]:.2g} FLOPs, {large}: {cost['examples'][1]:,.0f} and {cost['flops'][1]:.2g}"
    )
    return Found(holds=grows and trades, fails=not grows and not trades, evidence=evidence)


def padding_extends(rows: Rows) -> Found:
    cells = where(rows["dfs-padding"], kind="cell")
    distances = sorted(set(distinct(cells, "backtrack")))
    far = distances[len(distances) // 2 :]
    means = {
        padding: mean(row["accuracy"] for row in where(cells, padding=padding) if row["backtrack"] in far)
        for padding in ("standard", "random")
        if where(cells, padding=padding)
    }
    if len(means) < 2:
        raise NotEnough("dfs-padding: a model is missing")
    gain = means["random"] - means["standard"]
    evidence = (
        f"backtrack {far[0]} to {far[-1]}: {means['random']:.3f} with random padding, {means['standard']:.3f} without"
    )
    return Found(holds=gain >= 0.05, fails=gain <= 0, evidence=evidence)


def inference_is_harder(rows: Rows) -> Found:
    found = rows["selection-inference-size"]
    size = max(distinct(found, "vertices"))
    last: dict[str, float] = {}
    for step in ("selection", "inference"):
        values: list[float] = []
        for seed in distinct(found, "seed"):
            values += numbers(where(found, kind="point", vertices=size, seed=seed), f"test_accuracy_{step}")[-1:]
        if not values:
            raise NotEnough(f"selection-inference-size: no {step} accuracy at V={size}")
        last[step] = mean(values)
    evidence = f"V={size}, last test accuracy: selection {last['selection']:.3f}, inference {last['inference']:.3f}"
    easy = last["selection"] >= 0.95 and last["selection"] - last["inference"] >= 0.05
    return Found(holds=easy, fails=last["inference"] >= last["selection"], evidence=evidence)


def directions_differ(rows: Rows) -> Found:
    found = where(rows["direction"], kind="distance")
    models = list(dict.fromkeys((row["trained_on"], row["seed"]) for row in found))
    if len(models) < 2:
        raise NotEnough("direction: needs two models")
    seeds = {seed for _, seed in models}
    forward: dict[tuple[str, int], dict[int, float]] = {}
    typical: dict[tuple[str, int], list[int]] = {}
    for name, seed in models:
        mine = where(found, trained_on=name, seed=seed)
        for layer in sorted(distinct(mine, "layer")):
            here = [row for row in where(mine, layer=layer) if row["distance"] > 0]
            ways = {way: sum(row["merges"] for row in where(here, way=way)) for way in ("forward", "backward")}
            if sum(ways.values()):
                forward.setdefault((name, seed), {})[layer] = ways["forward"] / sum(ways.values())
                counts: dict[int, int] = {}
                for row in here:
                    counts[row["distance"]] = counts.get(row["distance"], 0) + row["merges"]
                typical.setdefault((name, seed), []).append(max(counts, key=lambda steps: counts[steps]))
    gaps = [
        abs(shares[layer] - others[layer])
        for (name, seed), shares in forward.items()
        for (other, second), others in forward.items()
        if (name == other and seed < second) or (len(seeds) == 1 and name < other)
        for layer in shares.keys() & others.keys()
    ]
    differ = max(gaps, default=0.0) >= 0.5
    doubles = any(all(a <= b for a, b in pairwise(steps)) and steps[-1] >= 2 * steps[0] for steps in typical.values())
    each = "; ".join(f"{name}, seed {seed}: {', '.join(map(str, steps))}" for (name, seed), steps in typical.items())
    most = max(gaps, default=0.0)
    evidence = f"shares of forward merges differ by up to {most:.2f}; commonest distance by layer: {each}"
    return Found(holds=differ and doubles, fails=not differ and not doubles, evidence=evidence)


def falls_exponentially(rows: Sequence[Row]) -> Found:
    counts = {steps: count for steps, count in totals(rows).items() if steps >= 1 and count >= 10}
    if len(counts) < 3:
        raise NotEnough("lookahead-histogram: fewer than three lookaheads with ten graphs")
    x = np.array(list(counts), np.float64)
    y = np.array([log(count) for count in counts.values()])
    slope, middle = np.polyfit(x, y, 1)
    unexplained = float(((y - slope * x - middle) ** 2).sum() / ((y - y.mean()) ** 2).sum())
    shown = ", ".join(f"L={steps} {count:,}" for steps, count in counts.items())
    evidence = f"{shown}: a factor of {np.exp(-slope):.1f} per step, R² {1 - unexplained:.3f}"
    return Found(holds=1 - unexplained >= 0.97 and slope < 0, fails=1 - unexplained < 0.9, evidence=evidence)
