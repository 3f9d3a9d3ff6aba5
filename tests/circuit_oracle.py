"""Circuits again, slow and obviously right: docs/circuits.md step by step, every perturbation a whole ordinary pass.

Written from that page alone, without the code under test. What makes it plain:
- One input at a time, in float64. A perturbation is an edit of `model.run`, from the embedding to the logits; the only
  thing done for speed is that many perturbed copies of the input stand in one batch.
- Sets are Python sets, chains are walked one operation at a time, distances come from networkx.

Where the page leaves a choice:
- "Equal ones all" (step II without any fall above α): falls within 1e-9 of the largest are equal. Rows that hold the
  same are told apart by rounding alone where a model has no positions.
- N(0,j) holds position j only if the model has position embeddings: a position is no feature of the others.
- The kind of an operation follows from its features alone; whether it is explainable is said beside it. Direction,
  maximality and distance are given for every merge, explainable or not.
- A radius may be larger than the "largest possible" one, which is that of doubling; then it is as large as can be.
- The distance of a merge between rows of one vertex (direction "same") is 0, of "across" and "none" it is undefined.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import networkx as nx
import torch
from torch import Tensor

from pathmerge.models.config import Edges, OneHot
from pathmerge.models.sites import Edit
from pathmerge.models.transformer import Transformer
from pathmerge.problems.batch import Batch

Operation = tuple[int, int, int, int]
"""Layer, head, target row, source row."""
Perturbation = Literal["zero", "maximum"]
Feature = tuple[str, int]
"""("vertex", v) or ("position", p)."""
Features = frozenset[Feature]
Effect = tuple[float, tuple[float, ...]]
"""The fall of the logit, and how much the product of each important operation of the last layer changes."""

PERTURBATIONS: tuple[Perturbation, ...] = ("zero", "maximum")
COPIES_AT_ONCE = 512
EQUAL = 1e-9


@dataclass(frozen=True)
class OracleOperation:
    """An important operation and what is said of it."""

    layer: int
    head: int
    target: int
    source: int
    drop_zero: float
    drop_maximum: float
    change_zero: float
    """The largest change, up or down, of an important product of the last layer; 0 in the last layer."""
    change_maximum: float
    by_zero: bool
    by_maximum: bool
    target_features: Features
    source_features: Features
    explainable: bool
    kind: str
    """token, position, copy or other."""
    kept: bool
    direction: str | None
    """forward, backward, same, across or none for a merge; None for the others."""
    maximal: bool | None
    maximal_vertex: bool | None
    distance: int | None


@dataclass(frozen=True)
class OracleCircuit:
    """All that docs/circuits.md says of one input."""

    prediction: int
    correct: bool
    substitute: int
    effects: dict[tuple[int, int, int, int, Perturbation], Effect]
    """Every operation, important or not (in the last layer those into the last row, without changes). Changes stand in
    the order of the sorted important operations of the last layer."""
    operations: dict[Operation, OracleOperation]
    sets: list[list[Features]]
    """[layer 0..L][row], empty for padding."""
    explained: bool
    lenient: bool
    sufficiency: bool
    completeness: bool
    minimality: float | None


class _Input:
    """One input of a model, read once."""

    def __init__(self, model: Transformer, batch: Batch, index: int) -> None:
        assert batch.distribution.layout.task == "search"
        config = model.config
        assert isinstance(config, Edges | OneHot)
        assert model.answer_width == 1
        self.model = copy.deepcopy(model).double().eval()
        self.tokens = model.inputs(batch).tokens[index : index + 1]
        layout = batch.distribution.layout
        padding = model.padding(self.tokens)[0].tolist()
        self.width = len(padding)
        self.rows = [row for row in range(self.width) if not padding[row]]
        self.last = self.width - 1
        self.layers = model.layers
        self.heads = model.heads
        self.head_width = config.width // config.heads
        self.causal = model.causal
        vertices = range(1, layout.max_vertices + 1)

        # What each row holds. The first vertex is the one that a row of edge tokens stands for.
        self.held: list[tuple[int, ...]] = [() for _ in range(self.width)]
        for row in self.rows:
            if isinstance(config, Edges):
                source, target, _ = self.tokens[0, row].tolist()
                self.held[row] = (source, target)
            else:
                token = int(self.tokens[0, row])
                self.held[row] = (token,) if token in vertices else ()

        # Positions that say something: those of the ends of each edge, and of start and goal in the query.
        self.has_positions = isinstance(config, OneHot) and config.positions in ("onehot", "learned")
        self.edge_positions: list[tuple[int, int]] = []
        self.query_positions: tuple[int, ...] = ()
        if self.has_positions:
            for row in self.rows:
                if int(self.tokens[0, row]) == layout.edge:
                    self.edge_positions.append((row + 1, row + 2))
            self.query_positions = (layout.input_size - 4, layout.input_size - 3)

        # The graph and the query.
        self.start, self.goal = int(batch.start[index]), int(batch.goal[index])
        self.graph = nx.DiGraph([(int(u), int(v)) for u, v in batch.edges[index] if u > 0])

        # The features.
        occurring = {vertex for row in self.rows for vertex in self.held[row]}
        absent = [vertex for vertex in vertices if vertex not in occurring]
        self.substitute = min(absent) if absent else 0
        self.features: list[Feature] = [("vertex", v) for v in sorted(occurring)]
        if self.has_positions:
            self.features += [("position", row) for row in self.rows]

    def operations(self, layer: int) -> list[Operation]:
        """All operations of a layer that the model allows."""
        return [
            (layer, head, target, source)
            for head in range(self.heads)
            for target in self.rows
            for source in self.rows
            if not (self.causal and source > target)
        ]

    def vertex(self, row: int) -> int | None:
        """The vertex a row stands for."""
        return self.held[row][0] if self.held[row] else None

    def query_key_sites(self, layer: int) -> tuple[str, str]:
        turned = "rot_" if self.model.rotary else ""
        return f"blocks.{layer}.attn.hook_{turned}q", f"blocks.{layer}.attn.hook_{turned}k"


def products(queries_BTHK: Tensor, keys_BTHK: Tensor) -> Tensor:  # noqa: N803
    """Query of each row times key of each row, unscaled."""
    return torch.einsum("bqhk,bshk->bhqs", queries_BTHK, keys_BTHK)


# Perturbations.


def _without_source(operations: Sequence[Operation]) -> Callable[[Tensor], Tensor]:
    """An edit of attention scores: in copy b, operation b is masked before the softmax."""

    def edit(scores: Tensor) -> Tensor:
        scores = scores.clone()
        for b, (_, head, target, source) in enumerate(operations):
            scores[b, head, target, source] = -math.inf
        return scores

    return edit


def _raised_to_maximum(operations: Sequence[Operation]) -> Callable[[Tensor], Tensor]:
    """An edit of attention weights: in copy b, operation b gets the largest weight of its row."""

    def edit(pattern: Tensor) -> Tensor:
        pattern = pattern.clone()
        for b, (_, head, target, source) in enumerate(operations):
            row = pattern[b, head, target].clone()
            row[source] = row.max()
            pattern[b, head, target] = row / row.sum()
        return pattern

    return edit


def _measure(
    given: _Input,
    layer: int,
    perturbation: Perturbation,
    prediction: int,
    logit: float,
    watched: Sequence[Operation],
    before: Mapping[Operation, float],
) -> dict[Operation, Effect]:
    """What a perturbation of each operation of a layer does to the logit and to the watched products."""
    operations = given.operations(layer)
    if layer == given.layers - 1:
        operations = [operation for operation in operations if operation[2] == given.last]
    found: dict[Operation, Effect] = {}
    for first in range(0, len(operations), COPIES_AT_ONCE):
        chosen = operations[first : first + COPIES_AT_ONCE]
        tokens = given.tokens.expand(len(chosen), *given.tokens.shape[1:])
        edits: dict[str, Edit]
        if perturbation == "zero":
            edits = {f"blocks.{layer}.attn.hook_attn_scores": _without_source(chosen)}
        else:
            edits = {f"blocks.{layer}.attn.hook_pattern": _raised_to_maximum(chosen)}
        query, key = given.query_key_sites(given.layers - 1)
        logits, record = given.model.run(tokens, edits=edits, record=[query, key])
        assert logits is not None
        after = products(record[query], record[key])
        for b, operation in enumerate(chosen):
            drop = logit - float(logits[b, prediction])
            changes = tuple(abs(float(after[b, h, j, i]) - before[at, h, j, i]) for at, h, j, i in watched)
            found[operation] = (drop, changes)
    return found


# Features.


def _frozen_pass(given: _Input, feature: Feature, record: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Queries and keys of all layers, from an input without a feature: attention weights and ReLU masks as recorded."""
    what, which = feature
    edits: dict[str, Edit] = {}
    for layer in range(given.layers):
        for site in (f"blocks.{layer}.attn.hook_pattern", f"blocks.{layer}.mlp.hook_mask"):
            edits[site] = record[site]
    tokens = given.tokens.clone()
    if what == "vertex":
        ends = tokens[..., :2] if tokens.dim() == 3 else tokens  # the third number of an edge token is its kind
        ends[ends == which] = given.substitute
    else:

        def without_position(places: Tensor) -> Tensor:
            places = places.clone()
            places[:, which] = 0.0
            return places

        edits["hook_pos_embed"] = without_position
    wanted = [site for layer in range(given.layers) for site in given.query_key_sites(layer)]
    return given.model.run(tokens, edits=edits, record=wanted).record


