"""Why strict and lenient differ: what the operations that only the lenient reading keeps depend on besides.

    .venv/bin/pathmerge explain RUN --count 100 --out circuits
    .venv/bin/python benchmarks/strictness.py circuits

A feature *stands in the way* if an operation depends on it in a row whose (strict) set does not hold it. Its strength
is its effect on the product q·k relative to the strongest of all features the operation depends on.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np

from pathmerge.circuits.files import Circuit, Operation, load_circuit


def blocking(circuit: Circuit, operation: Operation) -> list[tuple[str, str, float]]:
    """What stands in the way of an operation: kind, row, and its effect relative to the operation's strongest one."""
    rows = {row.position: i for i, row in enumerate(circuit.input.rows)}
    vertices, positions = circuit.strict.sets[operation.layer], circuit.strict.position_sets[operation.layer]
    found: list[tuple[str, str, float]] = []
    most = max(abs(f.change) for f in (*operation.target_features, *operation.source_features))
    for side, at, part in (
        ("target", operation.target, operation.target_features),
        ("source", operation.source, operation.source_features),
    ):
        for feature in part:
            held = vertices if feature.kind == "vertex" else positions
            if feature.value not in held[rows[at]]:
                found.append((feature.kind, side, abs(feature.change) / most))
    return found


def main() -> None:
    circuits = [load_circuit(path) for path in sorted(Path(sys.argv[1]).glob("*-L*-*.json"))]
    apart = [c for c in circuits if c.correct and c.lenient.explained and not c.explained]
    both = sum(c.explained for c in circuits)
    print(f"{len(circuits)} circuits: {both} explained strictly, {len(apart)} right and only leniently")
    print("| layer | kept leniently | not strictly | vertices | positions | in target | in source | strength |")
    print("|---|---|---|---|---|---|---|---|")
    layers = max(c.model["layers"] for c in circuits)
    for layer in range(layers):
        kept = lost = 0
        kinds: Counter[str] = Counter()
        strength: list[float] = []
        for circuit in apart:
            strict = set(circuit.strict.links)
            for i in circuit.lenient.kept:
                operation = circuit.operations[i]
                if operation.layer != layer:
                    continue
                kept += 1
                if i in strict:
                    continue
                lost += 1
                for kind, side, share in blocking(circuit, operation):
                    kinds[kind] += 1
                    kinds[side] += 1
                    strength.append(share)
        counts = " | ".join(f"{kinds[name] / max(1, lost):.1f}" for name in ("vertex", "position", "target", "source"))
        weak = f"{np.median(strength):.2f}" if strength else "–"
        print(f"| {layer + 1} | {kept} | {lost} | {counts} | {weak} |")
    print("vertices, positions, in target, in source: features in the way, per operation lost; strength: the median of")
    print("their effect on the product, relative to the strongest dependency of the operation")


if __name__ == "__main__":
    main()
