"""The `pathmerge` command: parses, calls the library, prints. No logic of its own."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from pathmerge.cli_explain import explain
from pathmerge.cli_models import models, ship
from pathmerge.cli_report import report
from pathmerge.cli_runs import demo, evaluate, take_all, train_command
from pathmerge.cli_study import claims, study
from pathmerge.distributions import DISTRIBUTIONS
from pathmerge.errors import NotFiniteError, check_choice, check_known, check_range
from pathmerge.plugins import load_plugins, use
from pathmerge.problems.balanced import Balanced
from pathmerge.problems.distribution import Distribution
from pathmerge.rng import Split

if TYPE_CHECKING:
    from pathmerge.heldout import HeldOut

DESCRIPTION = """Can this model learn to search, and which algorithm did it learn?

With --use FILE.py, anywhere and as often as needed, each command also knows the distributions, models and studies that
the file registers (docs/extending.md)."""
NOT_LONG = 20_000
MOST_PICTURED = 6


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """What to draw and what to do with it."""

    count: int = 10
    """How many problems to draw."""
    seed: int = 0
    """The seed; the same seed gives the same problems on every machine."""
    split: Split = "train"
    """The split to draw from; splits share no randomness."""
    stream: int = 0
    """An independent stream of the same seed and split."""
    first: int = 0
    """The number of the first example."""
    out: Path | None = None
    """Write the problems to this file: .npz, .parquet or .jsonl."""
    picture: Path | None = None
    """Draw the first problems (at most 6) to this file: .png or .svg."""
    stats: bool = False
    """Print histograms of difficulty, vertices, edges and degrees, and the acceptance rate."""
    held_out: Path | None = None
    """A problem file; its problems are redrawn wherever they come up."""
    show: int = 5
    """How many problems to print."""
    threads: int | None = None
    """Threads to draw with (none: as many as cores, at most 8); they change nothing but the time."""


def sample(distribution: Distribution, options: SampleOptions) -> int:
    """Draw problems, show them, write them."""
    from pathmerge import show
    from pathmerge.disk import check_output
    from pathmerge.files import SUFFIXES, read_problems, write_problems

    check_range("count", options.count, 1, 10**9)
    check_range("show", options.show, 0, 10**6)
    if options.out is not None:
        check_output("out", options.out, SUFFIXES)
    if options.picture is not None:
        check_output("picture", options.picture, (".png", ".svg"))
    held_out: HeldOut | None = None
    if options.held_out is not None:
        held_out = read_problems(options.held_out, "held_out").held_out
        if options.out is not None and options.out.resolve() == options.held_out.resolve():
            raise ValueError(f"out={str(options.out)!r}: must not be the held-out file itself")
    announce_compilation(distribution)
    with progress_bar("drawing", options.count, long=options.count > NOT_LONG) as advance:
        batch = distribution.sample(
            options.count,
            seed=options.seed,
            split=options.split,
            stream=options.stream,
            first=options.first,
            held_out=held_out,
            threads=options.threads,
            progress=advance,
        )
    # Files first: a reader of the output who goes away early (`| head`) must not cost them.
    if options.out is not None:
        write_problems(batch, options.out)
    pictured = min(len(batch), MOST_PICTURED)
    if options.picture is not None:
        from pathmerge.pictures import save

        save(show.picture(batch, range(pictured)), options.picture)
    show.print_table(batch, options.show)
    if options.stats:
        show.print_statistics(batch)
    if held_out is not None:
        print(f"{int(batch.redraws.sum())} held-out problems met and redrawn")
    if options.out is not None:
        print(f"wrote {len(batch)} problems to {options.out}")
    if options.picture is not None:
        print(f"drew {pictured} problems to {options.picture}")
    return 0


def verify(file: Annotated[Path, tyro.conf.Positional], held_out: Path | None = None) -> int:
    """Judge every problem of a file with the slow oracle, and draw it again from the key in its header.

    Args:
        file: The problem file: .npz, .parquet or .jsonl.
        held_out: A second file; prove that the two have no problem in common.
    """
    from pathmerge import show
    from pathmerge.files import read_problems
    from pathmerge.verify import verify as judge

    problems = read_problems(file)
    held = None if held_out is None else read_problems(held_out, "held_out")
    announce_compilation(problems.distribution)
    with progress_bar("judging", len(problems), long=len(problems) > 1000) as advance:
        verdict = judge(problems, held, advance)
    show.print_verdict(problems, verdict)
    return 0 if verdict.right else 1


def gallery(folder: Annotated[Path, tyro.conf.Positional] = Path("docs"), check: bool = False) -> int:
    """Write gallery.md and its pictures: one example of each task and encoding.

    Args:
        folder: Where to write; gallery.md stands in it, the pictures in its folder `gallery`.
        check: Write nothing; say whether what is there is what would be written, and end with 1 if not.
    """
    from pathmerge.gallery import stale, write_gallery

    announce_compilation(Balanced(input_size=64))
    if check:
        old = stale(folder)
        for name in old:
            print(f"out of date: {folder / name}")
        return 1 if old else 0
    for name in write_gallery(folder):
        print(f"wrote {folder / name}")
    return 0


def announce_compilation(distribution: Distribution) -> None:
    from pathmerge.kernels.compile import is_compiled

    words = (distribution.layout.max_vertices + 63) // 64
    if not is_compiled(words):
        sizes = ("up to 199", "200 to 391", "from 392 on")[words - 1]
        line = f"compiling the generators for input sizes {sizes}, once for this machine: about half a minute"
        print(line, file=sys.stderr, flush=True)


def _sampler(kind: type[Distribution]) -> Callable[..., int]:
    def run(
        problem: Annotated[Any, tyro.conf.arg(name="")], options: Annotated[SampleOptions, tyro.conf.arg(name="")]
    ) -> int:
        return sample(problem, options)

    run.__annotations__["problem"] = Annotated[kind, tyro.conf.arg(name="")]
    run.__annotations__["options"] = Annotated[SampleOptions, tyro.conf.arg(name="")]
    run.__doc__ = kind.__doc__
    return run


def _sample_help() -> int:
    """Draw problems of one kind: show, write, picture them."""
    raise AssertionError("`sample` has subcommands of its own")


def _train_help() -> int:
    """Train a model, or go on where the same command stopped."""
    raise AssertionError("`train` is made for its arguments")


COMMANDS: dict[str, Callable[..., int]] = {
    "sample": _sample_help,
    "train": _train_help,
    "evaluate": evaluate,
    "explain": explain,
    "models": models,
    "study": study,
    "claims": claims,
    "report": report,
    "demo": demo,
    "ship": ship,
    "verify": verify,
    "gallery": gallery,
}


def _subcommands() -> dict[str, dict[str, Callable[..., int]]]:
    """Made when they are asked for: plug-ins add to the distributions."""
    return {"sample": {name: _sampler(kind) for name, kind in DISTRIBUTIONS.items()}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 all right, 1 something checked was wrong, 2 bad input."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    if args == ["--version"]:
        from pathmerge import __version__

        print(f"pathmerge {__version__}")
        return 0
    _settle_terminal()
    commands, program = COMMANDS, "pathmerge"
    try:
        use(take_all(args, "--use"))
        load_plugins()
        subcommands = _subcommands()
        if args and args[0] in subcommands:
            commands, program = subcommands[args[0]], f"pathmerge {args[0]}"
            args = args[1:]
        if args and args[0] == "train" and program == "pathmerge":
            program = "pathmerge train"
            command, args = train_command(args[1:])
            return _parse(command, program, args)()
        if args and not args[0].startswith("-"):
            (check_choice if commands is COMMANDS else check_known)("command", args[0], tuple(commands))
        return _parse(commands, program, args)()
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Nobody reads on. What is still in the buffer must not raise again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except NotFiniteError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    except (ValueError, OSError, MemoryError) as error:
        print(f"{program}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _settle_terminal() -> None:
    """Print what the terminal's encoding has no sign for as "?", and end on SIGTERM and SIGHUP as on Ctrl-C, so that no
    half-written file stays behind."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), stop)


