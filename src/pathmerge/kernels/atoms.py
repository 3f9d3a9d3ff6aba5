"""Atoms for the language encoding: distinct random numbers for the vertices of each example, from its own key."""

from __future__ import annotations

from pathmerge.kernels.compile import kernel
from pathmerge.kernels.random import ATOMS_ATTEMPT, below, set_index, set_stream


@kernel
def draw_atoms(rng, seed, split, stream, first, count, used, atoms):
    """Write into atoms[row, v], v = 1.., distinct numbers below `count`; `used` is scratch of that length, all 0."""
    set_stream(rng, seed, split, stream)
    for row in range(atoms.shape[0]):
        set_index(rng, first + row, ATOMS_ATTEMPT)
        atoms[row, 0] = -1
        for v in range(1, atoms.shape[1]):
            atom = below(rng, count)
            while used[atom] != 0:
                atom = below(rng, count)
            used[atom] = 1
            atoms[row, v] = atom
        for v in range(1, atoms.shape[1]):
            used[atoms[row, v]] = 0
