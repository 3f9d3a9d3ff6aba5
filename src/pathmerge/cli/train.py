"""The command `train`: from arguments to a config, then the library does the work.

Choices a reader could not guess:
- A config begins as a recipe, a TOML file, the config of an existing run, or the defaults; options of the same names
  change single fields of it. What kind of problem and model it has must be known before the options can be read, so the
  few arguments that decide that are looked at first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from pathmerge.cli.parse import take
from pathmerge.cli.progress import announce_compilation
from pathmerge.distributions import DISTRIBUTIONS
from pathmerge.errors import check_choice, check_known, check_number, check_range
from pathmerge.models.config import MODELS
from pathmerge.recipes import RECIPES, of_kinds, recipe
from pathmerge.training.config import Holding, RunConfig, Training, config_from_dict, read_config, to_toml
from pathmerge.training.curriculum import Curriculum

if TYPE_CHECKING:
    from pathmerge.training.run import Run

DEFAULT_RECIPE = "matched"
CONFIG_FILE = "config.toml"


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Where a run is written and how it is shown; none of this changes a number."""

    out: Path = Path("runs")
    """The folder of all runs; this one's directory in it is named by the hash of its config."""
    sinks: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Where metrics go besides metrics.jsonl."""
    save_every: float = 30.0
    """Seconds between checkpoints."""
    keep_every: int | None = None
    """Keep a checkpoint for each so many examples; none: only the two newest."""
    quiet: bool = False
    """Show no progress."""
    show_config: bool = False
    """Print the whole config as TOML and end."""


def train_command(arguments: Sequence[str]) -> tuple[Callable[..., int], list[str]]:
    """The command for these arguments and the arguments left for it to parse."""
    rest = list(arguments)
    asked = _Asked(
        recipe=take(rest, "--recipe"),
        size=take(rest, "--input-size", "--problem.input-size", "--model.input-size"),
        problem=take(rest, "--problem", "--problem.name"),
        model=take(rest, "--model", "--model.name"),
        source=rest.pop(0) if rest and not rest[0].startswith("-") else None,
    )
    if {"-h", "--help"} & set(rest) and asked.size is None and asked.source is None:
        asked.size = "32"
    base = asked.config()

    def run(
        seed: int = base.seed,
        problem: Any = base.problem,
        model: Any = base.model,
        training: Training = base.training,
        curriculum: Curriculum = base.curriculum,
        held_out: Holding = base.held_out,
        options: Annotated[TrainOptions, tyro.conf.arg(name="")] = TrainOptions(),  # noqa: B008
    ) -> int:
        # The problem and the model have the size of the dial; their options may not change it.
        sized = {"input_size": base.problem.input_size}
        config = RunConfig(
            problem=replace(problem, **sized),
            model=replace(model, **sized),
            training=training,
            curriculum=curriculum,
            held_out=held_out,
            seed=seed,
            recipe=base.recipe,
        )
        return train(config, options, asked.directory)

    run.__annotations__ |= {
        "seed": int,
        "problem": type(base.problem),
        "model": type(base.model),
        "training": Training,
        "curriculum": Curriculum,
        "held_out": Holding,
        "options": Annotated[TrainOptions, tyro.conf.arg(name="")],
        "return": int,
    }
    run.__doc__ = f"""Train a model, or go on where the same command stopped.

    pathmerge train [CONFIG.toml | RUN] [--recipe {{{",".join(RECIPES)}}}] [--input-size N]
    [--problem {{{",".join(DISTRIBUTIONS)}}}] [--model {{{",".join(MODELS)}}}] and any of the options below.

    Args:
        seed: The seed of the weights and of the training stream.
    """
    return run, rest


@dataclass
class _Asked:
    """The arguments that decide what kind of run it is."""

    recipe: str | None
    size: str | None
    problem: str | None
    model: str | None
    source: str | None

    @property
    def directory(self) -> Path | None:
        """The existing run that was named, if one was."""
        return Path(self.source) if self.source is not None and Path(self.source).is_dir() else None

    def config(self) -> RunConfig:
        size = None
        if self.size is not None:
            size = check_range("input_size", int(self.size) if self.size.isdigit() else self.size, 11, 512)
        if self.problem is not None:
            check_known("problem", self.problem, DISTRIBUTIONS)
        if self.model is not None:
            check_known("model", self.model, MODELS)
        if self.source is not None:
            if self.recipe is not None:
                raise ValueError(f"recipe={self.recipe!r}: must be left out when a config or a run is given")
            path = Path(self.source)
            values = read_config(path / CONFIG_FILE if path.is_dir() else path)
        else:
            name = self.recipe or DEFAULT_RECIPE
            check_choice("recipe", name, tuple(RECIPES))
            if size is None:
                raise ValueError("input_size: missing; give --input-size N, or a config file")
            values = recipe(name, size).to_dict()
        config = config_from_dict(_resized(values, size))
        return of_kinds(config, self.problem or config.problem.name, self.model or config.model.name)


def _resized(values: dict[str, Any], size: int | None) -> dict[str, Any]:
    """The values of a config with another input size."""
    if size is None:
        return values
    tables = {table: values.get(table, {}) for table in ("problem", "model")}
    sized = {
        name: {**table, "input_size": size} if isinstance(table, dict) else table for name, table in tables.items()
    }
    return {**{key: value for key, value in values.items() if key != "input_size"}, **sized}


def train(config: RunConfig, options: TrainOptions, directory: Path | None) -> int:
    """Train and say where the run is."""
    if options.show_config:
        print(to_toml(config), end="")
        return 0
    check_number("save_every", options.save_every, 0)
    if options.keep_every is not None:
        check_range("keep_every", options.keep_every, 1, 10**15)
    from pathmerge.training.loop import train as start
    from pathmerge.training.run import check_config

    out = options.out
    if directory is not None:
        check_config(directory, config)
        if directory.resolve().name != config.run_name:
            raise ValueError(f"run={str(directory)!r}: its name is not that of its config, {config.run_name}")
        out = directory.resolve().parent
    leads = os.environ.get("RANK", "0") == "0"  # under torchrun one of several processes speaks
    if leads:
        announce_compilation(config.problem)
        print(out / config.run_name, flush=True)
    before = _finished(out / config.run_name)
    run = start(
        config,
        out,
        quiet=options.quiet,
        sinks=options.sinks,
        save_every=options.save_every,
        keep_every=options.keep_every,
    )
    if leads:
        _print_end(run, before)
    return 0


def _finished(directory: Path) -> str | None:
    from pathmerge.training.checkpoint import load_latest
    from pathmerge.training.run import CHECKPOINTS

    latest = load_latest(directory / CHECKPOINTS) if directory.is_dir() else None
    return None if latest is None else latest.state["finished"]


def _print_end(run: Run, before: str | None) -> None:
    lines = run.metrics()
    last = next((line for line in reversed(lines) if line["kind"] == "validation"), None)
    from pathmerge.training.run import ENDS

    reason = ENDS.get(run.finished or "", "not finished")
    said = "finished before" if before else "finished"
    print(f"{said}: {reason} after {run.examples:,} examples")
    if last is not None:
        each = "  ".join(f"{name} {value:.3f}" for name, value in list(last["by_difficulty"].items())[:24])
        print(f"validation accuracy {last['accuracy']:.4f}: {each}")