def _parse(
    commands: dict[str, Callable[..., int]] | Callable[..., int], program: str, args: list[str]
) -> Callable[[], int]:
    """Parse without running: each command becomes one that keeps its arguments for later. What tyro has to say against
    the arguments becomes a ValueError of one line."""
    kept: list[Callable[[], int]] = []

    def later(command: Callable[..., int]) -> Callable[..., None]:
        def keep(*positional: Any, **named: Any) -> None:
            kept.append(lambda: command(*positional, **named))

        keep.__wrapped__ = command  # pyright: ignore[reportFunctionMemberAccess]
        keep.__doc__ = command.__doc__
        keep.__annotations__ = {**command.__annotations__, "return": None}
        return keep

    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            if callable(commands):
                tyro.cli(later(commands), prog=program, args=args, use_underscores=False)
            else:
                tyro.extras.subcommand_cli_from_dict(
                    {name: later(command) for name, command in commands.items()},
                    prog=program,
                    args=args,
                    use_underscores=False,
                    description=None if program != "pathmerge" else DESCRIPTION,
                )
    except SystemExit as stop:
        if stop.code:
            raise ValueError(_one_line(complaint.getvalue())) from None
        return lambda: 0
    return kept[0]


def _one_line(box: str) -> str:
    """What tyro says in a box, as one line without the advice below it."""
    parts: list[str] = []
    for line in box.splitlines():
        if re.search(r"[─-]{4,}", line):
            continue
        text = line.strip("│| \t")
        if text.startswith(("Argument helptext", "For full helptext", "Perhaps you meant", "Similar options")):
            break
        # Without box-drawing signs the title of the box, two words, stands on a line of its own.
        if text and (parts or not re.fullmatch(r"\w+( \w+)?", text)):
            parts.append(text)
    line = " ".join(parts)
    line = re.sub(
        r"Error parsing (\S+): invalid literal for int.* base 10: (.*)", r"\1=\2: must be a whole number", line
    )
    line = re.sub(
        r"Error parsing (\S+): no type matching \S+INT could be instantiated from \[(.*?)\].*",
        r"\1=\2: must be a whole number, or None",
        line,
    )
    line = re.sub(r"^Error parsing \S+: (?=\S+=.*must )", "", line)
    return f"{line.rstrip('.')}; --help lists what is allowed"


@contextlib.contextmanager
def progress_bar(what: str, total: int, *, long: bool) -> Generator[Callable[[int], None] | None]:
    """A bar on a terminal, nothing elsewhere or when the work is short."""
    if not long:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        print(f"{what} {total} problems", file=sys.stderr)
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)
