"""The problem of the paper's Figures 1 and 13: its tokens and its text to the letter, its answers, spoilt copies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from samples import Case, Edge, difficulty_of, layout_of

from pathmerge import DFS, Layout, Naive, Problem, SelectionInference, oracle
from pathmerge.encodings import edges as edge_tokens
from pathmerge.encodings import sentences, symbolic
from pathmerge.encodings.language import ATOM_WIDTH, BLANK, WORDS, text_width
from pathmerge.problems.batch import Batch
from pathmerge.problems.identity import identity

# The graph of the paper's Figures 1 and 13, in the order of the paper's tokens; at N = 32 there are V = 9 vertices.
FIGURE_EDGES: tuple[Edge, ...] = ((4, 1), (8, 3), (3, 6), (8, 4), (2, 3))
P, E, PAD, Q = 10, 11, 12, 13
FIGURE_GRAPH = [E, 4, 1, E, 8, 3, E, 3, 6, E, 8, 4, E, 2, 3, Q, 8, 6]
FIGURE_PROBLEMS = {
    "search": Problem("search", FIGURE_EDGES, 8, 6),
    "dfs": Problem("dfs", FIGURE_EDGES, 8, 6, visited=(8, 4, 1)),
    "selection": Problem("selection", FIGURE_EDGES, 8, 6, visited_edges=((8, 4), (4, 1)), current=8),
    "inference": Problem("inference", FIGURE_EDGES, 8, 6, visited_edges=((8, 4), (4, 1)), current=8),
}
FIGURE_TOKENS = {
    "search": [PAD] * 12 + FIGURE_GRAPH + [P, 8],
    "dfs": [PAD] * 6 + FIGURE_GRAPH + [P, P, P, P, P, 8, 4, 1],
    "selection": [*FIGURE_GRAPH, P, P, P, P, P, P, P, P, 8, 4, P, 4, 1, P],
    "inference": [*FIGURE_GRAPH, P, P, P, P, P, P, P, 8, 4, P, 4, 1, P, 8],
}
every_task = pytest.mark.parametrize("task", FIGURE_PROBLEMS)


@every_task
def test_tokens_of_the_papers_example(task: str):
    problem, tokens = FIGURE_PROBLEMS[task], FIGURE_TOKENS[task]
    layout = layout_of(problem, 32)
    assert len(tokens) == 32
    assert symbolic.render(problem, layout) == tokens
    assert symbolic.parse(tokens, layout, current=problem.current) == problem
    assert symbolic.parse([t for t in tokens if t != PAD], layout, current=problem.current) == problem


@pytest.mark.parametrize(
    ("task", "answers", "difficulty"),
    [("search", {3}, (2, 0, 0)), ("dfs", {3}, (2, 0, 0)), ("selection", {8}, (1, 2, 0)), ("inference", {3}, (1, 2, 1))],
)
def test_answers_and_difficulty_of_the_papers_example(task: str, answers: set[int], difficulty: tuple[int, int, int]):
    problem = FIGURE_PROBLEMS[task]
    assert oracle.answers(problem) == answers
    assert difficulty_of(problem, Naive(input_size=32)) == difficulty


def test_random_padding_of_the_papers_example():
    """Figure 13 shows ``P 8 P 4 1 P``; the slots left over at N = 32 stand before it."""
    problem, layout = FIGURE_PROBLEMS["dfs"], Layout(32, "dfs")
    tokens = [PAD] * 6 + FIGURE_GRAPH + [P, P, P, 8, P, 4, 1, P]
    assert symbolic.render(problem, layout, [8, 0, 4, 1, 0]) == tokens
    assert symbolic.parse(tokens, layout) == problem


@pytest.mark.parametrize(
    ("task", "steps"),
    [
        ("search", []),
        ("dfs", [(edge_tokens.STEP, (8, 4)), (edge_tokens.STEP, (4, 1))]),
        ("selection", [(edge_tokens.STEP, (8, 4)), (edge_tokens.STEP, (4, 1)), (edge_tokens.PAD, (0, 0))]),
        ("inference", [(edge_tokens.STEP, (8, 4)), (edge_tokens.STEP, (4, 1)), (edge_tokens.CURRENT, (8, 8))]),
    ],
)
def test_edge_tokens_of_the_papers_example(task: str, steps: list[tuple[int, Edge]]):
    problem = FIGURE_PROBLEMS[task]
    layout = layout_of(problem, 32)
    coded = edge_tokens.encode(as_batch(problem, 32))
    graph = [(edge_tokens.EDGE, edge) for edge in FIGURE_EDGES]
    width = {"search": 9 + 0 + 1, "dfs": 7 + 6 + 1, "selection": 5 + 5 + 1, "inference": 5 + 5 + 1}[task]
    filler = (edge_tokens.PAD, (0, 0))
    left = [filler] * (layout.max_edges - len(graph))
    between = [filler] * (width - 1 - layout.max_edges - len(steps))
    wanted = [*left, *graph, *between, *steps, (edge_tokens.QUERY, (6, 8))]
    found = [(int(kind), (int(u), int(v))) for kind, (u, v) in zip(coded.kind[0], coded.pairs[0], strict=True)]
    assert found == wanted
    assert edge_tokens.decode(coded, layout, 0, current=problem.current) == problem


def as_batch(problem: Problem, input_size: int) -> Batch:
    """A problem from outside in the columns that the encodings read."""
    kinds: dict[str, Case] = {"search": Naive, "dfs": DFS}
    distribution = kinds.get(problem.task, SelectionInference)(input_size=input_size)
    batch = distribution.sample(1, threads=1)
    tokens = symbolic.render(problem, layout_of(problem, input_size))
    ends = {"start": np.array([problem.start]), "goal": np.array([problem.goal])}
    return replace(batch, tokens=np.array([tokens]), **ends)


def test_text_of_the_papers_example():
    atoms = {8: 0, 3: 1, 6: 30, 4: 150, 1: 2999, 2: 151}
    name = {
        8: "Alex is a wumpus",
        3: "Alex is a vumpus",
        6: "Alex sees a wumpus",
        4: "Bailey is a wumpus",
        1: "Taylor follows a glimmet",
        2: "Bailey is a vumpus",
    }
    text = "".join(f"If {name[u]} , then {name[v]} . " for u, v in FIGURE_EDGES)
    text += f"Given {name[8]} , prove {name[6]} . <blank> <blank> <blank> <blank>"
    tokens = sentences.render(FIGURE_PROBLEMS["search"], atoms, 32)
    assert len(tokens) == text_width(32) == 12 * 9 + 16
    assert [WORDS[t] for t in tokens] == ["<pad>"] * (12 * 4) + text.split()
    assert tokens[-ATOM_WIDTH:] == [BLANK] * ATOM_WIDTH
    assert sentences.to_text(tokens) == text
    assert sentences.parse(tokens, 32, atoms) == (FIGURE_PROBLEMS["search"], atoms)


@pytest.mark.parametrize(
    ("task", "change", "complaint"),
    [
        ("search", {13: 3, 14: 8}, "cycle"),
        ("search", {13: 8, 14: 3}, "occurs 2 times"),
        ("search", {29: 2}, "cannot be reached"),
        ("search", {28: 5, 31: 5}, "not in the graph"),
        ("search", {31: 3}, "start vertex"),
        ("search", {0: E}, "PAD"),
        ("dfs", {30: 1, 31: 4}, "step 1 goes to 1"),
        ("dfs", {31: 6}, "contains the goal"),
        ("dfs", {29: 4, 30: 8}, "must begin with start"),
        ("selection", {29: 8, 30: 6}, "not an edge"),
        ("selection", {26: 4, 27: 1, 29: 8, 30: 4}, "not visited before"),
        ("inference", {31: 4}, "no unvisited child"),
        ("inference", {31: 3}, "not visited"),
    ],
)
def test_parsing_judges(task: str, change: dict[int, int], complaint: str):
    """A few spoilt tokens must be refused: only so does it mean anything that emitted examples are accepted."""
    tokens = list(FIGURE_TOKENS[task])
    for place, token in change.items():
        tokens[place] = token
    with pytest.raises(ValueError, match=complaint):
        symbolic.parse(tokens, layout_of(FIGURE_PROBLEMS[task], 32))


@pytest.mark.parametrize("field", ["start", "goal", "edges", "visited", "visited_edges", "current", "task"])
def test_identity_tells_different_problems_apart(field: str):
    problem = FIGURE_PROBLEMS["dfs" if field == "visited" else "inference"]
    changed = {
        "start": replace(problem, start=2),
        "goal": replace(problem, goal=3),
        "edges": replace(problem, edges=(*problem.edges[:-1], (3, 2))),
        "visited": replace(problem, visited=(8, 1, 4)),
        "visited_edges": replace(problem, visited_edges=problem.visited_edges[::-1]),
        "current": replace(problem, current=3),
        "task": replace(problem, task="selection"),
    }[field]
    assert identity(changed) != identity(problem)


def test_a_selection_steps_current_vertex_is_no_part_of_the_problem():
    problem = FIGURE_PROBLEMS["selection"]
    assert identity(replace(problem, current=None)) == identity(problem)
