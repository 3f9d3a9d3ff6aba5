"""Which way, and how far, do merges go? Circuits of the models of `sensitivity`, layer by layer (paper, figures 18 and
19)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pathmerge.problems.balanced import Balanced
from pathmerge.studies.circuits import COUNT, explained
from pathmerge.studies.sensitivity import ALL_RECIPES, FAST, SIZE, config_of, problems
from pathmerge.studies.study import Place, Row, Setting, Study, Task, distinct, where

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pathmerge.training.run import Run

LOOKAHEAD = {"smoke": 1, "laptop": 4, "paper": 9}
SEEDS = {"smoke": 1, "laptop": 2, "paper": 1}


class Direction(Study):
    """Where on the path merges go, layer by layer."""

    name: ClassVar[str] = "direction"
    figure: ClassVar[str] = "Figures 18, 19"
    question: ClassVar[str] = "Which way, and how far, do merges go in each layer?"
    defaults: ClassVar[Mapping[str, str]] = FAST
    recipes: ClassVar[tuple[str, ...]] = ALL_RECIPES

    def says(self, setting: Setting) -> str:
        return (
            f"the models of `sensitivity` trained on balanced problems at N={SIZE[setting.scale]}, "
            f"{SEEDS[setting.scale]} seed(s), {COUNT[setting.scale]} inputs of lookahead {LOOKAHEAD[setting.scale]}; "
            "the paper: N=128, one seed each, 100 inputs of lookahead 9"
        )

    def tasks(self, setting: Setting) -> list[Task]:
        return [
            Task(labels={"trained_on": name, "seed": seed}, config=config_of(setting, problem, seed), minutes=1)
            for name, problem in problems(setting.scale).items()
            if name.startswith("balanced")
            for seed in range(1, SEEDS[setting.scale] + 1)
        ]

    def measure(self, task: Task, run: Run | None, setting: Setting, place: Place) -> list[Row]:
        from pathmerge.circuits.counts import merge_distances, merge_places

        assert run is not None
        steps = LOOKAHEAD[setting.scale]
        problem = Balanced(input_size=SIZE[setting.scale], lookahead=steps)
        circuits, _ = explained(run.model, problem, COUNT[setting.scale], place, "inputs")
        if not any(circuit.operations for circuit in circuits):
            return []
        found: list[Row] = []
        try:
            places = merge_places(circuits, "lenient", length=steps)
        except ValueError:  # no path of that length among these inputs
            places = merge_places(circuits, "lenient")
        for layer, source, target in zip(*np.nonzero(places.counts), strict=True):
            merges = int(places.counts[layer, source, target])
            ends: Row = {"layer": int(layer) + 1, "source": int(source), "target": int(target), "merges": merges}
            found.append({"kind": "place", "inputs": places.circuits, "length": places.length, **ends})
        for layer, counter in enumerate(merge_distances(circuits, "lenient")):
            found += [
                {"kind": "distance", "layer": layer + 1, "way": way, "distance": distance, "merges": count}
                for (way, distance), count in sorted(counter.items())
            ]
        return found

    def draw(self, rows: Sequence[Row], setting: Setting) -> Figure:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        models = list(dict.fromkeys((row["trained_on"], row["seed"]) for row in rows))
        layers = sorted(distinct(rows, "layer"))
        length = max(row["length"] for row in where(rows, kind="place"))
        figure = Figure(figsize=(1.0 + 1.9 * len(layers), 0.4 + 2.2 * len(models)), layout="constrained")
        grid: Any = figure.subplots(len(models), len(layers), squeeze=False)
        image: Any = None
        for line, (name, seed) in zip(grid, models, strict=True):
            for axes, layer in zip(line, layers, strict=True):
                cells = where(rows, kind="place", trained_on=name, seed=seed, layer=layer)
                counts = np.zeros((length + 1, length + 1))
                for cell in cells:
                    counts[cell["source"], cell["target"]] = cell["merges"]
                totals = counts.sum(0, keepdims=True)
                shares = np.divide(counts, totals, out=np.full(counts.shape, nan), where=totals > 0)
                image = axes.imshow(shares, vmin=0, vmax=1, cmap="viridis", origin="upper")
                axes.set_title(f"layer {layer}, merges: {int(counts.sum())}", fontsize=8)
                axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
                axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
                axes.tick_params(labelsize=6)
                axes.set_xlabel("target's place on the path", fontsize=7)
            line[0].set_ylabel(f"trained on {name}\nseed {seed}\nsource's place", fontsize=7)
        bar = figure.colorbar(image, ax=grid, shrink=0.5, aspect=30)
        bar.set_label("share of the target's merges; white: it has none", fontsize=8)
        return figure
