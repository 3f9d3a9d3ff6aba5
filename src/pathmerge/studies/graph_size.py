"""Does learning to search become harder as graphs grow? (paper, figures 6 and 10)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pathmerge.problems.balanced import Balanced
from pathmerge.studies.learning import Budget, LearningStudy, Variant, colours
from pathmerge.studies.study import Row, Setting, distinct, numbers, where

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = {"smoke": (17, 20), "laptop": (26, 32, 38, 44), "paper": tuple(range(32, 153, 6))}
LAYERS = {"smoke": 2, "laptop": 5, "paper": 8}
FEWER_SEEDS = {("laptop", 44): 2}
"""Where there are fewer than the budget says: this size takes longest."""


class GraphSize(LearningStudy):
    """Models of one depth on larger and larger graphs, all with the same budget."""

    name: ClassVar[str] = "graph-size"
    figure: ClassVar[str] = "Figures 6, 10"
    question: ClassVar[str] = "Does learning to search become harder as graphs grow?"
    varied: ClassVar[str] = "vertices"
    budgets: ClassVar[Mapping[str, Budget]] = {
        "smoke": Budget(examples=1024, seeds=2, point=512, validation=50, test=100),
        "laptop": Budget(examples=600_000, seeds=3, point=20_000),
        "paper": Budget(examples=236_000_000, seeds=14),
    }
    recipes: ClassVar[tuple[str, ...]] = ("paper", "tuned", "matched", "efficient", "dense")

    def says(self, setting: Setting) -> str:
        sizes, budget = SIZES[setting.scale], self.budgets[setting.scale]
        fewer = "".join(f" (N={n}: {seeds})" for (at, n), seeds in FEWER_SEEDS.items() if at == setting.scale)
        return (
            f"N={sizes[0]}..{sizes[-1]} ({len(sizes)} sizes), {LAYERS[setting.scale]} layers, {budget.seeds} seed(s)"
            f"{fewer}, at most {budget.examples:,} examples each; the paper: N=32..152, 8 layers, 14 seeds, 236M "
            "examples"
        )

    def variants(self, scale: str) -> list[Variant]:
        return [
            Variant(
                labels={"input_size": size, "vertices": (size - 5) // 3},
                problem=Balanced(input_size=size),
                layers=LAYERS[scale],
                seeds=FEWER_SEEDS.get((scale, size)),
            )
            for size in SIZES[scale]
        ]

    def draw(self, rows: Sequence[Row], setting: Setting) -> Figure:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9.2, 8.2), layout="constrained")
        grid: Any = figure.subplots(3, 2)
        _draw_ends(grid[0], rows)
        self.draw_curves(grid[1], rows, setting, "examples", least=False)
        self.draw_curves(grid[2], rows, setting, "examples", least=True)
        handles, labels = grid[1][0].get_legend_handles_labels()
        figure.legend(handles, labels, title="vertices", loc="outside right center", frameon=False, fontsize=8)
        return figure


def _draw_ends(panels: Sequence[Any], rows: Sequence[Row]) -> None:
    """Figure 6: the least test loss, and the share of seeds that converged, against the number of vertices."""
    from pathmerge.evaluation.curves import log_scale

    sizes = distinct(rows, "vertices")
    loss, share = panels
    for size, colour in zip(sizes, colours(len(sizes)), strict=True):
        ends = where(rows, kind="end", vertices=size)
        good = [end for end in ends if end.get("converged_at") is not None]
        for group, face in ((good, colour), ([end for end in ends if end not in good], "none")):
            values = numbers(group, "test_loss")
            loss.scatter([size] * len(values), values, s=22, facecolors=face, edgecolors=[colour])
        if ends:
            share.bar(size, len(good) / len(ends), width=1.4, color=colour)
            share.text(size, len(good) / len(ends) + 0.02, f"{len(good)}/{len(ends)}", ha="center", fontsize=7)
    log_scale(loss)
    loss.set(xlabel="vertices", xticks=sizes)
    loss.set_ylabel("last loss on naive problems\n(filled: converged)", fontsize=8)
    share.set(xlabel="vertices", ylim=(0, 1.12), xticks=sizes)
    share.set_ylabel("share of seeds that converged", fontsize=8)
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
