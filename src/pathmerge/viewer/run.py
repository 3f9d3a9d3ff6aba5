"""The report of a run, and what other reports say of runs.

What is missing (a model before its first checkpoint, an evaluation that was never made) is left out of the page: a
report can be made of a run at any moment.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan
from pathlib import Path
from typing import Any

from pathmerge.disk import read_json
from pathmerge.evaluation.accuracy import Table
from pathmerge.plugins import in_use
from pathmerge.recipes import RECIPES, command_of, track_of
from pathmerge.training.config import RunConfig, load_config, to_toml
from pathmerge.training.run import CONFIG, ENDS, METRICS, metrics_of, read_versions
from pathmerge.viewer import circuits
from pathmerge.viewer.examples import answered_problems, example_problems
from pathmerge.viewer.figure import drawn, kept
from pathmerge.viewer.markup import Html, block, element, facts, fold, join, paragraph
from pathmerge.viewer.page import Page
from pathmerge.viewer.table import Shown, number, table

EVALUATION = "evaluation"
"""The name of the files that `pathmerge evaluate` writes into a run's directory, without what it ends in."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """What the files of a run say about it."""

    directory: Path
    config: RunConfig
    lines: tuple[Mapping[str, Any], ...]
    """Its metrics."""

    @classmethod
    def read(cls, directory: Path) -> Record:
        lines = metrics_of(directory) if (directory / METRICS).exists() else []
        return cls(directory=directory, config=load_config(directory / CONFIG), lines=tuple(lines))

    def last(self, *kinds: str) -> Mapping[str, Any]:
        """The newest line of these kinds; empty if there is none."""
        return next((line for line in reversed(self.lines) if line["kind"] in kinds), {})

    def values(self) -> dict[str, Any]:
        """How far it came, at what cost, and why it ended: a row of a table of runs."""
        latest = self.last("end", "train")
        seconds = latest.get("seconds")
        return {
            "examples": latest.get("examples"),
            "FLOPs": latest.get("flops"),
            "seconds": None if seconds is None else round(float(seconds), 1),
            "ended": ENDS.get(str(self.last("end").get("reason")), "not finished"),
            "validation accuracy": self.last("validation").get("accuracy"),
        }

    def shown(self) -> dict[str, str]:
        """The same in words."""
        return {
            name: value if isinstance(value, str) else number(value)
            for name, value in self.values().items()
            if value is not None
        }


def run_page(directory: Path) -> str:
    """The report of the run in this directory."""
    record = Record.read(directory)
    config = record.config
    made = f", after the recipe {config.recipe}" if config.recipe else ""
    page = Page(
        title=directory.resolve().name,
        kind="Run",
        lead=f"A {config.model.name} model of {config.model.layers} layers, "
        f"trained on {config.problem.describe()}{made}.",
    )
    page.add("What was run", facts(about(record)))
    page.add("Learning curves", curves_of(record))
    page.add("Accuracy by difficulty", evaluation_of(record))
    page.add("Example problems and the model's answers", problems_of(record))
    folders = {_model_of(name): folder for name, folder in circuits.circuit_folders(directory).items()}
    page.add("Which algorithm did it learn?", circuits.section(folders))
    page.add("Config", settings(record))
    page.add("Do it again", again(record))
    return page.html()


def _model_of(folder: str) -> str:
    """What the model is called whose circuits are in a folder of this name."""
    return {"circuits": "this model", "circuits-initial": "its initial weights"}.get(folder, folder)


def about(record: Record) -> dict[str, Any]:
    """What a reader wants to know first."""
    config = record.config
    track = track_of(config)
    return {
        "problems": config.problem.describe(),
        "model": f"{config.model.name}, {config.model.layers} layers, input size {config.model.input_size}",
        "recipe": None if config.recipe is None else f"{config.recipe}{f' (track {track})' if track else ''}",
        "seed": str(config.seed),
        **record.shown(),
        "converged": _first(record, "converged"),
        "converged at each difficulty": _first(record, "converged_each"),
    }


def _first(record: Record, name: str) -> str:
    found = next((line for line in record.lines if line["kind"] == "validation" and line.get(name)), None)
    return "not reached" if found is None else f"after {found['examples']:,} examples"


def curves_of(record: Record, title: str = "") -> Html:
    """Accuracy and loss against examples seen."""
    from pathmerge.evaluation.curves import curves

    if not any(line["kind"] in ("train", "validation") for line in record.lines):
        return Html("")
    return drawn(curves(record.lines, title=title), f"Learning curves of {record.directory.name}")


