"""Circuits over training: the same inputs traced at the checkpoints of one run, beside accuracy by lookahead.

When does each merge appear? Train with `--keep-every EXAMPLES`, so that there are checkpoints to look at.

Choices a reader could not guess:
- Each checkpoint has a folder of circuits of its own, so that an interrupted history goes on where it stopped.
- An operation of the final circuits is *there* at an earlier checkpoint if the same one (layer, head, rows) was kept
  then on the same input. It *appears* where it is first there, and is there *for good* from where it is at every later
  checkpoint, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.figure import Figure

from pathmerge.circuits.files import Circuit
from pathmerge.circuits.options import Options
from pathmerge.circuits.results import Inputs, check_inputs, explain_into, file_name
from pathmerge.disk import write_csv
from pathmerge.distributions import distribution_from_dict
from pathmerge.pictures import save
from pathmerge.training.checkpoint import list_checkpoints
from pathmerge.training.run import CHECKPOINTS, load_run

GREY = "#777777"


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The model after so many examples."""

    examples: int
    correct: dict[int, float]
    """By lookahead, like the next two."""
    explained: dict[int, float]
    lenient: dict[int, float]
    """Right answers only."""
    present: list[float | None]
    """For each layer, the share of the final circuits' operations that are there already."""
    kept: list[float]
    """For each layer, operations kept per input."""


@dataclass(frozen=True, kw_only=True)
class Appearance:
    """When an operation of a final circuit appeared."""

    input: str
    """The name of its file."""
    lookahead: int
    layer: int
    head: int
    target: int
    source: int
    kind: str
    appears: int
    """Examples, like the next."""
    for_good: int


@dataclass(frozen=True, kw_only=True)
class History:
    """A run's circuits over its training."""

    moments: list[Moment]
    appearances: list[Appearance]


def trace_training(
    run: Path,
    inputs: Inputs,
    options: Options,
    out: Path,
    *,
    threads: int = 2,
    progress: Callable[[int], None] | None = None,
) -> History:
    """Explain the same inputs at every checkpoint of a run, oldest first."""
    check_inputs(inputs, options)
    found: list[tuple[int, list[Circuit]]] = []
    for checkpoint in checkpoints_of(run):
        then = load_run(run, checkpoint=checkpoint)
        source = {"source": str(run), "examples": then.examples}
        circuits, _ = explain_into(
            out / f"after-{then.examples:09d}",
            then.model,
            inputs,
            options,
            source=source,
            threads=threads,
            progress=progress,
        )
        found.append((then.examples, circuits))
    last = found[-1][1]
    moments = [_moment(examples, circuits, last) for examples, circuits in found]
    return History(moments=moments, appearances=_appearances(found))


