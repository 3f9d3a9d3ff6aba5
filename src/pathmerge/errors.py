"""Bad input: one line that names the field, the value given and what is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


def check_range(field: str, value: object, low: int, high: int, why: str = "") -> None:
    """Raise unless `value` is a whole number in low..high; `why` says where the bound comes from."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        allowed = f"a whole number in {low}..{high}" if low <= high else "nothing is possible"
        raise ValueError(f"{field}={value!r}: must be {allowed}{f' ({why})' if why else ''}")


def check_choice(field: str, value: object, allowed: Sequence[str]) -> None:
    """Raise unless `value` is one of a few names; the nearest one is suggested."""
    if value not in allowed:
        near = get_close_matches(str(value), allowed, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"{field}={value!r}: must be one of {', '.join(allowed)}{hint}")


class DrawError(ValueError):
    """No attempt at an example succeeded within the bound on attempts."""
