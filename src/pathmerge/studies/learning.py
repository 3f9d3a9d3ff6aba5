"""Studies of learning curves: the same training over a range of sizes or models, loss against examples and FLOPs.

Choices a reader could not guess:
- A point is recorded at each validation (every 2^18 examples at paper scale). Its training loss is the mean since the
  point before. Its test loss is on held-out problems of the study's test distribution: naive problems, which no stop
  rule looks at, or, for the other tasks, those of one difficulty among the validation problems, which the rule that
  ends a converged run does look at. At paper scale no run ends early.
- Test curves are smoothed as in the paper, by a running mean over 81 points; where there are fewer than 400 points the
  window is a fifth of them. At the ends it shrinks, so that the first and last value stay where they are. Each seed's
  curve is smoothed before the least of them is taken: seeds have their points at different FLOPs.
- FLOPs count sequence length (SPEC section 5), unlike the paper's axis.
- With a curriculum, points begin at its last stage: before it, training loss is on smaller problems.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pathmerge.models.config import ModelConfig, OneHot, Rotary
from pathmerge.problems.distribution import Distribution
from pathmerge.recipes import on_problem, recipe, without_edges
from pathmerge.studies.study import Place, Row, Setting, Study, Task, Value, distinct, where
from pathmerge.training.config import Holding, RunConfig, Training

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pathmerge.training.run import Run

WINDOW = 81
POINT = 2**18


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long each training of a scale is, and with how many seeds."""

    examples: int
    seeds: int
    point: int = POINT
    """Examples between points."""
    batch: int = 256
    """With recipe `paper`; the others have their own."""
    validation: int = 1000
    """Held-out problems of each difficulty at a point."""
    test: int = 1000


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One of the things compared: a problem and the dimensions of a model."""

    labels: Mapping[str, str | int]
    problem: Distribution
    layers: int
    hidden: int = 16
    heads: int = 1
    rotary: bool = False
    seeds: int | None = None
    """None: as many as the budget says."""


class LearningStudy(Study):
    """Loss over training for several sizes or models."""

    budgets: ClassVar[Mapping[str, Budget]]
    varied: ClassVar[str]
    """The column that tells curves apart."""
    axes: ClassVar[tuple[str, ...]] = ("examples",)
    """What losses are drawn against."""
    shown: ClassVar[str | None] = None
    """A column of how trainings ended that the legend names beside what is varied."""

    @abstractmethod
    def variants(self, scale: str) -> list[Variant]:
        """What is compared, the cheapest first."""

    def tested(self, scale: str) -> Mapping[str, str]:
        """The difficulties whose validation loss is the test loss, by its column's suffix; empty: naive problems."""
        return {}

    def tasks(self, setting: Setting) -> list[Task]:
        budget = self.budgets[setting.scale]
        return [
            Task(
                labels={**variant.labels, "seed": seed},
                config=trained(setting, variant, budget, seed, watch=not self.tested(setting.scale)),
            )
            for variant in self.variants(setting.scale)
            for seed in range(1, (variant.seeds or budget.seeds) + 1)
        ]

    def measure(self, task: Task, run: Run | None, setting: Setting, place: Place) -> list[Row]:
        assert run is not None
        return [*points(run, self.tested(setting.scale)), ending(run)]

    def draw(self, rows: Sequence[Row], setting: Setting) -> Figure:
        from matplotlib.figure import Figure

        several = len(distinct(rows, "seed")) > 1
        lines = [("examples", "all")] if several else []
        lines += [(axis, "least" if several else "all") for axis in self.axes]
        panels = 1 + max(1, len(self.tested(setting.scale)))
        figure = Figure(figsize=(4.2 * panels, 3.0 * len(lines)), layout="constrained")
        grid: Any = figure.subplots(len(lines), panels, squeeze=False)
        for line, (axis, which) in zip(grid, lines, strict=True):
            self.draw_curves(line, rows, setting, axis, least=which == "least")
        handles, labels = grid[0][0].get_legend_handles_labels()
        title = self.varied if self.shown is None else f"{self.varied} ({self.shown})"
        figure.legend(handles, labels, title=title, loc="outside right center", frameon=False, fontsize=8)
        return figure

    def draw_curves(
        self, panels: Sequence[Axes], rows: Sequence[Row], setting: Setting, axis: str, *, least: bool
    ) -> None:
        """Training loss, then each test loss, against examples or FLOPs."""
        from matplotlib.ticker import EngFormatter

        from pathmerge.evaluation.curves import log_scale

        tested = {suffix: f"loss at {words}" for suffix, words in self.tested(setting.scale).items()}
        tests = {f"test_loss{suffix}": words for suffix, words in (tested or {"": "loss on naive problems"}).items()}
        columns = {"train_loss": "training loss", **tests}
        values = distinct(rows, self.varied)
        for panel, (column, words) in zip(panels, columns.items(), strict=True):
            for value, colour in zip(values, colours(len(values)), strict=True):
                curves = [curve(group, axis, column) for group in seeds_of(where(rows, **{self.varied: value}))]
                smoothing = column != "train_loss"
                curves = [(found[0], smooth(found[1]) if smoothing else found[1]) for found in curves if found]
                if least:
                    curves = [minimum(curves)] if curves else []
                for i, (x, y) in enumerate(curves):
                    label = self._label(rows, value) if i == 0 else None
                    panel.plot(x, y, color=colour, linewidth=1.4 if least else 0.9, label=label, marker=_mark(x))
            log_scale(panel)
            panel.set_xlabel({"examples": "examples", "flops": "training FLOPs"}[axis])
            panel.set_ylabel(words + (",\nleast of the seeds" if least else ""), fontsize=8)
            if axis == "flops":
                panel.set_xscale("log")
            else:
                panel.xaxis.set_major_formatter(EngFormatter(sep=""))
            panel.grid(alpha=0.25, linewidth=0.5)
            panel.spines[["top", "right"]].set_visible(False)

    def _label(self, rows: Sequence[Row], value: Value) -> str:
        ends = where(rows, kind="end", **{self.varied: value})
        return str(value) if self.shown is None or not ends else f"{value} ({ends[0][self.shown]:,})"


