"""From arguments to a call, and from what the parser has against them to one line."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from typing import Any

import tyro


def parse(
    commands: dict[str, Callable[..., int]] | Callable[..., int],
    program: str,
    args: list[str],
    description: str | None = None,
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
                    description=description,
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


def take(arguments: list[str], *names: str) -> str | None:
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
