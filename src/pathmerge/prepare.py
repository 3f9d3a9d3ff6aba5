"""Compile the kernels beforehand: in the set-up, or once before many processes begin, each of which would do it itself.

Those that take seconds each: generators, and circuits of models of one head. Training and several heads use a few more,
each compiled in a second or less when it is first needed.

What is compiled stays on disk (`kernels.compile.CACHE_DIRECTORY`) until a kernel's source changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from pathmerge.circuits.explain import warm_up
from pathmerge.kernels.compile import CIRCUITS, generators, is_compiled
from pathmerge.kernels.workspace import words_for
from pathmerge.parallel import forked
from pathmerge.problems.balanced import Balanced
from pathmerge.problems.dfs import DFS
from pathmerge.problems.distribution import Distribution
from pathmerge.problems.selection_inference import SelectionInference

SIZES = {"up to 199": 32, "from 200 on": 200}
"""An input size of each kind; they differ in how many words a bit set has."""


class Part(NamedTuple):
    """Kernels that are compiled together."""

    name: str
    mark: str
    """What tells that it was done."""
    compile: Callable[[], object]

    @property
    def done(self) -> bool:
        return is_compiled(self.mark)


def parts() -> list[Part]:
    """All there are; circuits come after the generators they draw from, so that these are compiled once."""
    kinds: list[type[Distribution]] = [Balanced, SelectionInference, DFS]
    found = [_generators(kind(input_size=size), sizes) for sizes, size in SIZES.items() for kind in kinds]
    return [*found[:2], Part("circuits", CIRCUITS, warm_up), *found[2:]]


def compile_parts(chosen: Sequence[Part], threads: int = 2) -> Iterator[Part]:
    """Compile each in one of so many processes; yields what is done, in order."""
    places = range(len(chosen))
    yield from (chosen[at] for at in forked(partial(_compile, chosen), places, threads))


def _compile(chosen: Sequence[Part], at: int) -> int:
    chosen[at].compile()
    return at


def _generators(problem: Distribution, sizes: str) -> Part:
    mark = generators(problem.task, len(words_for(problem.layout.max_vertices)))
    draw = partial(problem.sample, 1, threads=1)
    return Part(f"generators of {type(problem).__name__} and its like, input sizes {sizes}", mark, draw)
