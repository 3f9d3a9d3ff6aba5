"""Pages as tests read them: their words, elements and references; and words that must never become anything else."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

HOSTILE = """<script>document.title="owned"</script><img src=http://evil.example/x>"'&"""


class Reader(HTMLParser):
    """What a page refers to, its elements, its words, and whether every element is closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.elements: list[str] = []
        self.words: list[str] = []
        self.ids: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        given = dict(attrs)
        self.references += [str(given[name]) for name in ("src", "href", "action", "srcset", "data") if name in given]
        self.ids += [str(given["id"])] if "id" in given else []
        assert not any(name.startswith("on") for name in given)
        if tag not in ("meta", "link", "img", "input"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def read(path: Path) -> Reader:
    """A report, after what holds of every report: it refers to nothing outside, and only to anchors it has."""
    text = path.read_text(encoding="utf-8")
    found = Reader(text)
    for reference in found.references:
        assert reference.startswith(("data:image/", "#")) or reference == "data:,", reference[:80]
        assert not reference.startswith("#") or reference[1:] in found.ids
    assert len(set(found.ids)) == len(found.ids)
    assert found.elements.count("script") == 1
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src 'none'" in text.replace("&#x27;", "'")
    return found
