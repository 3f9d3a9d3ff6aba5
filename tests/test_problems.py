"""Every emitted example against the oracle: well-formed, of exact difficulty, with the right answers, and lossless.

Examples come from fixed keys, and hypothesis runs derandomised: a failure is a defect, never bad luck.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import Case, difficulty_of, layout_of

from pathmerge import DFS, Balanced, Naive, Problem, SelectionInference, Star, Tangled, oracle
from pathmerge.encodings import edges as edge_tokens
from pathmerge.encodings import sentences, symbolic
from pathmerge.encodings.language import PAD as WORD_PAD
from pathmerge.encodings.language import Language
from pathmerge.encodings.sentences import LanguageBatch
from pathmerge.layout import MAX_INPUT_SIZE, SMALLEST_INPUT_SIZE
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import LABELS, Distribution
from pathmerge.problems.identity import identity
from pathmerge.problems.selection_inference import STEPS

CASES: dict[str, Case] = {
    **{f"naive-{label}": partial(Naive, label=label) for label in LABELS},
    **{f"balanced-{label}": partial(Balanced, label=label) for label in LABELS},
    "balanced-no-incoming": partial(Balanced, incoming=False),
    "tangled": Tangled,
    **{f"star-{label}": partial(Star, label=label) for label in LABELS},
    **{f"dfs-naive-{padding}": partial(DFS, mode="naive", padding=padding) for padding in ("standard", "random")},
    **{
        f"dfs-{padding}{'-prefix' if prefix else ''}": partial(DFS, padding=padding, prefix=prefix)
        for padding in ("standard", "random")
        for prefix in (False, True)
    },
    "selection-inference": SelectionInference,
    **{f"language-{graph}": partial(Language, graph=graph) for graph in ("balanced", "naive", "star")},
    "language-soft": partial(Language, label="soft"),
}

# All the smallest sizes, the paper's, and those around 64 and 128 vertices, where a bit set gets one more word:
# V = 63, 64, 65 at N = 196, 199, 200 and V = 128, 129, 130 at N = 389, 392, 395.
EDGE_SIZES = (*range(11, 21), 32, 64, 98, 128, 196, 199, 200, 256, 389, 392, 395, 512)
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def smallest(case: Case) -> int:
    return 17 if case is Tangled else SMALLEST_INPUT_SIZE[case(input_size=MAX_INPUT_SIZE).task]


def problem_in(batch: Batch, row: int) -> Problem:
    """The problem that a row's own tokens state; parsing raises unless the oracle finds it well-formed."""
    layout = batch.distribution.layout
    if isinstance(batch, LanguageBatch):
        problem, used = sentences.parse(batch.tokens[row], layout.input_size, atoms_of(batch, row))
        assert used == {v: int(batch.atoms[row, v]) for v in problem.vertices}
        return problem
    current = int(batch.current[row]) if layout.task in STEPS else None
    return symbolic.parse(batch.tokens[row], layout, current=current)


def atoms_of(batch: LanguageBatch, row: int) -> dict[int, int]:
    return {v: int(batch.atoms[row, v]) for v in range(1, batch.atoms.shape[1])}


def shuffled(problem: Problem, seed: int) -> Problem:
    order = list(problem.edges)
    random.Random(seed).shuffle(order)
    return replace(problem, edges=tuple(order))


def trace_slots(batch: Batch, row: int) -> list[int] | None:
    """A depth-first trace with its filler as 0; none for other tasks."""
    layout = batch.distribution.layout
    if layout.task != "dfs":
        return None
    return [0 if t == layout.path else int(t) for t in batch.tokens[row, -layout.max_edges :]]


def check_example(batch: Batch, row: int) -> None:
    distribution = batch.distribution
    problem = problem_in(batch, row)
    correct = oracle.answers(problem)
    cell = tuple(int(v) for v in batch.difficulty[row])
    assert cell == difficulty_of(problem, distribution)
    left_to_chance = "naive" in (
        distribution.name,
        getattr(distribution, "mode", ""),
        getattr(distribution, "graph", ""),
    )
    assert left_to_chance or cell in distribution.cells()
    assert set(np.flatnonzero(batch.answers[row])) == correct
    assert int(batch.label[row]) in correct
    assert (batch.start[row], batch.goal[row]) == (problem.start, problem.goal)
    current = {"search": problem.start, "dfs": problem.visited[-1:] and problem.visited[-1]}
    assert batch.current[row] == current.get(problem.task, problem.current)
    assert int(batch.identity[row]) == identity(problem)
    assert [tuple(edge) for edge in batch.edges[row] if edge[0]] == list(problem.edges)
    check_target(batch, row, correct)
    check_round_trips(batch, row, problem)
    check_edge_order_is_free(problem, distribution, row)


