"""Learning curves of a run from its metrics: accuracy by difficulty, loss, where the stages of a curriculum begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from pathmerge.disk import check_output
from pathmerge.pictures import save

MOST_CURVES = 12
GREY = "#777777"


def write_curves(lines: Sequence[Mapping[str, Any]], path: Path | str, *, title: str = "") -> None:
    """Draw `curves` into a PNG or SVG file."""
    path = Path(path)
    check_output("picture", path, (".png", ".svg"))
    save(curves(lines, title=title), path)


def curves(lines: Sequence[Mapping[str, Any]], *, title: str = "") -> Figure:
    """Accuracy by difficulty above (thick: validation; thin: training examples as they came), loss below, against
    examples seen."""
    checks = [line for line in lines if line["kind"] == "validation"]
    steps = [line for line in lines if line["kind"] == "train"]
    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    if title:
        figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
    names = list(dict.fromkeys(name for line in (*checks, *steps) for name in line["by_difficulty"]))
    colours = colormaps["viridis"]
    for i, name in enumerate(names):
        # With many difficulties the curves stay and only some are named.
        named = len(names) <= MOST_CURVES or i % -(-len(names) // MOST_CURVES) == 0 or i == len(names) - 1
        colour = colours(0.92 * i / max(1, len(names) - 1))
        for points, width in ((_met(steps, name), 0.5), (_checked(checks, name), 1.6)):
            above.plot(*points, color=colour, linewidth=width)
        above.plot([], [], color=colour, linewidth=1.6, label=name if named else None)
    above.axhline(0.995, color=GREY, linewidth=0.8, linestyle=":")
    above.set(ylim=(0, 1.03), ylabel="accuracy (thick: validation)")
    above.text(0.005, 0.985, "0.995", transform=above.get_yaxis_transform(), fontsize=7, color=GREY, va="top")
    if names:
        above.legend(fontsize=8, loc="lower right", frameon=False)
    for points, colour, name in ((steps, GREY, "training"), (checks, colours(0.0), "validation")):
        if points:
            below.plot([p["examples"] for p in points], [p["loss"] for p in points], color=colour, label=name, lw=1.2)
    if steps or checks:
        below.legend(fontsize=8, loc="upper right", frameon=False)
        log_scale(below)
    below.set(ylabel="loss", xlabel="training examples")
    below.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _mark_stages(above, below, [line for line in lines if line["kind"] == "stage"])
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def log_scale(axes: Axes) -> None:
    """A logarithmic axis of losses with plain numbers, as many as its range needs; once everything is drawn."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    span = high / low
    steps = (1,) if span >= 300 else (1, 2, 5) if span >= 8 else (1, 2, 3, 5, 7) if span >= 3 else ()
    axes.yaxis.set_major_locator(LogLocator(subs=steps) if steps else MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _checked(checks: Sequence[Mapping[str, Any]], name: str) -> tuple[list[float], list[float]]:
    """Examples and validation accuracy at one difficulty."""
    lines = [line for line in checks if name in line["by_difficulty"]]
    return [line["examples"] for line in lines], [line["by_difficulty"][name] for line in lines]


def _met(steps: Sequence[Mapping[str, Any]], name: str) -> tuple[list[float], list[float]]:
    """Examples and the accuracy on the training examples of one difficulty since the line before."""
    lines = [line for line in steps if line["by_difficulty"].get(name, (0, 0))[1]]
    counts = [line["by_difficulty"][name] for line in lines]
    return [line["examples"] for line in lines], [right / seen for right, seen in counts]


def _mark_stages(above: Any, below: Any, stages: Sequence[Mapping[str, Any]]) -> None:
    """A line where each stage begins; named where there is room."""
    for axes in (above, below):
        for line in stages:
            axes.axvline(line["examples"], color="#C8C8C8", linewidth=0.8, zorder=0)
    span = above.get_xlim()[1]
    last = -span
    for line in stages:
        if line["examples"] - last >= span / 7:
            words = str(line["stage"]).split("(")[-1].rstrip(")")
            place = above.get_xaxis_transform()
            above.text(line["examples"], 1.0, f" {words}", transform=place, fontsize=7, color=GREY, va="bottom")
            last = line["examples"]
