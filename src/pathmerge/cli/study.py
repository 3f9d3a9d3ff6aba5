"""The commands `study` and `claims`: from arguments to a study, a setting and a backend; then the library does it."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from pathmerge.errors import check_number, check_range

if TYPE_CHECKING:
    from pathmerge.studies.runner import Backend


def study(
    name: Annotated[str | None, tyro.conf.Positional] = None,
    scale: str = "laptop",
    recipe: str | None = None,
    out: Path = Path("results"),
    list: bool = False,  # noqa: A002
    plan: bool = False,
    cores: int | None = None,
    cluster: str | None = None,
    slurm: bool = False,
    slurm_minutes: int = 1440,
    save_every: float = 30.0,
    quiet: bool = False,
) -> int:
    """Run a study of the paper by name: train what it needs, measure it, write its table, figure and report.

    The same command again goes on where it stopped: finished runs are skipped, partial ones resumed, failed ones tried
    again.

    Args:
        name: Which one; `pathmerge study --list` tells.
        scale: smoke: seconds, shows that all works; laptop: about an hour on two cores; paper: as published.
        recipe: How its models are trained (paper, tuned, matched, efficient, dense); none: the scale's own.
        out: The folder of all results; runs that several studies need are trained once.
        list: List all studies with what they cost on this machine, and end.
        plan: Print the runs and what each costs, and end.
        cores: Cores to use on this machine; none: all.
        cluster: Run on a Ray cluster: HOST:PORT of its head, or auto: the one that is running, or a new one here.
        slurm: Run each task as a Slurm job; sbatch's environment variables (SBATCH_PARTITION) choose where.
        slurm_minutes: The time limit of a Slurm job; at its end it is put into the queue again and goes on.
        save_every: Seconds between checkpoints.
        quiet: Show no progress.
    """
    from pathmerge.studies.catalogue import study_named

    if list:
        from pathmerge.studies.show import print_list

        if name is not None:
            raise ValueError(f"study={name!r}: --list lists them all; leave the name out, or use --plan")
        return print_list()
    if name is None:
        raise ValueError("study: missing; give a name, `pathmerge study --list` tells which")
    chosen = study_named(name)
    setting = chosen.setting(scale, recipe)
    check_number("save_every", save_every, 0)
    if cores is not None:
        check_range("cores", cores, 1, 1024)
    if cluster is not None and slurm:
        raise ValueError(f"cluster={cluster!r}: not together with --slurm; leave one of the two out")
    if cores is not None and (cluster is not None or slurm):
        raise ValueError(f"cores={cores}: is for this machine; leave it out with --cluster and --slurm")
    check_range("slurm_minutes", slurm_minutes, 1, 10**6)
    if plan:
        from pathmerge.studies.runner import own_cores
        from pathmerge.studies.show import print_plan

        return print_plan(chosen, setting, cores or own_cores())
    from pathmerge.studies.results import Folder
    from pathmerge.studies.runner import run_study
    from pathmerge.studies.show import Watcher, print_end
    from pathmerge.studies.study import recipe_and_track, tasks_of

    folder, tasks = Folder(root=out, study=chosen, setting=setting), tasks_of(chosen, setting)
    with _backend(cluster, slurm_minutes if slurm else None, cores) as backend:
        folder.open(tasks)
        recipe_words = recipe_and_track(setting, tasks)
        print(f"{chosen.name} ({chosen.figure}) at {setting.scale} scale, recipe {recipe_words}")
        print(chosen.says(setting), flush=True)
        began = time.monotonic()
        with Watcher(folder, quiet=quiet) as watch:
            rows, written = run_study(chosen, setting, out, backend, save_every=save_every, watch=watch)
    from pathmerge.viewer.report import write_study_report

    written.append(write_study_report(folder, rows))
    return print_end(folder, rows, time.monotonic() - began, written)


@contextmanager
def _backend(cluster: str | None, slurm_minutes: int | None, cores: int | None) -> Generator[Backend]:
    """What runs the tasks. A cluster is asked before anything is written."""
    from pathmerge.studies.runner import Local, own_cores

    if cluster is not None:
        from pathmerge.studies.ray_backend import RayCluster

        chosen = RayCluster(address=cluster)
        with chosen.connected():
            yield chosen
    elif slurm_minutes is not None:
        from pathmerge.studies.slurm_backend import Slurm

        yield Slurm(minutes=slurm_minutes)
    else:
        yield Local(cores=cores or own_cores())


def claims(results: Annotated[Path, tyro.conf.Positional] = Path("results"), write: Path | None = None) -> int:
    """Collect what has been run and say what became of the paper's claims C1 to C15.

    Args:
        results: The folder of results that `pathmerge study` wrote.
        write: Write the same as Markdown here, too.
    """
    from pathmerge.disk import check_output, written_whole
    from pathmerge.studies.claims import as_markdown, verdicts
    from pathmerge.studies.show import print_claims

    if not results.is_dir():
        raise ValueError(f"results={str(results)!r}: no such directory; `pathmerge study NAME --out FOLDER` makes one")
    if write is not None:
        check_output("write", write, (".md",))
    found = verdicts(results)
    print_claims(found)
    if write is not None:
        with written_whole(write, "write") as temporary:
            temporary.write_text(as_markdown(found), encoding="utf-8")
        print(f"wrote {write}")
    return 0
