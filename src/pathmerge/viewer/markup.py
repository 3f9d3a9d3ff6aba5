"""HTML as text that cannot be confused with other text: whatever is not `Html` is escaped when it goes into a page."""

from __future__ import annotations

from html import escape
from typing import Any

_EMPTY = frozenset({"img", "input", "link", "meta"})
"""Elements that have nothing inside and no end."""


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, /, *inside: Any, **attributes: str | int | bool | None) -> Html:
    """An element with what is inside it.

    Parts that are None are left out, and so are attributes that are None or False. A trailing underscore of an
    attribute goes (`class_`), others become hyphens (`data_value`).
    """
    given = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{given}>" if name in _EMPTY else f"<{name}{given}>{join(*inside)}</{name}>")


def join(*parts: Any) -> Html:
    """Parts one after the other, those that are not HTML escaped."""
    return Html("".join(part if isinstance(part, Html) else escape(str(part)) for part in parts if part is not None))


def paragraph(*inside: Any, class_: str | None = None) -> Html:
    return element("p", *inside, class_=class_)


def code(text: str) -> Html:
    return element("code", text)


def block(text: str) -> Html:
    """Commands, a config: text whose lines stay as they are."""
    return element("pre", code(text.rstrip("\n")))


def fold(summary: Any, *inside: Any, open_: bool = False) -> Html:
    """What a reader may want to see and most will not."""
    return element("details", element("summary", summary), *inside, open=open_)


def facts(values: dict[str, Any]) -> Html:
    """Names and what they stand for; those that are None or empty are left out."""
    pairs = [
        join(element("dt", name), element("dd", value)) for name, value in values.items() if value not in (None, "")
    ]
    return element("dl", *pairs) if pairs else Html("")