# Chains.


def rows_that_lead_to_last(given: _Input, links: Collection[Operation]) -> list[set[int]]:
    """[layer 0..L]: the rows before each layer (and after the last) from which a chain leads to the last row."""
    leading: list[set[int]] = [set() for _ in range(given.layers + 1)]
    leading[given.layers] = {given.last}
    for layer in reversed(range(given.layers)):
        leading[layer] = set(leading[layer + 1])
        for at, _, target, source in links:
            if at == layer and target in leading[layer + 1]:
                leading[layer].add(source)
    return leading


def _path_exists(given: _Input, vertices: Collection[int], first: int | None) -> bool:
    """Whether a path start → … → goal runs inside some vertices; with `first`, one whose next vertex after start it is.

    The graphs have no cycles, so a path from the first vertex on does not come back to start.
    """
    inside = given.graph.subgraph(vertices)
    if given.start not in inside or given.goal not in inside:
        return False
    if first is None:
        return nx.has_path(inside, given.start, given.goal)
    return inside.has_edge(given.start, first) and nx.has_path(inside, first, given.goal)


def _vertices_of(given: _Input, rows: Iterable[int]) -> set[int]:
    return {vertex for row in rows for vertex in given.held[row]}


# What is said of merges.


def _direction(given: _Input, target: int, source: int) -> str:
    ours, theirs = given.vertex(target), given.vertex(source)
    if ours is None or theirs is None:
        return "none"
    if ours == theirs:
        return "same"
    if nx.has_path(given.graph, ours, theirs):
        return "forward"
    if nx.has_path(given.graph, theirs, ours):
        return "backward"
    return "across"