def evaluated(record: Record) -> Table | None:
    """The table that `pathmerge evaluate` wrote; none if it has not."""
    from pathmerge.evaluation.report import read_table

    path = record.directory / f"{EVALUATION}.csv"
    return read_table(path) if path.is_file() else None


def evaluation_of(record: Record) -> Html:
    """The heat map and the table that `pathmerge evaluate` made; the heat map is drawn if it was written elsewhere."""
    from pathmerge.evaluation.heatmap import heat_map, trained_on

    found = evaluated(record)
    if found is None:
        return paragraph(
            "Not evaluated yet: ", element("code", f"pathmerge evaluate {quoted(record.directory)}"), class_="note"
        )
    figure = kept(record.directory / EVALUATION, "Accuracy by difficulty as a heat map")
    if not figure:
        name = record.config.problem.name
        figure = drawn(
            heat_map({f"trained on {name}": found}, trained={f"trained on {name}": trained_on(record.config.problem)}),
            "Accuracy by difficulty as a heat map",
        )
    return join(figure, evaluation_table(found))


def evaluation_table(found: Table) -> Html:
    """The model's rows with the baselines' accuracies beside them."""
    rows = [
        {
            "distribution": row.distribution,
            "difficulty": row.difficulty.replace("=", " ").replace(",", ", "),
            "examples": row.examples,
            "accuracy": row.accuracy,
            "95% interval": Shown(None if isnan(row.low) else row.low, _interval(row.low, row.high)),
            "loss": row.loss,
            **{
                name: None if (other := found.find(row.distribution, row.difficulty, name)) is None else other.accuracy
                for name in found.baselines
            },
        }
        for row in found.rows
    ]
    said = "Right of the loss: what simple heuristics reach."
    return join(table(rows, whole="evaluation.csv", name="accuracies"), paragraph(said, class_="note"))


def _interval(low: float, high: float) -> str:
    return "–" if isnan(low) else f"{low:.3f} to {high:.3f}"


def problems_of(record: Record) -> Html:
    """Test problems with the model's answers, or without if there is no model yet."""
    from pathmerge.training.run import load_run

    config = record.config
    try:
        model = load_run(record.directory).model
    except ValueError:  # no whole checkpoint
        return example_problems([config.problem])
    return answered_problems(model, config.problem, config.held_out)


def settings(record: Record) -> Html:
    """The whole config, and what the run was begun with."""
    versions = read_versions(record.directory)
    return join(
        fold("config.toml", block(to_toml(record.config))),
        fold("Versions and machine", facts(dict(versions))) if versions else None,
    )


def again(record: Record) -> Html:
    """The commands that make the same run and this page."""
    config, place, out = record.config, quoted(record.directory), quoted(record.directory.parent)
    first = (
        f"{command_of(config)} --out {out}"
        if config.recipe in RECIPES
        else f"pathmerge train config.toml --out {out}    # the config above, saved under this name"
    )
    lines = [first, f"pathmerge evaluate {place}"]
    lines += [explaining(record, folder) for folder in circuits.circuit_folders(record.directory).values()]
    return commands([*lines, f"pathmerge report {place}"])


def explaining(record: Record, folder: Path) -> str:
    """The command that made a folder of circuits."""
    from pathmerge.circuits.options import Options

    about, summary = read_json(folder / circuits.ABOUT), circuits.read_summary(folder) or {}
    problems: list[dict[str, Any]] = about.get("problems") or [{}]
    words = ["pathmerge explain", quoted(record.directory)]
    words += ["--initial"] if (summary.get("model") or {}).get("examples") == 0 else []
    kind = problems[0].get("name")
    words += [f"--problem {kind}"] if kind not in (None, record.config.problem.name) else []
    lookaheads = [str(problem["lookahead"]) for problem in problems if problem.get("lookahead") is not None]
    words += ["--lookahead", *lookaheads] if lookaheads else []
    words += [f"--count {-(-int(summary.get('count') or len(problems)) // len(problems))}"]
    usual = asdict(Options())
    words += [
        f"--{'' if value else 'no-'}{name}" if isinstance(value, bool) else f"--{name} {shlex.quote(str(value))}"
        for name, value in about.get("options", {}).items()
        if name in usual and usual[name] != value
    ]
    return " ".join([*words, "--out", quoted(folder)])


def commands(lines: Sequence[str]) -> Html:
    """Commands that begin with `pathmerge`, to be typed as they stand: with the plug-ins that are in use."""
    program = " ".join(["pathmerge", *(f"--use {quoted(Path(file))}" for file in in_use())])
    return block("\n".join(program + line.removeprefix("pathmerge") for line in lines))


def quoted(path: Path) -> str:
    """A path as a shell wants it."""
    return shlex.quote(str(path))
