"""Slow generators that follow docs/problems.md sentence by sentence, to be held against the fast ones.

They share no code with the generators under test, and use the package only for sizes, for the record `Problem` and
for the checker in `pathmerge.oracle`. Graphs are plain sets of edges in the numbering of the construction until the
very end, where `_finish` hands out random ids and an order of the edges.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeVar

from pathmerge import oracle
from pathmerge.layout import Layout, Task
from pathmerge.problems.problem import Problem

Edge = tuple[int, int]
VertexOrEdge = TypeVar("VertexOrEdge", int, Edge)
MOST_ATTEMPTS = 100_000
LARGEST_SURPLUS = 6
MOST_LEFTOVER_LINKS = 3


@dataclass(frozen=True)
class Drawn:
    """A problem, and how many attempts it took to get one that was not thrown away."""

    problem: Problem
    attempts: int


@dataclass(frozen=True)
class NaiveProposal:
    """A naive graph before it is judged; `parent_counts[i]` is the k that vertex i was given, for i = 2..n."""

    n: int
    parent_counts: dict[int, int]
    edges: tuple[Edge, ...]
    start: int
    goal: int


@dataclass(frozen=True)
class Leftover:
    """What one leftover vertex asked for, and what it got."""

    vertex: int
    children_wanted: int
    parents_wanted: int
    children: tuple[int, ...]
    parents: tuple[int, ...]


@dataclass(frozen=True)
class BalancedProposal:
    """A balanced graph before it is judged; `chain_lengths` are those of the further chains, without the main one."""

    n: int
    further_chains: int
    surplus: int
    chain_lengths: tuple[int, ...]
    incoming: int
    leftovers: tuple[Leftover, ...]
    edges: tuple[Edge, ...]
    start: int
    goal: int


class DrawAgainError(Exception):
    """The attempt is to be thrown away."""


def propose_naive(rng: random.Random, layout: Layout) -> NaiveProposal:
    return _propose_naive(rng, 3, layout.max_vertices)


def propose_balanced(rng: random.Random, layout: Layout, lookahead: int, incoming: bool = True) -> BalancedProposal:
    most = layout.max_vertices
    if not 1 <= lookahead <= (most - 1) // 2:
        raise ValueError(f"lookahead={lookahead}: must be in 1..{(most - 1) // 2}")
    further = rng.randint(1, (most - 1) // lookahead - 1)
    surplus = rng.randint(0, LARGEST_SURPLUS)
    needed = lookahead * (further + 1) + 1
    n = min(needed + surplus, most)
    spare = n - needed

    start = 1
    edges: list[Edge] = []
    last = start

    def new_vertex() -> int:
        nonlocal last
        last += 1
        return last

    def chain_from_start(length: int) -> int:
        end = start
        for _ in range(length):
            vertex = new_vertex()
            edges.append((end, vertex))
            end = vertex
        return end

    goal = chain_from_start(lookahead)
    lengths: list[int] = []
    for _ in range(further):
        length = lookahead
        if spare > 0 and rng.random() < 0.5:
            length += 1
            spare -= 1
        chain_from_start(length)
        lengths.append(length)

    incoming_length = rng.randint(0, spare) if incoming else 0
    end = start
    for _ in range(incoming_length):
        vertex = new_vertex()
        edges.append((vertex, end))
        end = vertex
    spare -= incoming_length

    leftovers: list[Leftover] = []
    for _ in range(spare):
        so_far = range(1, last + 1)
        vertex = new_vertex()
        a = rng.randint(0, MOST_LEFTOVER_LINKS)
        b = rng.randint(1 if a == 0 else 0, MOST_LEFTOVER_LINKS)
        # Weights are doubled (1 + 2·degree for 1/2 + degree) to keep them whole.
        in_weight = {v: 1 + 2 * len(_parents(edges, v)) for v in so_far}
        children = _weighted_sample(rng, in_weight, a)
        edges += [(vertex, child) for child in children]
        below = _descendants(edges, vertex)
        out_weight = {v: 1 + 2 * len(_children(edges, v)) for v in so_far if v not in below}
        parents = _weighted_sample(rng, out_weight, b)
        edges += [(parent, vertex) for parent in parents]
        leftovers.append(Leftover(vertex, a, b, tuple(children), tuple(parents)))
    assert last == n
    return BalancedProposal(
        n, further, surplus, tuple(lengths), incoming_length, tuple(leftovers), tuple(edges), start, goal
    )


def naive(rng: random.Random, input_size: int) -> Drawn:
    layout = Layout(input_size, "search")

    def attempt() -> Problem:
        proposal = propose_naive(rng, layout)
        if proposal.goal not in _descendants(proposal.edges, proposal.start):
            raise DrawAgainError
        if len(proposal.edges) > layout.max_edges:
            raise DrawAgainError
        return _finish(rng, layout, proposal.n, proposal.edges, proposal.start, proposal.goal)

    return _until_kept(attempt)


def balanced(rng: random.Random, input_size: int, lookahead: int, incoming: bool = True) -> Drawn:
    layout = Layout(input_size, "search")

    def attempt() -> Problem:
        proposal = propose_balanced(rng, layout, lookahead, incoming)
        problem = _finish(rng, layout, proposal.n, proposal.edges, proposal.start, proposal.goal)
        if len(problem.edges) > layout.max_edges or oracle.lookahead(problem) != lookahead:
            raise DrawAgainError
        return problem

    return _until_kept(attempt)


def star(rng: random.Random, input_size: int, spokes: int, lookahead: int) -> Drawn:
    layout = Layout(input_size, "search")
    n = spokes * lookahead + 1
    if spokes < 2 or lookahead < 1 or n > layout.max_vertices:
        raise ValueError(f"star({spokes}, {lookahead}): does not fit {layout.max_vertices} vertices")
    edges: list[Edge] = []
    ends: list[int] = []
    for spoke in range(spokes):
        vertices = [1, *range(2 + spoke * lookahead, 2 + (spoke + 1) * lookahead)]
        edges += pairwise(vertices)
        ends.append(vertices[-1])
    return Drawn(_finish(rng, layout, n, edges, 1, rng.choice(ends)), 1)


def dfs_naive(rng: random.Random, input_size: int) -> Drawn:
    layout = Layout(input_size, "dfs")
    most_vertices, most_edges = layout.max_vertices, layout.max_edges

    def attempt() -> Problem:
        proposal = _propose_naive(rng, min(3, most_vertices), min(most_vertices, most_edges + 1))
        edges, start, goal = proposal.edges, proposal.start, proposal.goal
        if goal not in _descendants(edges, start) or len(edges) > most_edges:
            raise DrawAgainError
        taken = [start]
        while True:
            step = _pick(rng, _depth_first_answers(edges, taken))
            if step == goal:
                break
            taken.append(step)
        trace = taken[: rng.randint(1, len(taken))]
        return _finish(rng, layout, proposal.n, edges, start, goal, visited=trace)

    return _until_kept(attempt)


def dfs_balanced(rng: random.Random, input_size: int, backtrack: int, prefix: bool = False) -> Drawn:
    layout = Layout(input_size, "dfs")
    most_vertices, most_edges = layout.max_vertices, layout.max_edges
    if not 0 <= backtrack <= min(most_edges - 1, most_vertices - 2):
        raise ValueError(f"backtrack={backtrack}: must be in 0..{min(most_edges - 1, most_vertices - 2)}")

    def attempt() -> Problem:
        graph = _propose_naive(rng, min(max(3, backtrack + 2), most_vertices), min(most_vertices, most_edges + 1))
        n = graph.n
        edges = set(graph.edges)
        g1 = range(1, n - backtrack + 1)
        g2 = range(n - backtrack + 1, n + 1)
        last_of_g1 = n - backtrack
        if backtrack == 0 or _parents(edges, g2[0]) == {last_of_g1}:
            s = _pick(rng, set(g1) - {last_of_g1})
        else:
            s = _pick(rng, _parents(edges, g2[0]) - {last_of_g1})
        goal = _pick(rng, {v for v in g1 if v > s})

        inner = {s, *g2}
        for vertex in g2:
            if not _parents(edges, vertex) & inner:
                edges.add((s, vertex))
        if goal not in _descendants(edges, s):
            edges.add((s, goal))

        above: list[int] = []
        if prefix:
            vertex = s
            while _parents(edges, vertex):
                vertex = _pick(rng, _parents(edges, vertex))
                above.append(vertex)
            above = above[: rng.randint(0, len(above))]
        way_down = [*reversed(above), s]
        prefix_edges = set(pairwise(way_down))

        def is_needed(edge: Edge) -> bool:
            # By now every vertex of G2 has a parent in {s} or G2, so only the edge's own target can lose its last one.
            without = edges - {edge}
            target = edge[1]
            return (
                edge in prefix_edges
                or (target in g2 and not _parents(without, target) & inner)
                or goal not in _descendants(without, s)
            )

        while len(edges) > most_edges:
            edges.remove(_pick(rng, [edge for edge in edges if not is_needed(edge)]))

        trace = list(way_down)
        into_g2 = [(source, target) for source, target in edges if target in g2]
        while answers := _depth_first_answers(into_g2, trace):
            trace.append(_pick(rng, answers))
        problem = _finish(rng, layout, n, edges, way_down[0], goal, visited=trace)
        if oracle.violations(problem, layout) or oracle.backtrack(problem) != backtrack:
            raise DrawAgainError
        return problem

    return _until_kept(attempt)


def selection_inference(
    rng: random.Random, input_size: int, frontier: int, branch: int, step: Literal["selection", "inference"]
) -> Drawn:
    """Selection problems keep the vertex of the construction as `current` too: their branch count refers to it."""
    layout = Layout(input_size, step)
    if (frontier, branch) not in feasible_pairs(input_size, "selection-inference"):
        raise ValueError(f"frontier={frontier}, branch={branch}: not feasible with {layout.max_edges} edges")
    return _until_kept(lambda: _SelectionInference(rng, layout, frontier, branch).attempt())


class _SelectionInference:
    """One attempt at a selection-inference problem; the methods are the numbered steps of the construction.

    Throughout, `reached` are the vertices the visited sequence has reached. Until step 9 these are frontier vertices.
    """

    def __init__(self, rng: random.Random, layout: Layout, frontier: int, branch: int) -> None:
        self.rng = rng
        self.layout = layout
        self.most_edges = layout.max_edges
        self.F = frontier
        self.B = branch
        self.n = self.c = self.s = self.g = 0
        self.edges: set[Edge] = set()
        self.frontier: set[int] = set()
        self.reached: set[int] = set()
        self.sequence: list[Edge] = []
        self.added = 0

    def attempt(self) -> Problem:
        self.step_1_sizes()
        self.step_2_initial_edges()
        self.step_3_frontier()
        self.step_4_unvisited_children()
        self.step_5_visited_through_c()
        self.step_6_other_children_of_c()
        self.step_7_goal()
        self.step_8_remove()
        self.step_9_longer_sequence()
        return self.step_10_check()

    def step_1_sizes(self) -> None:
        m = max(self.F, self.B) + 1
        self.n = self.uniform(m, max(m, self.most_edges - self.F + 1))
        self.c = self.uniform(1, self.n - self.B)
        self.s = self.uniform(1, min(self.c, self.n - self.F))
        self.g = self.uniform(max(self.c + 1, self.s + self.F), self.n)

    def step_2_initial_edges(self) -> None:
        for i in range(1, self.n + 1):
            k = self.uniform(0, min(i - 1, self.layout.input_size // 24 + 1))
            weight = {v: 1 + len(self.children(v)) for v in range(1, i) if self.can_take(v)}
            self.edges |= {(parent, i) for parent in _weighted_sample(self.rng, weight, k)}

    def step_3_frontier(self) -> None:
        self.frontier = {self.s, self.c}
        if len(self.frontier) > self.F:
            raise DrawAgainError
        while len(self.frontier) < self.F:
            self.frontier.add(self.pick(set(range(self.s + 1, self.n + 1)) - {self.c, self.g} - self.frontier))

        self.reached = {self.s}
        for f in sorted(self.frontier - {self.s}):
            above = {a for a in self.reached if f in _descendants(self.edges, a)}
            if not (self.can_take(self.c) or (self.c, f) in self.edges):
                above.discard(self.c)
            if above:
                a = self.pick(above)
                if (a, f) not in self.edges:
                    self.replace((self.pick(self.parents(f)), f), (a, f))
            else:
                a = self.pick({v for v in self.reached if v < f and self.can_take(v)})
                self.add((a, f))
            self.sequence.insert(self.uniform(self.place_after_reaching(a), len(self.sequence)), (a, f))
            self.reached.add(f)

    def step_4_unvisited_children(self) -> None:
        for f in sorted(self.frontier):
            if self.unvisited_children(f):
                continue
            if not self.can_take(f):
                raise DrawAgainError
            j = self.pick({v for v in range(f + 1, self.n + 1) if v not in self.reached})
            self.give_parent(f, j)

    def step_5_visited_through_c(self) -> None:
        wanted = max(0, 2 * self.F + self.B - self.most_edges)
        while len(through_c := _children(self.sequence, self.c)) < wanted:
            candidates = {f for f in self.frontier if f > self.c} - through_c
            if not self.can_take(self.c):
                candidates &= self.children(self.c)
            if not candidates:
                break
            f = self.pick(candidates)
            if (self.c, f) not in self.edges:
                self.add((self.c, f))
            # The edge that led to f so far stays in the graph, but is no longer a visited one.
            self.sequence = [edge for edge in self.sequence if edge[1] != f]
            out_of_f = [place for place, edge in enumerate(self.sequence) if edge[0] == f]
            place = self.uniform(self.place_after_reaching(self.c), min([*out_of_f, len(self.sequence)]))
            self.sequence.insert(place, (self.c, f))

    def step_6_other_children_of_c(self) -> None:
        while len(self.children(self.c)) < self.B:
            after_c = set(range(self.c + 1, self.n + 1))
            self.give_parent(self.c, self.pick(after_c - self.frontier - self.children(self.c)))

    def step_7_goal(self) -> None:
        if self.g in _descendants(self.edges, self.s):
            return
        from_s = {self.s} | _descendants(self.edges, self.s)
        self.add((self.pick({v for v in from_s if v < self.g and self.can_take(v)}), self.g))

    def step_8_remove(self) -> None:
        if len(self.edges) > self.most_edges:
            while len(self.edges) > self.most_edges:
                self.edges.remove(self.pick(self.superfluous()))
        else:
            for _ in range(self.added):
                superfluous = self.superfluous()
                if not superfluous:
                    break
                self.edges.remove(self.pick(superfluous))

    def step_9_longer_sequence(self) -> None:
        lengths = list(range(len(self.sequence), self.most_edges))
        length = self.rng.choices(lengths, weights=lengths)[0] if any(lengths) else 0
        while len(self.sequence) < length:
            candidates = [edge for edge in self.edges if self.may_be_visited(edge)]
            if not candidates:
                break
            edge = self.pick(candidates)
            self.sequence.append(edge)
            self.reached.add(edge[1])

    def step_10_check(self) -> Problem:
        problem = _finish(
            self.rng, self.layout, self.n, self.edges, self.s, self.g, visited_edges=self.sequence, current=self.c
        )
        if oracle.violations(problem, self.layout):
            raise DrawAgainError
        if oracle.frontier(problem) != self.F or oracle.branch(problem) != self.B:
            raise DrawAgainError
        return problem

    def superfluous(self) -> list[Edge]:
        def is_superfluous(edge: Edge) -> bool:
            source, target = edge
            last_to_unvisited = source in self.frontier and self.unvisited_children(source) == {target}
            return (
                edge not in self.sequence
                and source != self.c
                and not last_to_unvisited
                and self.g in _descendants(self.edges - {edge}, self.s)
            )

        return [edge for edge in self.edges if is_superfluous(edge)]

    def may_be_visited(self, edge: Edge) -> bool:
        source, target = edge
        return (
            source in self.reached
            and target not in self.reached
            and target != self.g
            and not self.unvisited_children(target)
            and all(self.unvisited_children(f) - {target} for f in self.frontier)
        )

    def uniform(self, low: int, high: int) -> int:
        if low > high:
            raise DrawAgainError
        return self.rng.randint(low, high)

    def pick(self, candidates: Collection[VertexOrEdge]) -> VertexOrEdge:
        return _pick(self.rng, candidates)

    def children(self, vertex: int) -> set[int]:
        return _children(self.edges, vertex)

    def parents(self, vertex: int) -> set[int]:
        return _parents(self.edges, vertex)

    def unvisited_children(self, vertex: int) -> set[int]:
        return self.children(vertex) - self.reached

    def can_take(self, vertex: int) -> bool:
        """Whether the vertex may get one more child: all may, but for c while it is full."""
        return vertex != self.c or len(self.children(vertex)) < self.B

    def add(self, edge: Edge) -> None:
        assert edge not in self.edges
        self.edges.add(edge)
        self.added += 1

    def replace(self, old: Edge, new: Edge) -> None:
        assert old not in self.sequence
        assert new not in self.edges
        self.edges.remove(old)
        self.edges.add(new)

    def give_parent(self, parent: int, child: int) -> None:
        """The new parent takes the place of an unreached one if there is any."""
        unreached = self.parents(child) - self.reached
        if unreached:
            self.replace((self.pick(unreached), child), (parent, child))
        else:
            self.add((parent, child))

    def place_after_reaching(self, vertex: int) -> int:
        """The first place of the sequence where an edge out of the vertex may stand."""
        if vertex == self.s:
            return 0
        return 1 + next(place for place, edge in enumerate(self.sequence) if edge[1] == vertex)


def pad_trace(
    rng: random.Random, trace: Sequence[int], slots: int, padding: Literal["standard", "random"]
) -> list[int]:
    """The trace in its slots, with 0 for filler."""
    filler = slots - len(trace)
    if filler < 0:
        raise ValueError(f"trace of {len(trace)} vertices: at most {slots} fit")
    padded: list[int] = []
    for vertex in reversed(trace):
        k = rng.randint(0, filler) if padding == "random" else 0
        filler -= k
        padded = [vertex] + [0] * k + padded
    return [0] * filler + padded


def draw_label(rng: random.Random, problem: Problem, label: oracle.Label = "path") -> int:
    """One label; for search and "path" the second vertex of a path, by its number among all paths."""
    if problem.task == "search" and label == "path":
        counts = oracle.path_counts(problem)
        number = rng.randrange(sum(counts.values()))
        for vertex, count in counts.items():
            if number < count:
                return vertex
            number -= count
    return _pick(rng, oracle.answers(problem))


def to_tokens(problem: Problem, layout: Layout, region: list[int] | None = None) -> list[int]:
    """The input tokens, edges in the order of the problem.

    `region` is for depth-first search alone: the trace in its slots with 0 for filler, as `pad_trace` gives it (one
    more 0 in front, for the token that is filler always, does no harm). Without it the padding is standard.
    """
    if problem.task != layout.task:
        raise ValueError(f"task={problem.task!r}: the layout is for {layout.task!r}")
    if region is not None and problem.task != "dfs":
        raise ValueError(f"region={region}: only depth-first search has a choice there")
    tail: list[int] = []
    if problem.task == "search":
        tail = [layout.path, problem.start]
    elif problem.task == "dfs":
        slots = list(problem.visited) if region is None else region
        if tuple(vertex for vertex in slots if vertex != 0) != problem.visited:
            raise ValueError(f"region={region}: does not hold the trace {problem.visited}")
        tail = [layout.path if vertex == 0 else vertex for vertex in slots]
    else:
        for source, target in problem.visited_edges:
            tail += [source, target, layout.path]
        if problem.task == "inference":
            assert problem.current is not None
            tail += [problem.current]
    if problem.task != "search":
        tail = [layout.path] * (layout.region_width - len(tail)) + tail
        if tail[0] != layout.path or len(tail) != layout.region_width:
            raise ValueError(f"{len(tail)} tokens after the query: {layout.region_width} fit, the first of them PATH")
    tokens: list[int] = []
    for source, target in problem.edges:
        tokens += [layout.edge, source, target]
    tokens += [layout.query, problem.start, problem.goal, *tail]
    if len(tokens) > layout.input_size:
        raise ValueError(f"{len(tokens)} tokens: at most {layout.input_size} fit")
    return [layout.pad] * (layout.input_size - len(tokens)) + tokens


def feasible_pairs(input_size: int, distribution: Literal["star", "selection-inference"]) -> list[tuple[int, int]]:
    """All (spokes, lookahead) of star, or all (frontier, branch) of selection-inference."""
    if distribution == "star":
        most = Layout(input_size, "search").max_vertices
        return [(k, length) for k in range(2, most) for length in range(1, most) if k * length + 1 <= most]
    most = Layout(input_size, "selection").max_edges
    return [(f, b) for f in range(1, most + 1) for b in range(1, most + 1) if f + max(f, b) - 1 <= most]


def _propose_naive(rng: random.Random, fewest: int, most: int) -> NaiveProposal:
    n = rng.randint(fewest, most)
    edges: list[Edge] = []
    counts: dict[int, int] = {}
    for i in range(2, n + 1):
        counts[i] = min(rng.choice([1, 1, 1, 1, 1, 2, 3, 4]), i - 1)
        edges += [(parent, i) for parent in rng.sample(range(1, i), counts[i])]
    start, goal = rng.sample(range(1, n + 1), 2)
    return NaiveProposal(n, counts, tuple(edges), start, goal)


def _until_kept(attempt: Callable[[], Problem]) -> Drawn:
    for attempts in range(1, MOST_ATTEMPTS + 1):
        try:
            return Drawn(attempt(), attempts)
        except DrawAgainError:
            continue
    raise RuntimeError(f"nothing was kept in {MOST_ATTEMPTS} attempts")


def _finish(
    rng: random.Random,
    layout: Layout,
    n: int,
    edges: Iterable[Edge],
    start: int,
    goal: int,
    visited: Sequence[int] = (),
    visited_edges: Sequence[Edge] = (),
    current: int | None = None,
) -> Problem:
    """Random ids and a random order of the edges; what has been visited keeps its order."""
    ids = rng.sample(range(1, layout.max_vertices + 1), n)
    name = {vertex: ids[vertex - 1] for vertex in range(1, n + 1)}
    named = [(name[source], name[target]) for source, target in sorted(edges)]
    rng.shuffle(named)
    task: Task = layout.task
    return Problem(
        task=task,
        edges=tuple(named),
        start=name[start],
        goal=name[goal],
        visited=tuple(name[vertex] for vertex in visited),
        visited_edges=tuple((name[source], name[target]) for source, target in visited_edges),
        current=None if current is None else name[current],
    )


def _pick(rng: random.Random, candidates: Collection[VertexOrEdge]) -> VertexOrEdge:
    """Uniform; sorted first, because the order of a set must not decide what a seed gives."""
    if not candidates:
        raise DrawAgainError
    return rng.choice(sorted(candidates))


def _weighted_sample(rng: random.Random, weight: Mapping[int, int], count: int) -> list[int]:
    """Without replacement, one draw after the other; all, if there are fewer."""
    left = dict(weight)
    drawn: list[int] = []
    while left and len(drawn) < count:
        vertex = rng.choices(list(left), weights=list(left.values()))[0]
        del left[vertex]
        drawn.append(vertex)
    return drawn


def _children(edges: Iterable[Edge], vertex: int) -> set[int]:
    return {target for source, target in edges if source == vertex}


def _parents(edges: Iterable[Edge], vertex: int) -> set[int]:
    return {source for source, target in edges if target == vertex}


def _descendants(edges: Collection[Edge], vertex: int) -> set[int]:
    """All vertices at the end of a path of at least one edge, found by adding children until nothing changes."""
    below: set[int] = set()
    new = _children(edges, vertex)
    while new:
        below |= new
        new = {target for source, target in edges if source in new} - below
    return below


def _depth_first_answers(edges: Collection[Edge], trace: Sequence[int]) -> set[int]:
    """The unvisited children of the most recently visited vertex that has any."""
    for vertex in reversed(trace):
        unvisited = _children(edges, vertex) - set(trace)
        if unvisited:
            return unvisited
    return set()
