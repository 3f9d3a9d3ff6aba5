"""A run as it goes: a live panel on a terminal, plain lines elsewhere; both on stderr.

Choices a reader could not guess:
- Live only inside `with`, which gives the terminal back also when the run raises; without it, plain lines.
- Accuracies are cut, not rounded: 1.000 means that every one was right.
- Difficulties stand together in at most 5 bands of equally many levels: L1-4 is lookahead 1 to 4. The levels are those
  met so far, so that a band does not move when a short window has none of its problems.
- A line's `until`, the end as far as it is known by then, takes the place of `total`.
- The speed is the line's own; the mean and the eta count from the first line seen here, pauses for validation included.
  The eta is to the limit of examples; a run that converges ends sooner.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pathmerge.training.metrics import TIME_FIELDS

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

MOST_BANDS = 5
WIDEST = 159
LABEL_WIDTH = 12

Fields = list[tuple[str, str]]
"""What is shown: names and values as text. A name or a value may be empty."""


class Progress:
    """A sink that shows the lines of a run; `total` is the limit of examples, if there is one."""

    def __init__(
        self,
        total: int | None,
        quiet: bool = False,
        *,
        every: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        console: Console | None = None,
    ) -> None:
        self._total, self._quiet, self._every, self._clock, self._console = total, quiet, every, clock, console
        self._live: Live | None = None
        self._began = clock()
        self._first: tuple[float, int] | None = None
        self._latest: tuple[float, int] | None = None
        self._printed: float | None = None
        self._saved: float | None = None
        self._train: Mapping[str, Any] = {}
        self._validation: Mapping[str, Any] = {}
        self._stage: Any = None
        self._levels: dict[str, set[int]] = {}

    def __enter__(self) -> Progress:
        if not self._quiet and (self._console is not None or sys.stderr.isatty()):
            from rich.console import Console
            from rich.live import Live

            console = self._console or Console(stderr=True)
            if console.is_terminal and not console.is_dumb_terminal:
                # What is printed to stdout must not break the panel, and must still reach a file.
                both = sys.stdout.isatty()
                self._live = Live(
                    get_renderable=lambda: self._panel(console.width), console=console, redirect_stdout=both
                )
                self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the terminal back; what was shown last stays."""
        live, self._live = self._live, None
        if live is not None:
            with suppress(OSError):
                live.stop()

    def note(self, text: str) -> None:
        """A message of one line."""
        with suppress(OSError):  # a terminal that is gone is no reason to stop
            if self._live is not None:
                self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
            elif not self._quiet:
                print(text, file=sys.stderr, flush=True)

    def checkpointed(self) -> None:
        """A checkpoint was written just now: the panel shows its age, plain output says so."""
        self._saved = self._clock()
        if self._live is None:
            self.note(self._with_examples([("checkpoint", "written")]))

    def write(self, line: Mapping[str, Any]) -> None:
        """Take a line in, and show it if it is time."""
        now, kind = self._clock(), line["kind"]
        self._total = line.get("until", self._total)
        if "examples" in line:
            self._latest = (now, line["examples"])
            self._first = self._first or self._latest
        met = {column: set(levels) for column, levels in _tally(line).items()}
        self._levels = self._levels | {column: self._levels.get(column, set()) | met[column] for column in met}
        new_stage = line.get("stage", self._stage) != self._stage
        self._stage = line.get("stage", self._stage)
        if kind == "train":
            self._train = line
            due = new_stage or self._printed is None or now - self._printed >= self._every
            if due and self._live is None:
                self._printed = now
                self.note(self._plain(line))
        elif kind == "validation":
            self._validation = line
            if self._live is None:
                self.note(self._plain(line))
        else:
            self.note(self._plain(line))

    def _plain(self, line: Mapping[str, Any]) -> str:
        """A line as text; its bands become fewer until it is narrow enough."""
        text = ""
        for most in range(MOST_BANDS, -1, -1):
            bands = [("", " ".join(f"{name} {value}" for name, value in self._bands(line, most)))]
            if line["kind"] == "train":
                fields = _field("", line.get("examples_per_second"), "{:,.0f}/s".format) + _results(line) + bands
                fields += _field("validation", self._validation.get("accuracy"), cut)
                fields += self._eta() + _field("redrawn", line.get("guard") or None, "{:,}".format)
            elif line["kind"] == "validation":
                fields = [("validation", ""), *_results(line), *bands]
                fields += [("converged", "")] if line.get("converged") else []
            else:
                fields = _others(line)
            text = self._with_examples(fields)
            if len(text) <= WIDEST:
                break
        return text[:WIDEST]

    def _with_examples(self, fields: Fields) -> str:
        if self._latest is not None:
            width = max(8, len(f"{self._total or 0:,}"))
            fields = [(f"{self._latest[1]:,}".rjust(width), "examples"), *fields]
        texts = [" ".join(part for part in field if part) for field in fields]
        return "  ".join(text for text in texts if text)

    def _bands(self, line: Mapping[str, Any], most: int = MOST_BANDS) -> Fields:
        """A line's accuracy in bands of difficulty; those without problems are left out."""
        tally, found = _tally(line), Fields()
        for column, met in self._levels.items():
            levels = sorted(met)
            size = math.ceil(len(levels) / max(1, most // len(self._levels)))
            for band in (levels[start : start + size] for start in range(0, len(levels), size)):
                pairs = [tally[column][level] for level in band if level in tally.get(column, {})]
                if count := sum(pair[1] for pair in pairs):
                    name = f"{band[0]}-{band[-1]}" if len(band) > 1 else f"{band[0]}"
                    found.append((f"{column[0].upper()}{name}", cut(sum(pair[0] for pair in pairs) / count, 2)))
        return found[:most]

    def _mean(self) -> float | None:
        """Examples a second since the first line."""
        if self._first is None or self._latest is None or self._latest[0] <= self._first[0]:
            return None
        return (self._latest[1] - self._first[1]) / (self._latest[0] - self._first[0])

    def _eta(self) -> Fields:
        rate = self._mean() or self._train.get("examples_per_second")
        if self._total is None or self._latest is None or not rate:
            return []
        return [("eta", _duration(max(0, self._total - self._latest[1]) / rate))]

    def _panel(self, width: int) -> RenderableType:
        """The bar, and below it a row of fields for each topic."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        now, train, validation = self._clock(), self._train, self._validation
        if self._latest is None:
            return f"starting, {_duration(now - self._began)}"
        done, total = self._latest[1], self._total
        head = Table.grid(padding=(0, 2), expand=total is not None)
        if total is None:
            head.add_row(_row([("examples", f"{done:,}")], width))
        else:
            head.add_column(ratio=1)
            head.add_column(no_wrap=True)
            counts = [("", f"{done:,} of {total:,}"), ("", f"{cut(100 * done / max(1, total), 1)}%"), *self._eta()]
            head.add_row(ProgressBar(total=total, completed=min(done, total)), _row(counts, width, gap=2))
        topics: dict[str, Fields] = {
            "training": _results(train) + _field("learning rate", train.get("learning_rate"), "{:.3g}".format),
            "difficulty": self._bands(train),
            "validation": _results(validation) + _field("at", validation.get("examples"), "{:,}".format),
            "speed": _field("", train.get("examples_per_second"), "{:,.0f}/s".format)
            + _field("mean", self._mean(), "{:,.0f}/s".format)
            + _field("elapsed", now - self._began, _duration),
            "run": _field("stage", self._stage, str)
            + _field("redrawn", train.get("guard"), "{:,}".format)
            + _field("checkpoint", self._saved, lambda saved: f"{_duration(now - saved)} ago"),
        }
        rows = Table.grid()
        rows.add_column(width=LABEL_WIDTH, style="cyan")
        for topic, fields in topics.items():
            if fields:
                rows.add_row(topic, _row(fields, width - LABEL_WIDTH, colours=topic == "difficulty"))
        return Group(head, rows)


def _row(fields: Fields, width: int, *, gap: int = 3, colours: bool = False) -> Text:
    """Fields beside each other; one that no longer fits begins a new line."""
    from rich.text import Text

    row, column = Text(), 0
    for name, value in fields:
        style = "bold" if not colours else "red" if float(value) < 0.5 else "yellow" if float(value) < 0.95 else "green"
        text = Text.assemble((f"{name} " if name else "", "dim"), (value, style))
        if column > 0:
            fits = column + gap + len(text) <= width
            row.append(" " * gap if fits else "\n")
            column = column + gap if fits else 0
        row.append_text(text)
        column += len(text)
    return row


def _field(name: str, value: Any, style: Callable[[Any], str]) -> Fields:
    """A field, or none where there is no value."""
    return [] if value is None else [(name, style(value))]


def _results(line: Mapping[str, Any]) -> Fields:
    return _field("loss", line.get("loss"), _number) + _field("accuracy", line.get("accuracy"), cut)


def _others(line: Mapping[str, Any]) -> Fields:
    """The fields of a line that is neither of training nor of validation."""
    hidden = {"kind", "examples", "stage", "reason", "by_difficulty", *TIME_FIELDS}
    found = [(line["kind"], str(line.get("stage" if line["kind"] == "stage" else "reason", "")))]
    return found + [(name.replace("_", " "), _number(value)) for name, value in line.items() if name not in hidden]


def _tally(line: Mapping[str, Any]) -> dict[str, dict[int, tuple[float, float]]]:
    """Right answers and problems by column and level; an accuracy alone counts as one problem."""
    tally: dict[str, dict[int, tuple[float, float]]] = {}
    for difficulty, value in line.get("by_difficulty", {}).items():
        right, count = (value, 1) if isinstance(value, (int, float)) else value
        for column, level in re.findall(r"(\w+)=(\d+)", difficulty):
            before = tally.setdefault(column, {}).get(int(level), (0, 0))
            tally[column][int(level)] = (before[0] + right, before[1] + count)
    return tally


def cut(value: float, digits: int = 3) -> str:
    """Cut after so many digits; the small term makes up for 0.57 × 100 being less than 57."""
    return f"{math.floor(value * 10**digits + 1e-9) / 10**digits:.{digits}f}" if math.isfinite(value) else str(value)


def _number(value: Any) -> str:
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:.3f}" if value == 0.0 or 0.01 <= abs(value) < 10**6 else f"{value:.1e}"


def _duration(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
