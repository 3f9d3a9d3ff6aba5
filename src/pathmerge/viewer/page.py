"""A page: title, table of contents, sections. One file that loads nothing.

The browser is told so too: the content security policy forbids every request, so that a mistake here is a missing
picture, never a request to someone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from pathmerge.version import __version__
from pathmerge.viewer.look import SCRIPT, STYLE
from pathmerge.viewer.markup import Html, element, join

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


@dataclass
class Page:
    """What a page says, in the order in which it is added."""

    title: str
    kind: str
    """What it is a report of, in a word or two; stands above the title."""
    lead: Any = ""
    """A sentence or two below the title."""
    sections: list[tuple[str, str, Html]] = field(default_factory=list[tuple[str, str, Html]])
    """Anchor, heading and content of each."""

    def add(self, heading: str, *inside: Any) -> None:
        """A section; one with nothing in it is left out."""
        content = join(*inside)
        if not content:
            return
        anchor = re.sub(r"\W+", "-", heading.lower()).strip("-") or "section"
        taken = sum(known == anchor or known.startswith(f"{anchor}--") for known, _, _ in self.sections)
        self.sections.append((f"{anchor}--{taken + 1}" if taken else anchor, heading, content))

    def html(self) -> str:
        """The whole file."""
        head = element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=POLICY),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="generator", content=f"pathmerge {__version__}"),
            element("title", f"{self.title} · pathmerge"),
            element("link", rel="icon", href="data:,"),
            element("style", Html(STYLE)),
        )
        links = [element("li", element("a", heading, href=f"#{anchor}")) for anchor, heading, _ in self.sections]
        contents = element("nav", element("p", "Contents"), element("ol", *links), aria_label="Contents")
        header = element(
            "header",
            element("p", self.kind, class_="kind"),
            element("h1", self.title),
            element("p", self.lead, class_="lead") if self.lead else None,
        )
        sections = [
            element("section", element("h2", heading), content, id=anchor) for anchor, heading, content in self.sections
        ]
        footer = element("footer", f"Made by pathmerge {__version__}. This file is whole: it needs no network.")
        body = element("body", header, contents, element("main", *sections), footer, element("script", Html(SCRIPT)))
        return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"