def _distances(given: _Input, vertex: int, direction: str) -> dict[int, int]:
    """Steps from a vertex to all that can be reached in a direction."""
    graph = given.graph if direction == "forward" else given.graph.reverse()
    return dict(nx.single_source_shortest_path_length(graph, vertex))


def _radius(given: _Input, row: int, held: Features, direction: str) -> int:
    vertex = given.vertex(row)
    assert vertex is not None
    distances = _distances(given, vertex, direction)
    return max(distances[v] for what, v in held if what == "vertex" and v in distances)


def _row_is_maximal(given: _Input, row: int, held: Features, direction: str, layer: int) -> bool:
    vertex = given.vertex(row)
    assert vertex is not None
    doubling = 0 if layer == 0 else 2 ** (layer - 1)
    longest = max(_distances(given, vertex, direction).values())
    return _radius(given, row, held, direction) >= min(doubling, longest)


def _row_is_maximal_for_its_vertex(given: _Input, row: int, sets: Sequence[Features], direction: str) -> bool:
    others = [other for other in given.rows if given.vertex(other) == given.vertex(row)]
    largest = max(_radius(given, other, sets[other], direction) for other in others)
    return _radius(given, row, sets[row], direction) == largest


# Masked models.


def _masked_logits(given: _Input, keep: Collection[Operation]) -> Tensor:
    edits: dict[str, Edit] = {}
    for layer in range(given.layers):
        mine = [operation for operation in keep if operation[0] == layer]

        def only_these(scores: Tensor, mine: Sequence[Operation] = tuple(mine)) -> Tensor:
            left = torch.full_like(scores, -math.inf)
            for _, head, target, source in mine:
                left[0, head, target, source] = scores[0, head, target, source]
            return left

        edits[f"blocks.{layer}.attn.hook_attn_scores"] = only_these
    logits = given.model.run(given.tokens, edits=edits).logits
    assert logits is not None
    return logits[0]


