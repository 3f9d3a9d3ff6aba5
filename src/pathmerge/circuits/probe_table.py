"""What probes found, as a table, a file and a figure (`pathmerge.circuits.probes` says what is measured)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from math import isnan, nan
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from pathmerge.disk import check_output, csv_text, written_whole
from pathmerge.errors import check_choice, check_number
from pathmerge.pictures import save

Direction = Literal["forward", "backward"]
RowKind = Literal["all", "source", "target", "start", "goal", "last", "answer"]
Candidates = Literal["vertex", "edge"]
Control = Literal["model", "untrained", "initial", "shuffled", "elsewhere"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
ROW_KINDS: tuple[RowKind, ...] = get_args(RowKind)
CANDIDATES: tuple[Candidates, ...] = get_args(Candidates)
CONTROLS: tuple[Control, ...] = ("untrained", "initial", "shuffled", "elsewhere")


@dataclass(frozen=True, kw_only=True)
class ProbeRow:
    """How well one relation can be read at one layer; nan where too few problems have both kinds of candidates."""

    control: Control
    """ "model" for the probe itself."""
    rows: RowKind
    by: Candidates
    """What is asked about: vertices by their ids, or edges by their places."""
    direction: Direction
    """Forward: reachable from the row's vertex. Backward: the row's vertex is reachable from there."""
    layer: int
    """How many layers have been applied: 0 is the embedding."""
    distance: int
    positives: int
    """Pairs of a row and a candidate at exactly this distance, in the rows that count for `auc`."""
    negatives: int
    """Pairs of a row and an unrelated candidate, in the same rows."""
    auc: float
    """The chance that a candidate at this distance gets a larger number than an unrelated one of the same row."""
    low: float
    high: float
    """The 95% interval of `auc`."""
    opposite: float
    """The same chance against candidates on the other side (forward: those that reach the row's vertex)."""
    accuracy: float
    """Balanced accuracy of "reachable" at this distance, against unrelated candidates."""
    within: float
    """Balanced accuracy of "reachable within this many steps", a probe of its own, against all candidates that are
    further away or unrelated."""


COLUMNS = tuple(f.name for f in fields(ProbeRow))
_WORDS: dict[str, tuple[str, ...]] = {
    "control": ("model", *CONTROLS),
    "rows": ROW_KINDS,
    "by": CANDIDATES,
    "direction": DIRECTIONS,
}
_NUMBERS = ("layer", "distance", "positives", "negatives")


@dataclass(frozen=True, kw_only=True)
class ProbeTable:
    """What `probe` found: a row for each control, direction, layer and distance."""

    rows: tuple[ProbeRow, ...]

    def find(
        self,
        direction: Direction,
        layer: int,
        distance: int,
        control: Control = "model",
        *,
        by: Candidates | None = None,
    ) -> ProbeRow | None:
        """One row, if there is one; `by` is needed only where tables of both kinds were put together."""
        wanted = (direction, layer, distance)
        return next((r for r in self._of(control, by) if (r.direction, r.layer, r.distance) == wanted), None)

    def known(
        self,
        direction: Direction,
        *,
        at_least: float = 0.8,
        control: Control = "model",
        by: Candidates | None = None,
    ) -> tuple[int, ...]:
        """For each layer, the distance up to which every AUC is at least so large."""
        check_choice("direction", direction, DIRECTIONS)
        check_number("at_least", at_least, 0, 1)
        cells = {(r.layer, r.distance): r.auc for r in self._of(control, by) if r.direction == direction}
        found: list[int] = []
        for layer in sorted({row.layer for row in self.rows}):
            reach = 0
            while cells.get((layer, reach + 1), nan) >= at_least:
                reach += 1
            found.append(reach)
        return tuple(found)

    def _of(self, control: Control, by: Candidates | None) -> Iterator[ProbeRow]:
        by = by or next((row.by for row in self.rows), None)
        return (row for row in self.rows if (row.control, row.by) == (control, by))

    def to_csv(self) -> str:
        """The rows as text, one column for each field."""
        return csv_text([asdict(row) for row in self.rows], COLUMNS)

    def write_csv(self, path: Path | str) -> None:
        """Write `to_csv` into a file."""
        path = Path(path)
        check_output("out", path, (".csv",))
        with written_whole(path) as temporary:
            temporary.write_text(self.to_csv(), encoding="utf-8")

    @classmethod
    def read_csv(cls, path: Path | str) -> ProbeTable:
        """The inverse of `write_csv`."""
        path = Path(path)
        if not path.is_file():
            raise ValueError(f"file={str(path)!r}: no such file")
        try:
            header, *lines = csv.reader(io.StringIO(path.read_text(encoding="utf-8")))
        except (ValueError, csv.Error) as error:
            raise ValueError(f"file={str(path)!r}: cannot be read as a table ({error})") from None
        if tuple(header) != COLUMNS:
            raise ValueError(f"file={str(path)!r}: has the columns {', '.join(header)}; must have {', '.join(COLUMNS)}")
        rows: list[ProbeRow] = []
        for number, line in enumerate(lines, 1):
            try:
                given = dict(zip(COLUMNS, line, strict=True))
                rows.append(ProbeRow(**{name: _read_value(name, text) for name, text in given.items()}))
            except ValueError as error:
                raise ValueError(f"file={str(path)!r}: row {number}: {error}") from None
        return cls(rows=tuple(rows))

    def figure(self, *, title: str = "") -> Figure:
        """Heat maps of AUC: layers across, distance down, forward beside backward, the model above its controls."""
        return _figure(self, title)

    def write_figure(self, path: Path | str, *, title: str = "") -> None:
        """Draw `figure` into a PNG or SVG file."""
        path = Path(path)
        check_output("picture", path, (".png", ".svg"))
        save(self.figure(title=title), path)


def _read_value(name: str, text: str) -> Any:
    if name in _WORDS:
        check_choice(name, text, _WORDS[name])
        return text
    return int(text) if name in _NUMBERS else float(text)


_SHOWN: dict[Control, str] = {
    "model": "this model",
    "elsewhere": "control: another vertex's labels",
    "initial": "control: as it was initialised",
    "untrained": "control: an untrained model",
}
_PLURAL: dict[Candidates, str] = {"vertex": "vertices", "edge": "edges"}
_COLOURS = colormaps["Purples"]
_EMPTY, _GREY = "#DDDDDD", "#555555"


def _figure(table: ProbeTable, title: str) -> Figure:
    if not table.rows:
        raise ValueError("rows=(): must hold at least one row")
    controls: list[Control] = [name for name in _SHOWN if any(row.control == name for row in table.rows)]
    asked = {(row.by, row.direction) for row in table.rows}
    columns: list[tuple[Candidates, Direction]] = [(b, d) for b in CANDIDATES for d in DIRECTIONS if (b, d) in asked]
    layers, most = 1 + max(row.layer for row in table.rows), max(row.distance for row in table.rows)
    width, height = max(2.9, 0.44 * layers + 0.5), max(0.9, 0.26 * most) + 0.62
    size = (width * len(columns) + 0.3, height * len(controls) + 0.95 + 0.3 * bool(title))
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    if title:
        figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
    places = figure.subplots(len(controls), len(columns), squeeze=False)
    for control, line in zip(controls, places, strict=True):
        for (by, direction), axes in zip(columns, line, strict=True):
            relation = "reached from the row's vertex" if direction == "forward" else "reaching the row's vertex"
            above = f"{_PLURAL[by]} {relation}\n" if control == controls[0] else ""
            axes.set_title(f"{above}{_SHOWN[control]}", fontsize=8.5, loc="left")
            _draw_cells(axes, table, control, by, direction, layers, most)
            axes.set_xlabel("layers applied" if control == controls[-1] else "", fontsize=8.5)
        line[0].set_ylabel("distance", fontsize=8.5)
    bar: dict[str, Any] = {"orientation": "horizontal", "fraction": 0.12 / size[1], "pad": 0.1 / size[1], "aspect": 45}
    scale = figure.colorbar(ScalarMappable(Normalize(0.5, 1), _COLOURS), ax=places, **bar)
    mixed = [row for row in table.rows if row.control == "shuffled" and not isnan(row.auc)]
    chance = np.average([row.auc for row in mixed], weights=[row.positives for row in mixed]) if mixed else nan
    notes = [f"with shuffled labels {chance:.2f} on average"] if mixed else []
    notes += ["–: too few problems"] if any(isnan(row.auc) for row in table.rows) else []
    words = "AUC against unrelated candidates of the same row" + ("\n" + "; ".join(notes) if notes else "")
    scale.set_label(words, fontsize=8.5)
    scale.ax.tick_params(labelsize=8)
    return figure


def _draw_cells(
    axes: Any, table: ProbeTable, control: Control, by: Candidates, direction: Direction, layers: int, most: int
) -> None:
    aucs = np.full((most, layers), nan)
    for row in table.rows:
        if (row.control, row.by, row.direction) == (control, by, direction):
            aucs[row.distance - 1, row.layer] = row.auc
    colours = _COLOURS.with_extremes(bad=_EMPTY)
    axes.pcolormesh(np.ma.masked_invalid(aucs), cmap=colours, vmin=0.5, vmax=1.0, edgecolors="white", linewidth=0.6)
    for (line, column), auc in np.ndenumerate(aucs):
        words, colour = ("–", _GREY) if isnan(auc) else (f"{auc:.2f}", "white" if auc > 0.8 else "black")
        axes.text(column + 0.5, line + 0.5, words, color=colour, fontsize=7.5, ha="center", va="center")
    axes.invert_yaxis()
    axes.set_xticks(np.arange(layers) + 0.5, labels=[str(layer) for layer in range(layers)])
    axes.set_yticks(np.arange(most) + 0.5, labels=[str(distance) for distance in range(1, most + 1)])
    axes.tick_params(labelsize=8, length=0)
    axes.spines[:].set_visible(False)
