"""Figures inside the page: SVG where it is small, PNG where it is not.

They stand in `img` elements as data, not as SVG elements: ids of several drawings cannot meet, and nothing in them can
run.
"""

from __future__ import annotations

import re
import tempfile
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pathmerge.viewer.markup import Html, element

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST_SVG = 300_000
POINT, PIXEL = 96 / 72, 96 / 150
"""Of a screen: a typographic point, and a pixel of the PNG files that `pathmerge.pictures.save` writes."""
WIDE = 800
"""Screen pixels from which on a narrow screen lets a figure be scrolled instead of shrinking it altogether."""


def drawn(figure: Figure, says: str, caption: Any = None) -> Html:
    """A figure of matplotlib; `says` is what a reader who cannot see it is told."""
    from pathmerge.pictures import save

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figure.svg"
        save(figure, path)
        if path.stat().st_size > LARGEST_SVG:
            path = path.with_suffix(".png")
            save(figure, path)
        return picture(path, says, caption)


def kept(path: Path, says: str, caption: Any = None) -> Html:
    """A figure that was written before, under this name with .svg or .png; nothing if there is none."""
    vector, pixels = path.with_suffix(".svg"), path.with_suffix(".png")
    small = vector.is_file() and (vector.stat().st_size <= LARGEST_SVG or not pixels.is_file())
    return picture(vector if small else pixels, says, caption)


def picture(path: Path, says: str, caption: Any = None) -> Html:
    """A file; nothing if it is not there or is no picture."""
    try:
        data = path.read_bytes()
    except OSError:
        return Html("")
    width = _width(data)
    if width is None:
        return Html("")
    kind = "svg+xml" if path.suffix == ".svg" else "png"
    image = element(
        "img",
        src=f"data:image/{kind};base64,{b64encode(data).decode()}",
        alt=says,
        width=width,
        class_="wide" if width > WIDE else None,
    )
    return element("figure", image, element("figcaption", caption) if caption else None)


def _width(data: bytes) -> int | None:
    """How wide it is on a screen at natural size."""
    if data.startswith(b"\x89PNG"):
        return round(int.from_bytes(data[16:20], "big") * PIXEL)
    found = re.search(rb'<svg[^>]*\swidth="([\d.]+)pt"', data[:4000])
    return None if found is None else round(float(found[1]) * POINT)
