"""Which report a path asks for, and writing it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pathmerge.disk import check_output, read_json, written_whole
from pathmerge.studies.catalogue import study_named
from pathmerge.studies.results import ABOUT, FORMAT, RUNS, VERSION, Folder
from pathmerge.studies.study import Row, Setting, tasks_of
from pathmerge.training.run import CONFIG
from pathmerge.viewer.demo import COMPILED, demo_page
from pathmerge.viewer.run import run_page
from pathmerge.viewer.study import study_page

REPORT = "report.html"


def write_report(path: Path, out: Path | None = None) -> Path:
    """Make the report of a run, a study or a demonstration; it is written beside what it tells of unless `out` says
    otherwise."""
    place = path / REPORT if out is None else out
    if not path.is_dir():
        raise ValueError(f"path={str(path)!r}: no such directory; it must be that of a run or of a study's results")
    check_output("out", place, (".html",))
    return write_page(place, page_of(path))


def page_of(path: Path) -> str:
    """The report of what lies in this directory."""
    if (path / CONFIG).is_file():
        return run_page(path)
    if (path / ABOUT).is_file():
        folder = folder_at(path)
        tasks = tasks_of(folder.study, folder.setting)
        folder.check(tasks)
        return study_page(folder, folder.rows(tasks))
    if (path / COMPILED).is_dir() and (runs := sorted((path / RUNS).glob(f"*/{CONFIG}"))):
        return demo_page(path, demo_runs([file.parent for file in runs]))
    raise ValueError(
        f"path={str(path)!r}: neither a run (it has no {CONFIG}) nor a study's results (it has no {ABOUT}); "
        "give RUNS/<run> or RESULTS/<study>/<scale>-<recipe>"
    )


def folder_at(path: Path) -> Folder:
    """The study whose results lie in this directory."""
    about = read_json(path / ABOUT, field="path")
    if (about.get("format"), about.get("version")) != (FORMAT, VERSION):
        raise ValueError(f"path={str(path)!r}: its {ABOUT} is of another version, or no study's")
    place = path.resolve()
    study = study_named(str(about.get("study")))
    setting = Setting(scale=str(about.get("scale")), recipe=str(about.get("recipe")))
    if place.name != setting.name or place.parent.name != study.name:
        raise ValueError(f"path={str(path)!r}: must end in {study.name}/{setting.name}, as {ABOUT} in it says")
    # The path as it was given, where that has enough parts: it is printed in commands.
    root = path.parent.parent if len(path.parts) > 2 and ".." not in path.parts else place.parent.parent
    return Folder(root=root, study=study, setting=setting)


def demo_runs(directories: Sequence[Path]) -> dict[str, Path]:
    """The runs of a demonstration by name, the one on balanced problems first."""
    ordered = sorted(directories, key=lambda directory: (not directory.name.startswith("balanced-"), directory.name))
    return {f"trained on {directory.name.split('-')[0]}": directory for directory in ordered}


def write_study_report(folder: Folder, rows: Sequence[Row]) -> Path:
    """The report of a study whose rows are known."""
    return write_page(folder.path / REPORT, study_page(folder, rows))


def write_page(path: Path, text: str) -> Path:
    with written_whole(path, "out") as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path
