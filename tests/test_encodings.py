"""Malformed input is refused in one line that says what is wrong and where. Round trips are in test_problems.py."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

import numpy as np
import pytest

import pathmerge as pm
from pathmerge.encodings import edges, sentences, symbolic
from pathmerge.encodings.language import BLANK, NUMBER, PAD, WORDS, Language, text_width
from pathmerge.layout import Layout
from pathmerge.problems.problem import Problem

SEARCH = Layout(32)  # 9 vertices; PATH 10, EDGE 11, PAD 12, QUERY 13
FIGURE = [11, 8, 4, 11, 8, 3, 11, 4, 1, 11, 3, 6, 11, 2, 3, 13, 8, 6, 10, 8]  # the graph of the paper's figure 1
DFS = Layout(32, "dfs")  # 7 edges, 8 places after the query
STEPS = Layout(32, "selection")  # 5 edges, 14 places after the query


def test_the_figure_parses_with_and_without_padding():
    problem = Problem("search", ((8, 4), (8, 3), (4, 1), (3, 6), (2, 3)), 8, 6)
    assert symbolic.parse(FIGURE, SEARCH) == problem
    assert symbolic.parse([12] * 12 + FIGURE, SEARCH) == problem
    assert symbolic.parse(np.array([12] * 12 + FIGURE, np.int16), SEARCH) == problem
    assert symbolic.render(problem, SEARCH) == [12] * 12 + FIGURE


def changed(changes: dict[int, int]) -> list[int]:
    return [changes.get(i, token) for i, token in enumerate(FIGURE)]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (changed({1: 0}), r"tokens\[1\]=0: must be a whole number in 1..13"),
        (changed({1: 14}), r"tokens\[1\]=14: must be a whole number in 1..13"),
        (changed({1: -3}), r"tokens\[1\]=-3"),
        ([8.5, *FIGURE], r"tokens\[0\]=8.5: must be a whole number"),
        (["8", *FIGURE], r"tokens\[0\]='8': must be a whole number"),
        ([None, *FIGURE], r"tokens\[0\]=None: must be a whole number"),
        ([float("nan"), *FIGURE], r"tokens\[0\]=nan: must be a whole number"),
        (repeat(12), "tokens: more than 32 given"),
        (FIGURE[1:], r"must be EDGE and two vertices"),
        (FIGURE[:-1], "must be QUERY"),
        ([12] * 13 + FIGURE, "tokens: more than 32 given, must be at most input_size=32"),
        (FIGURE[-4:], "tokens: 4 given, must be at least 5"),
        ([], "tokens: 0 given"),
        ([11, 12, *FIGURE], r"tokens\[0\]=EDGE \(11\): must be PAD"),
        ([*FIGURE[:3], 12, *FIGURE[3:]], "must be PAD"),
        (changed({16: 10}), r"tokens\[16\]=PATH \(10\): must be a vertex"),
        (changed({18: 8}), r"must be PATH"),
        (changed({19: 3}), "must be the start vertex 8"),
        (changed({2: 10}), "must be EDGE and two vertices"),
        (changed({5: 4}), "edges: .8, 4. occurs 2 times"),
        (changed({14: 2}), "loop|itself"),
        (changed({1: 6, 2: 8}), "cycle"),
        (changed({17: 2}), "reach"),
        (changed({17: 8}), "start|goal"),
        (changed({17: 9}), "goal"),
    ],
)
def test_malformed_search_tokens(tokens: Iterable[int], message: str):
    with pytest.raises(ValueError, match=message) as caught:
        symbolic.parse(tokens, SEARCH)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ([10] * 8, "trace|visited|empty"),
        ([8, 10, 10, 10, 10, 10, 10, 8], "must be PATH"),
        ([10] * 7 + [3], "start"),
        ([10] * 5 + [8, 4, 8], "repeated|twice|already|visited"),
        ([10] * 6 + [8, 1], "visited|trace|valid"),
        ([10] * 5 + [8, 3, 6], "goal"),
        ([10] * 7 + [12], "must be PATH .* or a vertex"),
    ],
)
def test_malformed_traces(trace: list[int], message: str):
    with pytest.raises(ValueError, match=message):
        symbolic.parse([*FIGURE[:18], *trace], DFS)


@pytest.mark.parametrize(
    ("region", "message"),
    [
        ([10] * 10 + [8, 10, 4, 10], "must be"),
        ([10] * 11 + [4, 1, 10], "visited|source|reached"),
        ([10] * 11 + [8, 1, 10], "edge"),
        ([10] * 8 + [8, 4, 10, 8, 4, 10], "visited|already"),
        ([10] * 5 + [8, 3, 10, 3, 6, 10, 8, 4, 10], "goal"),
        ([10] * 13 + [3], "current"),
        ([10] * 10 + [8, 4, 10, 10], "must be"),
    ],
)
def test_malformed_visited_edges(region: list[int], message: str):
    with pytest.raises(ValueError, match=message):
        symbolic.parse([*FIGURE[:18], *region], STEPS)


def test_the_papers_selection_and_inference_examples():
    """Appendix A.9, with this size's numbers for the marks."""
    graph = [11, 4, 1, 11, 8, 3, 11, 3, 6, 11, 8, 4, 11, 2, 3, 13, 8, 6]
    chosen = symbolic.parse([*graph, *[10] * 8, 8, 4, 10, 4, 1, 10], STEPS)
    assert (chosen.task, chosen.visited_edges, chosen.current) == ("selection", ((8, 4), (4, 1)), None)
    inferred = symbolic.parse([*graph, *[10] * 7, 8, 4, 10, 4, 1, 10, 8], STEPS)
    assert (inferred.task, inferred.visited_edges, inferred.current) == ("inference", ((8, 4), (4, 1)), 8)


