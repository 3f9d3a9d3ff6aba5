"""Graphs inside kernels: bit sets across words, and path labels that are exact where floats are not."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from samples import Edge
from scipy.stats import binomtest

from pathmerge import Problem, oracle
from pathmerge.kernels.compile import kernel
from pathmerge.kernels.graph import add_edge, clear, coreach, first_step_of_random_path, keep_range, nth, size
from pathmerge.kernels.random import below64, set_index, set_stream
from pathmerge.kernels.workspace import make_workspace, words_for
from pathmerge.layout import MAX_INPUT_SIZE, SMALLEST_INPUT_SIZE, Layout


@kernel
def keep_ranges(sets, words, kept, sizes, members):
    """Every range of a full set: its members, how many there are, and each by its number."""
    most = 64 * len(words)
    for low in range(most + 1):
        for high in range(low, most + 1):
            for w in range(len(words)):
                sets[0, w] = np.uint64(0xFFFFFFFFFFFFFFFF)
            keep_range(sets, 0, low, high, words)
            sizes[low, high] = size(sets, 0, words)
            for n in range(sizes[low, high]):
                members[low, high] += nth(sets, 0, n, words) == low + n
            for w in range(len(words)):
                kept[low, high, w] = sets[0, w]


def test_a_bit_set_has_room_for_every_vertex():
    for input_size in range(SMALLEST_INPUT_SIZE["search"], MAX_INPUT_SIZE + 1):
        vertices = Layout(input_size).max_vertices
        assert len(words_for(vertices)) * 64 >= vertices


@pytest.mark.parametrize("words", [1, 2, 3])
def test_bit_sets_across_words(words: int):
    """Large graphs meet these edges only now and then, so they are gone through one by one."""
    most = 64 * words
    kept = np.zeros((most + 1, most + 1, words), np.uint64)
    sizes, members = np.zeros((2, most + 1, most + 1), np.int64)
    keep_ranges(np.zeros((1, words), np.uint64), (0,) * words, kept, sizes, members)
    for low in range(most + 1):
        for high in range(low, most + 1):
            wanted = (1 << high) - (1 << low)
            assert sum(int(word) << (64 * w) for w, word in enumerate(kept[low, high])) == wanted
            assert sizes[low, high] == members[low, high] == high - low


def fibonacci(last: int) -> tuple[list[Edge], int, int]:
    """Steps of one or two: from 0 to n there are as many paths as the Fibonacci number F(n+1)."""
    steps = [*pairwise(range(last + 1)), *((i, i + 2) for i in range(last - 1))]
    return steps, 0, last


def ladder(width: int, layers: int) -> tuple[list[Edge], int, int]:
    """Layers with all edges between neighbours, and a direct edge from start to goal: width^layers + 1 paths."""
    goal = width * layers + 1
    rows = [[0], *(list(range(1 + i * width, 1 + (i + 1) * width)) for i in range(layers)), [goal]]
    return [*((u, v) for above, below in pairwise(rows) for u in above for v in below), (0, goal)], 0, goal


PATHS_BEYOND_FLOATS = {
    "fibonacci": (*fibonacci(84), 259695496911122585),
    "ladder-of-two": (*ladder(2, 62), 2**62 + 1),
    "ladder-of-three": (*ladder(3, 40), 3**40 + 1),
}


@kernel
def draw_first_steps(work, words, source, target, start, goal, total, seed, steps, tickets):
    """First steps of random paths, and beside them the number below `total` that each must have been made from."""
    rng, out, into, sets = work.rng, work.out, work.into, work.sets
    for v in range(out.shape[0]):
        clear(out, v, words)
        clear(into, v, words)
    for e in range(source.shape[0]):
        add_edge(out, into, source[e], target[e])
    coreach(into, sets, goal, words)
    set_stream(rng, seed, 0, 0)
    for row in range(steps.shape[0]):
        set_index(rng, row, 0)
        tickets[row] = below64(rng, total)
        set_index(rng, row, 0)
        steps[row] = first_step_of_random_path(
            rng, out, into, sets, work.counts, work.pending, work.stack, start, goal, words
        )


@pytest.mark.parametrize("renumbered", [False, True], ids=["in-order", "renumbered"])
@pytest.mark.parametrize("graph", PATHS_BEYOND_FLOATS)
def test_path_labels_are_exact_beyond_the_floats(graph: str, renumbered: bool):
    """The counts are whole, and each label is the branch that its number among all paths falls into."""
    steps, start, goal, total = PATHS_BEYOND_FLOATS[graph]
    assert 2**53 < total < 2**64
    n = max(v for edge in steps for v in edge) + 1
    number = list(range(n))
    if renumbered:
        random.Random(0).shuffle(number)
    named = [(number[u], number[v]) for u, v in steps]
    # The oracle wants ids from 1 on.
    problem = Problem("search", tuple((u + 1, v + 1) for u, v in named), number[start] + 1, number[goal] + 1)
    exact = {v - 1: count for v, count in oracle.path_counts(problem).items()}
    assert sum(exact.values()) == total

    draws = 4000
    found, tickets = np.zeros(draws, np.int64), np.zeros(draws, np.uint64)
    work = make_workspace(n, 3)
    source, target = (np.array(ends) for ends in zip(*named, strict=True))
    words = (0, 0, 0)
    draw_first_steps(
        work, words, source, target, number[start], number[goal], np.uint64(total), np.uint64(9), found, tickets
    )
    assert int(work.counts[number[start]]) == total
    assert {v: int(work.counts[v]) for v in exact} == exact
    for step, ticket in zip(found.tolist(), tickets.tolist(), strict=True):
        before = sum(count for v, count in exact.items() if v < step)
        assert before <= ticket < before + exact[step]
    # The tickets themselves are spread evenly: 1e-5 is passed by chance once in 100,000 keys, and this key is fixed.
    for v, count in exact.items():
        share = float(Fraction(count, total))
        assert binomtest(int((found == v).sum()), draws, share).pvalue > 1e-5
