"""How kernels are compiled and where the result is kept.

Choices a reader could not guess:
- numba's cache looks only at the file of the outermost function, so a change in a helper of another file would go
  unnoticed. The cache directory therefore carries a digest of every file in this room.
- Reference counting is off (`_nrt=False`): with it each call of a helper costs two atomic operations per array, which
  made a bounded draw 60 ns instead of 2. Kernels allocate nothing, so there is nothing to count.
- `error_model="numpy"`: no exception paths in the inner loops.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba.core import config, types
from numba.extending import intrinsic, overload


def _cache_directory() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    name = f"kernels-{digest.hexdigest()[:16]}"
    home = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
    for base in (Path(home, "pathmerge"), Path(tempfile.gettempdir(), f"pathmerge-{user}")):
        try:
            (base / name).mkdir(parents=True, exist_ok=True)
            if os.access(base / name, os.W_OK):
                return str(base / name)
        except OSError:
            continue
    return tempfile.mkdtemp(prefix="pathmerge-")


CACHE_DIRECTORY = _cache_directory()


CIRCUITS = "circuits"
"""What `is_compiled` and `mark_compiled` call the kernels that find circuits."""


def generators(task: str, words: int) -> str:
    """What they call a task's generators for bit sets of so many words."""
    return f"{task}-{words}-words"


def is_compiled(what: str) -> bool:
    """Whether these kernels were compiled before; if not, that takes a quarter of a minute, circuits' about one."""
    return Path(CACHE_DIRECTORY, what).exists()


@cache
def mark_compiled(what: str) -> None:
    """Remember it for the next process; a cache that cannot be written to is only slower."""
    with contextlib.suppress(OSError):
        Path(CACHE_DIRECTORY, what).touch()


_REORDERED = {"reassoc", "contract", "nsz"}
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


def kernel(function: Callable[..., Any], **options: Any) -> Any:
    """Compile an entry point, called from Python without the GIL and kept on disk between processes."""
    before = config.CACHE_DIR  # pyright: ignore[reportAttributeAccessIssue]
    config.CACHE_DIR = CACHE_DIRECTORY  # pyright: ignore[reportAttributeAccessIssue]
    try:
        return numba.njit(cache=True, **_OPTIONS, **options)(function)
    finally:
        config.CACHE_DIR = before  # pyright: ignore[reportAttributeAccessIssue]


def float_kernel(function: Callable[..., Any]) -> Any:
    """The same for sums of floats, which may be reordered so that they use wide registers; nan and inf stay what they
    are."""
    return kernel(function, fastmath=_REORDERED)


def helper(function: Callable[..., Any]) -> Any:
    """Compile a function that only other kernels call."""
    return numba.njit(**_OPTIONS)(function)


def float_helper(function: Callable[..., Any]) -> Any:
    """The same with sums that may be reordered."""
    return numba.njit(fastmath=_REORDERED, **_OPTIONS)(function)


def inline(function: Callable[..., Any]) -> Any:
    """Compile a function whose body is put in place of each call: for the few lines that run most."""
    return numba.njit(forceinline=True, **_OPTIONS)(function)


def float_inline(function: Callable[..., Any]) -> Any:
    """The same with sums that may be reordered, for use in a `float_kernel`: its own permission does not reach here."""
    return numba.njit(forceinline=True, fastmath=_REORDERED, **_OPTIONS)(function)


def chosen_by_type(function: Callable[..., Any]) -> Any:
    """A decorator: the function below it chooses, from the types of the arguments, what is compiled in place of this
    one; the others are not compiled at all."""
    return overload(function, jit_options=_OPTIONS)  # pyright: ignore[reportArgumentType]


def _bit_operation(build: Callable[[Any, Any], Any]) -> Any:
    """A function of one uint64 that is one machine instruction."""

    def typed(_typing: Any, _x: Any) -> Any:
        return types.int64(types.uint64), lambda _context, builder, _signature, args: build(builder, args[0])

    return intrinsic(typed)


trailing_zeros = _bit_operation(lambda builder, x: builder.cttz(x, ir.Constant(ir.IntType(1), 1)))
"""The index of the lowest set bit; the word must not be 0."""
count_ones = _bit_operation(lambda builder, x: builder.ctpop(x))
"""How many bits are set."""


def _larger(_typing: Any, _one: Any, _other: Any) -> Any:
    def build(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        numbers = ("nnan", "nsz")
        return builder.select(builder.fcmp_ordered(">", *args, flags=numbers), *args, flags=numbers)

    return types.float32(types.float32, types.float32), build


larger: Any = intrinsic(_larger)
"""The larger of two float32 that are numbers. Python's max asks which with a branch, and loops around it are not made
vector code."""
