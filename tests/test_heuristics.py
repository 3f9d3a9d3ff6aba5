"""Baselines: what each answers against a slow version of it, which a task has, and how good chance is."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import pytest
from samples import LEAST, SEARCH_RULES, problems_of, uniformity
from scipy.stats import binomtest

import pathmerge as pm
from pathmerge.encodings.sentences import LanguageBatch
from pathmerge.evaluation.heuristics import as_judge, heuristics_for
from pathmerge.problems.distribution import Distribution
from pathmerge.problems.problem import Problem

DISTRIBUTIONS: Sequence[Distribution] = [
    pm.Naive(input_size=48),
    pm.Balanced(input_size=48),
    pm.Star(input_size=32),
    pm.Language(input_size=32),
    pm.Language(input_size=32, graph="star"),
    pm.DFS(input_size=48),
    pm.DFS(input_size=48, prefix=True, padding="random"),
    pm.DFS(input_size=32, mode="naive", padding="random"),
    pm.SelectionInference(input_size=48),
    pm.SelectionInference(input_size=32, step="selection"),
    pm.SelectionInference(input_size=32, step="inference"),
]


def slow_hash(identity: int, name: str) -> int:
    x = identity ^ int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> shift)) * factor % 2**64
    return x ^ (x >> 31)


def slow_answer(problem: Problem, rule: str, identity: int) -> int:
    """What a baseline should answer, from its words."""
    children = [v for u, v in problem.edges if u == problem.start]
    if rule == "first edge":
        return children[0]
    if rule == "highest degree":
        return min(children, key=lambda v: (-sum(v in edge for edge in problem.edges), v))
    if rule == "nearest id":
        return min(children, key=lambda v: (abs(v - problem.goal), v))
    if rule == "most recent":
        return problem.visited_edges[-1][1] if problem.visited_edges else problem.start
    visited = set(problem.visited)  # empty unless the task is depth-first search
    of = problem.visited[-1] if problem.task == "dfs" else problem.current or problem.start
    if rule == "child of start":
        of = problem.start
    allowed = sorted(v for u, v in problem.edges if u == of and v not in visited)
    if not allowed:
        allowed = sorted({v for _, v in problem.edges} - visited)
    return allowed[slow_hash(identity, rule) % len(allowed)]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda d: d.describe())
def test_baselines_answer_as_their_slow_versions_do(distribution: Distribution):
    batch = distribution.sample(2000, seed=3, threads=1)
    symbolic = batch.symbolic if isinstance(batch, LanguageBatch) else batch
    problems, identities = list(problems_of(symbolic)), batch.identity.tolist()
    for heuristic in heuristics_for(distribution):
        by_task = {"selection": "most recent", "inference": "random child"}
        mixed = heuristic.name == "most recent or random child"
        rules = [by_task[problem.task] if mixed else heuristic.name for problem in problems]
        slow = [slow_answer(*asked) for asked in zip(problems, rules, identities, strict=True)]
        found = heuristic.predict(batch)
        assert found.tolist() == slow
        right, loss = as_judge(heuristic)(batch)
        assert right.tolist() == [bool(batch.answers[i, v]) for i, v in enumerate(slow)]
        assert loss.dtype == np.float32
        assert np.isnan(loss).all()
        part = batch.take(slice(700, 900))
        assert np.array_equal(heuristic.predict(part), found[700:900])
        assert heuristic.predict(batch.take(slice(0, 0))).shape == (0,)


def test_each_task_has_its_baselines():
    def names(distribution: Distribution) -> list[str]:
        return [heuristic.name for heuristic in heuristics_for(distribution)]

    assert names(pm.Naive(input_size=32)) == names(pm.Language(input_size=32)) == SEARCH_RULES
    assert names(pm.DFS(input_size=32)) == ["child of start", "random child"]
    assert names(pm.SelectionInference(input_size=32, step="selection")) == ["most recent"]
    assert names(pm.SelectionInference(input_size=32, step="inference")) == ["random child"]
    assert names(pm.SelectionInference(input_size=32)) == ["most recent or random child"]


def test_random_children_are_uniform_and_child_of_start_is_the_known_shortcut():
    star = pm.Star(input_size=48, spokes=4, lookahead=3).sample(8000, seed=2, threads=1)
    chosen = next(h for h in heuristics_for(star.distribution) if h.name == "random child").predict(star)
    children = np.sort(np.where(star.edges[:, :, 0] == star.start[:, None], star.edges[:, :, 1], 99), axis=1)[:, :4]
    assert uniformity((children < chosen[:, None]).sum(1), range(4)) > LEAST
    right = int(star.answers[np.arange(len(star)), chosen].sum())
    assert binomtest(right, len(star), 1 / 4).pvalue > LEAST
    dfs = pm.DFS(input_size=48, backtrack=6).sample(500, seed=2, threads=1)
    shortcut, near = (as_judge(h)(dfs)[0].mean() for h in heuristics_for(dfs.distribution))
    assert shortcut == 1.0
    assert near < 1.0
