"""Circuits in a report: the summaries of several models side by side, figures of each, pictures of single circuits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pathmerge.viewer.figure import drawn, picture
from pathmerge.viewer.markup import Html, element, join, paragraph
from pathmerge.viewer.table import Shown, table

if TYPE_CHECKING:
    from pathmerge.circuits.files import Circuit

SUMMARY, ABOUT = "summary.json", "explain.json"
MOST_PICTURES = 2
LOOKED_AT = 16
"""Files among which circuits worth drawing are looked for."""
QUANTITIES: dict[str, tuple[str, str]] = {
    "correct": ("right", "the share of inputs that the model answers rightly"),
    "explained": ("explained", "the share whose answer path-merging alone accounts for, under the strict rules"),
    "lenient": ("explained, lenient", "the same under the rules of the published code"),
    "maximal": ("maximal merges", "the share of merges of the largest sets that there can be at that layer"),
    "kept": ("operations", "attention operations in a circuit, on average"),
    "sufficiency": ("sufficient", "the answer stays if everything outside the circuit is masked"),
    "completeness": ("complete", "the answer stays if the circuit is masked: low is good"),
    "minimality": ("minimal", "the share of operations that cannot be left out"),
}
"""Fields of a summary: what each is called, and what it means."""
RANDOM = "In brackets: the same of a random circuit of equal size. Circuits are those of the lenient rules."
SIDE_BY_SIDE = 4
"""Models up to which the table has a column for each, and room to say what its rows mean."""


def circuit_folders(directory: Path) -> dict[str, Path]:
    """The folders of circuits that `pathmerge explain` wrote into a directory, by name, the shortest name first."""
    found = [path.parent for path in directory.glob(f"*/{ABOUT}")]
    return {path.name: path for path in sorted(found, key=lambda path: (len(path.name), path.name))}


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The summary of a folder of circuits; none if it has none, or nothing was explained."""
    try:
        values = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) and values.get("count") else None


def compare(folders: Mapping[str, Path]) -> Html:
    """The summaries of some folders, by what their model is called: side by side, or many one below the other."""
    found = {name: summary for name, folder in folders.items() if (summary := read_summary(folder)) is not None}
    if not found:
        return Html("")
    note = paragraph(RANDOM, class_="note")
    if len(found) > SIDE_BY_SIDE:
        below = [
            {
                "model": name,
                "inputs": summary["count"],
                **{word: _shown(summary, field) for field, (word, _) in QUANTITIES.items()},
            }
            for name, summary in found.items()
        ]
        return join(table(below), note)
    beside: list[dict[str, Any]] = [
        {"": "inputs", **{name: Shown(summary["count"], str(summary["count"])) for name, summary in found.items()}}
    ]
    for field, (word, meaning) in QUANTITIES.items():
        values = {name: _shown(summary, field) for name, summary in found.items()}
        beside.append({"": word, **values, "which means": meaning})
    return join(table(beside, plain=True), note)


def _shown(summary: Mapping[str, Any], field: str) -> Shown:
    value = summary.get(field)
    if value is None:
        return Shown(None, "–")
    text = f"{value:.1f}" if field == "kept" else f"{value:.3f}"
    if f"{field}_random" in summary:
        random = summary[f"{field}_random"]
        text += " (–)" if random is None else f" ({random:.3f})"
    return Shown(float(value), text)


def by_lookahead(folder: Path) -> Html:
    """What is explained at each lookahead."""
    summary = read_summary(folder)
    if summary is None:
        return Html("")
    names = ("lookahead", "count", "correct", "explained", "lenient", "maximal", "kept")
    return table([{name: row.get(name) for name in names} for row in summary["by_lookahead"]])


def pictures(folder: Path, name: str, *, most: int = MOST_PICTURES) -> Html:
    """The figures that a folder of circuits has: all of them together, and some of the pictures of single ones."""
    single = sorted(folder.glob("circuit-*.png"))
    return join(
        picture(folder / "circuits.png", f"Circuits of {name} in figures", f"All circuits of {name} together."),
        *(picture(path, f"A circuit of {name}", _caption(name)) for path in single[-most:] if most),
    )


def drawn_circuits(paths: Iterable[Path], *, most: int = MOST_PICTURES) -> Html:
    """Pictures of some of the circuits in these files: explained ones and long searches first."""
    circuits = _chosen(list(paths), most)
    return join(*(_drawn(circuit) for circuit in circuits))


def _drawn(circuit: Circuit) -> Html:
    from pathmerge.circuits.picture import draw_circuit

    source = circuit.model.get("source")
    name = "the model" if source is None else f"the model {Path(str(source)).name}"
    return drawn(draw_circuit(circuit), "A circuit", _caption(name))


def _caption(name: str) -> str:
    return (
        f"One input on its way through {name}: layers downwards, rows of the input across; highlighted, how the "
        "vertices of the path get to the answer."
    )


def _chosen(paths: Sequence[Path], most: int) -> list[Circuit]:
    from pathmerge.circuits.files import load_circuit
    from pathmerge.viewer.examples import spread

    found: list[Circuit] = []
    named = [path for path in paths if path.name not in (SUMMARY, ABOUT, "skipped.json")]
    for path in spread(sorted(named), LOOKED_AT):
        try:
            circuit = load_circuit(path)
        except ValueError:  # another kind of file
            continue
        if circuit.operations:
            found.append(circuit)
    found.sort(key=lambda c: (c.explained, c.lenient.explained, c.input.lookahead), reverse=True)
    return found[:most]


def section(folders: Mapping[str, Path]) -> Html:
    """All of the above for some folders of circuits, by what their model is called."""
    known = {name: folder for name, folder in folders.items() if read_summary(folder) is not None}
    parts = [compare(known)]
    for name, folder in known.items():
        parts += [element("h3", name[:1].upper() + name[1:]), by_lookahead(folder), pictures(folder, name)]
    return join(*parts)