def edge_tokens(pairs: list[tuple[int, int]], kinds: list[int]) -> edges.EdgeTokens:
    return edges.EdgeTokens(pairs=np.array([pairs], np.int64), kind=np.array([kinds], np.int64))


@pytest.mark.parametrize(
    ("pairs", "kinds", "message"),
    [
        ([(8, 3), (3, 6), (6, 8)], [1, 1, 1], "0 query tokens, must be 1"),
        ([(8, 3), (3, 6), (6, 8)], [1, 2, 2], "2 query tokens"),
        ([(8, 3), (3, 6), (6, 8)], [1, 9, 2], r"kind\[0, 1\]=9"),
        ([(8, 30), (3, 6), (6, 8)], [1, 1, 2], r"pairs\[0, 0\]=30: must be a whole number in 1..9"),
        ([(8, 3), (6, 3), (6, 8)], [1, 1, 2], "reach"),
        ([(8, 3), (3, 6), (6, 8), (8, 8)], [1, 1, 2, 4], "1 current tokens, must be 0"),
        ([(8, 3), (3, 6), (6, 8), (8, 3)], [1, 1, 2, 3], "1 step tokens, must be 0"),
        ([(8, 3), (3, 6), (6, 8), (1, 0)], [1, 1, 2, 0], r"pairs\[0, 3\]=1: must be a whole number in 0..0"),
    ],
)
def test_malformed_edge_tokens(pairs: list[tuple[int, int]], kinds: list[int], message: str):
    with pytest.raises(ValueError, match=message):
        edges.decode(edge_tokens(pairs, kinds), SEARCH, 0)


def test_steps_that_are_no_trace_are_refused():
    tokens = edge_tokens([(8, 4), (8, 3), (3, 6), (4, 3), (6, 8)], [1, 1, 1, 3, 2])
    with pytest.raises(ValueError, match="do not form one trace"):
        edges.decode(tokens, DFS, 0)


def test_the_order_of_a_trace_is_read_off_its_steps():
    batch = pm.DFS(input_size=64, backtrack=6).sample(20, seed=1)
    layout, encoded = batch.distribution.layout, edges.encode(batch)
    backwards = edges.EdgeTokens(pairs=encoded.pairs[:, ::-1], kind=encoded.kind[:, ::-1])
    for row in range(len(batch)):
        assert edges.decode(backwards, layout, row).canonical() == edges.decode(encoded, layout, row).canonical()


def test_words_are_distinct_and_atoms_are_many():
    assert len(set(WORDS)) == len(WORDS)
    atoms = sentences.atom_tokens(np.arange(3000))
    assert len(np.unique(atoms, axis=0)) == 3000
    assert sentences.to_text(atoms[0]) == "Alex is a wumpus"


def test_the_answer_is_not_in_the_text_and_is_judged_as_a_whole():
    batch = Language(input_size=32).sample(200, seed=3)
    assert batch.tokens.shape[1] == text_width(32) == 12 * 9 + 16
    assert (batch.tokens[:, -4:] == BLANK).all()
    assert (batch.tokens[:, :-4] != BLANK).all()
    written = batch.label_tokens
    assert batch.correct(written).all()
    for place in (0, 1, 3):
        spoiled = written.copy()
        spoiled[:, place] = (spoiled[:, place] + 1) % len(WORDS)
        assert not batch.correct(spoiled).any()
    start = sentences.atom_tokens(batch.atoms[np.arange(200), batch.start])
    assert not batch.correct(start).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: [*t[:-13], *t[-12:]], "words, must be 12 for each sentence and 4 more"),
        (lambda t: [*t, PAD], "tokens: more than 124 given"),
        (lambda t: [len(WORDS), *t[1:]], r"tokens\[0\]=64: must be a whole number in 0..63"),
        (lambda t: [*t[:-5], NUMBER[","], *t[-4:]], "must be 'Given <atom> , prove <atom> .'"),
        (lambda t: [*t[:-9], NUMBER["then"], *t[-8:]], "must be an atom"),
    ],
)
def test_malformed_text(change, message: str):
    tokens = Language(input_size=32, lookahead=4).sample(1).tokens[0].tolist()
    sentences.parse(tokens, 32)
    with pytest.raises(ValueError, match=message):
        sentences.parse(change(tokens), 32)
