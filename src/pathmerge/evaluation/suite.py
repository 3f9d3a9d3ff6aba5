"""What a model of a task is tested on, and what its training must therefore never see.

Choices a reader could not guess:
- The test suite covers all difficulties that fit the input size, those beyond training too: naive, every star, every
  lookahead for search; every backtrack distance; every frontier and branch. A search distribution of someone's own
  (a plug-in) is tested on itself first, then on those.
- Convergence is judged on the validation split of balanced problems of the lookaheads trained on (of all, if training
  was on naive or star problems), or of the task's or the plug-in's own distribution.
- A problem can belong to several distributions: a star of lookahead 1 is also a balanced graph. So although each cell
  holds out at most 5% of its own problems, a tiny cell may be held out almost whole by others. Training on such a cell
  would starve; its problems are then not guarded, and the cell is named.
- Where a task has many difficulties, each gets fewer problems: at most 400,000 in all, at least 100 each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from pathmerge.encodings.language import Language
from pathmerge.heldout import HeldOut, hold_out
from pathmerge.problems.balanced import Balanced
from pathmerge.problems.dfs import DFS
from pathmerge.problems.distribution import Distribution
from pathmerge.problems.naive import Naive
from pathmerge.problems.selection_inference import SelectionInference
from pathmerge.problems.star import Star
from pathmerge.rng import MAX_STREAM

STANDARD = (Naive, Star, Balanced)
MOST_HELD_OUT = 400_000
FEWEST = 100
PROBE = 2048
MOST_REDRAWN = 0.9


def test_suite(problem: Distribution) -> list[Distribution]:
    """The distributions a model trained on `problem` is tested on."""
    size = problem.input_size
    match problem:
        case Language():
            return [
                Language(input_size=size, graph="naive"),
                Language(input_size=size, graph="star"),
                Language(input_size=size, graph="balanced"),
            ]
        case DFS():
            return [DFS(input_size=size, mode="naive"), DFS(input_size=size, prefix=problem.prefix)]
        case SelectionInference():
            return [SelectionInference(input_size=size)]
        case _:
            own = [] if type(problem) in STANDARD else [widest(problem)]
            return [*own, *(kind(input_size=size) for kind in STANDARD)]


def validation_problem(problem: Distribution) -> Distribution:
    """The distribution that stop rules and convergence look at."""
    match problem:
        case Balanced():
            return replace(problem, lookahead=None, vertices=None, label="path")
        case Language(graph="balanced"):
            return replace(problem, lookahead=None, vertices=None, label="path")
        case Language():
            return Language(input_size=problem.input_size)
        case DFS():
            return DFS(input_size=problem.input_size, prefix=problem.prefix)
        case SelectionInference():
            return SelectionInference(input_size=problem.input_size)
        case Naive() | Star():
            return Balanced(input_size=problem.input_size)
        case _:
            return widest(problem, keep="max_lookahead")


def widest(problem: Distribution, keep: str = "") -> Distribution:
    """A distribution of someone's own at all its difficulties and sizes."""
    wide = {"lookahead": None, "max_lookahead": None, "vertices": None, "label": "path"}
    changes = {name: value for name, value in wide.items() if hasattr(problem, name) and name != keep}
    return replace(problem, **changes)


def per_cell(distributions: Sequence[Distribution], count: int) -> int:
    """How many problems of each difficulty are held out if `count` are asked for."""
    cells = sum(len(distribution.cells()) for distribution in distributions)
    return min(count, max(FEWEST, MOST_HELD_OUT // cells))


def hold_out_test(
    problem: Distribution,
    count: int,
    seed: int,
    *,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> HeldOut:
    """The test problems of a model trained on `problem`."""
    suite = test_suite(problem)
    return hold_out(suite, per_cell(suite, count), seed=seed, split="test", threads=threads, progress=progress)


def hold_out_validation(
    problem: Distribution, count: int, seed: int, *, besides: HeldOut | None = None, threads: int | None = None
) -> HeldOut:
    """The validation problems, none of them among the test problems (`besides`)."""
    chosen = [validation_problem(problem)]
    number = per_cell(chosen, count)
    return hold_out(chosen, number, seed=seed, split="validation", held_out=besides, threads=threads)


def hold_out_naive(problem: Distribution, count: int, seed: int, *, besides: HeldOut) -> HeldOut:
    """Naive problems to watch a training by, in the form its own problems have; none of them is a test problem."""
    size = problem.input_size
    naive = Language(input_size=size, graph="naive") if isinstance(problem, Language) else Naive(input_size=size)
    return hold_out([naive], count, seed=seed, split="validation", held_out=besides)


def guard_for(stages: Sequence[Distribution], held_out: HeldOut) -> tuple[HeldOut, list[str]]:
    """What a training on these distributions must redraw, and the cells that cannot be guarded."""
    freed: list[np.ndarray] = []
    named: list[str] = []
    for cell in {cell: None for stage in stages for cell in stage.fixed()}:
        problems = getattr(cell, "symbolic", cell)
        met = problems.sample(PROBE, seed=0, split="train", stream=MAX_STREAM, threads=1).identity
        hit = held_out.has(met)
        if hit.mean() > MOST_REDRAWN:
            freed.append(met[hit])
            named.append(f"{cell.describe()}: {hit.mean():.0%} of draws are held out by other cells; not guarded")
    if not freed:
        return held_out, named
    kept = held_out.identities[~np.isin(held_out.identities, np.concatenate(freed))]
    return HeldOut(kept, held_out.cells), named
