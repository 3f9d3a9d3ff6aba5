"""Sinks: each gets its curves, one that fails is dropped with a warning, and one that is missing is named at once."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from metric_lines import TRAIN, VALIDATION

from pathmerge.training.sinks import Sinks, open_sinks, scalars


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
