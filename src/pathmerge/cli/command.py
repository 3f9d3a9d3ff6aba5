"""The `pathmerge` command: parses, calls the library, prints. No logic of its own."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence

from pathmerge.cli.demo import demo
from pathmerge.cli.evaluate import evaluate
from pathmerge.cli.explain import explain
from pathmerge.cli.models import models, ship
from pathmerge.cli.parse import parse, take_all
from pathmerge.cli.prepare import compile_command
from pathmerge.cli.problems import gallery, sampler, verify
from pathmerge.cli.report import report
from pathmerge.cli.study import claims, study
from pathmerge.cli.train import train_command
from pathmerge.distributions import DISTRIBUTIONS
from pathmerge.errors import NotFiniteError, check_choice, check_known
from pathmerge.plugins import load_plugins, use

DESCRIPTION = """Can this model learn to search, and which algorithm did it learn?

With --use FILE.py, anywhere and as often as needed, each command also knows the distributions, models and studies that
the file registers (docs/extending.md)."""


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
    "compile": compile_command,
}


def _subcommands() -> dict[str, dict[str, Callable[..., int]]]:
    """Made when they are asked for: plug-ins add to the distributions."""
    return {"sample": {name: sampler(kind) for name, kind in DISTRIBUTIONS.items()}}


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
            return parse(command, program, args)()
        if args and not args[0].startswith("-"):
            (check_choice if commands is COMMANDS else check_known)("command", args[0], tuple(commands))
        return parse(commands, program, args, DESCRIPTION if program == "pathmerge" else None)()
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
