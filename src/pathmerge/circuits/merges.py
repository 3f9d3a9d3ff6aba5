"""What merges do to the graph's paths: direction, distance, and whether they merge the largest sets available.

The hypothesis (exponential path-merging): each row keeps the set of vertices that can be reached from its vertex (or
from which it can be reached) within some steps; each layer merges two such sets, and so can double the distance.
"""

from __future__ import annotations

import numpy as np

from pathmerge.circuits.files import Direction
from pathmerge.circuits.frame import Frame

DIRECTIONS: tuple[Direction, ...] = ("forward", "backward", "same", "across", "none")
WAYS = DIRECTIONS[:2]
"""Those in which merges are ranked."""


def directions(frame: Frame) -> tuple[np.ndarray, np.ndarray]:
    """For every target and source row, where the source's vertex lies seen from the target's (a number in DIRECTIONS),
    and how many steps away it is in that direction (-1 where there is no such number)."""
    here, there = frame.vertex_of_row[:, None], frame.vertex_of_row[None, :]
    ahead, back = frame.distance[here, there], frame.distance[there, here]
    found = np.select([(here == 0) | (there == 0), here == there, ahead > 0, back > 0], [4, 2, 0, 1], 3)
    return found, np.select([found == 2, found == 0, found == 1], [0, ahead, back], -1)


def reach(frame: Frame, way: Direction) -> np.ndarray:
    """Steps from each id to each in a direction; -1 where there is no path."""
    return frame.distance if way == "forward" else frame.distance.T


def radii(frame: Frame, sets: np.ndarray, way: Direction) -> np.ndarray:
    """For each row, the longest distance in a direction from its vertex to a vertex of its set; -1 without a vertex."""
    steps = reach(frame, way)[frame.vertex_of_row][:, list(frame.vertices)]
    inside = np.where(sets[:, : len(frame.vertices)], steps, -1).max(1)
    return np.where(frame.vertex_of_row > 0, inside, -1)


def largest(frame: Frame, layer: int, way: Direction) -> np.ndarray:
    """For each row, the radius that path-merging can have reached before a layer: 0, 1, 2, 4, …, or what there is."""
    most = (1 << min(layer - 1, 30)) if layer else 0
    return np.minimum(most, reach(frame, way)[frame.vertex_of_row].max(1))


def full(frame: Frame, sets: np.ndarray, layer: int) -> np.ndarray:
    """Which rows' sets have the largest radius there can be before a layer, or a larger one, 2 x rows: forward and
    backward. A merge is maximal if both its rows' are. Larger: several merges in one layer can more than double it."""
    return np.stack([radii(frame, sets, way) >= largest(frame, layer, way) for way in WAYS])


def full_of_vertex(frame: Frame, sets: np.ndarray) -> np.ndarray:
    """Which rows' sets have a radius that no other row of the same vertex exceeds, 2 x rows."""
    found = []
    for way in WAYS:
        radius = radii(frame, sets, way)
        best = np.full(frame.most + 1, -1)
        np.maximum.at(best, frame.vertex_of_row, radius)
        found.append(radius == best[frame.vertex_of_row])
    return np.stack(found)
