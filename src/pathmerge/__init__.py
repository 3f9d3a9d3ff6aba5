"""pathmerge: can this model learn to search, and which algorithm did it learn?

The public surface. Configs are imported at once; what needs numpy, numba or torch is imported when first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pathmerge.encodings.language import Language as Language
from pathmerge.errors import DrawError as DrawError
from pathmerge.layout import Layout as Layout
from pathmerge.problems.balanced import Balanced as Balanced
from pathmerge.problems.dfs import DFS as DFS
from pathmerge.problems.distribution import Distribution as Distribution
from pathmerge.problems.naive import Naive as Naive
from pathmerge.problems.problem import Problem as Problem
from pathmerge.problems.selection_inference import SelectionInference as SelectionInference
from pathmerge.problems.star import Star as Star
from pathmerge.version import __version__ as __version__

if TYPE_CHECKING:
    from pathmerge.files import read_problems as read_problems
    from pathmerge.files import write_problems as write_problems
    from pathmerge.heldout import HeldOut as HeldOut
    from pathmerge.heldout import hold_out as hold_out
    from pathmerge.problems.batch import Batch as Batch
    from pathmerge.stream import Stream as Stream

_LATER = {
    "Batch": "pathmerge.problems.batch",
    "HeldOut": "pathmerge.heldout",
    "Stream": "pathmerge.stream",
    "hold_out": "pathmerge.heldout",
    "read_problems": "pathmerge.files",
    "write_problems": "pathmerge.files",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'pathmerge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LATER])
