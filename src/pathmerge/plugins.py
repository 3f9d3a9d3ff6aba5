"""Code of one's own: files that add distributions, models and studies to the catalogues.

Choices a reader could not guess:
- A plug-in is a Python file (or an installed package with an entry point in the group `pathmerge.plugins`). It is run
  once, before a command looks at its arguments, and adds to `DISTRIBUTIONS`, `MODELS` or `STUDIES`.
- `--use FILE` puts the file into the environment variable PATHMERGE_PLUGINS, so that the processes of a study, on this
  machine or another, load it too.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.metadata import entry_points
from pathlib import Path

VARIABLE = "PATHMERGE_PLUGINS"
_loaded: set[str] = set()


def use(files: list[str]) -> None:
    """Remember these files for this process and those that it starts."""
    known = [part for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]
    for file in files:
        path = Path(file)
        if not path.is_file():
            raise ValueError(f"use={file!r}: no such file")
        known.append(str(path.resolve()))
    if known:
        os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(known))


def load_plugins() -> None:
    """Run every plug-in that has not run in this process."""
    for point in entry_points(group="pathmerge.plugins"):
        if point.value not in _loaded:
            _loaded.add(point.value)
            point.load()
    for file in os.environ.get(VARIABLE, "").split(os.pathsep):
        if file and file not in _loaded:
            _loaded.add(file)
            _run(Path(file))


def _run(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(f"pathmerge_plugin_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"use={str(path)!r}: must be a Python file, .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever someone's file may raise
        raise ValueError(f"use={str(path)!r}: {type(error).__name__}: {error}") from None
