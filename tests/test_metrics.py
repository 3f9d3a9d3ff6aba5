"""The metrics file: what is written comes back, a torn end is cut off, and on a full disk lines wait their turn."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metric_lines import TRAIN, VALIDATION

from pathmerge.training.metrics import TIME_FIELDS, MetricsFile, read_metrics


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