def check_target(batch: Batch, row: int, correct: Iterable[int]) -> None:
    """What the loss compares with: the label alone, or all answers alike."""
    members = set(correct) if getattr(batch.distribution, "label", "") == "soft" else {int(batch.label[row])}
    target = batch.target[row]
    assert set(np.flatnonzero(target)) == members
    assert np.allclose(target[sorted(members)], 1 / len(members))


def check_round_trips(batch: Batch, row: int, problem: Problem) -> None:
    """Problem to tokens and back, in each encoding."""
    size = batch.distribution.input_size
    layout, current = layout_of(problem, size), problem.current
    tokens = symbolic.render(problem, layout, trace_slots(batch, row))
    source = batch.symbolic if isinstance(batch, LanguageBatch) else batch
    assert tokens == source.tokens[row].tolist()
    assert symbolic.parse(tokens, layout, current=current) == problem
    assert symbolic.parse(symbolic.render(problem, layout), layout, current=current) == problem

    coded = edge_tokens.encode(source.take(slice(row, row + 1)))
    assert coded.kind.shape == (1, edge_tokens.width(source.distribution.layout))
    assert edge_tokens.decode(coded, source.distribution.layout, 0, current=current) == problem

    if isinstance(batch, LanguageBatch):
        atoms = atoms_of(batch, row)
        assert len(set(atoms.values())) == len(atoms)
        words = batch.tokens[row].tolist()
        assert sentences.render(problem, atoms, size) == words
        # Without the atoms only the names of the vertices are lost.
        renamed, found = sentences.parse(words, size)
        assert sentences.render(renamed, found, size) == words
        one = batch.take(slice(row, row + 1))
        for vertex, atom in atoms.items():
            written = sentences.atom_tokens(np.array([atom]))
            assert one.correct(written)[0] == batch.answers[row, vertex]
            assert (written == one.label_tokens).all() == (vertex == batch.label[row])
    elif problem.task == "search":
        atoms = {v: 7 * v for v in problem.vertices}
        assert sentences.parse(sentences.render(problem, atoms, size), size, atoms) == (problem, atoms)


def check_edge_order_is_free(problem: Problem, distribution: Distribution, seed: int) -> None:
    """Neither the hash, the answers nor the difficulty depend on the order of the edges."""
    other = shuffled(problem, seed)
    assert identity(other) == identity(problem)
    assert other.canonical() == problem.canonical()
    assert oracle.answers(other) == oracle.answers(problem)
    assert difficulty_of(other, distribution) == difficulty_of(problem, distribution)


def check_cells(distribution: Distribution, count: int, seed: int, first: int = 0) -> None:
    batch = distribution.sample(count, seed=seed, first=first, threads=1)
    for row in range(count):
        check_example(batch, row)


