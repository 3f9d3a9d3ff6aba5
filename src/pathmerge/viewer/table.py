"""Tables: numbers to the right, long ones folded, and only the beginning of very long ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite, isnan
from typing import Any, NamedTuple

from pathmerge.viewer.markup import Html, element, fold, join, paragraph

MOST_ROWS = 200
FOLDED_FROM = 26
"""Rows from which on a table is folded."""
BROKEN_FROM, LONG_FROM = 25, 41
"""Letters from which on a text may be broken into lines, and from which on these must not be short."""


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
    plain: bool = False,
) -> Html:
    """A table of rows by column; `whole` says where all of it is, if not all is shown. A plain one has an order that
    means something, and cannot be sorted."""
    if not rows:
        return Html("")
    chosen = list(dict.fromkeys(key for row in rows for key in row)) if columns is None else columns
    shown = rows[:most]
    formats = {column: _format_of([row.get(column) for row in shown]) for column in chosen}
    heads = [
        element("th", column.replace("_", " "), class_=None if formats[column] is None else "number", scope="col")
        for column in chosen
    ]
    lines = [element("tr", *(_cell(row.get(column), formats[column]) for column in chosen)) for row in shown]
    body = element("thead", element("tr", *heads)), element("tbody", *lines)
    drawn = element("div", element("table", *body, class_="plain" if plain else None), class_="scroll")
    if len(rows) > most:
        rest = f"The first {most:,} of {len(rows):,} rows" + (f"; all of them are in {whole}." if whole else ".")
        drawn = join(paragraph(rest, class_="note"), drawn)
    return drawn if len(shown) < FOLDED_FROM else fold(f"{name} ({len(rows):,} rows)", drawn)


def number(value: float) -> str:
    """A number by itself: whole ones in full, others to about four digits."""
    if not isfinite(value):
        return "–" if isnan(value) else "∞" if value > 0 else "−∞"
    write = _format_of([value])
    return str(value) if write is None else write(value)


def _format_of(values: Sequence[Any]) -> Callable[[float], str] | None:
    """How the numbers of a column are written, all alike; none if it holds anything else."""
    known = [value.value if isinstance(value, Shown) else value for value in values if value is not None]
    if any(isinstance(value, bool) or not isinstance(value, int | float | None) for value in known) or not known:
        return None
    finite = [abs(value) for value in known if value is not None and isfinite(value)]
    least, most = min((value for value in finite if value), default=0.0), max(finite, default=0.0)
    floats = [value for value in known if isinstance(value, float)]
    if all(value.is_integer() for value in floats) and (most < 1e9 if most > 1 else not floats):
        return "{:,.0f}".format if most >= 10_000 else "{:.0f}".format
    if most < 10 and (least >= 0.01 or not least):
        return "{:.3f}".format
    if 0.01 <= most < 10:
        return "{:.4f}".format
    if most < 10_000 and least >= 1:
        return "{:,.1f}".format
    return lambda value: f"{value:.4g}".replace("e+", "e")


def _cell(value: Any, write: Callable[[float], str] | None) -> Html:
    kind = None if write is None else "number"
    if isinstance(value, Html):
        return element("td", value)
    if isinstance(value, Shown):
        return element("td", value.text, class_="number", data_value=None if value.value is None else repr(value.value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        text = number(value) if write is None or not isfinite(value) else write(value)
        return element("td", text, class_=kind, data_value=repr(value) if isfinite(value) else None)
    text = "" if value is None else ("yes" if value else "no") if isinstance(value, bool) else str(value)
    kind = "long" if len(text) >= LONG_FROM else "text" if len(text) >= BROKEN_FROM else kind
    return element("td", text, class_=kind)
