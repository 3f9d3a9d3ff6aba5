"""The command `explain`: from arguments to a model, inputs and settings, then the library does the work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from pathmerge.circuits.options import Options
from pathmerge.cli.progress import announce_circuits, announce_compilation, progress_bar
from pathmerge.cli.subject import load_subject
from pathmerge.distributions import DISTRIBUTIONS, distribution_from_dict
from pathmerge.errors import check_known, check_range
from pathmerge.problems.distribution import Distribution, SearchDistribution
from pathmerge.recipes import layers_for

if TYPE_CHECKING:
    from pathmerge.circuits.files import Circuit


@dataclass(frozen=True, kw_only=True)
class Explained:
    """The model whose circuits are wanted."""

    title: str
    model: Any
    problem: Distribution
    seed: int
    """The seed of the held-out test problems."""
    source: dict[str, Any]
    """What circuit files say of where it comes from."""
    run: Path | None = None

    def looped(self, loops: int) -> Explained:
        """The same model with its blocks applied so many times."""
        model, source = self.model.looped(loops), {**self.source, "loops": loops}
        return replace(self, title=f"{self.title}, loops {loops}", model=model, source=source)


def explain(
    model: Annotated[str, tyro.conf.Positional],
    lookahead: tuple[int, ...] = (),
    count: int = 20,
    out: Path = Path("circuits"),
    problem: str | None = None,
    plan: bool = False,
    pictures: int = 4,
    threads: int = 2,
    initial: bool = False,
    history: bool = False,
    sweep: bool = False,
    probes: bool = False,
    loops: int | None = None,
    input_size: int | None = None,
    merges: int | None = None,
    noise: float = 0.0,
    options: Annotated[Options, tyro.conf.arg(name="")] = Options(),  # noqa: B008
) -> int:
    """Reconstruct what a model computes on held-out inputs, and compare it with exponential path-merging.

    Args:
        model: A run's directory, one of its checkpoints, a file of weights (.safetensors), a name that `pathmerge
            models` lists, or the word `compiled` (hand-written path-merging) or `untrained`.
        lookahead: The lookaheads of the inputs; none: each that fits.
        count: Inputs of each lookahead.
        out: Where to write: one file for each input, summary.json, figures. The same command again goes on.
        problem: The kind of problem: balanced, naive, star, or a search problem of your own; none: what the model was
            trained on.
        plan: Say how many passes, how much memory and how much time it takes, and end.
        pictures: How many of the circuits to draw.
        threads: Cores to compute with; they change the time, and numbers by rounding at the most.
        initial: Explain the initial weights instead, of a run or of a shipped model, as a control.
        history: Trace the same inputs through the run's checkpoints: when does each merge appear?
        sweep: Try other thresholds too: how do the results depend on α, κ1 and κ2?
        probes: Fit linear probes too, on 2,000 problems of the same kind: which vertices does a row know it can reach,
            layer by layer?
        loops: Apply the model's blocks so many times, whatever it was trained with.
        input_size: For `compiled` and `untrained`: N.
        merges: For `compiled`: merging layers; none: enough for every distance.
        noise: For `compiled`: Gaussian noise on its weights, in multiples of their root mean square.
    """
    check_range("count", count, 1, 10**6)
    check_range("pictures", pictures, 0, 10**4)
    check_range("threads", threads, 1, 1024)
    if sum((history, sweep, probes)) > 1 or (history and initial):
        given = [name for name, flag in (("history", history), ("sweep", sweep), ("probes", probes)) if flag]
        raise ValueError(f"{given[0]}: must be given without {', '.join(given[1:]) or 'initial'}; each is a command")
    subject = _load(model, initial, input_size, merges, noise)
    if loops is not None:
        if history:
            raise ValueError(f"loops={loops}: must be left out with history, which shows the model as it was trained")
        if model == "compiled":
            raise ValueError(f"loops={loops}: must be left out for `compiled`; merges says how deep it is")
        subject = subject.looped(loops)
    if history and subject.run is None:
        raise ValueError("history: needs a run with several checkpoints; train with --keep-every EXAMPLES")
    problems = _problems(subject, problem, lookahead)
    from pathmerge.circuits.results import Inputs, check_inputs, open_folder
    from pathmerge.heldout import NONE_HELD

    announce_compilation(subject.problem)
    inputs = Inputs(problems=problems, count=count, seed=subject.seed)
    total = sum(len(batch) for _, batch in inputs.batches)
    if not total:
        raise ValueError(f"input_size={subject.problem.input_size}: {NONE_HELD}")
    if total < count * len(problems):
        print(f"note: {total} inputs instead of {count * len(problems)}: too few problems are held out")
    rounds = 1
    if history and subject.run is not None:
        from pathmerge.circuits.history import checkpoints_of

        rounds = len(checkpoints_of(subject.run))
        check_inputs(inputs, options)
    elif sweep:
        from pathmerge.circuits.sweep import settings

        check_inputs(inputs, options)
        rounds = len(settings(options))
    if probes:
        from pathmerge.circuits.probes import check_probes

        check_probes(subject.model, _probed(problems))
    if plan:
        return _print_plan(subject, inputs, options, threads, rounds, probes)
    open_folder(out, subject.model, inputs, options)
    announce_circuits()
    if history:
        return _history(subject, inputs, options, out, threads, total * rounds)
    if sweep:
        return _sweep(subject, inputs, options, out, threads, total * rounds)
    from pathmerge.circuits.results import explain_into

    with progress_bar("explaining", total, long=total > 1) as advance:
        circuits, summary = explain_into(
            out, subject.model, inputs, options, source=subject.source, threads=threads, progress=advance
        )
    written = _draw(circuits, out, pictures, subject.title)
    from pathmerge.circuits.show import print_summary

    print_summary(summary, subject.title)
    if probes:
        written += _probes(subject, problems, out, threads)
    print(f"wrote {summary['count']} circuits and the summary to {out}")
    for path in written:
        print(f"wrote {path}")
    return 0


def _load(given: str, initial: bool, input_size: int | None, merges: int | None, noise: float) -> Explained:
    """The model that was named."""
    if given in ("compiled", "untrained"):
        if initial:
            raise ValueError(f"initial: {given!r} is not a run, so its initial weights are not known")
        size = 32 if input_size is None else check_range("input_size", input_size, 14, 512)
        balanced = DISTRIBUTIONS["balanced"](input_size=size)
        if given == "compiled":
            from pathmerge.models.compiled import compiled

            model = compiled(size, merges, noise=noise)
            about = {"source": "compiled", "merges": model.layers - 2, "noise": noise}
            return Explained(title=f"compiled, N={size}", model=model, problem=balanced, seed=0, source=about)
        for name, value in (("merges", merges), ("noise", noise or None)):
            if value is not None:
                raise ValueError(f"{name}={value}: only for `compiled`")
        from pathmerge.models.config import OneHot

        model = OneHot(input_size=size, layers=layers_for(size)).build(0)
        return Explained(
            title=f"untrained, N={size}", model=model, problem=balanced, seed=0, source={"source": "untrained"}
        )
    for name, value in (("input_size", input_size), ("merges", merges), ("noise", noise or None)):
        if value is not None:
            whose = "`compiled` and `untrained`" if name == "input_size" else "`compiled`"
            raise ValueError(f"{name}={value}: only for {whose}; {given!r} has its own")

    path, checkpoint = _checkpoint(Path(given))
    if checkpoint is not None and initial:
        raise ValueError(f"initial: {given!r} is a checkpoint, with weights of its own; give its run, {str(path)!r}")
    if checkpoint is not None or initial:
        return _load_moment(path, checkpoint)
    subject = load_subject(str(path), "search")
    run = None if subject.run is None else subject.run.directory
    about = {"source": str(path)}
    return Explained(
        title=subject.title, model=subject.model, problem=subject.problem, seed=subject.seed, source=about, run=run
    )


def _load_moment(path: Path, checkpoint: Path | None) -> Explained:
    """A run at one of its checkpoints, or before the first; no other checkpoint needs to be whole."""
    from pathmerge.training.config import load_config
    from pathmerge.training.run import CONFIG, load_run
    from pathmerge.zoo.shelf import card, names

    if checkpoint is None:
        if not path.exists() and str(path) in names():
            config = card(str(path)).run_config
        elif (path / CONFIG).is_file():
            config = load_config(path / CONFIG)
        else:
            raise ValueError(
                f"initial: {str(path)!r} is neither a run nor a name that `pathmerge models` lists, so its initial "
                "weights are not known"
            )
        model, examples, words = config.model.build(config.seed), 0, "its initial weights"
    else:
        run = load_run(path, checkpoint=checkpoint)
        config, model, examples = run.config, run.model, run.examples
        words = f"after {examples:,} examples"
    return Explained(
        title=f"{config.problem.describe()}, {config.model.name}, {words}",
        model=model,
        problem=config.problem,
        seed=config.held_out.seed,
        source={"source": str(path), "examples": examples},
        run=path if path.is_dir() else None,
    )


def _checkpoint(path: Path) -> tuple[Path, Path | None]:
    """A run's directory and one of its checkpoints, if the path is that of a checkpoint."""
    if path.suffix in (".json", ".safetensors") and path.parent.name == "checkpoints":
        return path.parent.parent, path.with_suffix(".json")
    return path, None


def _problems(subject: Explained, kind: str | None, lookaheads: tuple[int, ...]) -> tuple[Distribution, ...]:
    """One distribution for each kind of input."""
    from pathmerge.evaluation.suite import STANDARD, widest

    trained = subject.problem
    if not isinstance(trained, SearchDistribution):
        raise ValueError(f"problem={trained.name!r}: the model's own; circuits explain naive, balanced and star")
    searches = {name: found for name, found in DISTRIBUTIONS.items() if issubclass(found, SearchDistribution)}
    name = kind or trained.name
    check_known("problem", name, searches)
    own = name == trained.name and type(trained) not in STANDARD
    base: Any = widest(trained) if own else searches[name](input_size=trained.input_size)
    if base.cells() == [(0, 0, 0)]:
        if lookaheads:
            raise ValueError(f"lookahead={lookaheads[0]}: must be left out for {name} problems, where it is chance")
        return (base,)
    wanted = lookaheads or tuple(sorted({cell.lookahead for cell in base.fixed()}))
    return tuple(replace(base, lookahead=length) for length in dict.fromkeys(wanted))


def _draw(circuits: list[Circuit], out: Path, pictures: int, title: str) -> list[Path]:
    """The figures of the model, and pictures of single circuits spread evenly over all."""
    from pathmerge.circuits.figures import write_model_sheet
    from pathmerge.circuits.picture import write_picture
    from pathmerge.circuits.results import file_name

    if not circuits:
        return []
    written = [out / "circuits.png"]
    write_model_sheet(circuits, written[0], title=title)
    step = max(1, len(circuits) // max(1, pictures))
    for circuit in circuits[::step][:pictures]:
        problem = distribution_from_dict(circuit.input.problem)
        path = out / f"circuit-{file_name(problem, circuit.input.key['index'])}.png"
        write_picture(circuit, path)
        written.append(path)
    return written


def _print_plan(subject: Explained, inputs: Any, options: Options, threads: int, rounds: int, probes: bool) -> int:
    from pathmerge.circuits.plan import plan
    from pathmerge.circuits.show import print_plan

    print_plan(plan(subject.model, inputs, options, threads, rounds), subject.title)
    if probes:
        print("probes           not counted")
    return 0


def _history(subject: Explained, inputs: Any, options: Options, out: Path, threads: int, total: int) -> int:
    from pathmerge.circuits.history import trace_training, write_history
    from pathmerge.circuits.show import print_history

    assert subject.run is not None
    with progress_bar("explaining", total, long=True) as advance:
        found = trace_training(subject.run, inputs, options, out, threads=threads, progress=advance)
    for path in write_history(found, out, title=subject.title):
        print(f"wrote {path}")
    print_history(found)
    return 0


def _sweep(subject: Explained, inputs: Any, options: Options, out: Path, threads: int, total: int) -> int:
    from pathmerge.circuits.show import print_sweep
    from pathmerge.circuits.sweep import TABLE, sweep

    with progress_bar("explaining", total, long=True) as advance:
        table = sweep(out, subject.model, inputs, options, threads=threads, progress=advance)
    print_sweep(table, subject.title)
    print(f"wrote {out / TABLE}")
    return 0


def _probed(problems: tuple[Any, ...]) -> Distribution:
    """Problems of the kind explained: of the one lookahead asked for, or of all."""
    return problems[0] if len(problems) == 1 else replace(problems[0], lookahead=None)


def _probes(subject: Explained, problems: tuple[Any, ...], out: Path, threads: int) -> list[Path]:
    from pathmerge.circuits.probes import probe

    table = probe(subject.model, _probed(problems), threads=threads)
    written = [out / "probes.csv", out / "probes.png"]
    table.write_csv(written[0])
    table.write_figure(written[1], title=subject.title)
    return written
