"""How rare are long lookaheads in naive graphs? (paper, figure 8)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from pathmerge.problems.distribution import Distribution
from pathmerge.problems.naive import Naive
from pathmerge.studies.study import Place, Row, Setting, Study, Task, numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pathmerge.training.run import Run

INPUT_SIZE = 128
GRAPHS = {"smoke": 20_000, "laptop": 10_000_000, "paper": 10_000_000}
PARTS = {"smoke": 1, "laptop": 10, "paper": 10}
CHUNK = 20_000


class LookaheadHistogram(Study):
    """Naive graphs, counted by lookahead. Nothing is trained."""

    name: ClassVar[str] = "lookahead-histogram"
    figure: ClassVar[str] = "Figure 8"
    question: ClassVar[str] = "How rare are long lookaheads in naive graphs?"

    def says(self, setting: Setting) -> str:
        more = "; the paper's own setting" if setting.scale != "smoke" else ""
        return f"{GRAPHS[setting.scale]:,} naive graphs of up to 41 vertices (N={INPUT_SIZE}){more}"

    def tasks(self, setting: Setting) -> list[Task]:
        return [
            Task(labels={"part": part}, minutes=GRAPHS[setting.scale] / PARTS[setting.scale] / 2e6)
            for part in range(PARTS[setting.scale])
        ]

    def examples(self, setting: Setting) -> list[Distribution]:
        return [Naive(input_size=INPUT_SIZE)]

    def measure(self, task: Task, run: Run | None, setting: Setting, place: Place) -> list[Row]:
        size = GRAPHS[setting.scale] // PARTS[setting.scale]
        begin = int(task.labels["part"]) * size
        counts = np.zeros(INPUT_SIZE, np.int64)
        for first in range(begin, begin + size, CHUNK):
            count = min(CHUNK, begin + size - first)
            batch = Naive(input_size=INPUT_SIZE).sample(count, seed=1, first=first, threads=place.threads)
            counts += np.bincount(batch.difficulty[:, 0], minlength=INPUT_SIZE)
        return [{"lookahead": i, "graphs": int(count)} for i, count in enumerate(counts) if count]

    def draw(self, rows: Sequence[Row], setting: Setting) -> Figure:
        from matplotlib.figure import Figure

        counts = totals(rows)
        figure = Figure(figsize=(5.2, 3.2), layout="constrained")
        axes = figure.subplots()
        bars = axes.bar(list(counts), list(counts.values()), color="#4C72B0", width=0.85)
        axes.bar_label(bars, [f"{count:,}" for count in counts.values()], fontsize=7, padding=2)
        axes.set(yscale="log", xlabel="lookahead", ylabel="graphs", xticks=list(counts))
        axes.set_title(f"{sum(counts.values()):,} naive graphs, V ≤ 41", fontsize=10)
        axes.margins(y=0.12)
        axes.spines[["top", "right"]].set_visible(False)
        return figure


def totals(rows: Sequence[Row]) -> dict[int, int]:
    """Graphs by lookahead, over all parts."""
    found: dict[int, int] = {}
    for lookahead, graphs in zip(numbers(rows, "lookahead"), numbers(rows, "graphs"), strict=True):
        found[int(lookahead)] = found.get(int(lookahead), 0) + int(graphs)
    return dict(sorted(found.items()))
