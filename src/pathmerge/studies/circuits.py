"""Which algorithm did they learn? Circuits of the models of `sensitivity` (paper, figure 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pathmerge.models.config import LATER, OneHot
from pathmerge.problems.balanced import Balanced
from pathmerge.problems.distribution import Distribution
from pathmerge.problems.naive import Naive
from pathmerge.recipes import recipe
from pathmerge.studies.sensitivity import ALL_RECIPES, FAST, SIZE, config_of, problems
from pathmerge.studies.study import Place, Row, Setting, Study, Task, distinct, where

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pathmerge.circuits.files import Circuit
    from pathmerge.training.run import Run

COUNT = {"smoke": 3, "laptop": 40, "paper": 100}
UNTRAINED = "nothing (untrained)"
SHARES = ("correct", "explained", "lenient", "connected", "maximal", "maximal_vertex")
TRUST = ("sufficiency", "completeness", "minimality")


class Circuits(Study):
    """Naive and balanced inputs of every lookahead, explained one by one."""

    name: ClassVar[str] = "circuits"
    figure: ClassVar[str] = "Figure 5"
    question: ClassVar[str] = "Do trained models merge paths, and untrained ones not?"
    defaults: ClassVar[Mapping[str, str]] = FAST
    recipes: ClassVar[tuple[str, ...]] = ALL_RECIPES

    def says(self, setting: Setting) -> str:
        return (
            f"the models of `sensitivity` (not star) at N={SIZE[setting.scale]} and one without training, "
            f"{COUNT[setting.scale]} inputs per cell; the paper: N=128, 100 per cell"
        )

    def tasks(self, setting: Setting) -> list[Task]:
        chosen = {name: problem for name, problem in problems(setting.scale).items() if name != "star"}
        minutes = COUNT[setting.scale] * len(cells(setting.scale)) * (SIZE[setting.scale] / 64) ** 3 * 0.004
        trained = [
            Task(labels={"trained_on": name, "seed": 1}, config=config_of(setting, problem, 1), minutes=minutes)
            for name, problem in chosen.items()
        ]
        return [Task(labels={"trained_on": UNTRAINED, "seed": 1}, minutes=minutes), *trained]

    def measure(self, task: Task, run: Run | None, setting: Setting, place: Place) -> list[Row]:
        model = untrained(setting) if run is None else run.model
        found: list[Row] = []
        for name, problem in cells(setting.scale).items():
            _, summary = explained(model, problem, COUNT[setting.scale], place, name)
            found.append(
                {
                    "kind": "cell",
                    "distribution": problem.name,
                    "lookahead": getattr(problem, "lookahead", None),
                    "inputs": summary["count"],
                    **{share: summary[share] for share in (*SHARES, *TRUST)},
                    "random_sufficiency": summary["sufficiency_random"],
                    "strict_maximal": summary["strict"]["maximal"],
                }
            )
        return found

    def draw(self, rows: Sequence[Row], setting: Setting) -> Figure:
        from matplotlib.figure import Figure

        names = distinct(rows, "trained_on")
        columns = list(cells(setting.scale))
        panels = {"explained": "explained (strict)", "lenient": "explained (lenient)", "maximal": "maximal merges"}
        figure = Figure(figsize=(2.6 + 0.42 * len(columns), 0.9 + 3 * (0.75 + 0.3 * len(names))), layout="constrained")
        for axes, (column, title) in zip(np.atleast_1d(figure.subplots(3, 1)), panels.items(), strict=True):
            values = np.full((len(names), len(columns)), nan)
            for i, name in enumerate(names):
                for cell in where(rows, kind="cell", trained_on=name):
                    value = cell.get(column)
                    values[i, columns.index(_cell_name(cell))] = nan if value is None else value
            draw_heat(axes, values, names, columns, title)
        return figure


def cells(scale: str) -> dict[str, Distribution]:
    """The inputs of the paper's figure 5: naive, and each lookahead."""
    size = SIZE[scale]
    largest = Balanced(input_size=size).largest_lookahead
    last = 19 if scale == "paper" else largest
    found: dict[str, Distribution] = {"naive": Naive(input_size=size)}
    return found | {f"L={steps}": Balanced(input_size=size, lookahead=steps) for steps in range(1, last + 1)}


def _cell_name(row: Row) -> str:
    return "naive" if row.get("lookahead") is None else f"L={row['lookahead']}"


def untrained(setting: Setting) -> Any:
    """The recipe's model with PyTorch's own initial weights: no prior, no training."""
    from dataclasses import replace

    model = recipe(setting.recipe, SIZE[setting.scale], 1).model
    plain: dict[str, Any] = {"initialisation": "default", "feed_forward_scale": 1.0}
    plain |= dict.fromkeys(LATER) | {"joining": 0.0} if isinstance(model, OneHot) else {}
    plain |= {"layers": 6} if setting.scale == "paper" else {}
    return replace(model, **plain).build(1)


def explained(
    model: Any, problem: Distribution, count: int, place: Place, name: str
) -> tuple[list[Circuit], dict[str, Any]]:
    """Circuits of held-out inputs, in files of their own, so that a task that was killed goes on."""
    from pathmerge.circuits.options import Options
    from pathmerge.circuits.results import Inputs, explain_into

    inputs = Inputs(problems=(problem,), count=count)
    return explain_into(place.folder / name, model, inputs, Options(), threads=place.threads)


def draw_heat(axes: Any, values: np.ndarray, names: Sequence[str], columns: Sequence[str], title: str) -> None:
    """Shares as coloured cells with their numbers."""
    axes.imshow(values, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        words = "–" if np.isnan(value) else f"{value:.2f}"
        colour = "black" if np.isnan(value) or value > 0.6 else "white"
        axes.text(j, i, words, ha="center", va="center", fontsize=6.5, color=colour)
    axes.set_xticks(range(len(columns)), columns, fontsize=7)
    axes.set_yticks(range(len(names)), [f"trained on {name}" for name in names], fontsize=7)
    axes.set_title(title, fontsize=9, loc="left")