@every_case
@pytest.mark.parametrize("input_size", EDGE_SIZES)
def test_examples_agree_with_the_oracle(case: Case, input_size: int):
    if input_size < smallest(case):
        with pytest.raises(ValueError, match=f"input_size={input_size}"):
            case(input_size=input_size)
        return
    check_cells(case(input_size=input_size), max(2, 200 // input_size), seed=input_size)


@every_case
@settings(max_examples=20, derandomize=True, deadline=None, database=None)
@given(data=st.data())
def test_any_cell_of_any_size_agrees_with_the_oracle(case: Case, data: st.DataObject):
    input_size = data.draw(st.integers(smallest(case), MAX_INPUT_SIZE), "input_size")
    fixed = case(input_size=input_size).fixed()
    distribution = data.draw(st.sampled_from(fixed), "cell")
    seed = data.draw(st.integers(0, 2**64 - 1), "seed")
    first = data.draw(st.integers(0, 2**62), "first")
    check_cells(distribution, 2, seed, first)


@every_case
@pytest.mark.parametrize("input_size", [14, 17, 20, 26, 32])
def test_every_cell_of_small_sizes_is_exact(case: Case, input_size: int):
    for distribution in case(input_size=max(input_size, smallest(case))).fixed():
        check_cells(distribution, 2, seed=1)


@pytest.mark.long
@every_case
@pytest.mark.parametrize("input_size", [128, 200, 392])
def test_every_cell_of_large_sizes_is_exact(case: Case, input_size: int):
    for distribution in case(input_size=input_size).fixed():
        check_cells(distribution, 1, seed=2)


@pytest.mark.parametrize("input_size", [26, 50, 80])
@pytest.mark.parametrize(
    "case", ["naive-path", "balanced-path", "balanced-no-incoming", "dfs-naive-standard", "dfs-standard-prefix"]
)
def test_thousands_of_difficulties_and_answers(case: str, input_size: int):
    """Less is asked of each example than elsewhere, but of enough for rare shapes of graphs to be met."""
    batch = CASES[case](input_size=input_size).sample(700, seed=6, threads=1)
    for row in range(len(batch)):
        problem = problem_in(batch, row)
        assert tuple(batch.difficulty[row]) == difficulty_of(problem, batch.distribution)
        assert set(np.flatnonzero(batch.answers[row])) == oracle.answers(problem)


@every_case
@pytest.mark.parametrize("input_size", [20, 32, 200])
def test_edge_tokens_may_come_in_any_order(case: Case, input_size: int):
    """Steps keep their order among themselves (it is the order of visiting); everything else may stand anywhere."""
    batch = case(input_size=input_size).sample(20, seed=3, threads=1)
    layout = batch.distribution.layout
    coded = edge_tokens.encode(batch)
    for row in range(len(batch)):
        order = np.random.default_rng(row).permutation(coded.kind.shape[1])
        steps = coded.kind[row, order] == edge_tokens.STEP
        order[steps] = np.sort(order[steps])
        mixed = edge_tokens.EdgeTokens(pairs=coded.pairs[row : row + 1, order], kind=coded.kind[row : row + 1, order])
        problem = problem_in(batch, row)
        decoded = edge_tokens.decode(mixed, layout, 0, current=problem.current)
        assert decoded.canonical() == problem.canonical()


@every_case
@pytest.mark.parametrize("input_size", [17, 32, 128])
def test_padding_stands_on_the_left(case: Case, input_size: int):
    batch = case(input_size=input_size).sample(200, seed=4, threads=1)
    pad = WORD_PAD if isinstance(batch, LanguageBatch) else batch.distribution.layout.pad
    padding = batch.tokens == pad
    assert batch.tokens.shape[1] == batch.distribution.width
    assert (padding == np.logical_and.accumulate(padding, axis=1)).all()


@pytest.mark.parametrize("case", [Naive, Balanced, Star], ids=["naive", "balanced", "star"])
@pytest.mark.parametrize("input_size", [14, 32, 129, 512])
def test_last_five_tokens_of_search_are_fixed(case: Case, input_size: int):
    batch = case(input_size=input_size).sample(100, seed=5, threads=1)
    path, query = (input_size - 5) // 3 + 1, (input_size - 5) // 3 + 4
    fixed = [np.full(100, query), batch.start, batch.goal, np.full(100, path), batch.start]
    assert (batch.tokens[:, -5:] == np.stack(fixed, axis=1)).all()


@pytest.mark.parametrize("kind", [Naive, Balanced, Star])
def test_fewer_vertices_are_the_smaller_problem_with_ids_of_the_larger(
    kind: type[Naive] | type[Balanced] | type[Star],
):
    small = kind(input_size=26).sample(2000, seed=5)
    limited = kind(input_size=64, vertices=7).sample(2000, seed=5)
    # The same key draws the same graph, whatever the ids: difficulty, sizes and degrees agree row by row.
    assert (small.difficulty == limited.difficulty).all()
    for few, many in zip(small.edges, limited.edges, strict=True):
        shapes = [sorted(Counter(int(v) for v in graph[graph[:, 0] > 0].reshape(-1)).values()) for graph in (few, many)]
        assert shapes[0] == shapes[1]
    assert set(np.unique(limited.edges)) == set(range(20)), "ids come from the whole range"
    assert (limited.edges[:, :-7] == 0).all()
    for problem in (limited.tokens[i] for i in range(50)):
        symbolic.parse(problem, limited.distribution.layout)


def test_the_limit_on_vertices_is_checked():
    with pytest.raises(ValueError, match=r"vertices=20: must be a whole number in 3\.\.19"):
        Naive(input_size=64, vertices=20)
    with pytest.raises(ValueError, match=r"lookahead=4: must be a whole number in 1\.\.3 .*vertices=7"):
        Balanced(input_size=64, vertices=7, lookahead=4)
    assert Language(input_size=32, vertices=5).cells() == [(1, 0, 0), (2, 0, 0)]
