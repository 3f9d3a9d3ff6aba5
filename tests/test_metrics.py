"""What a run writes as it goes: the metrics file and its repair, the sinks and their failures, the progress shown."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import subprocess
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pathmerge.training.metrics import TIME_FIELDS, MetricsFile, read_metrics
from pathmerge.training.progress import Progress
from pathmerge.training.sinks import Sinks, open_sinks, scalars

TRAIN: dict[str, Any] = {
    "kind": "train",
    "examples": 51_200,
    "step": 200,
    "loss": 1.2344,
    "accuracy": 0.5129,
    "learning_rate": 3e-4,
    "gradient_norm": 0.7,
    "batch_size": 256,
    "stage": None,
    "guard": 12,
    "flops": 1.5e12,
    "by_difficulty": {"lookahead=1": [81, 100], "lookahead=2": [33, 100], "lookahead=3": [0, 0]},
    "seconds": 17.0,
    "examples_per_second": 3012.4,
}
VALIDATION: dict[str, Any] = {
    "kind": "validation",
    "examples": 51_200,
    "loss": 1.5,
    "accuracy": 0.4989,
    "by_difficulty": {"lookahead=1": 0.98, "lookahead=2": 0.2},
    "converged": False,
    "converged_each": False,
    "seconds": 18.0,
}


def lines_to(count: int) -> list[dict[str, Any]]:
    return [{"kind": "train", "examples": 256 * i, "loss": 1 / (i + 1)} for i in range(count)]


@given(st.lists(st.floats()))
def test_every_float_comes_back_from_strict_json(tmp_path_factory: pytest.TempPathFactory, values: list[float]):
    path = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
    with MetricsFile(path) as file:
        file.write({"kind": "train", "nested": {"values": values}})
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    (line,) = read_metrics(path)
    assert [value.hex() for value in line["nested"]["values"]] == [value.hex() for value in values]


def test_lines_come_back_as_they_were_and_the_length_is_that_of_the_file(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as file:
        for line in (TRAIN, VALIDATION):
            file.write(line)
            assert file.length == path.stat().st_size
        assert file.sync() == path.stat().st_size
    file.close()
    assert read_metrics(path) == [TRAIN, VALIDATION]
    assert {"seconds", "examples_per_second"} == TIME_FIELDS


def test_resuming_cuts_the_lines_after_the_checkpoint(tmp_path: Path):
    path, once = tmp_path / "metrics.jsonl", tmp_path / "once.jsonl"
    lines = lines_to(9)
    with MetricsFile(once) as file:
        for line in lines:
            file.write(line)
    with MetricsFile(path) as file:
        for line in lines[:4]:
            file.write(line)
        length = file.sync()
        for line in lines[4:7]:
            file.write(line)
    with path.open("ab") as torn:
        torn.write(b'{"kind": "tr')
    with MetricsFile.resume(path, length) as file:
        assert file.length == length == path.stat().st_size
        for line in lines[4:]:
            file.write(line)
    assert path.read_bytes() == once.read_bytes()


def test_a_torn_last_line_is_left_out_and_cut_off(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    lines = lines_to(3)
    whole = "".join(json.dumps(line) + "\n" for line in lines)
    for torn in ('{"kind": "tr', json.dumps(TRAIN), "x" * 200_000):
        path.write_text(whole + torn)
        assert read_metrics(path) == lines
        with MetricsFile(path) as file:
            file.write(TRAIN)
        assert read_metrics(path) == [*lines, TRAIN]
    path.write_text('{"kind": "tr')
    assert read_metrics(path) == []


def test_a_new_run_may_be_resumed_from_nothing(tmp_path: Path):
    with MetricsFile.resume(tmp_path / "metrics.jsonl", 0) as file:
        file.write(TRAIN)
    with MetricsFile.resume(tmp_path / "metrics.jsonl", 0) as file:
        assert file.length == 0


def test_damage_is_one_line(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    for length, message in ((19, "it has 18 bytes and the checkpoint knows of 19"), (10, "no line ends at byte 10")):
        with pytest.raises(ValueError, match=message):
            MetricsFile.resume(path, length)
    assert path.stat().st_size == 18
    for wrong in ("nonsense", "[1]", "\xff"):
        path.write_text(f'{{"a": 1}}\n{wrong}\n{{"a": 2}}\n', encoding="latin-1")
        with pytest.raises(ValueError, match="line 2 is damaged"):
            read_metrics(path)
    for open_it in (read_metrics, MetricsFile):
        with pytest.raises(ValueError, match=r"metrics='.*': No such file or directory$"):
            open_it(tmp_path / "missing" / "metrics.jsonl")


class FullDisk:
    """A file on a disk with room for so many bytes."""

    closed = False

    def __init__(self, room: int) -> None:
        self.room, self.data = room, b""

    def write(self, data: bytes) -> int:
        fitting = data[: max(0, self.room - len(self.data))]
        if not fitting:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.data += fitting
        return len(fitting)

    def truncate(self, size: int) -> None:
        self.data = self.data[:size]

    def close(self) -> None:
        self.closed = True


def on_a_full_disk(path: Path, room: int) -> tuple[MetricsFile, FullDisk]:
    file, disk = MetricsFile(path), FullDisk(room)
    file._file.close()
    file._file = disk  # pyright: ignore[reportAttributeAccessIssue]
    return file, disk


def test_a_full_disk_is_one_warning_and_lines_wait_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file, disk = on_a_full_disk(tmp_path / "metrics.jsonl", room=150)
    lines = lines_to(8)
    for line in lines[:6]:
        file.write(line)
    whole = disk.data[: file.length]
    assert 0 < len(whole) < len(disk.data) == 150  # a part of a line did fit
    assert whole.endswith(b"\n")
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 1
    assert "No space left on device" in warnings[0]
    disk.room = 10**6
    for line in lines[6:]:
        file.write(line)
    assert [json.loads(line) for line in disk.data.splitlines()] == lines
    assert file.length == len(disk.data)
    disk.room = 0
    file.write(TRAIN)
    file.close()
    assert disk.closed
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 2
    assert "the last 1 lines are lost" in warnings[1]


def test_a_checkpoint_on_a_full_disk_knows_the_lines_that_are_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with MetricsFile(tmp_path / "metrics.jsonl") as file:
        file.write(TRAIN)
        safe = file.sync()
        file.write(TRAIN)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            assert file.sync() == file.sync() == safe < file.length
        assert file.sync() == file.length
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_other_errors_of_the_disk_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file, disk = on_a_full_disk(tmp_path / "metrics.jsonl", room=10**6)

    def broken(_: bytes) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk, "write", broken)
    with pytest.raises(OSError, match="Input/output error"):
        file.write(TRAIN)


class FakePackage:
    """Takes the place of a package and keeps what was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.broken = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*positional: Any, **named: Any) -> FakePackage:
            if self.broken:
                raise RuntimeError("the disk\nis gone")
            self.calls.append((name, positional, named))
            return self

        return call

    def called(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(positional, named) for called, positional, named in self.calls if called == name]


