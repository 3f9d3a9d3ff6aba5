"""What `pathmerge.kernels.fill` is for the built-in distributions, in plain Python for those that are written in it.

Choices a reader could not guess:
- The same generator in the same places: the requested difficulty comes from a slot of the key of its own, a rejection
  or a held-out hit goes on with the next attempt.
- Vertices are numbered in the order in which the edges name them, so the edges must come in an order: that of a set of
  words, for instance, is another in each process.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from pathmerge.errors import DrawError
from pathmerge.kernels.random import DIFFICULTY_ATTEMPT, MAX_ATTEMPTS
from pathmerge.kernels.workspace import LABEL_PATH, Parameters
from pathmerge.problems.identity import identity
from pathmerge.problems.problem import Problem
from pathmerge.problems.python_distribution import PythonDistribution
from pathmerge.rng import Key, KeyedRandom


def fill_in_python(
    distribution: PythonDistribution,
    ask: Parameters,
    cells: np.ndarray,
    key: Key,
    first: int,
    held: np.ndarray,
    out: tuple[np.ndarray, ...],
) -> None:
    """Write examples first..first+rows-1."""
    redraws = out[-1]
    redraws[:] = 0
    for row in range(len(redraws)):
        index = first + row
        cell = KeyedRandom(key, index, DIFFICULTY_ATTEMPT).randrange(len(cells)) if len(cells) > 1 else 0
        wish = int(cells[cell, 0]) or None
        wrong: Counter[str] = Counter()
        for attempt in range(MAX_ATTEMPTS):
            random = KeyedRandom(key, index, attempt)
            graph = _graph(distribution, random, wish)
            why = _unfit(graph, ask.most, wish)
            if why is None:
                assert graph is not None
                if _write(graph, lookahead(graph), random, ask, held, row, out):
                    out[-2][row] = attempt + 1
                    break
                redraws[row] += 1
                why = "held out"
            wrong[why] += 1
        else:
            whys = ", ".join(f"{count} {why}" for why, count in wrong.most_common())
            raise DrawError(
                f"{distribution.describe()}: example {index} of {key} was not found in {MAX_ATTEMPTS} attempts: {whys}"
            )


def _unfit(graph: Graph | None, most: int, wish: int | None) -> str | None:
    """Why a proposal cannot be taken; none: it can."""
    if graph is None:
        return "proposed nothing, or no edge at start or goal"
    if max(len(graph.children), len(graph.edges)) > most:
        return f"had more than {most} vertices or edges"
    if not graph.useful:
        return "had no path from start to goal"
    if wish not in (None, lookahead(graph)):
        return f"had another lookahead than {wish}"
    return None


class Graph(NamedTuple):
    """A proposal in numbers 0..n-1."""

    edges: list[tuple[int, int]]
    children: list[list[int]]
    start: int
    goal: int
    paths: list[int]
    """How many paths lead from each vertex to the goal; one from itself."""

    @property
    def useful(self) -> list[int]:
        return [] if self.start == self.goal else [child for child in self.children[self.start] if self.paths[child]]


def _graph(distribution: PythonDistribution, random: KeyedRandom, wish: int | None) -> Graph | None:
    """The next proposal; none if there is none or it has no such ends. What can only be a mistake is an error."""
    try:
        proposal = distribution.propose(random, wish)
    except NotImplementedError as error:
        raise ValueError(f"{distribution.name}: must have a method propose, not found: {error}") from None
    except Exception as error:
        raise ValueError(f"{distribution.name}.propose: {type(error).__name__}: {error}") from error
    if proposal is None:
        return None
    try:
        return read(proposal)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{distribution.name}.propose: {error}") from None


def read(proposal: Any) -> Graph | None:
    """Edges, start and goal in numbers, with what follows from them."""
    if not isinstance(proposal, tuple) or len(proposal) != 3:
        raise ValueError(f"gave {type(proposal).__name__}, must give edges, start, goal, or None")
    given, start, goal = proposal
    if not isinstance(given, list | tuple):
        raise ValueError(
            f"gave edges as {type(given).__name__}, must be a list: their order has to be the same anywhere"
        )
    numbers: dict[Hashable, int] = {}
    edges: list[tuple[int, int]] = []
    for edge in given:
        if not isinstance(edge, tuple) or len(edge) != 2:
            raise ValueError(f"gave the edge {edge!r}, must be a pair of vertices")
        source, target = (numbers.setdefault(vertex, len(numbers)) for vertex in edge)
        edges.append((source, target))
    if len(set(edges)) < len(edges):
        twice = next(edge for at, edge in enumerate(given) if edge in given[:at])
        raise ValueError(f"gave the edge {twice!r} twice")
    children: list[list[int]] = [[] for _ in numbers]
    for source, target in edges:
        children[source].append(target)
    paths = _count_paths(children, numbers.get(goal))
    if start not in numbers or goal not in numbers:
        return None
    return Graph(edges, children, numbers[start], numbers[goal], paths)


def _count_paths(children: list[list[int]], goal: int | None) -> list[int]:
    """From the vertices without parents on, each once all its parents are done; then backwards."""
    parents = [0] * len(children)
    for found in children:
        for child in found:
            parents[child] += 1
    order = [vertex for vertex, count in enumerate(parents) if not count]
    for vertex in order:
        for child in children[vertex]:
            parents[child] -= 1
            if not parents[child]:
                order.append(child)
    if len(order) < len(children):
        raise ValueError("gave a graph with a cycle, must give one without")
    paths = [0] * len(children)
    for vertex in reversed(order):
        paths[vertex] = 1 if vertex == goal else sum(paths[child] for child in children[vertex])
    return paths


def lookahead(graph: Graph) -> int:
    """The lookahead of a graph with a path from start to goal (docs/problems.md)."""
    useful = set(graph.useful)
    other = set(graph.children[graph.start]) - useful
    seen = useful | other
    level = 1 if other else 0
    while other and graph.goal not in useful:
        useful = {child for vertex in useful for child in graph.children[vertex]} - seen
        seen |= useful
        other = {child for vertex in other for child in graph.children[vertex]} - seen
        seen |= other
        level += bool(other)
    return level


def _write(
    graph: Graph,
    difficulty: int,
    random: KeyedRandom,
    ask: Parameters,
    held: np.ndarray,
    row: int,
    out: tuple[np.ndarray, ...],
) -> bool:
    """Give ids, order the edges, draw the label and write the row; false if the problem is held out."""
    tokens, label, answers, difficulties, ends, identities, *_ = out
    ids = random.sample(range(1, ask.vertices + 1), len(graph.children))
    edges = [(ids[source], ids[target]) for source, target in graph.edges]
    random.shuffle(edges)
    start, goal = ids[graph.start], ids[graph.goal]
    known = identity(Problem("search", tuple(edges), start, goal))
    if _contains(held, known):
        return False
    useful = graph.useful
    sums = list(accumulate(graph.paths[child] if ask.label == LABEL_PATH else 1 for child in useful))
    chosen = useful[bisect_right(sums, random.randrange(sums[-1]))]
    path, mark, pad, query = (ask.vertices + i for i in (1, 2, 3, 4))
    written = [token for edge in edges for token in (mark, *edge)] + [query, start, goal, path, start]
    tokens[row] = [pad] * (ask.input_size - len(written)) + written
    label[row] = ids[chosen]
    answers[row] = False
    answers[row, [ids[child] for child in useful]] = True
    difficulties[row] = difficulty, 0, 0
    ends[row] = start, goal, start
    identities[row] = known
    return True


def _contains(table: np.ndarray, key: int) -> bool:
    """Look a hash up in the table of `HeldOut`."""
    mask = len(table) - 1
    at = key & mask
    while (found := int(table[at])) not in (0, key):
        at = (at + 1) & mask
    return found == key
