"""The commands `train` and `evaluate`: from arguments to a config, then the library does the work.

Choices a reader could not guess:
- A config begins as a recipe, a TOML file, the config of an existing run, or the defaults; options of the same names
  change single fields of it. What kind of problem and model it has must be known before the options can be read, so the
  few arguments that decide that are looked at first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from pathmerge.distributions import DISTRIBUTIONS
from pathmerge.errors import check_choice, check_known, check_number, check_range
from pathmerge.models.config import MODELS
from pathmerge.recipes import RECIPES, of_kinds, recipe
from pathmerge.training.config import Holding, RunConfig, Training, config_from_dict, read_config, to_toml
from pathmerge.training.curriculum import Curriculum

if TYPE_CHECKING:
    from pathmerge.evaluation.accuracy import Table
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
        recipe=_take(rest, "--recipe"),
        size=_take(rest, "--input-size", "--problem.input-size", "--model.input-size"),
        problem=_take(rest, "--problem", "--problem.name"),
        model=_take(rest, "--model", "--model.name"),
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


def _take(arguments: list[str], *names: str) -> str | None:
    """Take an option and its value out of the arguments, the last one if there are several; none if there is none."""
    return next(reversed(take_all(arguments, *names)), None)


def take_all(arguments: list[str], *names: str) -> list[str]:
    """Take an option out of the arguments wherever it stands: its values."""
    values: list[str] = []
    at = 0
    while at < len(arguments):
        name, equals, given = arguments[at].partition("=")
        if name.replace("_", "-") not in names:
            at += 1
        elif equals:
            values.append(given)
            del arguments[at]
        elif at + 1 < len(arguments):
            values.append(arguments[at + 1])
            del arguments[at : at + 2]
        else:
            raise ValueError(f"{name}: a value is missing")
    return values


def train(config: RunConfig, options: TrainOptions, directory: Path | None) -> int:
    """Train and say where the run is."""
    if options.show_config:
        print(to_toml(config), end="")
        return 0
    check_number("save_every", options.save_every, 0)
    if options.keep_every is not None:
        check_range("keep_every", options.keep_every, 1, 10**15)
    from pathmerge.cli import announce_compilation
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


def evaluate(
    runs: Annotated[tuple[str, ...], tyro.conf.Positional],
    out: Path | None = None,
    figure: Path | None = None,
    count: int | None = None,
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
        task: For a file of weights of a symbolic model: what it was trained for.
        threads: Cores to compute with.
        heuristics: Whether to judge the baselines too.
    """
    if not runs:
        raise ValueError(
            "runs: missing; give a run's directory, a file of weights or a name that `pathmerge models` lists"
        )
    if out is not None and len(runs) > 1:
        raise ValueError(f"out={str(out)!r}: must be left out with several runs; each has a table in its directory")
    if count is not None:
        check_range("count", count, 1, 10**7)
    check_range("threads", threads, 1, 1024)
    subjects = [load_subject(run, task) for run in runs]
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
    from pathmerge.cli import announce_compilation, progress_bar
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
        if subject.run is not None:
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


def demo(out: Path = Path("demo"), input_size: int = 32, seed: int = 1) -> int:
    """Train one model on balanced and one on naive problems, evaluate both, and see what the first computes.

    Args:
        out: Where to write runs, tables and figures.
        input_size: N, the size of the problems.
        seed: The seed of weights and data.
    """
    from pathmerge.cli import announce_compilation
    from pathmerge.demo import demonstrate
    from pathmerge.problems.balanced import Balanced

    announce_compilation(Balanced(input_size=input_size))
    runs = demonstrate(out / "runs", input_size, seed)
    subjects = [replace(load_subject(str(directory), "search"), name=name) for name, directory in runs.items()]
    compare(subjects, figure=out / "accuracy.png")
    from pathmerge.cli_explain import explain

    first = next(iter(runs.values()))
    print("\nwhich algorithm did it learn? circuits of the model trained on balanced problems:", flush=True)
    explain(str(first), count=10, out=first / "circuits")
    print("\nthe same of its initial weights, before training, as a control:", flush=True)
    explain(str(first), count=5, out=first / "circuits-initial", pictures=0, initial=True)
    print("\nthe same of hand-written path-merging, the known truth:", flush=True)
    explain("compiled", count=5, out=out / "circuits-compiled", pictures=1, input_size=input_size)
    from pathmerge.viewer.demo import demo_page
    from pathmerge.viewer.report import REPORT, write_page

    print(f"\nall of it on one page: {write_page(out / REPORT, demo_page(out, runs))}")
    return 0


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is evaluated."""

    name: str
    title: str
    model: Any
    problem: Any
    count: int
    seed: int
    run: Run | None

    def place(self, name: str) -> Path | None:
        return None if self.run is None else self.run.directory / name


def load_subject(given: str, task: str) -> Subject:
    """A run, a file of weights or a model of the shelf, with what it was trained on."""
    from pathmerge.zoo.shelf import card, load, names

    path = Path(given)
    if task != "search" and path.suffix != ".safetensors":
        raise ValueError(f"task={task!r}: only for a file of weights; {given!r} says itself what it was trained for")
    if not path.exists() and given in names():
        config = card(given).run_config
        title = f"{given}, {config.problem.describe()}"
        held = config.held_out
        return Subject(
            name=given,
            title=title,
            model=load(given),
            problem=config.problem,
            count=held.test,
            seed=held.seed,
            run=None,
        )
    if path.suffix == ".safetensors":
        from pathmerge.models.weights import load_weights

        model = load_weights(path)
        kind = "language" if getattr(model.config, "text", False) else {"search": "balanced"}.get(task, task)
        problem = DISTRIBUTIONS[kind](input_size=model.config.input_size)
        count, seed = Holding().test, Holding().seed
        return Subject(name=path.stem, title=str(path), model=model, problem=problem, count=count, seed=seed, run=None)
    from pathmerge.training.run import load_run

    if not path.exists() and path.name == given:
        near = get_close_matches(given, names(), n=1)
        raise ValueError(
            f"run={given!r}: not a run, nor the name of a trained model"
            + (f" (did you mean {near[0]}?)" if near else "; `pathmerge models` lists those that come with pathmerge")
        )
    run = load_run(path)
    title = f"{run.config.problem.describe()}, {run.config.model.name}, {run.examples:,} examples"
    return Subject(
        name=run.config.recipe or run.config.model.name,
        title=title,
        model=run.model,
        problem=run.config.problem,
        count=run.config.held_out.test,
        seed=run.config.held_out.seed,
        run=run,
    )


def _print_verdicts(subject: Subject) -> None:
    """Convergence: on the validation split as training saw it, and by the published rule."""
    if subject.run is None:
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
