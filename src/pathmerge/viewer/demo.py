"""The report of the demonstration: two runs side by side, and what the one that learned to search computes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pathmerge.evaluation.accuracy import cells_of
from pathmerge.viewer import circuits
from pathmerge.viewer.figure import picture
from pathmerge.viewer.markup import Html, block, code, element, fold, join, paragraph
from pathmerge.viewer.page import Page
from pathmerge.viewer.run import Record, curves_of, evaluated, evaluation_table, problems_of, quoted, settings
from pathmerge.viewer.table import table

COMPILED = "circuits-compiled"


def demo_page(out: Path, runs: Mapping[str, Path]) -> str:
    """The report of what `pathmerge demo` has written into `out`; `runs` are its runs by name, the explained first."""
    records = {name: Record.read(directory) for name, directory in runs.items()}
    first = next(iter(records.values()))
    size, seed = first.config.problem.input_size, first.config.seed
    page = Page(
        title="Two copies of one model, trained on balanced and on naive problems",
        kind="Demonstration",
        lead="The same initial weights and the same number of examples: once of balanced problems, where long searches "
        "are as frequent as short ones, once of naive random graphs, where they are rare. Which learns to search?",
    )
    page.add(
        "Accuracy",
        picture(
            out / "accuracy.png",
            "Accuracy of both models by distribution and lookahead",
            "Framed: what a model was trained on; all the rest is generalisation. Below: simple heuristics. The "
            "paper's finding: trained on balanced problems a model solves every lookahead, on naive ones it does not.",
        ),
        *(_accuracies(name, record) for name, record in records.items()),
    )
    page.add(
        "The two runs",
        table([{"run": name, **record.values(), **_lowest(record)} for name, record in records.items()]),
        element(
            "div",
            *(curves_of(record, title=name) for name, record in records.items()),
            class_="row halves",
        ),
    )
    page.add(
        "The problems",
        picture(
            out / "problems.png",
            "Example problems drawn as graphs",
            "What the models have to solve: name a child of start from which the goal can be reached.",
        ),
        *(join(element("h3", f"The model {name}"), problems_of(record)) for name, record in records.items()),
    )
    page.add("Which algorithm did it learn?", _circuits(out, first))
    page.add("Settings", *(join(element("h3", name), settings(record)) for name, record in records.items()))
    command = f"pathmerge demo --out {quoted(out)} --input-size {size} --seed {seed}"
    page.add(
        "Do it again",
        block(f"{command}\npathmerge report {quoted(out)}    # this page alone"),
        paragraph("The first line is what ", code("make demo"), " runs; it skips what is done.", class_="note"),
    )
    return page.html()


def _lowest(record: Record) -> dict[str, float]:
    """The lowest test accuracy at any lookahead of balanced problems: one number that says whether it searches."""
    known = evaluated(record)
    found = [] if known is None else [row.accuracy for row in cells_of(known.rows, "balanced") if row.examples]
    return {"lowest test accuracy at any lookahead": min(found)} if found else {}


def _accuracies(name: str, record: Record) -> Html | None:
    found = evaluated(record)
    return None if found is None else fold(f"The numbers: {name}", evaluation_table(found))


def _circuits(out: Path, first: Record) -> Html:
    """Circuits of the trained, the initial and the compiled model."""
    named = {
        "the trained model": first.directory / "circuits",
        "its initial weights": first.directory / "circuits-initial",
        "hand-written path-merging": out / COMPILED,
    }
    found = {name: folder for name, folder in named.items() if circuits.read_summary(folder) is not None}
    if not found:
        return Html("")
    lead = (
        "On each of some test problems the attention operations that matter are found by perturbing them, and it is "
        "asked whether they merge paths. The weights before training are the control; weights written by hand to merge "
        "paths are the known truth."
    )
    parts = [paragraph(lead), circuits.compare(found)]
    for name, folder in found.items():
        inside = join(circuits.by_lookahead(folder), circuits.pictures(folder, name))
        parts.append(fold(f"Circuits of {name}", inside, open_=name == next(iter(found))))
    return join(*parts)
