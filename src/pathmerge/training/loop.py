"""The training loop: an endless stream, one step after another, and nothing lost when it is stopped.

Choices a reader could not guess:
- All that a run remembers is in `Trainer.state()` and the tensors beside it; between two steps it can be saved, and a
  run that goes on from there writes, to the bit, the weights and metrics of one that was never stopped (on a CPU).
- Ctrl-C and SIGTERM end the run after the present step, with a checkpoint. A second one ends it at once, without.
- Under torchrun each process takes its part of every batch; gradients and counts are added up, and the first process
  writes. A wish to stop travels with the counts, so that all stop at the same step.
- A loss that is not finite ends the run before the step is taken; the last good checkpoint stays.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pathmerge.errors import NotFiniteError
from pathmerge.evaluation.suite import guard_for, hold_out_naive, hold_out_test, hold_out_validation
from pathmerge.heldout import HeldOutCell
from pathmerge.models.judge import ModelJudge
from pathmerge.models.weights import fill, save_weights
from pathmerge.parallel import Workers
from pathmerge.problems.batch import Batch
from pathmerge.training.average import Average
from pathmerge.training.batch_gradients import BatchGradients
from pathmerge.training.checkpoint import Checkpoint, load_latest, save_checkpoint
from pathmerge.training.config import RunConfig
from pathmerge.training.feed import Feed
from pathmerge.training.flops import training_flops
from pathmerge.training.gradients import Outcome
from pathmerge.training.metrics import MetricsFile, warn
from pathmerge.training.optimizers import clip_gradients, make_optimizer
from pathmerge.training.processes import Processes
from pathmerge.training.progress import Progress
from pathmerge.training.run import CHECKPOINTS, METRICS, WEIGHTS, Run, load_run, lock, open_directory
from pathmerge.training.schedule import RunSchedule
from pathmerge.training.signals import wishes_to_stop
from pathmerge.training.sinks import Sink, check_sinks, open_sinks
from pathmerge.training.tally import LEVELS, Tally
from pathmerge.training.validate import judged, validate

PUBLISHED_RULE = 0.995
PUBLISHED_BATCH = 256
TABLES = ("embedding", "positions", "vertices", "kinds", "answer.weight", "reach.weight")
"""Parameters that Muon leaves to AdamW: they embed or read, and are not maps between hidden vectors."""


def train(
    config: RunConfig,
    out: Path | str = "runs",
    *,
    quiet: bool = False,
    sinks: Sequence[str] = (),
    save_every: float = 30.0,
    keep_every: int | None = None,
) -> Run:
    """Train, or go on training, the run of this config under `out`; a finished run is only loaded.

    `save_every`: seconds between checkpoints. `keep_every`: keep a checkpoint for each so many examples.
    """
    check_sinks(sinks)
    with ExitStack() as stack:
        processes = stack.enter_context(Processes())
        device = choose_device(config.training.device, processes.local_rank)
        processes.join(device)
        if processes.leads:
            directory = open_directory(Path(out), config)
        processes.wait()
        directory = open_directory(Path(out), config)
        if processes.leads:
            stack.enter_context(lock(directory))
        trainer = stack.enter_context(Trainer(config, directory, processes, device))
        trainer.run(quiet=quiet, sinks=sinks, save_every=save_every, keep_every=keep_every)
        processes.wait()
    return load_run(directory)


def choose_device(wish: str, local_rank: int = 0) -> torch.device:
    """The device to compute on; "auto" takes a GPU where there is one."""
    if wish == "auto":
        wish = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if wish == "cuda" and not torch.cuda.is_available():
        raise ValueError("training.device='cuda': torch sees no CUDA device here; must be cpu or auto")
    if wish == "mps" and not torch.backends.mps.is_available():
        raise ValueError("training.device='mps': torch sees no MPS device here; must be cpu or auto")
    return torch.device("cuda", local_rank) if wish == "cuda" else torch.device(wish)


class Trainer:
    """One run in memory."""

    def __init__(self, config: RunConfig, directory: Path, processes: Processes, device: torch.device) -> None:
        self.config, self.directory, self.processes, self.device = config, directory, processes, device
        settings, held = config.training, config.held_out
        self.schedule = RunSchedule(config=config)
        self.model = config.model.build(config.seed).to(device)
        named = list(self.model.named_parameters())
        self.parameters = [parameter for _, parameter in named]
        self.optimizer = make_optimizer(
            settings.optimizer,
            named,
            weight_decay=settings.weight_decay,
            beta1=settings.beta1,
            beta2=settings.beta2,
            gamma=settings.gamma,
            hessian_every=settings.hessian_every,
            adamw_names=[name for name, _ in named if name in TABLES] if settings.optimizer == "muon" else (),
        )
        self.average = None if settings.average is None else Average(named, settings.average)
        self.checkpoint = load_latest(directory / CHECKPOINTS)
        self.examples = self.step = 0
        self.seconds = self.flops = 0.0
        self.redrawn = 0
        self.mastered_at: int | None = None
        self.published_at: int | None = None
        self.converged_at: dict[str, int] = {}
        self.finished: str | None = None
        self._targets: Sequence[Sink] = ()
        self.tally = Tally()
        if self.checkpoint is not None and self.checkpoint.state["finished"]:
            self.finished = self.checkpoint.state["finished"]
            return
        test = hold_out_test(config.problem, held.test, held.seed)
        validation = hold_out_validation(config.problem, held.validation, held.seed, besides=test)
        self.validation: tuple[HeldOutCell, ...] = validation.cells
        by_heart = "; training repeats the others and may learn them by heart"
        self.notes = [cell.describe() + by_heart for cell in self.validation if cell.scarce]
        held_back = test + validation
        self.watched: tuple[HeldOutCell, ...] = ()
        if held.watch is not None:
            watched = hold_out_naive(config.problem, held.validation, held.seed, besides=held_back)
            self.watched, held_back = watched.cells, held_back + watched
        guard, unguarded = guard_for(config.curriculum.sources(config.problem), held_back)
        self.notes += unguarded
        self.feed = Feed(
            config.problem,
            config.curriculum,
            seed=config.seed,
            held_out=guard,
            shard=(processes.rank, processes.count),
        )
        self.workers = Workers(settings.threads if device.type == "cpu" else 1)
        self.gradients = BatchGradients(self.model, config, self.workers, processes, device)
        if self.checkpoint is not None:
            self._restore(self.checkpoint)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "feed"):
            self.feed.close()

    def run(self, *, quiet: bool, sinks: Sequence[str], save_every: float, keep_every: int | None) -> None:
        """Train until a stop rule says so."""
        leads = self.processes.leads
        if self.finished is not None:
            if leads and self.checkpoint is not None and not (self.directory / WEIGHTS).exists():
                self._fill(self.checkpoint)
                save_weights(self.model, self.directory / WEIGHTS)
            return
        with ExitStack() as stack:
            stack.enter_context(self.workers)
            progress = stack.enter_context(Progress(self.config.training.examples, quiet or not leads))
            others: Sink | None = None
            metrics: MetricsFile | None = None
            if leads:
                length = 0 if self.checkpoint is None else self.checkpoint.state["metrics"]
                metrics = stack.enter_context(MetricsFile.resume(self.directory / METRICS, length))
                if sinks:
                    name = self.directory.name
                    others = open_sinks(sinks, self.directory, name, self.config.to_dict())
                    stack.callback(others.close)
            self._targets = [target for target in (metrics, progress, others) if target is not None]
            for note in self.notes:
                progress.note(note)
            if self.checkpoint is not None:
                progress.note(f"resumed at {self.examples:,} examples")
            wish = stack.enter_context(wishes_to_stop())
            clock = time.monotonic()
            self._begin(clock)
            saved = clock
            while self.finished is None:
                stop_now = self._step(bool(wish))
                self._report()
                milestone = keep_every is not None and self._crossed(keep_every)
                now = time.monotonic()
                due = self.finished is not None or stop_now or milestone or now - saved >= save_every
                if metrics is not None and due:
                    if self._save(metrics, milestone):
                        progress.checkpointed()
                    elif self.finished is not None:
                        raise ValueError(
                            f"run={str(self.directory)!r}: came to its end, but that could not be saved; "
                            "make room and give the same command again"
                        )
                    saved = now
                if stop_now and self.finished is None:
                    raise KeyboardInterrupt
            if leads:
                with self._kept_weights():
                    save_weights(self.model, self.directory / WEIGHTS)

    def _step(self, wish_to_stop: bool) -> bool:
        """Take one step; true if some process was asked to stop."""
        settings = self.config.training
        size = self.schedule.batch_size(self.examples)
        pieces = self.feed.next(size)
        self.model.layers = self.schedule.layers(self.examples)
        if self.optimizer.wants_hessian:
            self.optimizer.zero_grad()
            self.gradients.add(pieces, size, self.examples, sampled=True, scattered=self._scattered())
            self.optimizer.update_hessian(size)
        self.optimizer.zero_grad()
        reach = settings.reach * self.schedule.fading(self.examples, size, self.mastered_at)
        outcome = self.gradients.add(pieces, size, self.examples, reach=reach, scattered=self._scattered())
        stop = self._count(pieces, outcome, size, wish_to_stop)
        self.model.layers = self.config.model.layers * self.config.model.loops
        norm = clip_gradients(self.parameters, settings.clip)
        if not math.isfinite(norm) or not math.isfinite(self.tally.loss):
            what = "gradient" if math.isfinite(self.tally.loss) else "loss"
            raise NotFiniteError(
                f"the {what} is not finite at example {self.examples:,} (step {self.step:,}); the last good checkpoint "
                f"stays in {self.directory}. A smaller training.learning_rate={settings.learning_rate:g} or "
                f"training.clip={settings.clip:g} may help"
            )
        factor = self.schedule.rate_factor(self.examples, size, self.mastered_at)
        self.rate = settings.learning_rate * factor * self.feed.rate_factor
        self.optimizer.step(self.rate)
        self.tally.gradient_norm += norm
        self.tally.steps += 1
        self.examples += size
        self.size = size
        self.step += 1
        if self.average is not None:
            self.average.add(size, self.examples)
        if self.feed.observe(*self._stage) and self.config.curriculum.rate_waits:
            if self.feed.mastered:
                self.mastered_at = self.examples
            stage = "mastered" if self.feed.mastered else self.feed.describe()
            self._write({"kind": "stage", "examples": self.examples, "stage": stage})
        return stop

    def _scattered(self) -> bool:
        """Whether edges stand anywhere in the input at this step."""
        return self.config.curriculum.scatter and not self.feed.at_last_stage

    def _count(self, pieces: Sequence[Batch], outcome: Outcome, size: int, wish_to_stop: bool) -> bool:
        """Add this step's counts, over all processes; true if any of them was asked to stop."""
        levels = np.concatenate([piece.difficulty[:, 0] for piece in pieces])
        own = len(pieces[0])
        newest = levels[:own] == (-1 if self.feed.newest is None else self.feed.newest)
        counts = np.array(
            [
                outcome.loss.astype(np.float64).sum(),
                outcome.correct[:own].sum(),
                own,
                training_flops(self.model, outcome.rows),
                sum(int(piece.redraws.sum()) for piece in pieces),
                wish_to_stop,
                outcome.correct[:own][newest].sum(),
                newest.sum(),
            ],
            np.float64,
        )
        right, seen = (np.bincount(found, minlength=LEVELS) for found in (levels[outcome.correct], levels))
        sums = self.processes.add_numbers(np.concatenate([counts, right, seen]), self.device)
        right, seen = sums[len(counts) :].reshape(2, LEVELS)
        self.tally.loss += sums[0]
        self.tally.right += right
        self.tally.seen += seen
        self._stage = int(sums[1]), int(sums[2]), (int(sums[6]), int(sums[7]))
        self.flops += sums[3]
        self.redrawn += int(sums[4])
        if self.published_at is None and size >= PUBLISHED_BATCH and right.sum() >= PUBLISHED_RULE * size:
            self.published_at = self.examples + size
        return bool(sums[5])

    def _crossed(self, every: int) -> bool:
        """Whether the last step passed a multiple of `every`."""
        return self.examples // every > (self.examples - self.size) // every

    def _begin(self, clock: float) -> None:
        self._clock, self._line_clock, self._line_examples = clock, clock, self.examples

    def _seconds(self) -> float:
        return self.seconds + time.monotonic() - self._clock

    def _report(self) -> None:
        """Write the lines that are due and decide whether the run ends."""
        settings = self.config.training
        until = self.schedule.until(self.mastered_at)
        ended = self.examples >= until
        late = settings.minutes is not None and self._all_late(settings.minutes)
        if self._crossed(settings.log_every) or ended or late:
            self._write_window()
        if (self._crossed(settings.validate_every) and self.feed.at_last_stage) or ended or late:
            verdict = self._validate()
            if settings.stop != "never" and verdict[settings.stop]:
                self.finished = settings.stop
        if self.finished is None:
            done = "examples" if until == settings.examples else "decay"
            self.finished = done if ended else "minutes" if late else None
        if self.finished is not None:
            line = {"kind": "end", "examples": self.examples, "reason": self.finished}
            self._write({**line, "flops": self.flops, "published_at": self.published_at, "seconds": self._seconds()})

    def _all_late(self, minutes: float) -> bool:
        late = np.array([self.processes.leads and self._seconds() >= 60 * minutes], np.float64)
        return bool(self.processes.add_numbers(late, self.device)[0])

    def _write_window(self) -> None:
        now = time.monotonic()
        self._write(
            {
                "kind": "train",
                "examples": self.examples,
                "until": self.schedule.until(self.mastered_at),
                "step": self.step,
                **self.tally.fields(self.config.problem.columns[0]),
                "learning_rate": self.rate,
                "batch_size": self.size,
                "stage": self.feed.describe(),
                "guard": self.redrawn,
                "flops": self.flops,
                "seconds": self._seconds(),
                "examples_per_second": (self.examples - self._line_examples) / max(now - self._line_clock, 1e-9),
            }
        )
        self._line_clock, self._line_examples = now, self.examples
        self.tally = Tally()

    def _validate(self) -> dict[str, Any]:
        judge = ModelJudge(self.model, self.workers)
        with self._kept_weights():
            found = validate(judge, self.validation, self.processes, self.device)
            if self.watched:
                _, seen = judged(judge, self.watched, self.processes, self.device)
                found |= {f"watched_{name}": value for name, value in seen.items()}
        for name in ("converged", "converged_each"):
            if found[name]:
                self.converged_at.setdefault(name, self.examples)
        line = {"kind": "validation", "examples": self.examples}
        self._write({**line, **found, "seconds": self._seconds()})
        return found

    def _kept_weights(self) -> AbstractContextManager[None]:
        """For a while, the model has the weights that are judged and kept."""
        return nullcontext() if self.average is None else self.average.in_place()

    def _write(self, line: dict[str, Any]) -> None:
        for target in self._targets:
            target.write(line)

    def state(self) -> dict[str, Any]:
        """Everything besides tensors that the run needs to go on, as plain values."""
        return {
            "examples": self.examples,
            "step": self.step,
            "seconds": self._seconds(),
            "flops": self.flops,
            "redrawn": self.redrawn,
            "mastered_at": self.mastered_at,
            "published_at": self.published_at,
            "converged_at": self.converged_at,
            "finished": self.finished,
            "tally": self.tally.state(),
            "feed": self.feed.state(),
            "processes": self.processes.count,
            "config": self.config.digest,
        }

    def _save(self, metrics: MetricsFile, milestone: bool) -> bool:
        """Write a checkpoint; a disk that does not take it is reported and the run goes on."""
        tensors: dict[str, torch.Tensor] = {}
        for group, values in self._weights().items():
            tensors |= {f"{group}/{name}": value for name, value in values.items()}
        tensors |= {f"optimizer/{name}": value for name, value in self.optimizer.state().items()}
        try:
            state = {**self.state(), "metrics": metrics.sync()}
            save_checkpoint(self.directory / CHECKPOINTS, tensors, state, milestone=milestone)
        except OSError as error:
            warn(f"no checkpoint at {self.examples:,} examples: {error.strerror or error}; the last good one stays")
            return False
        return True

    def _weights(self) -> dict[str, dict[str, torch.Tensor]]:
        """What a checkpoint has of the weights: those to keep (`model`) and, where they are a mean, the `last` ones."""
        last = self.model.state_dict()
        return {"model": last} if self.average is None else {"model": self.average.state(), "last": last}

    def _fill(self, checkpoint: Checkpoint, group: str = "model") -> None:
        fill(self.model, checkpoint.group(group), f"run={str(self.directory)!r}")

    def _restore(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.state
        name = f"run={str(self.directory)!r}"
        if state["config"] != self.config.digest:
            raise ValueError(f"{name}: its checkpoints are of another config")
        if self.average is None:
            self._fill(checkpoint)
        else:
            self._fill(checkpoint, "last")
            self.average.load_state(checkpoint.group("model"))
        self.optimizer.load_state(checkpoint.group("optimizer"))
        for field in ("examples", "step", "seconds", "flops", "redrawn", "mastered_at", "published_at"):
            setattr(self, field, state[field])
        self.converged_at = dict(state["converged_at"])
        self.tally = Tally.from_state(state["tally"])
        self.feed.load_state(state["feed"])
        if state["processes"] != self.processes.count and self.processes.leads:
            warn(
                f"{name}: was trained by {state['processes']} processes, now by {self.processes.count}: "
                "the same examples, but sums of floats may differ in their last bits"
            )
