"""Sinks: where a run's lines go besides its metrics file: TensorBoard, wandb, trackio.

Choices a reader could not guess:
- A sink draws curves and the x axis is always the number of examples. A line's numbers become `train/loss`,
  `validation/accuracy`; accuracy by difficulty becomes `validation/lookahead=3`. Text is left out, and so is a line
  without numbers or without its `examples`.
- A package is imported when its sink is asked for. A sink that cannot be opened is bad input and ends the run before
  it begins; one that fails later is dropped with one warning, and the run goes on.
- Nothing of a run leaves the machine: wandb runs offline with its error reports off (`wandb sync` sends a run by hand),
  and trackio is refused where its environment variables name a server. The one request left: trackio asks Hugging Face
  for the name of a user who is logged in there.
- On resume a sink may repeat lines: it is not cut back to the checkpoint as the metrics file is. TensorBoard draws the
  repeated part over itself; wandb and trackio begin another run of the same name. The metrics file is the truth.
- wandb and TensorBoard write below the run's directory. trackio has one place for all runs, which `trackio show` reads.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from pathmerge.errors import check_choice
from pathmerge.training.metrics import warn

PROJECT = "pathmerge"
_TRACKIO_SERVERS = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")


class Sink(Protocol):
    """What takes the lines of a run."""

    def write(self, line: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line under the names of their curves."""
    kind = line["kind"]
    found: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, (int, float)) and name != "examples":
            found[f"{kind}/{name}"] = int(value) if isinstance(value, bool) else value
    for difficulty, value in line.get("by_difficulty", {}).items():
        if isinstance(value, (int, float)):
            found[f"{kind}/{difficulty}"] = value
        elif value[1] > 0:
            found[f"{kind}/{difficulty}"] = value[0] / value[1]
    return found


class TensorBoardSink:
    """Event files in the folder `tensorboard` of the run."""

    def __init__(self, directory: Path, name: str, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(log_dir=str(directory / "tensorboard"))
        text = json.dumps({"run": name, "config": dict(config)}, indent=2, default=str)
        self._writer.add_text("config", "\n".join(f"    {line}" for line in text.splitlines()))

    def write(self, line: Mapping[str, Any]) -> None:
        for name, value in scalars(line).items():
            self._writer.add_scalar(name, value, global_step=line["examples"])

    def close(self) -> None:
        self._writer.close()


class WandbSink:
    """An offline run in the folder `wandb` of the run."""

    def __init__(self, directory: Path, name: str, config: Mapping[str, Any]) -> None:
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        import wandb  # pyright: ignore[reportMissingImports]

        self._run: Any = wandb.init(
            mode="offline",
            project=PROJECT,
            name=name,
            dir=str(directory),
            config=dict(config),
            save_code=False,
            # Without "off" wandb takes over stdout and stderr, and a terminal is no longer known as one.
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("examples")
        self._run.define_metric("*", step_metric="examples")

    def write(self, line: Mapping[str, Any]) -> None:
        self._run.log({"examples": line["examples"], **scalars(line)})

    def close(self) -> None:
        self._run.finish()


class TrackioSink:
    """A run in trackio's own folder on this machine."""

    def __init__(self, directory: Path, name: str, config: Mapping[str, Any]) -> None:
        for variable in _TRACKIO_SERVERS:
            if os.environ.get(variable):
                raise ValueError(f"{variable} is set, and this sink only writes to this machine; unset it")
        import trackio  # pyright: ignore[reportMissingImports]

        self._finish: Callable[[], None] = trackio.finish
        with redirect_stdout(io.StringIO()):
            self._run: Any = trackio.init(project=PROJECT, name=name, config=dict(config), embed=False)

    def write(self, line: Mapping[str, Any]) -> None:
        self._run.log(scalars(line), step=line["examples"])

    def close(self) -> None:
        with redirect_stdout(io.StringIO()):
            self._finish()


SINKS: dict[str, Callable[[Path, str, Mapping[str, Any]], Sink]] = {
    "tensorboard": TensorBoardSink,
    "wandb": WandbSink,
    "trackio": TrackioSink,
}


class Sinks:
    """Several sinks as one; what fails is dropped."""

    def __init__(self, sinks: Mapping[str, Sink]) -> None:
        self._sinks = dict(sinks)

    def write(self, line: Mapping[str, Any]) -> None:
        if "examples" not in line or not scalars(line):
            return
        for name, sink in list(self._sinks.items()):
            try:
                sink.write(line)
            except Exception as error:  # whatever a foreign package raises
                warn(f"sink={name!r}: failed and is dropped ({_reason(error)})")
                del self._sinks[name]
                with suppress(Exception):
                    sink.close()

    def close(self) -> None:
        for name, sink in self._sinks.items():
            try:
                sink.close()
            except Exception as error:
                warn(f"sink={name!r}: failed when closed ({_reason(error)})")
        self._sinks = {}


def check_sinks(names: Iterable[str]) -> None:
    """Raise, before anything is written, if a name is unknown or its package is not installed."""
    for name in names:
        check_choice("sink", name, tuple(SINKS))
        if name not in sys.modules and find_spec(name) is None:
            raise ValueError(f'sink={name!r}: not installed; pip install "pathmerge[{name}]"')


def open_sinks(names: Iterable[str], run_directory: Path | str, run_name: str, config: Mapping[str, Any]) -> Sinks:
    """Open the sinks of these names; all names are checked before any is opened, and none stays open if one fails."""
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        check_choice("sink", name, tuple(SINKS))
    opened: dict[str, Sink] = {}
    try:
        for name in chosen:
            opened[name] = _open(name, Path(run_directory), run_name, config)
    except BaseException:
        Sinks(opened).close()
        raise
    return Sinks(opened)


def _open(name: str, directory: Path, run_name: str, config: Mapping[str, Any]) -> Sink:
    try:
        return SINKS[name](directory, run_name, config)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise ValueError(f'sink={name!r}: not installed; pip install "pathmerge[{name}]"') from None
        raise ValueError(f"sink={name!r}: cannot be opened ({_reason(error)})") from None
    except Exception as error:
        raise ValueError(f"sink={name!r}: cannot be opened ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
