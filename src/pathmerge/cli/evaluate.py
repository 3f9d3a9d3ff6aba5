"""The command `evaluate`: accuracy by difficulty, beside the baselines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from pathmerge.cli.progress import announce_compilation, progress_bar
from pathmerge.cli.subject import Subject, load_subject
from pathmerge.errors import check_range

if TYPE_CHECKING:
    from pathmerge.evaluation.accuracy import Table


def evaluate(
    runs: Annotated[tuple[str, ...], tyro.conf.Positional],
    out: Path | None = None,
    figure: Path | None = None,
    count: int | None = None,
    loops: tuple[int, ...] = (),
    task: Literal["search", "dfs", "selection-inference"] = "search",
    threads: int = 2,
    heuristics: bool = True,
) -> int:
    """Accuracy and loss of trained models at every difficulty of their task, beyond training too, beside the baselines.

    Args:
        runs: A run's directory, a file of weights (.safetensors), or a name that `pathmerge models` lists; several are
            compared in one figure.
        out: Write the table here, .csv or .parquet; none: evaluation.csv in the run's directory.
        figure: Draw the heat-map here, .png or .svg; none: evaluation.png in the (first) run's directory.
        count: Test problems of each difficulty; none: as many as the run held out.
        loops: Apply the model's blocks so many times, whatever it was trained with; several are compared.
        task: For a file of weights of a symbolic model: what it was trained for.
        threads: Cores to compute with.
        heuristics: Whether to judge the baselines too.
    """
    if not runs:
        raise ValueError(
            "runs: missing; give a run's directory, a file of weights or a name that `pathmerge models` lists"
        )
    if out is not None and len(runs) * max(1, len(loops)) > 1:
        many = "runs" if len(runs) > 1 else "loops"
        raise ValueError(f"out={str(out)!r}: must be left out with several {many}; each has a table in its directory")
    if count is not None:
        check_range("count", count, 1, 10**7)
    check_range("threads", threads, 1, 1024)
    subjects = [load_subject(run, task) for run in runs]
    if loops:
        subjects = [subject.looped(value) for subject in subjects for value in loops]
    compare(subjects, out=out, figure=figure, count=count, threads=threads, heuristics=heuristics)
    return 0


def compare(
    subjects: Sequence[Subject],
    *,
    out: Path | None = None,
    figure: Path | None = None,
    count: int | None = None,
    threads: int = 2,
    heuristics: bool = True,
) -> None:
    """Judge, print and write each subject, and draw all of them in one figure."""
    from pathmerge.disk import check_output
    from pathmerge.evaluation.curves import write_curves
    from pathmerge.evaluation.evaluate import evaluate_model
    from pathmerge.evaluation.heatmap import trained_on, write_heat_map
    from pathmerge.evaluation.report import print_report, write_table
    from pathmerge.evaluation.suite import hold_out_test

    figure = figure if figure is not None else subjects[0].place("evaluation.png")
    if figure is not None:
        check_output("figure", figure, (".png", ".svg"))
    if out is not None:
        check_output("out", out, (".csv", ".parquet"))
    given = [subject.name for subject in subjects]
    names = [name if given.count(name) == 1 else f"{name} {i + 1}" for i, name in enumerate(given)]
    tables: dict[str, Table] = {}
    small: list[str] = []
    written: list[Path] = []
    for name, subject in zip(names, subjects, strict=True):
        announce_compilation(subject.problem)
        number = count or subject.count
        cells = hold_out_test(subject.problem, number, subject.seed).cells
        small = [cell.describe() for cell in cells if len(cell.batch) < min(100, cell.requested)]
        total = sum(len(cell.batch) for cell in cells)
        with progress_bar("judging", total, long=total > 5000) as advance:
            table = evaluate_model(subject.model, cells, threads=threads, heuristics=heuristics, progress=advance)
        tables[name] = table
        path = out or subject.place("evaluation.csv")
        if path is not None:
            write_table(table, path)
            written.append(path)
        if subject.run is not None and subject.loops is None:
            picture = subject.run.directory / "curves.png"
            write_curves(subject.run.metrics(), picture, title=subject.title)
            written.append(picture)
        print_report(table, title=f"{name}: {subject.title}")
        _print_verdicts(subject)
        if number > subject.count:
            print(f"note: training held out {subject.count:,} problems of each difficulty; it may have seen the others")
    if small:
        print(f"note: {len(small)} cells are too small for more than 5% to be held out, for instance {small[0]}")
    if figure is not None:
        trained = {n: trained_on(s.problem) for n, s in zip(names, subjects, strict=True) if s.run is not None}
        title = subjects[0].title if len(subjects) == 1 else ""
        write_heat_map(tables, figure, trained=trained, title=title)
        written.append(figure)
    for path in written:
        print(f"wrote {path}")


def _print_verdicts(subject: Subject) -> None:
    """Convergence: on the validation split as training saw it, and by the published rule."""
    if subject.run is None or subject.loops is not None:
        return
    lines = subject.run.metrics()
    checks = [line for line in lines if line["kind"] == "validation"]
    for name, words in (("converged", "all difficulties together"), ("converged_each", "each difficulty")):
        first = next((line["examples"] for line in checks if line[name]), None)
        when = "not reached" if first is None else f"after {first:,} examples"
        print(f"{name} (validation accuracy ≥ 0.995 on {words}): {when}")
    end = next((line for line in lines if line["kind"] == "end"), None)
    if end is not None:
        first = end["published_at"]
        when = "not reached (needs batches of at least 256)" if first is None else f"after {first:,} examples"
        print(f"published rule (a training batch of 256 or more with ≥ 0.995): {when}")
        print(f"training: {end['examples']:,} examples, {end['flops']:.3g} FLOPs, {end['seconds']:.0f} s")
