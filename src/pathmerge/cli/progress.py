"""What a command shows while it works."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator

from pathmerge.problems.distribution import Distribution


def announce_compilation(distribution: Distribution) -> None:
    """Say so if generators will have to be compiled first."""
    from pathmerge.kernels.compile import generators
    from pathmerge.kernels.workspace import words_for

    words = len(words_for(distribution.layout.max_vertices))
    sizes = "up to 199" if words == 1 else "from 200 on"
    _announce(generators(distribution.task, words), f"the generators for input sizes {sizes}", "a quarter of a minute")


def announce_circuits() -> None:
    """Say so if what finds circuits will have to be compiled first."""
    from pathmerge.kernels.compile import CIRCUITS

    _announce(CIRCUITS, "what finds circuits", "about a minute")


def _announce(kernels: str, what: str, how_long: str) -> None:
    from pathmerge.kernels.compile import is_compiled

    if not is_compiled(kernels):
        print(f"compiling {what}, once for this machine: {how_long}", file=sys.stderr, flush=True)


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
