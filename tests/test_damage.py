"""A damaged checkpoint is named and the one before it taken; a full disk costs checkpoints but not the run.

What cannot be gone on with, and a place that cannot be written to, are refused in one line, and nothing is overwritten.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from short_runs import PLAIN, check_no_half_files, check_same, newest, snapshot, write_config

from pathmerge.cli import main
from pathmerge.training import checkpoint as checkpoints
from pathmerge.training.checkpoint import load_checkpoint, save_checkpoint
from pathmerge.training.config import RunConfig
from pathmerge.training.loop import Trainer, train

# Damage.


def flip(place: float) -> Callable[[Path], Any]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[min(int(place * len(data)), len(data) - 1)] ^= 1
        path.write_bytes(data)

    return damage


def cut(share: float) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def fill_with(data: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "first byte": flip(0),
    "a byte": flip(0.4),
    "last byte": flip(1),
    "empty": cut(0),
    "half": cut(0.5),
    "gone": lambda path: path.unlink(),
    "null": fill_with(b"null"),
    "other JSON": fill_with(b'{"checksum": "", "checkpoint": 3}'),
    "not text": fill_with(b"\xff\xfe{}"),
}


NEWEST, OLDER = "000000000000352", "000000000000320"


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("suffix", ["safetensors", "json"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(
    suffix: str,
    damage: str,
    broken: Path,
    reference: Callable[[RunConfig], Path],
    capsys: pytest.CaptureFixture[str],
):
    DAMAGES[damage](broken / "checkpoints" / f"{NEWEST}.{suffix}")
    assert main(["train", str(broken)]) == 0
    said = capsys.readouterr().err
    warnings = {line for line in said.splitlines() if line.startswith("warning: ")}
    if (suffix, damage) == ("json", "gone"):
        # Nothing is known of a checkpoint without its JSON: a kill while it is written leaves the same.
        assert warnings == set()
    else:
        assert len(warnings) == 1
        (warning,) = warnings
        assert f"checkpoint={str(broken / 'checkpoints' / NEWEST)!r}"[:-1] in warning
        assert warning.endswith("going back to the one before")
    assert "resumed at 320 examples" in said
    check_same(broken, reference(PLAIN))


def test_a_damaged_checkpoint_is_not_one_of_the_two_that_are_kept(tmp_path: Path):
    for examples in (100, 200, 300):
        save_checkpoint(tmp_path, {"x": torch.ones(2)}, {"examples": examples}, milestone=False)
    flip(0.5)(tmp_path / "000000000000300.safetensors")
    for examples in (220, 240, 260):
        save_checkpoint(tmp_path, {"x": torch.ones(2)}, {"examples": examples}, milestone=False)
    good = {240, 260}
    for examples in good:
        assert load_checkpoint(tmp_path / f"{examples:015d}.json").examples == examples


def test_when_all_checkpoints_are_damaged_nothing_is_overwritten(broken: Path, capsys: pytest.CaptureFixture[str]):
    flip(0.5)(broken / "checkpoints" / f"{NEWEST}.safetensors")
    cut(0.5)(broken / "checkpoints" / f"{OLDER}.json")
    before = snapshot(broken)
    assert main(["train", str(broken)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in said] == ["warning", "warning", "pathmerge train"]
    assert said[-1].endswith("all 2 are damaged; remove them to start anew")
    assert snapshot(broken) == before
    assert main(["evaluate", str(broken)]) == 2
    assert snapshot(broken) == before


def test_metrics_shorter_than_the_checkpoint_knows_are_refused(broken: Path, capsys: pytest.CaptureFixture[str]):
    cut(0.3)(broken / "metrics.jsonl")
    before = snapshot(broken)
    assert main(["train", str(broken), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "damaged, it has" in said
    assert said.count("\n") == 1
    assert snapshot(broken) == before


def test_a_checkpoint_of_other_shapes_is_one_line(broken: Path, capsys: pytest.CaptureFixture[str]):
    found = newest(broken)
    name = "model/blocks.0.q.weight"
    other = {**found.tensors, name: found.tensors[name][:, 1:]}
    save_checkpoint(broken / "checkpoints", other, found.state, milestone=False)
    before = snapshot(broken)
    assert main(["train", str(broken), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "'blocks.0.q.weight' has shape (24, 23), the model's has (24, 24)" in said
    assert said.count("\n") == 1
    assert snapshot(broken) == before


def test_a_checkpoint_of_another_optimizer_or_config_is_one_line(broken: Path, capsys: pytest.CaptureFixture[str]):
    found = newest(broken)
    tensors = {name: value for name, value in found.tensors.items() if not name.endswith("/square")}
    save_checkpoint(broken / "checkpoints", tensors, found.state, milestone=False)
    assert main(["train", str(broken), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "optimizer state: missing entry" in said
    assert said.count("\n") == 1
    save_checkpoint(broken / "checkpoints", found.tensors, {**found.state, "config": "other"}, milestone=False)
    assert main(["train", str(broken), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "its checkpoints are of another config" in said
    assert said.count("\n") == 1


# A disk that does not take what is written.


@pytest.mark.parametrize("where", ["open", "write", "fsync", "replace"])
def test_a_full_disk_costs_checkpoints_but_not_the_run(
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reference: Callable[[RunConfig], Path],
    capsys: pytest.CaptureFixture[str],
):
    """No checkpoint fits from 200 to 500 examples; the last good one can be loaded all the while."""
    run = tmp_path / PLAIN.run_name
    full = [False]
    states: list[tuple[int, int]] = []
    original_report = Trainer._report

    def report(self: Trainer) -> None:
        original_report(self)
        full[0] = 200 <= self.examples <= 500
        if self.step > 1:
            states.append((self.examples, newest(run).examples))
            check_no_half_files(run)  # they would take the room that is needed

    class Full:
        """A file without room for its second half."""

        def __init__(self, file: Any) -> None:
            self._file = file

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def write(self, data: bytes) -> int:
            self._file.write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    originals: dict[str, Callable[..., Any]] = {"open": Path.open, "fsync": os.fsync, "replace": os.replace}

    def refuse(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*positional: Any, **named: Any) -> Any:
            # The metrics file is opened before and synced in another place; here only checkpoints are refused.
            caller = sys._getframe(1).f_code.co_name
            if not full[0] or caller != "_write":
                return original(*positional, **named)
            if where == "write":
                return Full(original(*positional, **named))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return call

    monkeypatch.setattr(Trainer, "_report", report)
    if where in ("open", "write"):
        monkeypatch.setattr(Path, "open", refuse(originals["open"]))
    else:
        monkeypatch.setattr(os, where, refuse(originals[where]))
    train(PLAIN, tmp_path, quiet=True, save_every=0)
    # A report is made before the checkpoint of its step.
    expected = [(at, at - 32 if at - 32 < 200 or at - 32 > 500 else 192) for at in range(64, 641, 32)]
    assert states == expected
    warnings = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1] for line in warnings] == [
        f" no checkpoint at {at} examples" for at in range(224, 481, 32)
    ]
    assert all(line.endswith(": No space left on device; the last good one stays") for line in warnings)
    check_same(run, reference(PLAIN))


def test_a_disk_full_at_the_end_is_not_called_finished(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reference: Callable[[RunConfig], Path],
    capsys: pytest.CaptureFixture[str],
):
    original = Trainer._save

    def save(self: Trainer, *positional: Any, **named: Any) -> bool:
        if self.examples <= 320:
            return original(self, *positional, **named)
        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "_write", refuse)
            return original(self, *positional, **named)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = write_config(PLAIN, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_save", save)
        code = main(["train", str(path), "--out", str(tmp_path), "--quiet", "--save-every", "0"])
    captured = capsys.readouterr()
    assert newest(tmp_path / PLAIN.run_name).examples == 320
    # With room again the same command brings it to its end.
    assert main(["train", str(path), "--out", str(tmp_path), "--quiet"]) == 0
    check_same(tmp_path / PLAIN.run_name, reference(PLAIN))
    assert code != 0
    assert "finished" not in captured.out


def private_mounts_work() -> bool:
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.long
@pytest.mark.skipif(not private_mounts_work(), reason="needs the right to mount")
def test_a_really_full_disk(tmp_path: Path, reference: Callable[[RunConfig], Path]):
    """A disk of its own for the run, taken up by another file until it is removed while the run goes on."""
    config = replace(PLAIN, training=replace(PLAIN.training, examples=32 * 400, log_every=32))
    path = write_config(config, tmp_path)
    (tmp_path / "disk").mkdir()
    train_it = f"{sys.executable} -m pathmerge train {path} --out disk --save-every 0"
    script = f"""
        mount -t tmpfs -o size=400k none disk || exit 9
        {train_it} 2> first.log &
        while ! ls disk/*/checkpoints/*.json 2> ls.log; do sleep 0.05; done
        dd if=/dev/zero of=disk/filler bs=1k 2> dd.log
        while [ $(grep -c 'no checkpoint' first.log) -lt 3 ]; do sleep 0.05; done
        kill -9 $!
        wait
        rm disk/filler
        {train_it} 2> second.log || exit 8
        cp -r disk/{config.run_name} found
    """
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], cwd=tmp_path, timeout=300, check=False)
    assert done.returncode == 0, [p.read_text() for p in tmp_path.glob("*.log")]
    assert "No space left on device" in (tmp_path / "first.log").read_text()
    assert "resumed at" in (tmp_path / "second.log").read_text()
    check_same(tmp_path / "found", reference(config))


def test_a_place_that_cannot_be_written_to_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    path = write_config(PLAIN, tmp_path)
    (tmp_path / "file").write_text("mine")
    for out in ("file", "file/below"):
        assert main(["train", str(path), "--out", str(tmp_path / out), "--quiet"]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"pathmerge train: out={str(tmp_path / out)!r}: ")
        assert said.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"
    # Root may write anywhere, so the answer of the system is replaced.
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert main(["train", str(path), "--out", str(tmp_path / "closed"), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "cannot be written to" in said
    assert said.count("\n") == 1
    assert not list((tmp_path / "closed").rglob("*.toml"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_place_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = write_config(PLAIN, tmp_path)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    assert main(["train", str(path), "--out", str(closed), "--quiet"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(closed.iterdir()) == []
