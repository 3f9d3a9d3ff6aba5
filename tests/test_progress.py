"""The progress of a run as it is shown: plain lines, the panel of a terminal, and what becomes of both when it ends."""

from __future__ import annotations

import errno
import io
import math
import subprocess
import sys
from typing import Any

import pytest
from metric_lines import TRAIN, VALIDATION
from rich.console import Console

from pathmerge.training.progress import Progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def at(examples: int, **changed: Any) -> dict[str, Any]:
    return {**TRAIN, "examples": examples, **changed}


def test_plain_lines_exactly(capsys: pytest.CaptureFixture[str]):
    clock = Clock()
    with Progress(200_000, clock=clock) as progress:
        progress.note("resumed at 25,600 examples")
        progress.write(at(25_600, guard=0))  # the first, at once
        clock.now = 5.0
        progress.write(at(38_400))  # too soon
        progress.write({**VALIDATION, "examples": 38_400})
        progress.checkpointed()
        clock.now = 10.0
        progress.write(at(51_200))  # the time is up
        clock.now = 11.0
        progress.write({"kind": "stage", "examples": 51_200, "stage": "lookahead 1..4", "after": 0.99, "seconds": 1.0})
        progress.write(at(52_224, stage="lookahead 1..4"))  # nothing new
        progress.write(at(52_480, stage="lookahead 1..8"))  # a new stage
        progress.write({**VALIDATION, "examples": 52_480, "loss": 0.00123, "accuracy": 0.99999, "converged": True})
        progress.write({"kind": "end", "examples": 52_480, "reason": "converged", "flops": 2.5e15})
    captured = capsys.readouterr()
    assert captured.out == ""
    results = "examples  3,012/s  loss 1.234  accuracy 0.512  L1 0.81 L2 0.33"
    assert captured.err.splitlines() == [
        "resumed at 25,600 examples",
        f"  25,600 {results}  eta 0:57",
        "  38,400 examples  validation  loss 1.500  accuracy 0.498  L1 0.98 L2 0.20",
        "  38,400 examples  checkpoint written",
        f"  51,200 {results}  validation 0.498  eta 0:58  redrawn 12",
        "  51,200 examples  stage lookahead 1..4  after 0.990",
        f"  52,480 {results}  validation 0.498  eta 1:00  redrawn 12",
        "  52,480 examples  validation  loss 1.2e-03  accuracy 0.999  L1 0.98 L2 0.20  converged",
        "  52,480 examples  end converged  flops 2.5e+15",
    ]


def test_without_a_limit_there_is_no_eta_and_quiet_is_quiet(capsys: pytest.CaptureFixture[str]):
    for quiet in (False, True):
        with Progress(None, quiet) as progress:
            progress.write(at(256, by_difficulty={}))
            if quiet:
                progress.note("a note")
                progress.checkpointed()
    assert capsys.readouterr().err == "     256 examples  3,012/s  loss 1.234  accuracy 0.512  redrawn 12\n"


def by_lookahead(levels: range, step: int = 1) -> dict[str, list[int]]:
    return {f"lookahead={level}": [100 - level, 100] for level in levels[::step]}


@pytest.mark.parametrize(
    ("by_difficulty", "bands"),
    [
        ({}, ""),
        ({"lookahead=7": [0, 0]}, ""),
        ({"lookahead=7": [999, 1000]}, "  L7 0.99"),
        ({"lookahead=7": [57, 100]}, "  L7 0.57"),
        (by_lookahead(range(1, 6)), "  L1 0.99 L2 0.98 L3 0.97 L4 0.96 L5 0.95"),
        (by_lookahead(range(1, 9)), "  L1-2 0.98 L3-4 0.96 L5-6 0.94 L7-8 0.92"),
        (by_lookahead(range(1, 13)), "  L1-3 0.98 L4-6 0.95 L7-9 0.92 L10-12 0.89"),
        ({"backtrack=10": [1, 1], "backtrack=9": [0, 3]}, "  B9 0.00 B10 1.00"),
        ({"frontier=1,branch=2": [1, 4], "frontier=2,branch=2": [3, 4]}, "  F1 0.25 F2 0.75 B2 0.50"),
        ({"everything": [1, 2]}, ""),
    ],
)
def test_difficulties_stand_in_at_most_five_bands(
    by_difficulty: dict[str, Any], bands: str, capsys: pytest.CaptureFixture[str]
):
    Progress(None).write(at(256, by_difficulty=by_difficulty))
    expected = f"     256 examples  3,012/s  loss 1.234  accuracy 0.512{bands}  redrawn 12\n"
    assert capsys.readouterr().err == expected