def _trust(
    given: _Input, circuit: Collection[Operation], prediction: int, alpha: float
) -> tuple[bool, bool, float | None]:
    """Sufficiency, completeness and minimality of a set of operations."""
    everything = [operation for layer in range(given.layers) for operation in given.operations(layer)]
    assert set(circuit) <= set(everything)
    reduced = _masked_logits(given, circuit)
    rest = _masked_logits(given, [operation for operation in everything if operation not in circuit])
    needed = 0
    for removed in circuit:
        without = _masked_logits(given, [operation for operation in circuit if operation != removed])
        needed += float(reduced[prediction]) - float(without[prediction]) > alpha
    share = needed / len(circuit) if circuit else None
    return int(reduced.argmax()) == prediction, int(rest.argmax()) == prediction, share


@torch.no_grad()
def masked_logits(model: Transformer, batch: Batch, index: int, keep: Collection[Operation]) -> Tensor:
    """The logits with all other operations masked before the softmax; a row and head with nothing left gives zero."""
    return _masked_logits(_Input(model, batch, index), keep)


@torch.no_grad()
def random_check(
    model: Transformer, batch: Batch, index: int, circuit: Collection[Operation], *, seed: int, alpha: float = 0.4
) -> tuple[bool, bool, float | None]:
    """Sufficiency, completeness, minimality of a random circuit with as many operations in each layer as another."""
    given = _Input(model, batch, index)
    rng = random.Random(seed)
    drawn: set[Operation] = set()
    for layer in range(given.layers):
        count = sum(operation[0] == layer for operation in circuit)
        drawn |= set(rng.sample(given.operations(layer), count))
    logits = given.model.run(given.tokens).logits
    assert logits is not None
    return _trust(given, drawn, int(logits[0].argmax()), alpha)


