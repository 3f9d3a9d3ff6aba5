"""What merges do to the graph's paths: direction, distance, and whether they merge the largest sets available.

The hypothesis (exponential path-merging): each row keeps the set of vertices that can be reached from its vertex (or
from which it can be reached) within some steps; each layer merges two such sets, and so can double the distance.
"""

from __future__ import annotations

import numpy as np

from pathmerge.circuits.files import Direction
from pathmerge.circuits.frame import Frame

DIRECTIONS: tuple[Direction, ...] = ("forward", "backward", "same", "across", "none")


def directions(frame: Frame) -> tuple[np.ndarray, np.ndarray]:
    """For every target and source row, where the source's vertex lies seen from the target's (a number in DIRECTIONS),
    and how many steps away it is in that direction (-1 where there is no such number)."""
    ahead = frame.distance[frame.vertex_of_row[:, None], frame.vertex_of_row]
    back = ahead.T
    nowhere = frame.vertex_of_row == 0
    found = np.where(ahead > 0, 0, np.where(back > 0, 1, np.where(ahead == 0, 2, 3)))
    found[nowhere] = found[:, nowhere] = 4
    return found, np.where(found == 0, ahead, np.where(found == 1, back, np.where(found == 2, 0, -1)))


def radii(frame: Frame, sets: np.ndarray) -> np.ndarray:
    """The longest distance, forward and backward, from each row's vertex to a vertex of its set, 2 x .. x rows; -1
    without a vertex. sets: .. x rows x features."""
    held = sets[..., : len(frame.vertices)]
    inside = np.stack([np.where(held, steps, -1).max(-1) for steps in frame.reach])
    inside[..., frame.vertex_of_row == 0] = -1
    return inside


def full(frame: Frame, radius: np.ndarray) -> np.ndarray:
    """Which rows' sets have the largest radius there can be before their layer (0, 1, 2, 4, …, or what there is), or a
    larger one, 2 x readings x layers x rows. A merge is maximal if both its rows' have. Larger: several merges in one
    layer can more than double it."""
    layer = np.arange(radius.shape[2])
    most = np.where(layer > 0, 1 << np.clip(layer - 1, 0, 30), 0)
    there = np.stack([steps.max(1) for steps in frame.reach])
    return radius >= np.minimum(most[:, None], there[:, None, None])


def full_of_vertex(frame: Frame, radius: np.ndarray) -> np.ndarray:
    """Which rows' sets have a radius that no other row of the same vertex exceeds (2 x readings x layers x rows)."""
    same = frame.vertex_of_row[:, None] == frame.vertex_of_row
    return radius == np.where(same, radius[..., None, :], -1).max(-1)
