"""Symbolic tokens, the paper's input: ``PAD* (EDGE u v)* QUERY start goal REGION``.

Choices a reader could not guess:
- Everything is read from the right end, so rows without their padding are accepted too.
- Parsing judges: what comes out is a well-formed problem, or a `ValueError` of one line says what is wrong where.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pathmerge.errors import check_range
from pathmerge.layout import Layout
from pathmerge.oracle import violations
from pathmerge.problems.problem import Problem


def render(problem: Problem, layout: Layout, slots: Sequence[int] | None = None) -> list[int]:
    """Tokens of a problem, edges in its order. `slots`: a depth-first trace with filler (0), else standard padding.

    A problem that is not well-formed or does not fit is refused.
    """
    for violation in violations(problem, Layout(layout.input_size, problem.task)):
        raise ValueError(violation)
    path = layout.path
    match problem.task:
        case "search":
            region = [path, problem.start]
        case "dfs":
            trace = list(problem.visited) if slots is None else [path if v == 0 else v for v in slots]
            region = [path] * (layout.region_width - len(trace)) + trace
        case _:
            region = [t for u, v in problem.visited_edges for t in (u, v, path)]
            if problem.task == "inference":
                region.append(problem.current or 0)
            region = [path] * (layout.region_width - len(region)) + region
    graph = [t for u, v in problem.edges for t in (layout.edge, u, v)]
    tokens = [*graph, layout.query, problem.start, problem.goal, *region]
    return [layout.pad] * (layout.input_size - len(tokens)) + tokens


def parse(tokens: Iterable[int], layout: Layout, *, current: int | None = None) -> Problem:
    """The problem that a row of tokens states; `layout.task` says which task to read it as.

    Selection and inference are told apart by the last token. `current` is what a record says of a selection step's
    current vertex, which the tokens do not.
    """
    row = _check_tokens(tokens, layout)
    most, name = layout.max_vertices, _token_names(layout)
    end = len(row) - layout.region_width - 3
    if end < 0:
        raise ValueError(
            f"tokens: {len(row)} given, must be at least {layout.region_width + 3} (query and {layout.task} region)"
        )
    if row[end] != layout.query:
        raise ValueError(f"tokens[{end}]={name(row[end])}: must be QUERY ({layout.query})")
    start, goal = row[end + 1], row[end + 2]
    for at in (end + 1, end + 2):
        if row[at] > most:
            raise ValueError(f"tokens[{at}]={name(row[at])}: must be a vertex in 1..{most}")
    edges: list[tuple[int, int]] = []
    at = end
    while at > 0 and row[at - 1] != layout.pad:
        if at < 3 or row[at - 3] != layout.edge or row[at - 2] > most or row[at - 1] > most:
            first = max(0, at - 3)
            raise ValueError(
                f"tokens[{first}:{at}]={' '.join(map(name, row[first:at]))}: must be EDGE and two vertices in 1..{most}"
            )
        edges.append((row[at - 2], row[at - 1]))
        at -= 3
    for i in range(at):
        if row[i] != layout.pad:
            raise ValueError(f"tokens[{i}]={name(row[i])}: must be PAD ({layout.pad}) before the first edge")
    edges.reverse()
    region = row[end + 3 :]
    problem = _read_region(Problem(layout.task, tuple(edges), start, goal), region, end + 3, layout, current)
    for violation in violations(problem, Layout(layout.input_size, problem.task)):
        raise ValueError(violation)
    return problem


def _token_names(layout: Layout):  # noqa: ANN202
    marks = {layout.path: "PATH", layout.edge: "EDGE", layout.pad: "PAD", layout.query: "QUERY"}
    return lambda token: f"{marks[token]} ({token})" if token in marks else str(token)


def _check_tokens(tokens: Iterable[int], layout: Layout) -> list[int]:
    row: list[int] = []
    for i, token in enumerate(tokens):
        if i == layout.input_size:
            raise ValueError(f"tokens: more than {i} given, must be at most input_size={layout.input_size}")
        row.append(check_range(f"tokens[{i}]", token, 1, layout.query, f"at input_size={layout.input_size}"))
    return row


def _read_region(graph: Problem, region: list[int], offset: int, layout: Layout, current: int | None) -> Problem:
    path, most, name = layout.path, layout.max_vertices, _token_names(layout)

    def wrong(i: int, wanted: str) -> ValueError:
        return ValueError(f"tokens[{offset + i}]={name(region[i])}: must be {wanted}")

    if region[0] != path:
        raise wrong(0, f"PATH ({path})")
    for i, token in enumerate(region):
        if token > most and token != path:
            raise wrong(i, f"PATH ({path}) or a vertex in 1..{most}")
    if graph.task == "search":
        if region[1] != graph.start:
            raise wrong(1, f"the start vertex {graph.start}")
        return graph
    if graph.task == "dfs":
        trace = tuple(token for token in region if token != path)
        return Problem("dfs", graph.edges, graph.start, graph.goal, visited=trace)
    inference = region[-1] != path
    if inference:
        current = region[-1]
    end = len(region) - 1 if inference else len(region)
    visited: list[tuple[int, int]] = []
    while end >= 3 and region[end - 2] != path:
        if region[end - 1] != path or region[end - 3] == path:
            raise wrong(end - 3, "a visited edge, two vertices and PATH")
        visited.append((region[end - 3], region[end - 2]))
        end -= 3
    for i in range(end):
        if region[i] != path:
            raise wrong(i, f"PATH ({path}) before the first visited edge")
    return Problem(
        "inference" if inference else "selection",
        graph.edges,
        graph.start,
        graph.goal,
        visited_edges=tuple(reversed(visited)),
        current=current,
    )
