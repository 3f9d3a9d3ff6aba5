"""Many circuits of one model in numbers: what `summary.json` holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import exp, lgamma, log
from typing import Any

from pathmerge.circuits.files import Circuit, Reading
from pathmerge.circuits.truth import recovery


def summarise(
    circuits: Sequence[Circuit], *, skipped: int = 0, seconds_per_input: float | None = None
) -> dict[str, Any]:
    """Shares over all circuits; `maximal`, `sufficiency`, ... at the top are those of the lenient reading.

    `explained` is the strict share: SPEC's definition. The circuit whose trust is reported is the lenient one, because
    the strict circuit of a trained model often does not reach the last row (docs/circuits.md).
    """
    lenient = _reading(circuits, lambda circuit: circuit.lenient)
    strict = _reading(circuits, lambda circuit: circuit.strict)
    lookaheads = sorted({circuit.input.lookahead for circuit in circuits})
    full = [circuit for circuit in circuits if circuit.method.substitute == 0]
    return {
        "count": len(circuits),
        "skipped": skipped,
        "correct": mean([circuit.correct for circuit in circuits]),
        "explained": strict["explained"],
        "lenient": lenient["explained"],
        "connected": _all_known([circuit.connected for circuit in circuits]),
        **{name: value for name, value in lenient.items() if name != "explained"},
        "strict": strict,
        "without_absent_id": len(full),
        "without_absent_id_apart": {
            "correct": mean([circuit.correct for circuit in full]),
            "explained": mean([circuit.explained for circuit in full]),
            "lenient": mean([circuit.lenient.explained for circuit in full]),
        },
        "passes_per_input": mean([circuit.passes for circuit in circuits]),
        "audited": sum(circuit.audited for circuit in circuits),
        "missed": sum(circuit.missed for circuit in circuits),
        "missed_at_most": upper_bound(
            sum(circuit.missed for circuit in circuits), sum(circuit.audited for circuit in circuits)
        ),
        "seconds_per_input": seconds_per_input,
        "by_lookahead": [
            _brief([circuit for circuit in circuits if circuit.input.lookahead == lookahead], lookahead)
            for lookahead in lookaheads
        ],
        "by_layer": _by_layer(circuits),
        "recovery": _recovery(circuits),
        "method": _common(circuits),
        "model": circuits[0].model if circuits else None,
        "made_with": circuits[0].made_with if circuits else None,
    }


def _recovery(circuits: Sequence[Circuit]) -> dict[str, Any] | None:
    """Of the compiled model, whose operations are known: how many of them were found."""
    if not circuits or circuits[0].model.get("source") != "compiled":
        return None
    found = recovery(circuits)
    return {"precision": found.precision, "recall": found.recall, **asdict(found)}


def _common(circuits: Sequence[Circuit]) -> dict[str, Any] | None:
    """The settings that all circuits share; which token stood in for a vertex is each input's own."""
    return {k: v for k, v in asdict(circuits[0].method).items() if k != "substitute"} if circuits else None


def mean(values: Sequence[float | bool | None]) -> float | None:
    """The mean of what there is; none if there is nothing."""
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _all_known(values: Sequence[bool | None]) -> float | None:
    """The mean, if every value is known: those that are would not be typical."""
    return None if None in values else mean(values)


def upper_bound(missed: int, audited: int) -> float | None:
    """With 95% confidence, at most this share is missed, after so many misses in so many looks (Clopper-Pearson)."""
    if not audited:
        return None
    if missed == audited:
        return 1.0
    ways = [lgamma(audited + 1) - lgamma(k + 1) - lgamma(audited - k + 1) for k in range(missed + 1)]
    low, high = missed / audited, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        a, b = log(max(middle, 1e-300)), log(max(1 - middle, 1e-300))
        chance = sum(exp(way + k * a + (audited - k) * b) for k, way in enumerate(ways))
        low, high = (middle, high) if chance > 0.05 else (low, middle)
    return high


def _reading(circuits: Sequence[Circuit], of: Callable[[Circuit], Reading]) -> dict[str, Any]:
    readings = [of(circuit) for circuit in circuits]
    trusts = [reading.trust for reading in readings if reading.trust is not None]
    ranked = sum(len(reading.ranked) for reading in readings)
    best = [reading.maximal_vertex for reading in readings if reading.maximal_vertex is not None]
    return {
        "explained": mean([reading.explained for reading in readings]),
        "maximal": sum(len(reading.maximal) for reading in readings) / ranked if ranked else None,
        "maximal_vertex": sum(map(len, best)) / ranked if ranked and len(best) == len(readings) else None,
        "kept": mean([len(reading.kept) for reading in readings]),
        "sufficiency": mean([trust.sufficient for trust in trusts]),
        "sufficiency_random": mean([trust.random_sufficient for trust in trusts]),
        "completeness": mean([trust.complete for trust in trusts]),
        "completeness_random": mean([trust.random_complete for trust in trusts]),
        "minimality": mean([trust.minimal for trust in trusts]),
        "minimality_random": mean([trust.random_minimal for trust in trusts]),
    }


def _brief(circuits: Sequence[Circuit], lookahead: int) -> dict[str, Any]:
    lenient = _reading(circuits, lambda circuit: circuit.lenient)
    return {
        "lookahead": lookahead,
        "count": len(circuits),
        "correct": mean([circuit.correct for circuit in circuits]),
        "explained": mean([circuit.explained for circuit in circuits]),
        "lenient": lenient["explained"],
        **{name: lenient[name] for name in ("maximal", "kept", "sufficiency", "completeness", "minimality")},
    }


def _by_layer(circuits: Sequence[Circuit]) -> list[dict[str, Any]]:
    """For each layer, the kinds, directions and distances of the kept operations (lenient)."""
    layers = max((circuit.model["layers"] for circuit in circuits), default=0)
    found: list[dict[str, Any]] = []
    for layer in range(layers):
        kept = [
            circuit.operations[i]
            for circuit in circuits
            for i in circuit.lenient.kept
            if circuit.operations[i].layer == layer
        ]
        merges = [operation for operation in kept if operation.kind in ("token", "position")]
        found.append(
            {
                "layer": layer,
                "kept": len(kept),
                "kinds": dict(Counter(operation.kind for operation in kept)),
                "directions": dict(Counter(operation.direction for operation in merges)),
                "distances": {
                    str(steps): number
                    for steps, number in sorted(Counter(o.distance for o in merges if o.distance).items())
                },
            }
        )
    return found