def trained(setting: Setting, variant: Variant, budget: Budget, seed: int, *, watch: bool) -> RunConfig:
    """The config of one training: the recipe's optimizer and order, the study's model, data and budget."""
    problem = variant.problem
    base = on_problem(recipe(setting.recipe, problem.input_size, seed), problem)
    held_out = Holding(test=budget.test, validation=budget.validation, watch="naive" if watch else None)
    return replace(base, model=sized(base.model, variant), training=budgeted(base, budget), held_out=held_out)


def budgeted(base: RunConfig, budget: Budget) -> Training:
    """The recipe's training, as long as the budget says; its warm-up and decay never take more than their share."""
    settings = base.training
    changes: dict[str, Any] = {
        "examples": budget.examples,
        "validate_every": budget.point,
        "log_every": budget.point,
        "threads": 1,
        "warmup": min(settings.warmup, budget.examples // 10),
        "decay": None if settings.decay is None else min(settings.decay, max(1, budget.examples // 2)),
        "stop": "never" if base.recipe == "paper" else "converged",
    }
    if base.recipe == "paper":
        changes["batch_size"] = budget.batch
    return replace(settings, **changes)


def sized(model: ModelConfig, variant: Variant) -> ModelConfig:
    """The recipe's model with the variant's dimensions; an edge model keeps its own width."""
    changes: dict[str, Any] = {"layers": variant.layers}
    if isinstance(model, OneHot):
        changes |= {"hidden": variant.hidden, "heads": variant.heads}
        if variant.rotary:
            kept = ("input_size", "initialisation", "matching", "feed_forward_scale", "text")
            plain = without_edges(model)
            return Rotary(**{name: getattr(plain, name) for name in kept}, **changes)
    return replace(model, **changes)


def points(run: Run, tested: Mapping[str, str]) -> list[Row]:
    """A row for each validation, and for each window of training before the first."""
    found: list[Row] = []
    window: dict[str, Any] = {}
    for line in run.metrics():
        if line["kind"] == "train":
            window = line
            found.append(
                {
                    "kind": "point",
                    "examples": line["examples"],
                    "flops": line["flops"],
                    "train_loss": line["loss"],
                    "train_accuracy": line["accuracy"],
                    "stage": line["stage"] or None,
                }
            )
        elif line["kind"] == "validation" and window:
            found[-1] |= _tests(line, tested)
    return found


def _tests(line: Mapping[str, Any], tested: Mapping[str, str]) -> Row:
    found: Row = {"valid_loss": line["loss"], "valid_accuracy": line["accuracy"]}
    if not tested:
        return {**found, "test_loss": line["watched_loss"], "test_accuracy": line["watched_accuracy"]}
    for suffix, difficulty in tested.items():
        found[f"test_loss{suffix}"] = line["loss_by_difficulty"].get(difficulty)
        found[f"test_accuracy{suffix}"] = line["by_difficulty"].get(difficulty)
    return found


def ending(run: Run) -> Row:
    """How a training ended: whether and when it converged, what it cost."""
    lines = run.metrics()
    checks = [line for line in lines if line["kind"] == "validation"]
    last = next((line for line in reversed(lines) if line["kind"] == "end"), None)
    if last is None:
        raise ValueError(f"run={str(run.directory)!r}: its metrics have no end; remove it, and it is trained again")
    first: dict[str, Value] = {
        name: next((line["examples"] for line in checks if line[name]), None)
        for name in ("converged", "converged_each")
    }
    return {
        "kind": "end",
        "examples": last["examples"],
        "flops": last["flops"],
        "seconds": round(last["seconds"], 1),
        "reason": last["reason"],
        "valid_accuracy": checks[-1]["accuracy"] if checks else None,
        "valid_loss": checks[-1]["loss"] if checks else None,
        "worst_accuracy": min(checks[-1]["by_difficulty"].values(), default=None) if checks else None,
        "test_loss": checks[-1].get("watched_loss") if checks else None,
        "test_accuracy": checks[-1].get("watched_accuracy") if checks else None,
        "converged_at": first["converged"],
        "converged_each_at": first["converged_each"],
        "published_at": last["published_at"],
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
    }


Curve = tuple[np.ndarray, np.ndarray]


def seeds_of(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each seed."""
    return [where(rows, seed=seed) for seed in distinct(rows, "seed")]


def curve(rows: Sequence[Row], axis: str, column: str) -> Curve | None:
    """The points of one training that have this column; none if there is none."""
    pairs = [(row[axis], row[column]) for row in where(rows, kind="point") if row.get(column) is not None]
    if not pairs:
        return None
    x, y = (np.array(values, np.float64) for values in zip(*pairs, strict=True))
    return x, y


def minimum(curves: Sequence[Curve]) -> Curve:
    """The least of several curves at each place where one of them has a point, each held at its last value."""
    x = np.unique(np.concatenate([curve[0] for curve in curves]))
    held = np.full((len(curves), len(x)), np.inf)
    for line, (own, y) in zip(held, curves, strict=True):
        at = np.searchsorted(own, x, "right") - 1
        line[at >= 0] = y[at[at >= 0]]
    return x, held.min(0)


def smooth(values: np.ndarray, window: int = WINDOW) -> np.ndarray:
    """A running mean over `window` values, fewer near the ends; over a fifth of them if that is less."""
    half = min(window, len(values) // 5) // 2
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    reach = np.minimum(half, np.minimum(at, len(values) - 1 - at))
    return (sums[at + reach + 1] - sums[at - reach]) / (2 * reach + 1)


def colours(count: int) -> list[Any]:
    from matplotlib import colormaps

    return [colormaps["viridis"](0.92 * i / max(1, count - 1)) for i in range(count)]


def _mark(x: np.ndarray) -> str | None:
    return "." if len(x) < 3 else None
