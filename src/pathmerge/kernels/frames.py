"""What the rows of several inputs stand for, for the kernels of step V (`links`), and distances in their graphs.

Shapes: G inputs, R rows of all inputs, F features of the input that has most, V the largest vertex id, E edges.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pathmerge.kernels.compile import kernel


class Rules(NamedTuple):
    """Which rows, features and edges each input has; what `links` asks of `pathmerge.circuits.frame.Frames`."""

    first: Any
    """Input g owns rows first[g]..first[g+1]-1."""
    vertices: Any
    """Features that are vertices, G: they come first."""
    features: Any
    """All features, G."""
    slots: Any
    """The row (of its input) before an edge's two vertices, G x E."""
    edges: Any
    """How many slots there are, G: none where the model has no positions."""


@kernel
def present(first, held, edges, start, goal, positions, vertices, counts, number, sets, slots, slot_counts):
    """Vertices, initial sets and edges of each input. held: R x 2, the vertices of a row, or 0; edges: G x E x 2.

    vertices: G x V, those that occur, in increasing order; counts: how many; number: G x (V + 1), the place of each
    among them; sets: R x F, bool, zeros before; slots and slot_counts: see `Rules`.
    """
    for g in range(counts.shape[0]):
        low, n = first[g], first[g + 1] - first[g]
        for v in range(number.shape[1]):
            number[g, v] = -1
        for e in range(edges.shape[1]):
            if edges[g, e, 0]:
                number[g, edges[g, e, 0]], number[g, edges[g, e, 1]] = 0, 0
        number[g, start[g]], number[g, goal[g]] = 0, 0
        count = 0
        for v in range(1, number.shape[1]):
            if number[g, v] == 0:
                number[g, v] = count
                vertices[g, count] = v
                count += 1
        counts[g] = count
        found = 0
        for t in range(n):
            for v in held[low + t]:
                if v:
                    sets[low + t, number[g, v]] = True
            if positions:
                sets[low + t, count + t] = True
                if t < n - 5 and not held[low + t, 0]:
                    slots[g, found] = t
                    found += 1
        slot_counts[g] = found


@kernel
def distances(edges, vertices, counts, out):
    """Steps from each vertex id to each along the edges (G x E x 2), G x (V + 1) x (V + 1); -1 without a path."""
    out[:] = -1
    for g in range(counts.shape[0]):
        for at in range(counts[g]):
            steps = out[g, vertices[g, at]]
            steps[vertices[g, at]] = 0
            level, more = 0, True
            while more:
                more = False
                for e in range(edges.shape[1]):
                    source, target = edges[g, e]
                    if source and steps[source] == level and steps[target] < 0:
                        steps[target] = level + 1
                        more = True
                level += 1