def test_bands_do_not_move_when_a_window_lacks_some_levels(capsys: pytest.CaptureFixture[str]):
    progress = Progress(None, every=0)
    progress.write(at(256, by_difficulty=by_lookahead(range(1, 9))))
    progress.write(at(512, by_difficulty=by_lookahead(range(1, 9), step=5)))
    assert "  L1-2 0.99 L5-6 0.94  redrawn" in capsys.readouterr().err.splitlines()[1]


def test_no_line_is_too_wide_and_numbers_that_are_none_are_shown(capsys: pytest.CaptureFixture[str]):
    clock = Clock()
    progress = Progress(10**15, clock=clock, every=0)
    progress.write({**VALIDATION, "accuracy": math.nan, "loss": math.inf})
    wide = by_lookahead(range(1000, 9000, 1000))
    progress.write(at(10**12, guard=10**12, loss=math.nan, examples_per_second=1e9, by_difficulty=wide))
    progress.write({"kind": "end", "examples": 10**12, "reason": "word " * 100})
    lines = capsys.readouterr().err.splitlines()
    assert all(len(line) < 160 for line in lines)
    assert "loss inf  accuracy nan" in lines[0]
    assert "loss nan" in lines[1]
    assert "redrawn 1,000,000,000,000" in lines[1]


def terminal(width: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, record=True, _environ={"TERM": "xterm"})


def panel(width: int, total: int | None) -> list[str]:
    """The panel after a few lines, as text."""
    clock = Clock()
    progress = Progress(total, quiet=True, clock=clock)
    stage, by_difficulty = "lookahead 1..12", by_lookahead(range(1, 13))
    progress.write(at(25_600, by_difficulty=by_difficulty, stage=stage))
    progress.write({**VALIDATION, "examples": 25_600})
    clock.now = 8.5
    progress.checkpointed()
    progress.write(at(51_200, by_difficulty=by_difficulty, stage=stage))
    clock.now = 43.0
    console = terminal(width)
    console.print(progress._panel(width))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_the_panel_exactly_at_80_columns():
    assert panel(80, 1_000_000) == [
        "━━╺━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━  51,200 of 1,000,000  5.1%  eta 5:15",
        "training    loss 1.234   accuracy 0.512   learning rate 0.0003",
        "difficulty  L1-3 0.98   L4-6 0.95   L7-9 0.92   L10-12 0.89",
        "validation  loss 1.500   accuracy 0.498   at 25,600",
        "speed       3,012/s   mean 3,012/s   elapsed 0:43",
        "run         stage lookahead 1..12   redrawn 12   checkpoint 0:34 ago",
    ]


@pytest.mark.parametrize("width", [60, 120])
@pytest.mark.parametrize("total", [1_000_000, None])
def test_the_panel_has_the_same_fields_at_every_width(width: int, total: int | None):
    lines = panel(width, total)
    assert all(len(line) <= width for line in lines)
    assert len(lines) == (8 if width == 60 else 6)
    assert " ".join(" ".join(lines[1:]).split()) == " ".join(" ".join(panel(80, total)[1:]).split())
    assert (
        lines[0] == "examples 51,200" if total is None else lines[0].endswith("  51,200 of 1,000,000  5.1%  eta 5:15")
    )


def test_the_terminal_is_given_back_when_a_run_raises():
    console, before = terminal(80), (sys.stdout, sys.stderr)

    def run() -> None:
        with Progress(1_000_000, console=console) as progress:
            progress.note("resumed at 25,600 examples")
            progress.write(at(51_200))
            progress.write(VALIDATION)
            progress.write({"kind": "end", "examples": 51_200, "reason": "[interrupted]"})
            print("warning: something", file=sys.stderr)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert (sys.stdout, sys.stderr) == before
    assert isinstance(console.file, io.StringIO)
    written = console.file.getvalue()
    assert written.startswith("\x1b[?25l")  # the cursor is hidden
    assert written.rstrip().endswith("\x1b[?25h")  # and shown again
    text = console.export_text()
    for note in ("resumed at 25,600 examples", "   51,200 examples  end [interrupted]", "warning: something"):
        assert text.count(f"{note}\n") == 1
    assert "redrawn 12" in text


def test_the_panel_before_the_first_line():
    console = terminal(80)
    with Progress(10, console=console):
        pass
    assert "starting, 0:00" in console.export_text()


def test_a_terminal_that_is_gone_stops_nothing(monkeypatch: pytest.MonkeyPatch):
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(sys, "stderr", Gone())
    with Progress(None) as progress:
        progress.write(TRAIN)


def test_importing_is_light():
    heavy = ("torch", "matplotlib", "rich", "numpy", "wandb", "trackio", "tensorboard")
    code = "import sys, pathmerge.training.progress, pathmerge.training.sinks\n"
    code += f"print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