def checkpoints_of(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first; raises unless there are enough for a history."""
    found = list_checkpoints(run / CHECKPOINTS)
    if len(found) < 3:
        raise ValueError(
            f"run={str(run)!r}: has {len(found)} checkpoints, a history needs 3; train with --keep-every EXAMPLES"
        )
    return found


def _moment(examples: int, circuits: Sequence[Circuit], last: Sequence[Circuit]) -> Moment:
    lookaheads = sorted({circuit.input.lookahead for circuit in circuits})

    def share(of: Callable[[Circuit], bool]) -> dict[int, float]:
        found = {n: [of(circuit) for circuit in circuits if circuit.input.lookahead == n] for n in lookaheads}
        return {n: sum(values) / len(values) for n, values in found.items()}

    layers = circuits[0].model["layers"]
    there, wanted, kept = [0] * layers, [0] * layers, [0] * layers
    final = {circuit.input.tokens: _operations(circuit) for circuit in last}
    for circuit in circuits:
        mine = _operations(circuit)
        for operation in mine:
            kept[operation[0]] += 1
        for operation in final.get(circuit.input.tokens, ()):
            wanted[operation[0]] += 1
            there[operation[0]] += operation in mine
    return Moment(
        examples=examples,
        correct=share(lambda circuit: circuit.correct),
        explained=share(lambda circuit: circuit.explained),
        lenient=share(lambda circuit: circuit.lenient.explained and circuit.correct),
        present=[a / b if b else None for a, b in zip(there, wanted, strict=True)],
        kept=[number / len(circuits) for number in kept],
    )


def _appearances(found: Sequence[tuple[int, Sequence[Circuit]]]) -> list[Appearance]:
    then = [(examples, {c.input.tokens: _operations(c) for c in circuits}) for examples, circuits in found]
    appearances: list[Appearance] = []
    for circuit in found[-1][1]:
        for i in circuit.lenient.kept:
            o = circuit.operations[i]
            place = (o.layer, o.head, o.target, o.source)
            there = [place in kept.get(circuit.input.tokens, ()) for _, kept in then]
            gaps = [at for at, present in enumerate(there) if not present]
            appearances.append(
                Appearance(
                    input=file_name(distribution_from_dict(circuit.input.problem), circuit.input.key["index"]),
                    lookahead=circuit.input.lookahead,
                    layer=o.layer,
                    head=o.head,
                    target=o.target,
                    source=o.source,
                    kind=o.kind,
                    appears=then[there.index(True)][0],
                    for_good=then[gaps[-1] + 1 if gaps else 0][0],
                )
            )
    return appearances


def _operations(circuit: Circuit) -> set[tuple[int, int, int, int]]:
    kept = (circuit.operations[i] for i in circuit.lenient.kept)
    return {(operation.layer, operation.head, operation.target, operation.source) for operation in kept}


def write_history(history: History, out: Path, *, title: str = "") -> list[Path]:
    """history.csv, appearances.csv and history.png."""
    written = [out / "history.csv", out / "appearances.csv", out / "history.png"]
    write_csv(written[0], [_row(moment) for moment in history.moments])
    write_csv(written[1], [asdict(found) for found in history.appearances], [f.name for f in fields(Appearance)])
    save(history_figure(history.moments, title=title), written[2])
    return written


def _row(moment: Moment) -> dict[str, Any]:
    row: dict[str, Any] = {"examples": moment.examples}
    for name, column in (("correct", "correct"), ("explained", "explained"), ("lenient", "right and lenient")):
        row |= {f"{column} L={length}": value for length, value in getattr(moment, name).items()}
    for name in ("present", "kept"):
        row |= {f"{name} layer {i}": value for i, value in enumerate(getattr(moment, name))}
    return row


def history_figure(moments: Sequence[Moment], *, title: str = "") -> Figure:
    """Accuracy by lookahead, the share explained, and when the final circuits' operations appear, against examples."""
    figure = Figure(figsize=(8.4, 7.6), layout="constrained")
    panels = figure.subplots(3, 1, sharex=True)
    if title:
        figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
    seen = [moment.examples for moment in moments]
    lookaheads = list(moments[0].correct)
    shades = colormaps["viridis"]
    for panel, name, label in (
        (panels[0], "correct", "right answers"),
        (panels[1], "lenient", "right and explained\n(lenient)"),
    ):
        for i, length in enumerate(lookaheads):
            colour = shades(0.92 * i / max(1, len(lookaheads) - 1))
            values = [getattr(moment, name)[length] for moment in moments]
            panel.plot(seen, values, color=colour, linewidth=1.4, marker=".", label=f"lookahead {length}")
        panel.set(ylim=(-0.03, 1.03), ylabel=label)
    layers = len(moments[0].present)
    warm = colormaps["plasma"]
    for layer in range(layers):
        values = [float("nan") if m.present[layer] is None else m.present[layer] for m in moments]
        colour = warm(0.85 * layer / max(1, layers - 1))
        panels[2].plot(seen, values, color=colour, linewidth=1.4, marker=".", label=f"layer {layer + 1}")  # pyright: ignore[reportArgumentType]
    panels[2].set(
        ylim=(-0.03, 1.03),
        ylabel="final circuit's operations\nalready there",
        xlabel="training examples",
    )
    for panel in (panels[0], panels[2]):  # beside the curves, which can be anywhere
        panel.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    panels[2].xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#EEEEEE", linewidth=0.8)
    return figure
