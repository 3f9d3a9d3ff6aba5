"""Distributions written in Python: functions of their key like those of the kernels, and mistakes that are named."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import stats

import pathmerge as pm
from pathmerge import oracle
from pathmerge.encodings import symbolic
from pathmerge.evaluation.accuracy import converged, row_of
from pathmerge.evaluation.suite import test_suite as suite_of
from pathmerge.evaluation.suite import validation_problem
from pathmerge.problems.identity import identity
from pathmerge.problems.problem import Problem
from pathmerge.problems.python_fill import lookahead, read


@dataclass(frozen=True, kw_only=True)
class Chains(pm.PythonDistribution):
    """Two to four chains from start, most of them as long as asked; words as vertices, several paths."""

    name: ClassVar[str] = "chains"

    @property
    def largest_lookahead(self) -> int:
        return (self.most_vertices - 1) // 2

    def propose(self, random: Random, lookahead: int | None) -> Any:
        assert lookahead is not None
        edges: list[tuple[str, str]] = []
        for chain in range(random.randint(2, 4)):
            line = ["start", *(f"{chain}:{i}" for i in range(lookahead + random.choice([0, 0, -1])))]
            edges += pairwise(line)
        if random.random() < 0.5:
            edges.append(("1:0", "0:0"))
        return edges, "start", f"0:{lookahead - 1}"


@dataclass(frozen=True, kw_only=True)
class Nothing(pm.PythonDistribution):
    name: ClassVar[str] = "python"


def same(a: pm.Batch, b: pm.Batch) -> bool:
    names = ("tokens", "label", "answers", "difficulty", "start", "goal", "identity", "attempts", "redraws")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


def test_an_example_is_a_function_of_its_key():
    problem = Chains(input_size=32)
    whole = problem.sample(300, seed=5, stream=3)
    assert same(whole, problem.sample(300, seed=5, stream=3, threads=3))
    parts = [problem.sample(1, seed=5, stream=3, first=i) for i in range(0, 300, 37)]
    for part in parts:
        assert same(whole[part.first], part)
    assert not np.array_equal(whole.tokens, problem.sample(300, seed=6, stream=3).tokens)
    assert not np.array_equal(whole.tokens, problem.sample(300, seed=5, stream=4).tokens)
    assert not np.array_equal(whole.tokens, problem.sample(300, seed=5, stream=3, split="test").tokens)


def test_several_chunks_are_one_stream():
    problem = Chains(input_size=20)
    assert same(problem.sample(1100, threads=4).take(slice(1000, 1100)), problem.sample(100, first=1000))


@pytest.mark.parametrize("label", ["path", "vertex", "soft"])
def test_every_row_is_what_the_oracle_says(label: Any):
    batch = Chains(input_size=32, label=label).sample(400, seed=2)
    assert set(batch.lookahead.tolist()) == {1, 2, 3, 4}
    for i in range(len(batch)):
        problem = symbolic.parse(batch.tokens[i].tolist(), batch.distribution.layout)
        assert symbolic.render(problem, batch.distribution.layout) == batch.tokens[i].tolist()
        assert np.flatnonzero(batch.answers[i]).tolist() == sorted(oracle.answers(problem))
        assert batch.answers[i, batch.label[i]]
        assert batch.lookahead[i] == oracle.lookahead(problem)
        assert batch.identity[i] == identity(problem)
        assert (problem.start, problem.goal) == (batch.start[i], batch.goal[i])


def test_lookahead_and_paths_as_the_kernels_have_them():
    batch = pm.Naive(input_size=64).sample(500, seed=1)
    for i in range(len(batch)):
        edges = [(int(u), int(v)) for u, v in batch.edges[i] if u]
        start, goal = int(batch.start[i]), int(batch.goal[i])
        graph = read((edges, start, goal))
        assert graph is not None
        assert lookahead(graph) == batch.lookahead[i]
        numbers = list(dict.fromkeys(v for edge in edges for v in edge))
        counted = {numbers[child]: graph.paths[child] for child in graph.useful}
        assert counted == oracle.path_counts(Problem("search", tuple(edges), start, goal))


def test_labels_are_drawn_by_paths():
    class Fork(Chains):
        def propose(self, random: Random, lookahead: int | None) -> Any:
            return [("s", "a"), ("s", "b"), ("s", "c"), ("a", "g"), ("b", "g"), ("a", "d"), ("d", "g")], "s", "g"

    batch = Fork(input_size=32, lookahead=1).sample(1500, seed=1)
    often = 0
    for i in range(len(batch)):
        edges = [(int(u), int(v)) for u, v in batch.edges[i] if u]
        often += sum(u == batch.label[i] for u, _ in edges) == 2  # the vertex with two ways on
    assert stats.binomtest(often, 1500, 2 / 3).pvalue > 1e-4
    assert stats.chisquare(np.bincount(batch.start, minlength=10)[1:]).pvalue > 1e-4


def test_held_out_problems_are_redrawn():
    problem = Chains(input_size=20)
    held = pm.HeldOut.of(problem.sample(30, seed=4).identity)
    free = problem.sample(30, seed=4)
    batch = problem.sample(30, seed=4, held_out=held)
    assert (batch.redraws > 0).all()
    assert not held.has(batch.identity).any()
    assert np.array_equal(batch.difficulty, free.difficulty)
    for i in (0, 17):
        assert same(batch[i], problem.sample(1, seed=4, first=i, held_out=held))


def test_cells_are_held_out_like_others():
    held = pm.hold_out([Chains(input_size=32, max_lookahead=2)], 20, split="test")
    assert [cell.batch.lookahead.tolist() for cell in held.cells] == [[1] * 20, [2] * 20]
    assert not held.too_small


def test_what_it_is_tested_and_validated_on():
    problem = Chains(input_size=32, max_lookahead=2, vertices=7, label="vertex")
    assert [d.name for d in suite_of(problem)] == ["chains", "naive", "star", "balanced"]
    assert suite_of(problem)[0] == Chains(input_size=32)
    assert validation_problem(problem) == Chains(input_size=32, max_lookahead=2)
    assert converged([row_of(("chains", "lookahead=1"), 10, 10, 0.0)]).converged


def test_a_curriculum_grows_it():
    problem = Chains(input_size=32)
    assert [d.cells()[-1][0] for d in pm.Curriculum(over="lookahead").stages(problem)] == [1, 2, 3, 4]
    sizes = pm.Curriculum(over="size", step=2).stages(problem)
    assert [d.cells()[-1][0] for d in sizes] == [2, 3, 4]
    few = sizes[0].sample(50)
    assert (few.edges[:, :, 0] > 0).sum(1).max() <= 5


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (([("a", "b"), ("b", "a")], "a", "b"), "chains.propose: gave a graph with a cycle"),
        (([("a", "a")], "a", "b"), "chains.propose: gave a graph with a cycle"),
        (([("a", "b"), ("a", "b")], "a", "b"), r"chains.propose: gave the edge \('a', 'b'\) twice"),
        (({("a", "b")}, "a", "b"), "chains.propose: gave edges as set, must be a list"),
        (([("a", "b", "c")], "a", "b"), "must be a pair of vertices"),
        (([([], "b")], "a", "b"), "chains.propose: unhashable"),
        ([("a", "b")], "chains.propose: gave list, must give edges, start, goal, or None"),
        (ZeroDivisionError("by nothing"), "chains.propose: ZeroDivisionError: by nothing"),
    ],
)
def test_mistakes_of_a_proposal_are_named(given: Any, says: str):
    class Wrong(Chains):
        def propose(self, random: Random, lookahead: int | None) -> Any:
            if isinstance(given, Exception):
                raise given
            return given

    with pytest.raises(ValueError, match=says):
        Wrong(input_size=32).sample(1)


def test_what_never_fits_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pathmerge.problems.python_fill.MAX_ATTEMPTS", 50)
    large = [(number, number + 1) for number in range(10)]
    for proposal, why in (
        (None, "proposed nothing"),
        (([("a", "b")], "a", "c"), "proposed nothing, or no edge at start or goal"),
        (([("a", "b")], "b", "a"), "had no path from start to goal"),
        (([("a", "b")], "a", "a"), "had no path from start to goal"),
        ((large, 0, 10), "had more than 9 vertices or edges"),
        ((large[:4], 0, 4), "had another lookahead than 2"),
    ):

        class Never(Chains):
            def propose(self, random: Random, lookahead: int | None, given: Any = proposal) -> Any:
                return given

        with pytest.raises(pm.DrawError, match=f"was not found in 50 attempts: 50 {why}"):
            Never(input_size=32, lookahead=2).sample(1)
    with pytest.raises(ValueError, match=r"lookahead=5: must be a whole number in 1..4"):
        Chains(input_size=32, lookahead=5)
    with pytest.raises(ValueError, match="must be left out when lookahead"):
        Chains(input_size=32, lookahead=1, max_lookahead=2)
    with pytest.raises(ValueError, match="python: must have a method propose"):
        Nothing(input_size=32).sample(1)
