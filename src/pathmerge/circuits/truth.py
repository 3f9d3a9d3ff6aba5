"""Did the method find what is known to be there? The compiled model's circuits against its own account of itself.

Counted are the operations on the answer's path. Those that a parallel operation makes redundant need not be found
(perturbing one of them changes nothing), and are no mistake if they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pathmerge.circuits.files import Circuit
from pathmerge.models.true_circuit import true_circuit


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """Operations over all circuits, strict reading."""

    found: int
    missing: int
    extra: int
    redundant: int
    """Redundant operations on the answer's path, found or not."""
    plain: int
    """Inputs without any."""
    plain_explained: int

    @property
    def precision(self) -> float | None:
        return self.found / (self.found + self.extra) if self.found + self.extra else None

    @property
    def recall(self) -> float | None:
        return self.found / (self.found + self.missing) if self.found + self.missing else None


def recovery(circuits: Sequence[Circuit]) -> Recovery:
    """Compare circuits of a compiled model with the operations it makes by construction."""
    found = missing = extra = redundant = plain = plain_explained = 0
    for circuit in circuits:
        size, merges = circuit.model["input_size"], circuit.model["layers"] - 2
        truth = true_circuit(circuit.input.tokens, (size, merges)).operations
        needed = {(o.layer, o.target, o.source) for o in truth if o.on_path and not o.redundant}
        spare = {(o.layer, o.target, o.source) for o in truth if o.on_path and o.redundant}
        kept = (circuit.operations[i] for i in circuit.strict.kept)
        ours = {(o.layer, o.target, o.source) for o in kept}
        found += len(needed & ours)
        missing += len(needed - ours)
        extra += len(ours - needed - spare)
        redundant += len(spare)
        plain += not spare
        plain_explained += not spare and circuit.explained
    return Recovery(
        found=found, missing=missing, extra=extra, redundant=redundant, plain=plain, plain_explained=plain_explained
    )
