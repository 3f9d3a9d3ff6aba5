"""What merges do to the graph's paths: direction, distance, and whether they merge the largest sets available.

The hypothesis (exponential path-merging): each row keeps the set of vertices that can be reached from its vertex (or
from which it can be reached) within some steps; each layer merges two such sets, and so can double the distance.

Shapes: R rows of all inputs, S operations.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from pathmerge.circuits.files import Direction
from pathmerge.circuits.frame import Frames

DIRECTIONS: tuple[Direction, ...] = ("forward", "backward", "same", "across", "none")


def directions(frames: Frames, target: np.ndarray, source: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For pairs of target and source rows (among all), where the source's vertex lies seen from the target's (a number
    in DIRECTIONS), and how many steps away it is in that direction (-1 where there is no such number)."""
    owner, here, there = frames.owner[target], frames.held[target, 0], frames.held[source, 0]
    ahead, back = frames.distance[owner, here, there], frames.distance[owner, there, here]
    found = np.where(ahead > 0, 0, np.where(back > 0, 1, np.where(ahead == 0, 2, 3)))
    found[(here == 0) | (there == 0)] = 4
    return found, np.where(found == 0, ahead, np.where(found == 1, back, np.where(found == 2, 0, -1)))


def radii(frames: Frames, sets: np.ndarray) -> np.ndarray:
    """The longest distance, forward and backward, from each row's vertex to a vertex of its set, 2 x .. x R; -1 without
    a vertex. sets: .. x R x features."""
    held = sets[..., : frames.most]  # positions among them are -1 away
    return np.stack([np.where(held, steps, -1).max(-1) for steps in frames.reach])


def full(frames: Frames, radius: np.ndarray) -> np.ndarray:
    """Which rows' sets have the largest radius there can be before their layer (0, 1, 2, 4, …, or what there is), or a
    larger one, 2 x readings x layers x R. A merge is maximal if both its rows' have. Larger: several merges in one
    layer can more than double it."""
    layer = np.arange(radius.shape[2])
    most = np.where(layer > 0, 1 << np.clip(layer - 1, 0, 30), 0)
    there = np.stack([steps.max(1) for steps in frames.reach])
    return radius >= np.minimum(most[:, None], there[:, None, None])


def full_of_vertex(frames: Frames, radius: np.ndarray) -> np.ndarray:
    """Which rows' sets have a radius that no other row of the same vertex exceeds (2 x readings x layers x R)."""
    found = np.empty(radius.shape, bool)
    for low, high in pairwise(frames.first.tolist()):
        own, vertex = radius[..., low:high], frames.held[low:high, 0]
        found[..., low:high] = own == np.where(vertex[:, None] == vertex, own[..., None, :], -1).max(-1)
    return found
