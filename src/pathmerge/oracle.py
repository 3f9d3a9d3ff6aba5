"""The slow judge: what a problem's answers and difficulty are, read off docs/problems.md word by word.

Nothing here is shared with the generators, so that agreement between the two says something. Speed does not matter:
children are looked up by going through all edges, and reachability is left to networkx.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, Literal

from pathmerge.layout import Layout
from pathmerge.problems.problem import Problem

Label = Literal["path", "vertex", "soft"]
LABELS: tuple[Label, ...] = ("path", "vertex", "soft")


def violations(problem: Problem, layout: Layout) -> list[str]:
    """Every way in which the problem is not well-formed for this layout; an empty list means it is fine.

    Broken problems are judged as far as that makes sense, so that one fault does not hide the next.
    """
    found = [*_graph_faults(problem, layout), *_query_faults(problem)]
    if problem.task != layout.task:
        found.append(f"task: {problem.task!r}; this layout is for {layout.task!r}")
    if problem.task != "dfs" and problem.visited:
        found.append(f"visited: {problem.visited}; must be empty unless the task is 'dfs'")
    if problem.task in ("search", "dfs"):
        if problem.visited_edges:
            found.append(f"visited_edges: {problem.visited_edges}; must be empty for the task {problem.task!r}")
        if problem.current is not None:
            found.append(f"current: {problem.current}; must be None for the task {problem.task!r}")
    if problem.task == "dfs":
        found += _trace_faults(problem, layout)
    if problem.task in ("selection", "inference"):
        found += [*_visited_edge_faults(problem, layout), *_current_faults(problem)]
    return found


def answers(problem: Problem) -> frozenset[int]:
    """All correct answers, whatever the task."""
    if problem.task == "search":
        # The goal is not among its own ancestors in networkx, but it counts as reaching itself.
        reaching_goal: set[int] = set(_networkx().ancestors(_graph(problem), problem.goal)) | {problem.goal}
        return frozenset(_children(problem, problem.start) & reaching_goal)
    if problem.task == "dfs":
        return _trace_answers(problem, problem.visited)
    if problem.task == "selection":
        return frozenset(_frontier_vertices(problem))
    if problem.current is None:
        raise ValueError("current=None: an inference problem needs a current vertex")
    return frozenset(_unvisited_children(problem, problem.current))


def lookahead(problem: Problem) -> int:
    """The lookahead of a search problem, level by level as the definition has it."""
    _require_task(problem, "search")
    useful = answers(problem)
    if not useful:
        raise ValueError(f"goal={problem.goal}: cannot be reached from start={problem.start}, so there is no lookahead")
    branch_of: dict[int, int] = {child: child for child in _children(problem, problem.start)}
    next_level = set(branch_of)
    goal_found = False
    levels = 0
    # At the top of the loop `goal_found` speaks of levels 1..levels and `next_level` is level levels + 1.
    while not goal_found and not all(branch_of[vertex] in useful for vertex in next_level):
        level = next_level
        levels += 1
        goal_found = problem.goal in level
        reached: dict[int, int] = {}
        for vertex in level:
            for child in _children(problem, vertex):
                if child in branch_of:
                    continue
                if child not in reached or branch_of[vertex] in useful:
                    reached[child] = branch_of[vertex]
        branch_of.update(reached)
        next_level = set(reached)
    return levels


def backtrack(problem: Problem) -> int:
    """How many places before the end of the trace the turning vertex stands."""
    _require_task(problem, "dfs")
    place = _turning_place(problem, problem.visited)
    if place is None:
        raise ValueError(f"visited={problem.visited}: no vertex of the trace has an unvisited child")
    return len(problem.visited) - 1 - place


def frontier(problem: Problem) -> int:
    """F, the number of visited vertices with an unvisited child."""
    _require_task(problem, "selection", "inference")
    return len(_frontier_vertices(problem))


def branch(problem: Problem) -> int:
    """B, the number of children of the current vertex, visited or not."""
    _require_task(problem, "selection", "inference")
    if problem.current is None:
        raise ValueError("current=None: the branch count refers to a current vertex")
    return len(_children(problem, problem.current))


def path_counts(problem: Problem) -> dict[int, int]:
    """For each useful child of start the number of paths from it to the goal (one, if it is the goal)."""
    nx = _networkx()
    _require_task(problem, "search")
    graph = _graph(problem)
    if not nx.is_directed_acyclic_graph(graph):
        raise ValueError("edges: contain a cycle, so paths cannot be counted")
    topological: list[int] = list(nx.topological_sort(graph))
    count: dict[int, int] = {}
    for vertex in reversed(topological):
        count[vertex] = 1 if vertex == problem.goal else sum(count[child] for child in _children(problem, vertex))
    return {child: count[child] for child in sorted(answers(problem))}


def next_vertex_probabilities(problem: Problem, label: Label = "path") -> dict[int, Fraction]:
    """The exact distribution of the training label; only search problems know anything but the uniform one."""
    if label not in LABELS:
        raise ValueError(f"label={label!r}: must be one of {', '.join(LABELS)}")
    if problem.task == "search" and label == "path":
        weights = path_counts(problem)
    else:
        weights = dict.fromkeys(sorted(answers(problem)), 1)
    total = sum(weights.values())
    return {vertex: Fraction(weight, total) for vertex, weight in weights.items()}


def _require_task(problem: Problem, *tasks: str) -> None:
    if problem.task not in tasks:
        raise ValueError(f"task={problem.task!r}: must be {' or '.join(repr(task) for task in tasks)} here")


def _networkx() -> Any:
    """Imported late, because only `verify` and the tests ever need it, and as Any, because it is hardly typed."""
    import networkx

    return networkx


def _graph(problem: Problem) -> Any:
    graph = _networkx().DiGraph()
    graph.add_nodes_from(problem.vertices)
    graph.add_edges_from(problem.edges)
    return graph


def _children(problem: Problem, vertex: int) -> set[int]:
    return {target for source, target in problem.edges if source == vertex}


def _turning_place(problem: Problem, trace: Sequence[int]) -> int | None:
    """Index in the trace of the most recently visited vertex that has an unvisited child."""
    for place in reversed(range(len(trace))):
        if _children(problem, trace[place]) - set(trace):
            return place
    return None


def _trace_answers(problem: Problem, trace: Sequence[int]) -> frozenset[int]:
    place = _turning_place(problem, trace)
    return frozenset() if place is None else frozenset(_children(problem, trace[place]) - set(trace))


def _visited_vertices(problem: Problem) -> set[int]:
    return {problem.start} | {target for _, target in problem.visited_edges}


def _unvisited_children(problem: Problem, vertex: int) -> set[int]:
    return _children(problem, vertex) - _visited_vertices(problem)


def _frontier_vertices(problem: Problem) -> set[int]:
    return {vertex for vertex in _visited_vertices(problem) if _unvisited_children(problem, vertex)}


def _graph_faults(problem: Problem, layout: Layout) -> Iterator[str]:
    nx = _networkx()
    named: list[tuple[str, int | None]] = [
        *(("edges", vertex) for edge in problem.edges for vertex in edge),
        ("start", problem.start),
        ("goal", problem.goal),
        *(("visited", vertex) for vertex in problem.visited),
        *(("visited_edges", vertex) for edge in problem.visited_edges for vertex in edge),
        ("current", problem.current),
    ]
    for field, vertex in dict.fromkeys(named):
        if vertex is not None and not 1 <= vertex <= layout.max_vertices:
            yield f"{field}: vertex {vertex}; ids must be in 1..{layout.max_vertices}"
    for edge in dict.fromkeys(problem.edges):
        if edge[0] == edge[1]:
            yield f"edges: {edge} is a self-loop; source and target must differ"
        times = problem.edges.count(edge)
        if times > 1:
            yield f"edges: {edge} occurs {times} times; each edge must occur once"
    if len(problem.edges) > layout.max_edges:
        yield f"edges: {len(problem.edges)} edges; at most {layout.max_edges} fit"
    if len(problem.vertices) > layout.max_vertices:
        yield f"edges: {len(problem.vertices)} vertices; at most {layout.max_vertices} fit"
    graph = _graph(problem)
    graph.remove_edges_from([edge for edge in problem.edges if edge[0] == edge[1]])
    if not nx.is_directed_acyclic_graph(graph):
        cycle: list[tuple[int, int]] = list(nx.find_cycle(graph))
        yield f"edges: {cycle} is a cycle; the graph must be acyclic"


def _query_faults(problem: Problem) -> Iterator[str]:
    nx = _networkx()
    in_edges = {vertex for edge in problem.edges for vertex in edge}
    if problem.start not in in_edges:
        yield f"start: {problem.start} is not in the graph; it must be an end of some edge"
    if problem.goal not in in_edges:
        yield f"goal: {problem.goal} is not in the graph; it must be an end of some edge"
    if problem.start == problem.goal:
        yield f"goal: {problem.goal} is the start; they must differ"
    elif not nx.has_path(_graph(problem), problem.start, problem.goal):
        yield f"goal: {problem.goal} cannot be reached from start {problem.start}; there must be a path"


def _trace_faults(problem: Problem, layout: Layout) -> Iterator[str]:
    trace = problem.visited
    if not trace:
        yield f"visited: empty; the trace must begin with start {problem.start}"
        return
    if trace[0] != problem.start:
        yield f"visited: begins with {trace[0]}; must begin with start {problem.start}"
    if len(trace) > layout.max_edges:
        yield f"visited: {len(trace)} vertices; at most {layout.max_edges} fit"
    for vertex in dict.fromkeys(trace):
        if trace.count(vertex) > 1:
            yield f"visited: {vertex} occurs {trace.count(vertex)} times; each vertex must occur once"
    if problem.goal in trace:
        yield f"visited: contains the goal {problem.goal}; it must not be visited"
    for step in range(1, len(trace)):
        allowed = _trace_answers(problem, trace[:step])
        if trace[step] not in allowed:
            yield f"visited: step {step} goes to {trace[step]}; allowed is {sorted(allowed) or 'nothing'}"
    if not _trace_answers(problem, trace):
        yield f"visited: {trace} leaves no answer; some visited vertex must have an unvisited child"


def _visited_edge_faults(problem: Problem, layout: Layout) -> Iterator[str]:
    most = layout.max_edges - 1
    if len(problem.visited_edges) > most:
        yield f"visited_edges: {len(problem.visited_edges)} edges; at most {most} fit"
    visited = {problem.start}
    for edge in problem.visited_edges:
        source, target = edge
        if edge not in problem.edges:
            yield f"visited_edges: {edge} is not an edge of the graph; it must be one"
        if source not in visited:
            yield f"visited_edges: {edge} leaves a vertex not visited before; allowed is {sorted(visited)}"
        if target in visited:
            yield f"visited_edges: {edge} leads to a vertex visited before; must be none of {sorted(visited)}"
        if target == problem.goal:
            yield f"visited_edges: {edge} leads to the goal; it must not be visited"
        visited.add(target)
    if not _frontier_vertices(problem):
        yield f"visited_edges: no vertex of {sorted(visited)} has an unvisited child; at least one must"


def _current_faults(problem: Problem) -> Iterator[str]:
    """A selection problem parsed from tokens knows no current vertex; one that is given has to be a fitting one."""
    if problem.current is None:
        if problem.task == "inference":
            yield "current: None; an inference problem needs a current vertex"
        return
    visited = _visited_vertices(problem)
    if problem.current not in visited:
        yield f"current: {problem.current} is not visited; must be one of {sorted(visited)}"
    if not _unvisited_children(problem, problem.current):
        yield f"current: {problem.current} has no unvisited child; it must have one"
