"""Baselines: rules that answer without searching, so that a table shows what accuracy is worth (SPEC section 5).

Choices a reader could not guess:
- A rule sees what a model sees (the graph in token order, the query, what was visited) and answers with one vertex.
- "Random" is a hash of the problem's `identity` and the rule's name: a problem met twice gets the same answer, whatever
  the batch, its order or the process, and two rules do not choose alike.
- A depth-first rule that finds no unvisited child where it looks takes any unvisited vertex that some edge leads to,
  by the same hash. There always is one: the answer.
- "random child" is of the vertex the search is at: start in a search, the last visited vertex in a depth-first search
  (unvisited children only, since no other can be right), the current vertex in an inference step (visited or not).
- A batch that mixes selection and inference gets one rule that treats each row by its step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from jaxtyping import Bool, Float32, Int64, UInt64

from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import Distribution
from pathmerge.problems.selection_inference import STEPS, SelectionInference

Judge = Callable[[Batch], tuple[np.ndarray, np.ndarray]]
"""A model, as far as evaluation knows it: for each example whether the answer is right (bool) and its loss (float32,
nan where there is none)."""
Vertices = Int64[np.ndarray, " batch"]
VertexSet = Bool[np.ndarray, "batch vertices_and_1"]


@dataclass(frozen=True, kw_only=True)
class Heuristic:
    """A rule by name; `predict` gives a vertex for each example."""

    name: str
    describe: str
    predict: Callable[[Batch], Vertices]


def heuristics_for(distribution: Distribution) -> tuple[Heuristic, ...]:
    """The baselines that stand beside a model on this distribution."""
    match distribution.task:
        case "search":
            return SEARCH
        case "dfs":
            return DEPTH_FIRST
        case _:
            assert isinstance(distribution, SelectionInference)
            steps = {cell[2] for cell in distribution.cells()}
            return (MIXED_STEPS,) if len(steps) > 1 else (STEP_RULES[STEPS[steps.pop()]],)


def as_judge(heuristic: Heuristic) -> Judge:
    """The rule in the place of a model; it has no loss."""

    def judge(batch: Batch) -> tuple[Bool[np.ndarray, " batch"], Float32[np.ndarray, " batch"]]:
        correct = batch.answers[np.arange(len(batch)), heuristic.predict(batch)]
        return correct, np.full(len(batch), np.nan, np.float32)

    return judge


def _hash(batch: Batch, name: str) -> UInt64[np.ndarray, " batch"]:
    """64 bits for each problem, others for each name: the finalizer of splitmix64 over both."""
    salt = np.uint64(int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little"))
    x = batch.identity ^ salt
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _one_of(batch: Batch, name: str, allowed: VertexSet) -> Vertices:
    """The vertex of each row's set that the hash chooses, uniformly; 0 where the set is empty."""
    count = allowed.sum(1)
    turn = (_hash(batch, name) % np.maximum(count, 1).astype(np.uint64)).astype(np.int64)
    chosen = (allowed.cumsum(1) > turn[:, None]).argmax(1)
    return np.where(count > 0, chosen, 0)


def _mark(batch: Batch, vertices: Int64[np.ndarray, "batch places"]) -> VertexSet:
    """The set of each row's vertices; 0 stands for none."""
    marked = np.zeros((len(batch), batch.distribution.layout.max_vertices + 1), np.bool_)
    marked[np.arange(len(batch))[:, None], vertices] = True
    marked[:, 0] = False
    return marked


def _children(batch: Batch, of: Vertices) -> VertexSet:
    edges = batch.edges
    return _mark(batch, np.where(edges[:, :, 0] == of[:, None], edges[:, :, 1], 0))


def _region(batch: Batch) -> Int64[np.ndarray, "batch region"]:
    """What follows the query, 0 for filler; not for language, whose region is text."""
    layout = batch.distribution.layout
    region = batch.tokens[:, layout.input_size - layout.region_width :]
    return np.where(region <= layout.max_vertices, region, 0)


def _first_edge(batch: Batch) -> Vertices:
    edges = batch.edges
    first = (edges[:, :, 0] == batch.start[:, None]).argmax(1)
    return edges[np.arange(len(batch)), first, 1]


def _random_child(batch: Batch) -> Vertices:
    return _one_of(batch, "random child", _children(batch, batch.current))


def _highest_degree(batch: Batch) -> Vertices:
    edges, most = batch.edges, batch.distribution.layout.max_vertices
    place = np.arange(len(batch))[:, None, None] * (most + 1) + edges
    degree = np.bincount(place.reshape(-1), minlength=len(batch) * (most + 1)).reshape(len(batch), most + 1)
    return np.where(_children(batch, batch.start), degree, -1).argmax(1)


def _nearest_id(batch: Batch) -> Vertices:
    ids = np.arange(batch.distribution.layout.max_vertices + 1)
    away = np.abs(ids - batch.goal[:, None])
    return np.where(_children(batch, batch.start), away, len(ids)).argmin(1)


def _unvisited_child(batch: Batch, name: str, of: Vertices) -> Vertices:
    visited = _mark(batch, _region(batch))
    near = _one_of(batch, name, _children(batch, of) & ~visited)
    anywhere = _one_of(batch, name, _mark(batch, batch.edges[:, :, 1]) & ~visited)
    return np.where(near > 0, near, anywhere)


def _child_of_start(batch: Batch) -> Vertices:
    return _unvisited_child(batch, "child of start", batch.start)


def _random_unvisited_child(batch: Batch) -> Vertices:
    return _unvisited_child(batch, "random child", batch.current)


def _most_recent(batch: Batch) -> Vertices:
    region = _region(batch)
    last = region.shape[1] - 1 - (region[:, ::-1] > 0).argmax(1)
    found = region[np.arange(len(batch)), last]
    return np.where(found > 0, found, batch.start)


def _by_step(batch: Batch) -> Vertices:
    return np.where(batch.step == STEPS.index("selection"), _most_recent(batch), _random_child(batch))


SEARCH = (
    Heuristic(
        name="first edge", describe="the target of the first edge out of start, in token order", predict=_first_edge
    ),
    Heuristic(name="random child", describe="a random child of start", predict=_random_child),
    Heuristic(
        name="highest degree",
        describe="the child of start with most edges in and out; the lowest id of several",
        predict=_highest_degree,
    ),
    Heuristic(
        name="nearest id",
        describe="the child of start whose id is nearest to the goal's; the lowest id of several",
        predict=_nearest_id,
    ),
)
DEPTH_FIRST = (
    Heuristic(
        name="child of start",
        describe="a random unvisited child of start; if there is none, a random unvisited child of any vertex",
        predict=_child_of_start,
    ),
    Heuristic(
        name="random child",
        describe="a random unvisited child of the last visited vertex; if there is none, one of any vertex",
        predict=_random_unvisited_child,
    ),
)
STEP_RULES = {
    "selection": Heuristic(name="most recent", describe="the vertex visited last", predict=_most_recent),
    "inference": Heuristic(
        name="random child", describe="a random child of the current vertex, visited or not", predict=_random_child
    ),
}
MIXED_STEPS = Heuristic(
    name="most recent or random child",
    describe="in a selection step the vertex visited last, in an inference step a random child of the current one",
    predict=_by_step,
)
