"""Depth-first search step by step: does it become harder with size, do larger models help, does padding? (paper,
figures 14 and 15)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pathmerge.problems.dfs import DFS
from pathmerge.studies.learning import Budget, LearningStudy, Variant, colours, ending, trained
from pathmerge.studies.study import Place, Row, Setting, Study, Task, distinct, where

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pathmerge.training.run import Run

BACKTRACK = {"smoke": 1, "laptop": 4, "paper": 8}
"""The backtrack distance tested; smaller inputs have no room for the paper's 8."""

FARTHEST = 15
"""The largest backtrack distance of figure 15; larger ones would fit into its input."""


class DFSSize(LearningStudy):
    """Models of three layers on larger and larger graphs."""

    name: ClassVar[str] = "dfs-size"
    figure: ClassVar[str] = "Figure 14"
    question: ClassVar[str] = "Does depth-first search become harder to learn as graphs grow?"
    varied: ClassVar[str] = "vertices"
    sizes: ClassVar[Mapping[str, tuple[int, ...]]] = {
        "smoke": (16, 24),
        "laptop": (32, 48, 64),
        "paper": tuple(range(48, 193, 16)),
    }
    budgets: ClassVar[Mapping[str, Budget]] = {
        "smoke": Budget(examples=1024, seeds=2, point=512, validation=50, test=100),
        "laptop": Budget(examples=200_000, seeds=2, point=10_000, validation=400, test=400),
        "paper": Budget(examples=746_000_000, seeds=15),
    }

    def says(self, setting: Setting) -> str:
        budget, sizes = self.budgets[setting.scale], ", ".join(map(str, self.sizes[setting.scale]))
        return (
            f"N={sizes}, 3 layers, {budget.seeds} seed(s), at most {budget.examples:,} examples each, tested at "
            f"backtrack {BACKTRACK[setting.scale]}; the paper: N=48..192, 15 seeds, 746M examples, backtrack 8"
        )

    def tested(self, scale: str) -> Mapping[str, str]:
        return {"": f"backtrack={BACKTRACK[scale]}"}

    def variants(self, scale: str) -> list[Variant]:
        return [
            Variant(labels={"input_size": size, "vertices": (size - 5) // 3}, problem=DFS(input_size=size), layers=3)
            for size in self.sizes[scale]
        ]


class DFSModel(DFSSize):
    """One size, larger and larger models."""

    name: ClassVar[str] = "dfs-model"
    figure: ClassVar[str] = "Figure 14"
    question: ClassVar[str] = "Do larger models learn depth-first search better?"
    varied: ClassVar[str] = "model"
    axes: ClassVar[tuple[str, ...]] = ("examples", "flops")
    size: ClassVar[Mapping[str, int]] = {"smoke": 16, "laptop": 48, "paper": 112}
    models: ClassVar[Mapping[str, tuple[tuple[int, int, int], ...]]] = {
        "smoke": ((2, 16, 1), (3, 32, 1)),
        "laptop": ((3, 16, 1), (5, 45, 2), (8, 85, 2)),
        "paper": ((3, 16, 1), (16, 128, 4), (24, 192, 4), (32, 256, 4), (32, 384, 4)),
    }

    def says(self, setting: Setting) -> str:
        budget = self.budgets[setting.scale]
        return (
            f"N={self.size[setting.scale]}, (layers, hidden, heads) {', '.join(map(str, self.models[setting.scale]))}, "
            f"{budget.seeds} seed(s), at most {budget.examples:,} examples each; the paper: N=112, "
            f"{', '.join(map(str, self.models['paper']))}, 15 seeds, 746M examples"
        )

    def variants(self, scale: str) -> list[Variant]:
        problem = DFS(input_size=self.size[scale])
        return [
            Variant(
                labels={"model": f"{layers} layers, hidden {hidden}, {heads} heads"},
                problem=problem,
                layers=layers,
                hidden=hidden,
                heads=heads,
            )
            for layers, hidden, heads in self.models[scale]
        ]


class DFSPadding(Study):
    """Trained on naive searches with and without random padding, tested without at each backtrack distance."""

    name: ClassVar[str] = "dfs-padding"
    figure: ClassVar[str] = "Figure 15"
    question: ClassVar[str] = "Does random padding teach a model to go back further?"
    size: ClassVar[Mapping[str, int]] = {"smoke": 24, "laptop": 64, "paper": 128}
    layers: ClassVar[Mapping[str, int]] = {"smoke": 2, "laptop": 4, "paper": 7}
    budgets: ClassVar[Mapping[str, Budget]] = {
        "smoke": Budget(examples=1024, seeds=1, point=512, validation=50, test=100),
        "laptop": Budget(examples=400_000, seeds=2, point=50_000, validation=200, test=1000),
        "paper": Budget(examples=746_000_000, seeds=1),
    }

    def says(self, setting: Setting) -> str:
        budget = self.budgets[setting.scale]
        return (
            f"N={self.size[setting.scale]}, {self.layers[setting.scale]} layers, naive searches, "
            f"{budget.seeds} seed(s), {budget.examples:,} examples each; the paper: N=128, 7 layers, 746M examples"
        )

    def tasks(self, setting: Setting) -> list[Task]:
        budget = self.budgets[setting.scale]
        found: list[Task] = []
        for padding in ("standard", "random"):
            for seed in range(1, budget.seeds + 1):
                problem = DFS(input_size=self.size[setting.scale], mode="naive", padding=padding)
                variant = Variant(labels={}, problem=problem, layers=self.layers[setting.scale])
                config = trained(setting, variant, budget, seed, watch=False)
                # Convergence is judged on balanced searches, which is not what it trains on: it trains to the end.
                config = replace(config, training=replace(config.training, stop="never"))
                found.append(Task(labels={"padding": padding, "seed": seed}, config=config))
        return found

    def measure(self, task: Task, run: Run | None, setting: Setting, place: Place) -> list[Row]:
        from pathmerge.evaluation.evaluate import evaluate

        assert run is not None
        held = run.config.held_out
        problem = DFS(input_size=self.size[setting.scale])
        table = evaluate(run.model, problem, count=held.test, seed=held.seed, threads=place.threads, heuristics=False)
        cells: list[Row] = [
            {
                "kind": "cell",
                "backtrack": row.parameters["backtrack"],
                "accuracy": row.accuracy,
                "low": row.low,
                "high": row.high,
                "tested": row.examples,
            }
            for row in table.rows
            if row.parameters and row.parameters["backtrack"] <= FARTHEST
        ]
        return [*cells, ending(run)]

    def draw(self, rows: Sequence[Row], setting: Setting) -> Figure:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5.6, 3.2), layout="constrained")
        axes = figure.subplots()
        for padding, colour in zip(distinct(rows, "padding"), colours(3), strict=False):
            for i, seed in enumerate(distinct(rows, "seed")):
                cells = where(rows, kind="cell", padding=padding, seed=seed)
                x = [cell["backtrack"] for cell in cells]
                label = f"{padding} padding" if i == 0 else None
                axes.plot(x, [cell["accuracy"] for cell in cells], color=colour, marker=".", label=label)
        axes.set(xlabel="backtrack distance", ylabel="accuracy without padding", ylim=(0, 1.03))
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        return figure
