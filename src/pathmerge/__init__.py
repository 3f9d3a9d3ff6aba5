"""pathmerge: can this model learn to search, and which algorithm did it learn?

The public surface. Configs are imported at once; what needs numpy, numba or torch is imported when first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pathmerge.encodings.language import Language as Language
from pathmerge.errors import DrawError as DrawError
from pathmerge.layout import Layout as Layout
from pathmerge.models.config import Edges as Edges
from pathmerge.models.config import OneHot as OneHot
from pathmerge.models.config import Rotary as Rotary
from pathmerge.plugins import register as register
from pathmerge.problems.balanced import Balanced as Balanced
from pathmerge.problems.dfs import DFS as DFS
from pathmerge.problems.distribution import Distribution as Distribution
from pathmerge.problems.naive import Naive as Naive
from pathmerge.problems.problem import Problem as Problem
from pathmerge.problems.python_distribution import PythonDistribution as PythonDistribution
from pathmerge.problems.selection_inference import SelectionInference as SelectionInference
from pathmerge.problems.star import Star as Star
from pathmerge.problems.tangled import Tangled as Tangled
from pathmerge.recipes import recipe as recipe
from pathmerge.training.config import Holding as Holding
from pathmerge.training.config import RunConfig as RunConfig
from pathmerge.training.config import Training as Training
from pathmerge.training.config import load_config as load_config
from pathmerge.training.curriculum import Curriculum as Curriculum
from pathmerge.version import __version__ as __version__

if TYPE_CHECKING:
    from pathmerge.circuits.conformance import check_model as check_model
    from pathmerge.circuits.explain import explain as explain
    from pathmerge.circuits.explain import explain_all as explain_all
    from pathmerge.circuits.files import Circuit as Circuit
    from pathmerge.circuits.files import load_circuit as load_circuit
    from pathmerge.circuits.subject import Explainable as Explainable
    from pathmerge.evaluation.accuracy import Table as Table
    from pathmerge.evaluation.evaluate import evaluate as evaluate
    from pathmerge.files import read_problems as read_problems
    from pathmerge.files import write_problems as write_problems
    from pathmerge.heldout import HeldOut as HeldOut
    from pathmerge.heldout import hold_out as hold_out
    from pathmerge.models.compiled import compiled as compiled
    from pathmerge.models.transformer import Transformer as Transformer
    from pathmerge.models.weights import import_weights as import_weights
    from pathmerge.models.weights import load_weights as load_weights
    from pathmerge.models.weights import save_weights as save_weights
    from pathmerge.problems.batch import Batch as Batch
    from pathmerge.stream import Stream as Stream
    from pathmerge.training.loop import train as train
    from pathmerge.training.run import Run as Run
    from pathmerge.training.run import load_run as load_run
    from pathmerge.zoo.shelf import load as load

_LATER = {
    "Batch": "pathmerge.problems.batch",
    "Circuit": "pathmerge.circuits.files",
    "Explainable": "pathmerge.circuits.subject",
    "HeldOut": "pathmerge.heldout",
    "Run": "pathmerge.training.run",
    "Stream": "pathmerge.stream",
    "Table": "pathmerge.evaluation.accuracy",
    "Transformer": "pathmerge.models.transformer",
    "check_model": "pathmerge.circuits.conformance",
    "compiled": "pathmerge.models.compiled",
    "evaluate": "pathmerge.evaluation.evaluate",
    "explain": "pathmerge.circuits.explain",
    "explain_all": "pathmerge.circuits.explain",
    "hold_out": "pathmerge.heldout",
    "import_weights": "pathmerge.models.weights",
    "load": "pathmerge.zoo.shelf",
    "load_circuit": "pathmerge.circuits.files",
    "load_run": "pathmerge.training.run",
    "load_weights": "pathmerge.models.weights",
    "read_problems": "pathmerge.files",
    "save_weights": "pathmerge.models.weights",
    "train": "pathmerge.training.loop",
    "write_problems": "pathmerge.files",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'pathmerge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LATER])
