"""Tables: numbers to the right, long ones folded, and only the beginning of very long ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, isnan
from typing import Any, NamedTuple

from pathmerge.viewer.markup import Html, element, fold, join, paragraph

MOST_ROWS = 200
FOLDED_FROM = 26
"""Rows from which on a table is folded."""
LONG_TEXT = 60


class Shown(NamedTuple):
    """A number shown in other words than its own."""

    value: float | None
    text: str


def table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str] | None = None,
    *,
    most: int = MOST_ROWS,
    whole: str = "",
    name: str = "table",
) -> Html:
    """A table of rows by column; `whole` says where all of it is, if not all is shown."""
    if not rows:
        return Html("")
    chosen = list(dict.fromkeys(key for row in rows for key in row)) if columns is None else columns
    shown = rows[:most]
    numeric = {column for column in chosen if _is_numeric([row.get(column) for row in shown])}
    heads = [
        element("th", column.replace("_", " "), class_=_class(column in numeric), scope="col") for column in chosen
    ]
    lines = [element("tr", *(_cell(row.get(column), column in numeric) for column in chosen)) for row in shown]
    drawn = element(
        "div",
        element("table", element("thead", element("tr", *heads)), element("tbody", *lines)),
        class_="scroll",
    )
    if len(rows) > most:
        rest = f"The first {most:,} of {len(rows):,} rows" + (f"; all of them are in {whole}." if whole else ".")
        drawn = join(paragraph(rest, class_="note"), drawn)
    return drawn if len(shown) < FOLDED_FROM else fold(f"{name} ({len(rows):,} rows)", drawn)


def number(value: float) -> str:
    """A number as a reader wants it: whole ones in full, others to four digits."""
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if not isfinite(value):
        return "–" if isnan(value) else "∞" if value > 0 else "−∞"
    if value.is_integer() and abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.4g}".replace("e+", "e")


def text_of(value: Any) -> str:
    """A value in a cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, int | float) else str(value)


def _is_numeric(values: Sequence[Any]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(
        isinstance(value, Shown | int | float) and not isinstance(value, bool) for value in known
    )


def _class(numeric: bool) -> str | None:
    return "number" if numeric else None


def _cell(value: Any, numeric: bool) -> Html:
    if isinstance(value, Html):
        return element("td", value)
    if isinstance(value, Shown):
        return element("td", value.text, class_="number", data_value=None if value.value is None else repr(value.value))
    text = text_of(value)
    sorts = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    kind = "long" if len(text) > LONG_TEXT else _class(numeric)
    return element("td", text, class_=kind, data_value=repr(value) if sorts else None)
