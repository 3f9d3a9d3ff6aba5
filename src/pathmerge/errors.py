"""Bad input: one line that names the field, the value given and what is allowed."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Any


def whole(field: str, value: Any) -> int:
    """The value as an int if it is a whole number of any library; floats, text and truth values are not."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{field}={value!r}: must be a whole number") from None


def check_range(field: str, value: Any, low: int, high: int, why: str = "") -> int:
    """The value as an int; raises unless it is a whole number in low..high; `why` says where the bound comes from."""
    allowed = f"must be a whole number in {low}..{high}" if low <= high else "no value is possible"
    reason = f" ({why})" if why else ""
    try:
        number = whole(field, value)
    except ValueError:
        raise ValueError(f"{field}={value!r}: {allowed}{reason}") from None
    if not low <= number <= high:
        raise ValueError(f"{field}={number}: {allowed}{reason}")
    return number


def check_choice(field: str, value: object, allowed: Sequence[str]) -> None:
    """Raise unless `value` is one of a few names; the nearest one is suggested."""
    if value not in allowed:
        near = get_close_matches(str(value), allowed, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"{field}={value!r}: must be one of {', '.join(allowed)}{hint}")


def check_known(field: str, value: object, catalogue: Collection[str]) -> None:
    """The same for a name of a catalogue that plug-ins add to."""
    try:
        check_choice(field, value, tuple(catalogue))
    except ValueError as error:
        raise ValueError(f"{error}; a name of your own needs --use FILE.py") from None


def check_flag(field: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{field}={value!r}: must be True or False")


def check_number(field: str, value: Any, low: float, high: float = math.inf) -> None:
    """Raise unless `value` is a number in low..high."""
    fine = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if not fine:
        upto = f"{low:g}..{high:g}" if high < math.inf else f"at least {low:g}"
        raise ValueError(f"{field}={value!r}: must be a number {'in ' if high < math.inf else ''}{upto}")


def plain(value: Any) -> Any:
    """A field of a config as JSON and TOML know it: numpy's whole numbers become Python's."""
    return value if value is None or isinstance(value, bool | str | float) else whole("value", value)


class DrawError(ValueError):
    """No attempt at an example succeeded within the bound on attempts."""


class HeldError(ValueError):
    """Another process is training the run."""


class NotFiniteError(ArithmeticError):
    """A loss or gradient became infinite or not a number."""
