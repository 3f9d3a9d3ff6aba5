"""The report of a study: what was asked, what was run, what came out, and how to do it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pathmerge.recipes import track_of
from pathmerge.studies.claims import touched
from pathmerge.studies.results import FIGURE, TABLE, Folder
from pathmerge.studies.study import Row, Task, recipe_and_track, tasks_of
from pathmerge.training.config import to_toml
from pathmerge.training.run import CONFIG, read_versions
from pathmerge.viewer import circuits
from pathmerge.viewer.examples import example_problems
from pathmerge.viewer.figure import drawn, kept
from pathmerge.viewer.markup import Html, block, element, facts, fold, join, paragraph
from pathmerge.viewer.page import Page
from pathmerge.viewer.run import Record, commands, quoted
from pathmerge.viewer.table import table

MOST_CONFIGS = 40
"""Runs whose config is in the page; all of them have theirs in their directory."""
SMOKE = "Smoke scale shows that everything works, and nothing else: no number here says anything about the question."
VERDICTS = {"holds": "good", "fails": "bad", "undecided": "open"}


def study_page(folder: Folder, rows: Sequence[Row]) -> str:
    """The report of a study from its rows, and from the runs and files in its folder."""
    study, setting = folder.study, folder.setting
    tasks = tasks_of(study, setting)
    failed = [row for row in rows if row.get("error") is not None]
    good = [row for row in rows if row.get("error") is None]
    ours = type(study).__module__.startswith("pathmerge.")
    page = Page(title=study.question, kind=f"Study {study.name}, {study.figure}" + (" of the paper" if ours else ""))
    says = study.says(setting).replace("`", "").removesuffix(".")
    page.lead = f"{says[:1].upper()}{says[1:]}."
    done = sum(folder.file_of(task.name).exists() for task in tasks) - len(failed)
    page.add(
        "What was run",
        _failures(failed),
        paragraph(SMOKE, class_="note") if setting.scale == "smoke" else None,
        facts(
            {
                "study": study.name,
                "figure": f"{study.figure} of “Transformers Struggle to Learn to Search” (ICLR 2025)"
                if ours
                else study.figure,
                "scale": setting.scale,
                "recipe": recipe_and_track(setting, tasks),
                "tasks": f"{done} of {len(tasks)} done" + (f", {len(failed)} failed" if failed else ""),
            }
        ),
    )
    page.add("Claims touched", _claims(folder))
    page.add("Figure", _figure(folder, good))
    page.add("Table", table(good, whole=f"{TABLE}.csv and {TABLE}.parquet beside this page", name="all results"))
    page.add("Runs", _runs(folder, tasks))
    page.add("Example problems", example_problems(study.examples(setting)))
    page.add("Circuits", _circuits(folder))
    page.add("Do it again", _again(folder))
    return page.html()


def _failures(failed: Sequence[Row]) -> Html | None:
    if not failed:
        return None
    lines = [element("li", element("strong", _labels(row) or "a task"), ": ", str(row["error"])) for row in failed]
    words = "1 task failed" if len(failed) == 1 else f"{len(failed)} tasks failed"
    return element(
        "div",
        paragraph(element("span", words, class_="bad"), "; the same command tries again."),
        element("ul", *lines),
        class_="failures",
    )


def _labels(row: Row) -> str:
    return ", ".join(f"{name}={value}" for name, value in row.items() if name != "error" and value is not None)


def _claims(folder: Folder) -> Html:
    """The verdicts on the paper's claims that this study has a say in, over all results beside it."""
    rows = [
        {
            "claim": verdict.claim,
            "verdict": element(
                "div",
                element("span", verdict.verdict, class_=VERDICTS.get(verdict.verdict)),
                element("div", f"{verdict.scale}, {verdict.recipe}"),
            ),
            "the paper says": verdict.says,
            "evidence": verdict.evidence,
            "rule": verdict.rule + (f" ({verdict.remark})" if verdict.remark else ""),
        }
        for verdict in touched(folder.root, folder.study.name)
    ]
    return table(rows)


def _figure(folder: Folder, good: Sequence[Row]) -> Html:
    says = f"{folder.study.question} {folder.study.figure}"
    found = kept(folder.path / FIGURE, says)
    if not found and good:
        found = drawn(folder.study.draw(good, folder.setting), says)
    return found


def _runs(folder: Folder, tasks: Sequence[Task]) -> Html:
    """A table of all trainings, and the config of each."""
    rows: list[dict[str, Any]] = []
    configs: list[Html] = []
    for task in tasks:
        if task.config is None:
            continue
        directory = folder.runs / task.config.run_name
        there = (directory / CONFIG).is_file()
        try:
            done = folder.file_of(task.name).exists()
            absent = "measured; its directory is not here" if done else "not begun"
            values = Record.read(directory).values() if there else {"ended": absent}
        except ValueError as error:  # one damaged run does not take the others' report
            values = {"ended": str(error)}
        known = {**task.labels, "seed": task.config.seed, "track": track_of(task.config)}
        rows.append({**known, **values, "run": task.config.run_name})
        versions = facts(dict(read_versions(directory))) if there else None
        configs.append(fold(task.name, versions, block(to_toml(task.config))))
    if not rows:
        return Html("")
    note = f"Their directories are in {folder.runs}; studies that need the same run share it."
    more = len(configs) - MOST_CONFIGS
    return join(
        paragraph(note, class_="note"),
        table(rows, name="all runs"),
        fold("Configs and versions", *configs[:MOST_CONFIGS], f"… and {more} more" if more > 0 else None),
    )


def _circuits(folder: Folder) -> Html:
    """Circuits that the study wrote, if it did."""
    place = folder.path / "files"
    folders = {
        str(path.parent.relative_to(place)).removesuffix("/circuits"): path.parent
        for path in sorted(place.glob(f"**/{circuits.SUMMARY}"))
    }
    return join(circuits.compare(folders), circuits.drawn_circuits(place.glob("**/*.json")))


def _again(folder: Folder) -> Html:
    study, setting = folder.study, folder.setting
    command = f"pathmerge study {study.name} --scale {setting.scale} --recipe {setting.recipe}"
    lines = [
        f"{command} --plan    # what it costs on this machine",
        f"{command} --out {quoted(folder.root)}",
        f"pathmerge report {quoted(folder.path)}    # this page alone",
    ]
    note = "The first line says what it will cost; the second goes on where it stopped, or says that all is done."
    return join(commands(lines), paragraph(note, class_="note"))