@torch.no_grad()
def brute_force(
    model: Transformer,
    batch: Batch,
    index: int,
    *,
    alpha: float = 0.4,
    kappa1: float = 20.0,
    kappa2: float = 10.0,
    sets: Literal["whole", "literal"] = "whole",
) -> OracleCircuit:
    """The circuit of one input of a batch of search problems."""
    given = _Input(model, batch, index)
    root = math.sqrt(given.head_width)
    last_layer = given.layers - 1

    # I. Record.
    wanted: list[str] = []
    for layer in range(given.layers):
        wanted += [f"blocks.{layer}.attn.hook_pattern", f"blocks.{layer}.mlp.hook_mask", *given.query_key_sites(layer)]
    logits, record = given.model.run(given.tokens, record=wanted)
    assert logits is not None
    prediction = int(logits[0].argmax())
    logit = float(logits[0, prediction])
    correct = bool(batch.answers[index, prediction])
    queries = [record[given.query_key_sites(layer)[0]] for layer in range(given.layers)]
    keys = [record[given.query_key_sites(layer)[1]] for layer in range(given.layers)]
    product = {
        operation: float(all_products[0, operation[1], operation[2], operation[3]])
        for layer in range(given.layers)
        for all_products in [products(queries[layer], keys[layer])]
        for operation in given.operations(layer)
    }

    # II. The last layer.
    effects: dict[tuple[int, int, int, int, Perturbation], Effect] = {}
    important_by: dict[tuple[int, int, int, int, Perturbation], bool] = {}
    for perturbation in PERTURBATIONS:
        for operation, effect in _measure(given, last_layer, perturbation, prediction, logit, (), product).items():
            effects[*operation, perturbation] = effect
    largest = max(drop for drop, _ in effects.values())
    for key, (drop, _) in effects.items():
        important_by[key] = drop > alpha if largest > alpha else drop >= largest - EQUAL
    watched = sorted({key[:4] for key, important in important_by.items() if important})

    # III. All other layers.
    for layer in range(last_layer):
        for perturbation in PERTURBATIONS:
            measured = _measure(given, layer, perturbation, prediction, logit, watched, product)
            for operation, (drop, changes) in measured.items():
                effects[*operation, perturbation] = (drop, changes)
                important_by[*operation, perturbation] = drop > alpha or max(changes) > root / kappa1
    important = sorted({key[:4] for key, chosen in important_by.items() if chosen})

    # IV. Features.
    target_features: dict[Operation, Features] = {operation: frozenset() for operation in important}
    source_features: dict[Operation, Features] = {operation: frozenset() for operation in important}
    for feature in given.features:
        frozen = _frozen_pass(given, feature, record)
        for layer in range(given.layers):
            query, key = given.query_key_sites(layer)
            with_other_query = products(frozen[query], keys[layer])
            with_other_key = products(queries[layer], frozen[key])
            for operation in important:
                at, head, target, source = operation
                if at != layer:
                    continue
                sign = 1 if important_by[*operation, "zero"] else -1  # which way weakens
                if sign * (product[operation] - float(with_other_query[0, head, target, source])) > root / kappa2:
                    target_features[operation] |= {feature}
                if sign * (product[operation] - float(with_other_key[0, head, target, source])) > root / kappa2:
                    source_features[operation] |= {feature}

    # V. Reconstruction.
    kinds: dict[Operation, str] = {}
    for operation in important:
        asked, offered = target_features[operation], source_features[operation]
        if any(what == "vertex" for what, _ in asked & offered):
            kinds[operation] = "token"
        elif any(
            (("position", p) in asked and ("position", q) in offered)
            or (("position", q) in asked and ("position", p) in offered)
            for p, q in given.edge_positions
        ):
            kinds[operation] = "position"
        elif operation[2] == given.last and any(("position", p) in offered for p in given.query_positions):
            kinds[operation] = "copy"
        else:
            kinds[operation] = "other"

    beginning: list[Features] = [frozenset() for _ in range(given.width)]
    for row in given.rows:
        position: Features = frozenset({("position", row)} if given.has_positions else ())
        beginning[row] = position | {("vertex", v) for v in given.held[row]}
    all_sets = [beginning]
    explainable: dict[Operation, bool] = {}
    for layer in range(given.layers):
        now = all_sets[layer]
        after = list(now)
        for operation in important:
            at, _, target, source = operation
            if at != layer:
                continue
            fits = target_features[operation] <= now[target] and source_features[operation] <= now[source]
            explainable[operation] = fits
            if fits and kinds[operation] != "other":
                if sets == "whole":
                    after[target] = after[target] | now[source]
                else:
                    assert sets == "literal"
                    after[target] = after[target] | target_features[operation] | source_features[operation]
        all_sets.append(after)

    merges_and_copies = [operation for operation in important if explainable[operation] and kinds[operation] != "other"]
    leading = rows_that_lead_to_last(given, merges_and_copies)
    kept = [operation for operation in merges_and_copies if operation[2] in leading[operation[0] + 1]]

    # What is said of it.
    explained = correct and _path_exists(given, _vertices_of(given, leading[0]), prediction)
    leading_leniently = rows_that_lead_to_last(given, important)
    lenient = _path_exists(given, _vertices_of(given, leading_leniently[0]), None)

    operations: dict[Operation, OracleOperation] = {}
    for operation in important:
        layer, head, target, source = operation
        direction, maximal, maximal_vertex, distance = None, None, None, None
        if kinds[operation] in ("token", "position"):
            direction = _direction(given, target, source)
            if direction == "same":
                distance = 0
            if direction in ("forward", "backward"):
                ours, theirs = given.vertex(target), given.vertex(source)
                assert ours is not None
                assert theirs is not None
                distance = _distances(given, ours, direction)[theirs]
                now = all_sets[layer]
                both = (target, source)
                maximal = all(_row_is_maximal(given, row, now[row], direction, layer) for row in both)
                maximal_vertex = all(_row_is_maximal_for_its_vertex(given, row, now, direction) for row in both)
        drop_zero, changes_zero = effects[*operation, "zero"]
        drop_maximum, changes_maximum = effects[*operation, "maximum"]
        operations[operation] = OracleOperation(
            layer=layer,
            head=head,
            target=target,
            source=source,
            drop_zero=drop_zero,
            drop_maximum=drop_maximum,
            change_zero=max(changes_zero, default=0.0),
            change_maximum=max(changes_maximum, default=0.0),
            by_zero=important_by[*operation, "zero"],
            by_maximum=important_by[*operation, "maximum"],
            target_features=target_features[operation],
            source_features=source_features[operation],
            explainable=explainable[operation],
            kind=kinds[operation],
            kept=operation in kept,
            direction=direction,
            maximal=maximal,
            maximal_vertex=maximal_vertex,
            distance=distance,
        )

    sufficiency, completeness, minimality = _trust(given, kept, prediction, alpha)
    return OracleCircuit(
        prediction=prediction,
        correct=correct,
        substitute=given.substitute,
        effects=effects,
        operations=operations,
        sets=all_sets,
        explained=explained,
        lenient=lenient,
        sufficiency=sufficiency,
        completeness=completeness,
        minimality=minimality,
    )
