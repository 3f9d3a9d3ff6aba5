"""Slurm, through submitit: each task a job.

Choices a reader could not guess:
- Slurm itself puts a job whose machine fails into the queue again; submitit does so with one that is preempted or
  reaches its time limit. What ends without a result in spite of that is submitted again by us. All go on from the last
  checkpoint.
- Where jobs may run is a matter of the site: sbatch's own environment variables (SBATCH_PARTITION, SBATCH_ACCOUNT, ...)
  say it and are not repeated here.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pathmerge.errors import check_range
from pathmerge.plugins import VARIABLE
from pathmerge.studies.elsewhere import LOSSES, Attempt, Landing, News, carry_out
from pathmerge.studies.perform import Order
from pathmerge.studies.results import Folder
from pathmerge.studies.runner import Event

if TYPE_CHECKING:
    from submitit.core.utils import DelayedSubmission

POLL = 1.0
Job = Any
"""submitit's, of whichever executor."""


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """A Slurm cluster, from a machine that can submit to it."""

    minutes: int = 1440
    """The time limit of a job; at its end it is put into the queue again."""
    executor: str = "slurm"
    """submitit's name for it; "local" makes jobs processes of this machine."""

    def __post_init__(self) -> None:
        check_range("slurm_minutes", self.minutes, 1, 10**6)
        if find_spec("submitit") is None:
            raise ValueError("slurm: needs submitit; pip install 'pathmerge[slurm]'")
        missing = next((name for name in ("sbatch", "srun") if shutil.which(name) is None), None)
        if self.executor == "slurm" and missing is not None:
            raise ValueError(f"slurm: there is no {missing} here; run this where jobs are submitted")

    def run(self, orders: Sequence[Order], cores: Sequence[int], folder: Folder) -> Iterator[Event]:
        """All orders at once, as jobs; what dies is submitted again."""
        landing = Landing(folder=folder)
        jobs: list[tuple[Job, Attempt]] = []
        running: set[str] = set()
        try:
            for order, count in zip(orders, cores, strict=True):
                attempt = Attempt(order=order, cores=count)
                jobs.append((self._submit(attempt, folder), attempt))
            while jobs or landing.deadlines:
                time.sleep(POLL)
                yield Event(task="", kind="waiting")
                for entry in list(jobs):
                    job, attempt = entry
                    name = attempt.order.task
                    if job.job_id not in running and job.state != "PENDING" and not job.state.startswith("UN"):
                        running.add(job.job_id)
                        yield Event(task=name, kind="began", says=f"as job {job.job_id}")
                    if not job.done():
                        continue
                    jobs.remove(entry)
                    news = _result(job)
                    again = attempt.again(news) if news.kind in ("died", "lost") else None
                    if news.kind == "ended":
                        landing.expect(name)
                    elif again is None or folder.outcome(name) is not None:
                        yield Event(task=name, kind="ended", says=news.says)
                    else:
                        yield Event(task=name, kind="died", says=news.says)
                        jobs.append((self._submit(again, folder), again))
                yield from landing.landed()
        finally:
            for job, _ in jobs:
                job.cancel(check=False)

    def _submit(self, attempt: Attempt, folder: Folder) -> Job:
        import submitit

        place = folder.path.resolve()
        limit = {"slurm_max_num_timeout": LOSSES} if self.executor == "slurm" else {}
        executor = submitit.AutoExecutor(place / "logs" / "slurm", cluster=self.executor, **limit)
        executor.update_parameters(
            name=f"pathmerge-{attempt.order.study}", cpus_per_task=attempt.cores, timeout_min=self.minutes
        )
        call = Call(order=attempt.order, place=str(place), plugins=os.environ.get(VARIABLE, ""))
        try:
            return executor.submit(call)
        except RuntimeError as error:  # sbatch refuses, or there is no srun
            raise ValueError(f"slurm: the job was refused: {_last_line(error)}; the same command goes on") from None


@dataclass(frozen=True, kw_only=True)
class Call:
    """What a job runs."""

    order: Order
    place: str
    plugins: str

    def __call__(self) -> News:
        return carry_out(self.order, self.place, self.plugins)

    def checkpoint(self) -> DelayedSubmission:
        """Called by submitit before the time is up: the same once more, which goes on where this one stops."""
        from submitit.core.utils import DelayedSubmission

        return DelayedSubmission(self)


def _result(job: Job) -> News:
    """What a job that is over has left."""
    from submitit.core.utils import FailedJobError, UncompletedJobError

    try:
        return job.result()
    except FailedJobError as error:
        return News(kind="failed", says=_last_line(error))
    except UncompletedJobError:
        return News(kind="died", says=f"job {job.job_id} ended without a result ({job.state})")


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1][:200] if lines else type(error).__name__
