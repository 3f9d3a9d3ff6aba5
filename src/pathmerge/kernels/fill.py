"""The driver: example i of a key, for a range of i, into preallocated rows.

Choices a reader could not guess:
- The task is a type (a tuple's length, like the number of words of a bit set), so that what one task needs is compiled
  without the others: who trains on search problems does not wait for selection-inference.
- The requested difficulty is one of `cells`, drawn from a slot of the key of its own, so that neither a rejection nor
  a held-out hit changes it.
- A held-out hit is redrawn in place with the next attempt. So example i depends on the key and the held-out set only.
- The hash of a problem adds up one mixed word per edge (order does not matter) and then chains, in order, the task,
  start, goal and, where there is one, the visited sequence and the current vertex. `pathmerge.problems.identity` has
  the same in plain Python.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pathmerge.kernels.compile import chosen_by_type, helper, inline, kernel
from pathmerge.kernels.dfs import propose_balanced_trace, propose_naive_trace, turning_point, write_trace
from pathmerge.kernels.graph import COREACH, POOL, first_step_of_random_path, lookahead, pick, pop, size
from pathmerge.kernels.random import DIFFICULTY_ATTEMPT, MAX_ATTEMPTS, below, set_index, set_stream
from pathmerge.kernels.search import propose_balanced, propose_naive, propose_star
from pathmerge.kernels.selection_inference import answers, propose_selection_inference, write_visited
from pathmerge.kernels.workspace import (
    BALANCED,
    DFS_BALANCED,
    DFS_NAIVE,
    INFERENCE,
    LABEL_PATH,
    NAIVE,
)

_A = np.uint64(0xBF58476D1CE4E5B9)
_B = np.uint64(0x94D049BB133111EB)
_EDGE = np.uint64(0x9E3779B97F4A7C15)
_S30 = np.uint64(30)
_S27 = np.uint64(27)
_S31 = np.uint64(31)
_S9 = np.uint64(9)
_ZERO = np.uint64(0)


@inline
def mix(x):
    """A bijection of 64-bit words whose every output bit depends on every input bit (Stafford's variant 13)."""
    x = (x ^ (x >> _S30)) * _A
    x = (x ^ (x >> _S27)) * _B
    return x ^ (x >> _S31)


@inline
def contains(table, key):
    """Look a hash up in an open-addressing table whose length is a power of two; 0 marks a free place."""
    mask = np.uint64(table.shape[0] - 1)
    at = key & mask
    while table[at] != _ZERO and table[at] != key:
        at = (at + np.uint64(1)) & mask
    return table[at] == key


@kernel
def insert(table, keys):
    """Put hashes into such a table, which must be larger than their number. Returns how many were new."""
    mask = np.uint64(table.shape[0] - 1)
    new = 0
    for i in range(keys.shape[0]):
        at = keys[i] & mask
        while table[at] != _ZERO and table[at] != keys[i]:
            at = (at + np.uint64(1)) & mask
        if table[at] == _ZERO:
            table[at] = keys[i]
            new += 1
    return new


@helper
def _assign_ids(rng, ids, n, most):
    """A uniformly random injection of 0..n-1 into 1..most, in ids[0..n-1]."""
    for i in range(most):
        ids[i] = i + 1
    for i in range(n):
        j = i + below(rng, most - i)
        ids[i], ids[j] = ids[j], ids[i]


@helper
def _write(work, ask, n, edges, start, goal, tokens):
    """Give ids, put the edges in random order, write the tokens of one example; returns the sum of its edge hashes."""
    rng, ids, source, target = work.rng, work.ids, work.source, work.target
    _assign_ids(rng, ids, n, ask.vertices)
    path = ask.vertices + 1
    at = ask.input_size - ask.region
    for i in range(ask.region):
        v = work.region[i]
        tokens[at + i] = path if v == 0 else ids[v - 1]
    tokens[at - 1] = ids[goal]
    tokens[at - 2] = ids[start]
    tokens[at - 3] = ask.vertices + 4
    at -= 3
    total = _ZERO
    for left in range(edges, 0, -1):
        e = below(rng, left)
        u, v = ids[source[e]], ids[target[e]]
        source[e], target[e] = source[left - 1], target[left - 1]
        at -= 3
        tokens[at] = ask.vertices + 2
        tokens[at + 1] = u
        tokens[at + 2] = v
        total += mix(((np.uint64(u) << _S9) | np.uint64(v)) * _EDGE)
    for i in range(at):
        tokens[i] = ask.vertices + 3
    return total


@helper
def _identity(work, ask, edge_sum, step, start, goal, tokens):
    """The hash of the example just written; never 0. `step`: of selection-inference, selection or inference."""
    number = len(ask.task) - 1
    if number == 2 and step == INFERENCE:
        number = 3
    h = mix(edge_sum ^ np.uint64(number + 1))
    h = mix(h ^ ((np.uint64(work.ids[start]) << _S9) | np.uint64(work.ids[goal])))
    if number > 0:
        for i in range(ask.region):
            if work.region[i] != 0:
                h = mix(h ^ np.uint64(tokens[ask.input_size - ask.region + i]))
    return max(h, np.uint64(1))


@helper
def _search(work, ask, wish, difficulty):
    """An attempt at a search problem: its graph, the difficulty and, as the set POOL, the answers.

    Returns vertices (0: rejected), edges, start, goal, the current vertex (-1: start) and the label (-1: any answer).
    """
    sets, words = work.sets, ask.words
    if ask.kind == NAIVE:
        proposal = propose_naive(work, 3, ask.most, min(ask.edges, ask.most), words)
    elif ask.kind == BALANCED:
        proposal = propose_balanced(work, ask.most, wish[0], ask.option, words)
    else:
        proposal = propose_star(work, wish[1], wish[0], words)
    n, edges, start, goal = proposal
    chosen = -1
    if n > 0:
        difficulty[0] = lookahead(work.out, sets, start, goal, words) if ask.kind == NAIVE else wish[0]
        difficulty[1] = wish[1]
        difficulty[2] = 0
        work.region[0] = 0
        work.region[1] = start + 1
        _useful(work, start, words)
        if ask.label == LABEL_PATH and size(sets, POOL, words) > 1:
            chosen = first_step_of_random_path(
                work.rng, work.out, work.into, sets, work.counts, work.pending, work.stack, start, goal, words
            )
            _useful(work, start, words)
    return n, edges, start, goal, -1, chosen


@inline
def _useful(work, start, words):
    for w in range(len(words)):
        work.sets[POOL, w] = work.out[start, w] & work.sets[COREACH, w]


@helper
def _trace(work, ask, wish, difficulty):
    """The same for depth-first search."""
    words = ask.words
    if ask.kind == DFS_NAIVE:
        proposal, length = propose_naive_trace(work, ask.vertices, ask.edges, words)
    else:
        proposal, length = propose_balanced_trace(work, ask.vertices, ask.edges, wish[0], ask.option, words)
    n, edges, start, goal = proposal
    current = -1
    if n > 0:
        back = turning_point(work, length, words)
        if back < 0 or (ask.kind == DFS_BALANCED and back != wish[0]):
            n = 0
        else:
            difficulty[0] = back
            difficulty[1] = 0
            difficulty[2] = 0
            current = work.visited[length - 1]
            write_trace(work, length, ask.edges, ask.padding)
    return n, edges, start, goal, current, -1


@helper
def _step(work, ask, wish, difficulty):
    """The same for selection-inference."""
    proposal, length, current = propose_selection_inference(
        work, ask.input_size, ask.edges, wish[0], wish[1], ask.words
    )
    n, edges, start, goal = proposal
    if n > 0:
        for i in range(3):
            difficulty[i] = wish[i]
        answers(work, n, current, wish[2], ask.words)
        write_visited(work, length, current, ask.region, wish[2])
    return n, edges, start, goal, current, -1


def _attempt(task, work, ask, wish, difficulty) -> Any:
    """`_search`, `_trace` or `_step`, whichever the type of the task says."""


@chosen_by_type(_attempt)
def _chosen(task, work, ask, wish, difficulty):
    attempt = (_search, _trace, _step)[len(task) - 1]
    return lambda task, work, ask, wish, difficulty: attempt(work, ask, wish, difficulty)


@kernel
def fill(work, ask, cells, seed, split, stream, first, held, out):
    """Write examples first..first+rows-1; returns -1, or the row at which no attempt succeeded.

    `cells`: int64, one requested difficulty per row (three columns). `held`: a hash table, or length 1 for none.
    """
    tokens, label, found, difficulty, ends, identity, attempts, redraws = out
    rng, sets = work.rng, work.sets
    set_stream(rng, seed, split, stream)
    for row in range(tokens.shape[0]):
        index = np.uint64(first) + np.uint64(row)
        cell = 0
        if cells.shape[0] > 1:
            set_index(rng, index, DIFFICULTY_ATTEMPT)
            cell = below(rng, cells.shape[0])
        redraws[row] = 0
        done = False
        for attempt in range(MAX_ATTEMPTS):
            set_index(rng, index, attempt)
            n, edges, start, goal, current, chosen = _attempt(ask.task, work, ask, cells[cell], difficulty[row])
            if n == 0:
                continue
            if chosen < 0:
                chosen = pick(rng, sets, POOL, ask.words)
            edge_sum = _write(work, ask, n, edges, start, goal, tokens[row])
            identity[row] = _identity(work, ask, edge_sum, cells[cell, 2], start, goal, tokens[row])
            if contains(held, identity[row]):
                redraws[row] += 1
                continue
            ends[row, 0] = work.ids[start]
            ends[row, 1] = work.ids[goal]
            ends[row, 2] = work.ids[current] if current >= 0 else work.ids[start]
            label[row] = work.ids[chosen]
            for i in range(found.shape[1]):
                found[row, i] = False
            while True:
                v = pop(sets, POOL, ask.words)
                if v < 0:
                    break
                found[row, work.ids[v]] = True
            attempts[row] = attempt + 1
            done = True
            break
        if not done:
            return row
    return -1