MODULES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb", "trackio": "trackio"}


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakePackage]:
    for variable in ("WANDB_ERROR_REPORTING", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.setenv(variable, "")
    found = {name: FakePackage() for name in MODULES}
    for name, module in MODULES.items():
        monkeypatch.setitem(sys.modules, module, found[name])  # pyright: ignore[reportArgumentType]
    return found


def test_the_numbers_of_a_line_get_the_names_of_curves():
    assert scalars(TRAIN) == {
        "train/step": 200,
        "train/loss": 1.2344,
        "train/accuracy": 0.5129,
        "train/learning_rate": 3e-4,
        "train/gradient_norm": 0.7,
        "train/batch_size": 256,
        "train/guard": 12,
        "train/flops": 1.5e12,
        "train/lookahead=1": 0.81,
        "train/lookahead=2": 0.33,
        "train/seconds": 17.0,
        "train/examples_per_second": 3012.4,
    }
    assert scalars(VALIDATION)["validation/lookahead=2"] == 0.2
    assert scalars(VALIDATION)["validation/converged"] == 0


def test_each_sink_gets_its_curves_over_examples(packages: dict[str, FakePackage], tmp_path: Path):
    sinks = open_sinks(["tensorboard", "wandb", "trackio", "wandb"], tmp_path, "first", {"input_size": 64})
    for line in (TRAIN, VALIDATION, {"kind": "stage", "examples": 51_200, "stage": "2"}, {"kind": "end", "flops": 1.0}):
        sinks.write(line)
    sinks.close()
    expected = [scalars(TRAIN), scalars(VALIDATION)]

    board = packages["tensorboard"]
    assert board.called("SummaryWriter") == [((), {"log_dir": str(tmp_path / "tensorboard")})]
    assert board.called("add_scalar") == [(item, {"global_step": 51_200}) for line in expected for item in line.items()]
    assert '"input_size": 64' in board.called("add_text")[0][0][1]
    assert len(board.called("close")) == 1

    ((_, asked),) = packages["wandb"].called("init")
    assert (asked["mode"], asked["name"], asked["dir"]) == ("offline", "first", str(tmp_path))
    assert asked["config"] == {"input_size": 64}
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"
    assert packages["wandb"].called("define_metric")[1] == (("*",), {"step_metric": "examples"})
    assert packages["wandb"].called("log") == [(({"examples": 51_200, **line},), {}) for line in expected]
    assert len(packages["wandb"].called("finish")) == 1

    assert packages["trackio"].called("init")[0][1]["name"] == "first"
    assert packages["trackio"].called("log") == [((line,), {"step": 51_200}) for line in expected]
    assert len(packages["trackio"].called("finish")) == 1


@pytest.mark.parametrize("name", MODULES)
def test_a_sink_that_fails_is_dropped_with_one_warning(
    name: str, packages: dict[str, FakePackage], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    other = "trackio" if name == "wandb" else "wandb"
    sinks = open_sinks([name, other], tmp_path, "first", {})
    packages[name].broken = True
    for _ in range(3):
        sinks.write(TRAIN)
    packages[name].broken = False
    sinks.write(TRAIN)
    sinks.close()
    captured = capsys.readouterr()
    assert captured.err == f"warning: sink={name!r}: failed and is dropped (the disk is gone)\n"
    assert captured.out == ""
    assert len(packages[other].called("log")) == 4


def test_a_sink_that_fails_when_closed_is_a_warning(capsys: pytest.CaptureFixture[str]):
    class Stubborn:
        def write(self, line: Mapping[str, Any]) -> None: ...

        def close(self) -> None:
            raise RuntimeError

    sinks = Sinks({"wandb": Stubborn()})
    sinks.close()
    sinks.close()
    assert capsys.readouterr().err == "warning: sink='wandb': failed when closed (RuntimeError)\n"


@pytest.mark.parametrize("name", MODULES)
def test_a_missing_package_is_one_line_that_says_what_to_install(
    name: str, packages: dict[str, FakePackage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if name == "tensorboard":  # what torch's own module raises then
        monkeypatch.setitem(sys.modules, MODULES[name], _Missing("torch.utils.tensorboard"))
    else:
        monkeypatch.setitem(sys.modules, name, None)  # pyright: ignore[reportArgumentType]
    first = "wandb" if name == "trackio" else "trackio"
    with pytest.raises(ValueError, match=rf"^sink='{name}': not installed; pip install \"pathmerge\[{name}\]\"$"):
        open_sinks([first, name], tmp_path, "first", {})
    assert len(packages[first].called("finish")) == 1


class _Missing(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        raise ModuleNotFoundError("No module named 'tensorboard'", name="tensorboard")


def test_bad_sinks_are_one_line(packages: dict[str, FakePackage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match=r"^sink='wandbb': must be one of .* \(did you mean wandb\?\)$"):
        open_sinks(["trackio", "wandbb"], tmp_path, "first", {})
    assert packages["trackio"].calls == []
    packages["wandb"].broken = True
    with pytest.raises(ValueError, match=r"^sink='wandb': cannot be opened \(the disk is gone\)$"):
        open_sinks(["wandb"], tmp_path, "first", {})
    monkeypatch.setenv("TRACKIO_SPACE_ID", "someone/somewhere")
    with pytest.raises(ValueError, match="TRACKIO_SPACE_ID is set"):
        open_sinks(["trackio"], tmp_path, "first", {})


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
