"""Tables of results for a terminal and as files.

Choices a reader could not guess:
- A file has the model's rows alone, in exactly the columns of `Row`; the baselines are in a second file beside it,
  `<name>.baselines.csv` (or .parquet), with one more column in front. Writing a table without baselines removes it.
- A distribution with two parameters and many cells (stars, selection, inference) is one line, its mean, in the printed
  table, and a grid of the model's accuracies below.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from math import isnan
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Lines
from rich.text import Text

from pathmerge.disk import check_output, write_csv, written_whole
from pathmerge.evaluation.accuracy import CONVERGED, Row, Table, cells_of
from pathmerge.show import make_console

COLUMNS = tuple(f.name for f in fields(Row))
SUFFIXES = (".csv", ".parquet")
MOST_LISTED = 6
NOTHING = "–"
_KINDS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("heuristic", "distribution", "difficulty"), str),
    **dict.fromkeys(("examples", "correct"), int),
    **dict.fromkeys(("accuracy", "low", "high", "loss"), float),
}


def print_report(table: Table, *, title: str = "", console: Console | None = None) -> None:
    """The model's accuracy with its interval, the baselines beside it, and grids where there are two parameters."""
    console = console or make_console()
    sections: list[list[tuple[Row, str]]] = []
    grids: list[list[Row]] = []
    for name in dict.fromkeys(row.distribution for row in table.rows):
        cells = cells_of(table.rows, name)
        means = [row for row in table.rows if row.distribution == name and row not in cells]
        large = bool(means) and len(cells) > MOST_LISTED and all(len(row.parameters) == 2 for row in cells)
        grids += [cells] if large else []
        listed = [] if large else [(row, row.difficulty) for row in cells]
        sections.append(listed + [(row, f"mean of {sum(cell.examples > 0 for cell in cells)}") for row in means])
    unbounded = console.options.update(max_width=10**6)
    tables = [_lines(table, sections, title, tightness) for tightness in range(3)]
    fitting = [lines for lines in tables if Measurement.get(console, unbounded, lines).maximum <= console.width]
    console.print([*fitting, tables[-1]][0])
    for cells in grids:
        _print_grid(console, cells)


def _lines(table: Table, sections: Sequence[Sequence[tuple[Row, str]]], title: str, tightness: int) -> Lines:
    """The listing; tighter: 1 with narrow columns, 2 also without the numbers of examples and the losses."""
    lines = Lines(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    lines.padding = (0, 0) if tightness else (0, 1)
    for name in ("distribution", "difficulty"):
        lines.add_column(name, no_wrap=True)
    for name in ("accuracy", "95% interval", *(() if tightness == 2 else ("examples", "loss")), *table.baselines):
        lines.add_column(name.replace(" ", "\n") if tightness else name, justify="right", no_wrap=True)
    for section in sections:
        for row, difficulty in section:
            found = [table.find(row.distribution, row.difficulty, judge) for judge in table.baselines]
            interval = NOTHING if isnan(row.low) else f"{row.low:.3f}..{row.high:.3f}"
            loss = NOTHING if isnan(row.loss) else f"{row.loss:.4f}"
            more = () if tightness == 2 else (f"{row.examples:,}", loss)
            beside = [Text(NOTHING) if other is None else _accuracy(other, 3) for other in found]
            lines.add_row(row.distribution, difficulty, _accuracy(row, 3), interval, *more, *beside)
        lines.add_section()
    return lines


def _accuracy(row: Row, places: int) -> Text:
    """Green where it counts as learned, for those who see colours."""
    if isnan(row.accuracy):
        return Text(NOTHING)
    return Text(f"{row.accuracy:.{places}f}", style="bold green" if row.accuracy >= CONVERGED else "")


def _print_grid(console: Console, cells: Sequence[Row]) -> None:
    """The first parameter down, the second across, in as many pieces as the width asks for."""
    down, across = cells[0].parameters
    at = {(row.parameters[down], row.parameters[across]): row for row in cells}
    values = sorted({column for _, column in at})
    fitting = max(1, (console.width - len(down) - 2) // 7)
    console.print(f"{cells[0].distribution}: accuracy by {down} (down) and {across} (across)")
    for begin in range(0, len(values), fitting):
        piece = values[begin : begin + fitting]
        lines = Lines(box=SIMPLE_HEAD, pad_edge=False)
        lines.add_column(down, justify="right")
        for column in piece:
            lines.add_column(str(column), justify="right", no_wrap=True)
        for line in sorted({line for line, column in at if column in piece}):
            found = [at.get((line, column)) for column in piece]
            lines.add_row(str(line), *(Text() if row is None else _accuracy(row, 2) for row in found))
        console.print(lines)


def baselines_path(path: Path) -> Path:
    """Where the baselines of a table file are."""
    return path.with_name(f"{path.stem}.baselines{path.suffix}")


def write_table(table: Table, path: Path | str) -> None:
    """Write the model's rows, and beside them the baselines' if there are any; the suffix chooses CSV or Parquet."""
    path = Path(path)
    beside = baselines_path(path)
    for file in (path, beside):
        check_output("out", file, SUFFIXES)
    baselines = [{"heuristic": name, **asdict(row)} for name, rows in table.baselines.items() for row in rows]
    if baselines:
        _write(beside, ("heuristic", *COLUMNS), baselines)
    else:
        beside.unlink(missing_ok=True)
    _write(path, COLUMNS, [asdict(row) for row in table.rows])


def _write(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    if path.suffix == ".csv":
        write_csv(path, rows, columns)
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    schema = pa.schema([(name, types[_KINDS[name]]) for name in columns])  # pyright: ignore[reportArgumentType]
    with written_whole(path) as temporary:
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), temporary)


def read_table(path: Path | str) -> Table:
    """Read what `write_table` wrote."""
    path = Path(path)
    beside = baselines_path(path)
    baselines: dict[str, list[Row]] = {}
    for values in _read(beside, ("heuristic", *COLUMNS)) if beside.is_file() else ():
        baselines.setdefault(values.pop("heuristic"), []).append(Row(**values))
    rows = tuple(Row(**values) for values in _read(path, COLUMNS))
    return Table(rows=rows, baselines={name: tuple(found) for name, found in baselines.items()})


def _read(path: Path, columns: tuple[str, ...]) -> Iterable[dict[str, Any]]:
    name = f"file={str(path)!r}"
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{name}: the name must end in one of {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise ValueError(f"{name}: no such file")
    try:
        header, rows = (_read_csv if path.suffix == ".csv" else _read_parquet)(path)
    except Exception as error:  # whatever csv or arrow make of foreign bytes
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{name}: cannot be read as a table, foreign or damaged ({reason})") from None
    if tuple(header) != columns:
        raise ValueError(f"{name}: has the columns {', '.join(header)}; must have {', '.join(columns)}")
    found: list[dict[str, Any]] = []
    for number, row in enumerate(rows, 1):
        try:
            found.append({column: _KINDS[column](value) for column, value in zip(columns, row, strict=True)})
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}: row {number}: {error}") from None
    return found


def _read_csv(path: Path) -> tuple[list[str], list[list[Any]]]:
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return header, rows


def _read_parquet(path: Path) -> tuple[list[str], list[list[Any]]]:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    return table.column_names, [list(row.values()) for row in table.to_pylist()]
