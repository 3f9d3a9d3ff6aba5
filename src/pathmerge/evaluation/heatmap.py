"""Heat maps of accuracy: models and baselines down, test distributions and difficulties across (paper, figure 2).

Choices a reader could not guess:
- A distribution of one parameter has a column for each value; one of two parameters (stars) has a single column, the
  mean over its cells. Where all have two (selection, inference, or stars alone) each judge gets a grid of its own.
- Baselines do not depend on the model: each of their cells comes from the first table that has it.
- What a model was trained on is framed, so everything outside its frame is generalisation. A mean is framed if each of
  its cells is.
- Numbers are left out where they would be too small to read, and so are most numbers of an axis.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, nan
from pathlib import Path

from matplotlib.figure import Figure

from pathmerge.disk import check_output
from pathmerge.errors import check_choice
from pathmerge.evaluation.accuracy import ALL, Row, Table, cells_of, name_cell
from pathmerge.evaluation.sheet import EDGE, GREY, Box, Sheet
from pathmerge.pictures import save
from pathmerge.pictures.scene import text_width
from pathmerge.problems.distribution import Distribution

WIDEST = 11.0


def trained_on(distribution: Distribution) -> set[str]:
    """The difficulties of a training distribution, as `heat_map` wants them: "balanced lookahead=3", "naive all"."""
    return {" ".join(name_cell(cell)) for cell in distribution.fixed()}


def write_heat_map(
    tables: Mapping[str, Table],
    path: Path | str,
    *,
    trained: Mapping[str, Collection[str]] | None = None,
    title: str = "",
) -> None:
    """Draw `heat_map` into a PNG or SVG file."""
    path = Path(path)
    check_output("picture", path, (".png", ".svg"))
    save(heat_map(tables, trained=trained, title=title), path)


def heat_map(
    tables: Mapping[str, Table],
    *,
    trained: Mapping[str, Collection[str]] | None = None,
    title: str = "",
    above: float = 0.0,
) -> Figure:
    """The accuracies of several models, by name, above those of the baselines.

    `trained` says for some of the models what they were trained on (see `trained_on`). `above`: inches left free at the
    top, for a title of the caller's.
    """
    for name in trained or {}:
        check_choice("trained", name, tuple(tables))
    rows = [row for table in tables.values() for row in table.rows]
    if not rows:
        raise ValueError(f"tables={list(tables)}: must hold at least one table with rows")
    judges = [_Judge.of_model(name, table, (trained or {}).get(name, ())) for name, table in tables.items()]
    judges += _baselines(tables.values())
    distributions = list(dict.fromkeys(row.distribution for row in rows))
    two = {name: any(len(row.parameters) == 2 for row in rows if row.distribution == name) for name in distributions}
    sheet = Sheet()
    if title:
        sheet.text(EDGE, EDGE + above + 0.08, title, 11, ha="left", weight="bold")
    top = EDGE + above + (0.35 if title else 0.0)
    if all(two.values()):
        _draw_grids(sheet, judges, distributions, top)
    else:
        _draw_strip(sheet, judges, [_Group.of(name, rows, two[name]) for name in distributions], top)
    return sheet.figure(framed=any(judge.trained for judge in judges))


@dataclass(frozen=True, kw_only=True)
class _Judge:
    """A model or a baseline: its rows by distribution and difficulty."""

    name: str
    rows: Mapping[tuple[str, str], Row]
    trained: frozenset[tuple[str, str]] = frozenset()
    model: bool

    @classmethod
    def of_model(cls, name: str, table: Table, trained: Collection[str]) -> _Judge:
        rows = {(row.distribution, row.difficulty): row for row in table.rows}
        framed = {key for key in rows if " ".join(key) in trained}
        for distribution in {distribution for distribution, _ in framed}:
            cells = {(distribution, row.difficulty) for row in cells_of(table.rows, distribution)}
            framed |= {(distribution, ALL)} if cells <= framed else set()
        return cls(name=name, rows=rows, trained=frozenset(framed), model=True)


def _baselines(tables: Iterable[Table]) -> list[_Judge]:
    found: dict[str, dict[tuple[str, str], Row]] = {}
    for table in tables:
        for name, rows in table.baselines.items():
            for row in rows:
                found.setdefault(name, {}).setdefault((row.distribution, row.difficulty), row)
    return [_Judge(name=name, rows=rows, model=False) for name, rows in found.items()]


@dataclass(frozen=True, kw_only=True)
class _Group:
    """The columns of a distribution: their difficulties, what stands over each and over all of them."""

    distribution: str
    heading: str
    difficulties: tuple[str, ...]
    values: tuple[int, ...]

    @classmethod
    def of(cls, name: str, rows: Sequence[Row], two: bool) -> _Group:
        cells = {row.difficulty: row for row in rows if row.distribution == name and row.difficulty != ALL}
        if two or not cells:
            only = next(iter(cells)) if len(cells) == 1 else ALL
            heading = f"{name}\nmean" if len(cells) > 1 else name
            return cls(distribution=name, heading=heading, difficulties=(only,), values=())
        (parameter,) = next(iter(cells.values())).parameters
        by_value = sorted((row.parameters[parameter], difficulty) for difficulty, row in cells.items())
        return cls(
            distribution=name,
            heading=f"{name}, by {parameter}",
            difficulties=tuple(difficulty for _, difficulty in by_value),
            values=tuple(value for value, _ in by_value),
        )

    @property
    def least_width(self) -> float:
        return max(0.46, *(text_width(line, 9) + 0.1 for line in self.heading.split("\n")))


def _ticks(values: Sequence[int], room: float) -> list[int]:
    """The places on an axis whose numbers are shown: all, or the first, the last and round ones between."""
    widest = max(text_width(str(value), 8) for value in values)
    step = next((step for step in (1, 5, 10, 20, 50) if step * room >= 1.35 * widest), 100)
    if step == 1:
        return list(range(len(values)))
    apart = max(1, ceil(1.35 * widest / room))
    last = len(values) - 1
    between = [i for i, value in enumerate(values) if value % step == 0 and apart <= i <= last - apart]
    return [0, *between, last] if last >= apart else [0]


def _draw_strip(sheet: Sheet, judges: Sequence[_Judge], groups: Sequence[_Group], top: float) -> None:
    between, high, row_gap, baseline_gap = 0.14, 0.32, 0.05, 0.22
    singles = sum(group.least_width for group in groups if not group.values)
    most = sum(len(group.values) for group in groups)
    wide = min(0.46, max(0.11, (WIDEST - singles) / max(most, 1)))
    left = EDGE + max(text_width(judge.name, 9) for judge in judges) + 0.12
    rows_from = top + 0.42
    levels: list[float] = []
    for before, judge in zip([judges[0], *judges], judges, strict=False):
        gap = row_gap if before.model == judge.model else baseline_gap
        levels.append(levels[-1] + high + gap if levels else rows_from)
        colour = "black" if judge.model else GREY
        sheet.text(left - 0.1, levels[-1] + high / 2, judge.name, 9, ha="right", color=colour)
    for group in groups:
        count = len(group.difficulties)
        width = max(wide if group.values else 0.0, group.least_width / count)
        foot = rows_from - (0.23 if group.values else 0.05)
        sheet.text(left + count * width / 2, foot, group.heading, 9, va="bottom", linespacing=1.15)
        for place in _ticks(group.values, width) if group.values else ():
            x = left + (place + 0.5) * width
            sheet.text(x, rows_from - 0.05, str(group.values[place]), 8, va="bottom", color=GREY)
        for judge, level in zip(judges, levels, strict=True):
            boxes: dict[tuple[int, int], Box] = {}
            for place, difficulty in enumerate(group.difficulties):
                key = (group.distribution, difficulty)
                box = (left + place * width, level, width, high)
                sheet.cell(*box, judge.rows[key].accuracy if key in judge.rows else nan)
                if key in judge.trained:
                    boxes[0, place] = box
            sheet.frame(boxes)
        left += count * width + between


def _draw_grids(sheet: Sheet, judges: Sequence[_Judge], distributions: Sequence[str], top: float) -> None:
    """A column of grids for each distribution; a single distribution's grids stand side by side."""
    panels = [[_Panel.of(judge, name) for judge in judges] for name in distributions]
    keys = [key for column in panels for panel in column for key in panel.at]
    down, across = (range(min(values), max(values) + 1) for values in zip(*keys, strict=True))
    size = min(0.4, max(0.09, min(4.6 / len(across), 4.2 / len(down))))
    titles = max(text_width(panel.title, 9) for column in panels for panel in column)
    wide, high = max(len(across) * size + 0.75, titles + 0.65), len(down) * size + 0.8
    level = top
    for model in (True, False):
        columns = [[panel for panel in column if panel.at and panel.judge.model == model] for column in panels]
        if len(columns) == 1:
            beside = max(1, int(WIDEST / wide))
            columns = [columns[0][place::beside] for place in range(beside)]
        for place, column in enumerate(columns):
            for i, panel in enumerate(column):
                panel.draw(sheet, EDGE + place * wide, level + i * high, size, down, across)
        level += max(map(len, columns)) * high + 0.1


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """One judge on one distribution of two parameters."""

    judge: _Judge
    distribution: str
    at: Mapping[tuple[int, int], Row]

    @classmethod
    def of(cls, judge: _Judge, distribution: str) -> _Panel:
        rows = [row for (name, difficulty), row in judge.rows.items() if name == distribution and difficulty != ALL]
        at = {(first, second): row for row in rows for first, second in [tuple(row.parameters.values())]}
        return cls(judge=judge, distribution=distribution, at=at)

    @property
    def title(self) -> str:
        return f"{self.judge.name}: {self.distribution}"

    def draw(self, sheet: Sheet, x: float, y: float, size: float, down: range, across: range) -> None:
        names = list(next(iter(self.at.values())).parameters)
        left, top = x + 0.45, y + 0.55
        colour = "black" if self.judge.model else GREY
        sheet.text(left, y + 0.08, self.title, 9, ha="left", color=colour)
        sheet.text(left + len(across) * size / 2, y + 0.28, names[1], 8, color=GREY)
        sheet.text(x + 0.08, top + len(down) * size / 2, names[0], 8, color=GREY, rotation=90)
        for place in _ticks(across, size):
            sheet.text(left + (place + 0.5) * size, top - 0.04, str(across[place]), 8, va="bottom", color=GREY)
        for place in _ticks(down, size):
            sheet.text(left - 0.05, top + (place + 0.5) * size, str(down[place]), 8, ha="right", color=GREY)
        boxes: dict[tuple[int, int], Box] = {}
        for (first, second), row in self.at.items():
            box = (left + (second - across[0]) * size, top + (first - down[0]) * size, size, size)
            sheet.cell(*box, row.accuracy)
            if (self.distribution, row.difficulty) in self.judge.trained:
                boxes[first, second] = box
        sheet.frame(boxes)
