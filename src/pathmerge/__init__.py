"""pathmerge: can this model learn to search, and which algorithm did it learn?"""

from pathmerge.errors import DrawError as DrawError
from pathmerge.layout import Layout as Layout
from pathmerge.problems.balanced import Balanced as Balanced
from pathmerge.problems.dfs import DFS as DFS
from pathmerge.problems.naive import Naive as Naive
from pathmerge.problems.problem import Problem as Problem
from pathmerge.problems.selection_inference import SelectionInference as SelectionInference
from pathmerge.problems.star import Star as Star
from pathmerge.version import __version__ as __version__
