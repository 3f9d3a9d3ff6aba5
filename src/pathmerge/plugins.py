"""Code of one's own: files that add distributions, models and studies to the catalogues.

Choices a reader could not guess:
- A plug-in is a Python file (or an installed package with an entry point in the group `pathmerge.plugins`). It is run
  once, before a command looks at its arguments, and adds to `DISTRIBUTIONS`, `MODELS` or `STUDIES`; `register` does
  that and judges the name.
- `--use FILE` puts the file into the environment variable PATHMERGE_PLUGINS, so that the processes of a study, on this
  machine or another, load it too.
- No name may be taken twice: a config says what it is by name, and a run is known by the hash of its config.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

VARIABLE = "PATHMERGE_PLUGINS"
_loaded: set[str] = set()
Kind = TypeVar("Kind", bound=type)
Result = TypeVar("Result")


def use(files: list[str]) -> None:
    """Remember these files for this process and those that it starts."""
    known = in_use()
    for file in files:
        path = Path(file).resolve()
        if not path.is_file():
            raise ValueError(f"use={file!r}: no such file")
        if path.suffix != ".py":
            raise ValueError(f"use={file!r}: must be a Python file, .py")
        if os.pathsep in str(path):
            raise ValueError(f"use={file!r}: its path must not contain {os.pathsep!r}, which separates files")
        known.append(str(path))
    if known:
        os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(known))


def in_use() -> list[str]:
    """The files that this process was told to use."""
    return [part for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]


def load_plugins() -> None:
    """Run every plug-in that has not run in this process."""
    for point in entry_points(group="pathmerge.plugins"):
        if point.value not in _loaded:
            try:
                point.load()
            except (Exception, SystemExit) as error:  # whatever someone's package may raise
                raise ValueError(f"plug-in {point.name!r}: {type(error).__name__}: {error}") from None
            _loaded.add(point.value)
    for file in in_use():
        if file not in _loaded:
            _run(Path(file))
            _loaded.add(file)


def guarded(method: Callable[..., Result], *given: Any) -> Result:
    """What a method gives; one of someone's own class that fails does so in one line, and ours as it is."""
    owner = type(getattr(method, "__self__", None))
    try:
        return method(*given)
    except ValueError:
        raise
    except Exception as error:
        if owner.__module__.startswith("pathmerge."):
            raise
        place = Path(sys.modules[owner.__module__].__file__ or "")
        reason = f"{_where(error, place)}{type(error).__name__}: {error}"
        raise ValueError(f"{owner.__name__}.{method.__name__}: {reason}") from None


def register(kind: Kind) -> Kind:
    """Add a distribution, the config of a model, or a study to its catalogue, under its `name`; for use as a decorator,
    above `@dataclass`."""
    catalogue, needed = _catalogue_of(kind)
    name = kind.__dict__.get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise ValueError(f"{kind.__name__}.name={name!r}: must be given, in small letters, digits and dashes")
    is_study = bool(needed)
    if not is_study and "__dataclass_params__" not in kind.__dict__:
        raise ValueError(f"{kind.__name__}: must be a dataclass: put @dataclass(frozen=True, kw_only=True) above it")
    missing = [*(part for part in needed if not hasattr(kind, part)), *getattr(kind, "__abstractmethods__", ())]
    if missing:
        raise ValueError(f"{kind.__name__}: must have {', '.join(sorted(missing))}")
    there = catalogue.get(name)
    owner = type(there) if is_study and there is not None else there
    # A file that failed half-way and is run again comes to the same names.
    if owner is not None and owner.__module__ != kind.__module__:
        raise ValueError(f"{kind.__name__}.name={name!r}: is the name of {owner.__module__}.{owner.__name__}")
    catalogue[name] = kind() if is_study else kind
    return kind


def _catalogue_of(kind: type) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Where a class belongs, and the words that a study must say of itself."""
    from pathmerge.distributions import DISTRIBUTIONS
    from pathmerge.models.config import MODELS, ModelConfig
    from pathmerge.problems.distribution import Distribution
    from pathmerge.studies.catalogue import STUDIES
    from pathmerge.studies.study import Study

    if issubclass(kind, Study):
        return STUDIES, ("figure", "question")
    for base, catalogue in ((Distribution, DISTRIBUTIONS), (ModelConfig, MODELS)):
        if issubclass(kind, base):
            return catalogue, ()
    raise ValueError(f"register: {kind.__name__} must be a Distribution, a ModelConfig or a Study")


def _run(path: Path) -> None:
    # The path is part of the name: two files of one name in two folders are two modules.
    name = f"pathmerge_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"use={str(path)!r}: must be a Python file, .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever someone's file may raise
        del sys.modules[name]
        raise ValueError(f"use={str(path)!r}: {_where(error, path)}{type(error).__name__}: {error}") from None


def _where(error: BaseException, path: Path) -> str:
    """The last line of the file that the error went through."""
    if isinstance(error, SyntaxError):
        return ""  # says it itself
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"line {lines[-1]}: " if lines else ""
