"""Circuits to be drawn, of an ideal model and of untrained ones, and the check that a drawing can be read.

Shared by the tests of the picture of one circuit and of the figures of many.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import networkx
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

import pathmerge as pm
from pathmerge.circuits.explain import explain_all
from pathmerge.circuits.files import Circuit, Input, Operation, Reading, Row, Trust

EMPTY = Reading(explained=False, links=(), kept=(), maximal=(), maximal_vertex=(), ranked=(), sets=((),), trust=None)


TRUST = Trust(
    sufficient=True, random_sufficient=False, complete=False, random_complete=True, minimal=0.5, random_minimal=0.0
)


def operation(layer: int, source: int, target: int, **fields: Any) -> Operation:
    """An important operation; what is not given is neutral."""
    plain = Operation(
        layer=layer,
        head=0,
        target=target,
        source=source,
        weight=0.5,
        by=("zero",),
        drop=(1.0, 0.0),
        change=(0.0, 0.0),
        target_features=(),
        source_features=(),
        kind="token",
        matched=(),
        direction="none",
        distance=None,
    )
    return plain._replace(**fields)


@cache
def merging(size: int = 32, lookahead: int = 3, layers: int = 4, seed: int = 1, every: bool = True) -> Circuit:
    """What exponential path-merging would do on an input, forwards: each row reads one of the farthest vertex it knows.

    Without `every`, only the rows of the path do.
    """
    batch = pm.Balanced(input_size=size, lookahead=lookahead).sample(1, seed=seed)
    layout = batch.distribution.layout
    edges = tuple((int(u), int(v)) for u, v in batch.edges[0] if u)
    start, goal = int(batch.start[0]), int(batch.goal[0])
    names = {layout.path: "PATH", layout.edge: "EDGE", layout.query: "QUERY"}
    tokens = [(at, int(token)) for at, token in enumerate(batch.tokens[0])]
    used = tokens[len(tokens) - 5 - 3 * len(edges) :]
    rows = tuple(
        Row(position=at, text=names.get(token, str(token)), vertices=() if token in names else (token,))
        for at, token in used
    )
    graph = networkx.DiGraph(edges)
    steps = dict(networkx.all_pairs_shortest_path_length(graph))
    path = networkx.shortest_path(graph, start, goal)
    rng = random.Random(seed)
    vertex = {row.position: row.vertices[0] for row in rows if row.vertices}
    sets: list[dict[int, set[int]]] = [{row.position: set(row.vertices) for row in rows}]
    found: list[Operation] = []
    for layer in range(layers):
        now = sets[-1]
        after = {position: set(members) for position, members in now.items()}
        for position, mine in vertex.items():
            if not every and mine not in path:
                continue
            if layer == 0:
                after_edge = position + 1 in vertex and (mine, vertex[position + 1]) in edges
                sources = [position + 1] if after_edge and position + 1 < rows[-4].position else []
                kind = "position"
            else:
                reach = steps[mine]
                far = max(now[position], key=lambda v: (mine in path and v in path, reach.get(v, -1), v))
                there = [p for p, v in vertex.items() if v == far and p != position]
                sources, kind = [max(there, key=lambda p: (len(now[p]), p))] if there else [], "token"
            for source in sources:
                after[position] |= now[source]
                distance = steps[mine][vertex[source]]
                way = "forward" if distance else "same"
                drop = (rng.uniform(0.5, 4.0), 0.0)
                found.append(operation(layer, source, position, kind=kind, direction=way, distance=distance, drop=drop))
        sets.append(after)
    circuit = replace(
        untrained("one-hot")[0],
        input=Input(
            tokens=tuple(token for _, token in tokens),
            edges=edges,
            start=start,
            goal=goal,
            answers=(path[1],),
            lookahead=lookahead,
            rows=rows,
            problem=batch.distribution.to_dict(),
            key={"seed": seed, "index": 0},
        ),
        model={"name": "ideal", "layers": layers, "heads": 1, "head_width": 64},
        prediction=path[1],
        correct=True,
        operations=tuple(found),
    )
    reading = read(circuit, [tuple(tuple(sorted(level[row.position])) for row in rows) for level in sets])
    return replace(circuit, strict=reading, lenient=reading)


def read(circuit: Circuit, sets: list[tuple[tuple[int, ...], ...]]) -> Reading:
    """A reading in which every operation is a link."""
    last = circuit.input.rows[-1].position
    live, kept = {last}, list[int]()
    for layer in reversed(range(len(sets) - 1)):
        here = [i for i, op in enumerate(circuit.operations) if op.layer == layer and op.target in live]
        kept += here
        live = live | {circuit.operations[i].source for i in here}
    arrived = {v for row in circuit.input.rows if row.position in live for v in row.vertices}
    graph = networkx.DiGraph([(u, v) for u, v in circuit.input.edges if u in arrived and v in arrived])
    explained = {circuit.input.start, circuit.input.goal} <= set(graph) and networkx.has_path(
        graph, circuit.input.start, circuit.input.goal
    )
    ranked = tuple(i for i in sorted(kept) if circuit.operations[i].direction in ("forward", "backward"))
    return Reading(
        explained=explained,
        links=tuple(range(len(circuit.operations))),
        kept=tuple(sorted(kept)),
        maximal=ranked[::2],
        maximal_vertex=ranked,
        ranked=ranked,
        sets=tuple(sets),
        trust=TRUST,
    )


@cache
def untrained(kind: str) -> list[Circuit]:
    """Circuits of models that were not trained, but whose rows match equal tokens."""
    batch = pm.Balanced(input_size=20).sample(3, seed=1)
    if kind == "edges":
        model = pm.Edges(input_size=20, layers=2).build(1)
        found = explain_all(model, batch[1], mode="exact", alpha=0.001, kappa1=2000.0, kappa2=1000.0)
    else:
        model = pm.OneHot(input_size=20, layers=3, initialisation="matching", matching=2.0).build(1)
        found = explain_all(model, batch, mode="exact")
    return [circuit for circuit in found if circuit is not None]


def with_operations(circuit: Circuit, more: list[Operation]) -> Circuit:
    """More operations, all of them links; sets stay as they are."""
    circuit = replace(circuit, operations=(*circuit.operations, *more))
    reading = read(circuit, list(circuit.strict.sets))
    return replace(circuit, strict=reading, lenient=reading)


def nothing_kept() -> Circuit:
    reading = replace(
        EMPTY, sets=merging().strict.sets[:1] * 5, trust=replace(TRUST, minimal=None, random_minimal=None)
    )
    circuit = merging()
    wrong = next(v for _, v in circuit.input.edges if v not in (circuit.input.start, *circuit.input.answers))
    return replace(circuit, strict=reading, lenient=reading, prediction=wrong, correct=False)


def assert_legible(figure: Figure) -> None:
    """No text overlaps another or leaves the page."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = [t for t in figure.findobj(Text) if isinstance(t, Text) and t.get_text().strip() and t.get_visible()]
    inside: list[tuple[str, Any]] = []
    for text in texts:
        box = text.get_window_extent(canvas.get_renderer())
        inside.append((text.get_text(), box))
        assert box.x0 >= -1, text
        assert box.y0 >= -1, text
        assert box.x1 <= figure.bbox.width + 1, text
        assert box.y1 <= figure.bbox.height + 1, text
    edges = np.array([[box.x0, box.y0, box.x1, box.y1] for _, box in inside])
    wide = np.minimum(edges[:, None, 2:], edges[None, :, 2:]) - np.maximum(edges[:, None, :2], edges[None, :, :2])
    over = np.argwhere(np.triu((wide > 0.5).all(-1), 1))
    assert [(inside[i][0], inside[j][0]) for i, j in over] == []
