"""Whether the parts of a circuit agree: what types alone do not say of a file that someone may have changed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pathmerge.encodings.symbolic import parse
from pathmerge.layout import Layout

if TYPE_CHECKING:
    from pathmerge.circuits.files import Circuit, Operation, Reading


def check_coherent(circuit: Circuit) -> None:
    """Raise at the first part that contradicts another."""
    _check_input(circuit)
    for name in ("layers", "heads"):
        if type(circuit.model.get(name)) is not int or circuit.model[name] < 1:
            raise ValueError(f"circuit.model.{name}={circuit.model.get(name)!r}: must be a whole number from 1")
    rows = {row.position for row in circuit.input.rows}
    vertices = {vertex for row in circuit.input.rows for vertex in row.vertices}
    for i, operation in enumerate(circuit.operations):
        where = f"circuit.operations[{i}]"
        for name, value, allowed in (
            ("layer", operation.layer, range(circuit.model["layers"])),
            ("head", operation.head, range(circuit.model["heads"])),
            ("target", operation.target, rows),
            ("source", operation.source, rows),
            *(("matched", vertex, vertices) for vertex in operation.matched),
        ):
            if value not in allowed:
                raise ValueError(f"{where}.{name}={value}: there is none such in this circuit")
        if not all(map(math.isfinite, _numbers(operation))):
            raise ValueError(f"{where}: a number is infinite or none")
    for name, reading in (("strict", circuit.strict), ("lenient", circuit.lenient)):
        _check_reading(circuit, reading, f"circuit.{name}")


def _check_input(circuit: Circuit) -> None:
    given = circuit.input
    try:
        problem = parse(given.tokens, Layout(len(given.tokens)))
    except ValueError as error:
        raise ValueError(f"circuit.input.{error}") from None
    for name in ("edges", "start", "goal"):
        if getattr(problem, name) != getattr(given, name):
            raise ValueError(f"circuit.input.{name}={str(getattr(given, name))[:40]}: the tokens say otherwise")
    if type(given.key.get("index")) is not int:
        raise ValueError(f"circuit.input.key.index={given.key.get('index')!r}: must be a whole number")
    positions = [row.position for row in given.rows]
    if not positions or positions != sorted(set(positions)):
        raise ValueError("circuit.input.rows: must be the rows of the input in their order, each once")
    if circuit.correct != (circuit.prediction in given.answers):
        raise ValueError(f"circuit.correct={circuit.correct}: prediction and answers say otherwise")


def _check_reading(circuit: Circuit, reading: Reading, where: str) -> None:
    within: dict[str, tuple[str, Iterable[int]]] = {
        "links": ("the operations", range(len(circuit.operations))),
        "kept": ("links", reading.links),
        "ranked": ("kept", reading.kept),
        "maximal": ("ranked", reading.ranked),
        "maximal_vertex": ("ranked", reading.ranked),
    }
    for name, (whole, allowed) in within.items():
        numbers: tuple[int, ...] = getattr(reading, name) or ()
        if len(set(numbers)) < len(numbers) or not set(numbers) <= set(allowed):
            raise ValueError(f"{where}.{name}: must be some of {whole}, each once")
    shape = [len(circuit.input.rows)] * (circuit.model["layers"] + 1)
    for name, sets in (("sets", reading.sets), ("position_sets", reading.position_sets)):
        if (sets or name == "sets") and [len(at) for at in sets] != shape:
            raise ValueError(f"{where}.{name}: must have {len(shape)} times {shape[0]} sets, before and after layers")


def _numbers(operation: Operation) -> Iterator[Any]:
    yield operation.weight
    yield from (value for value in (*operation.drop, *operation.change) if value is not None)
    yield from (feature.change for feature in (*operation.target_features, *operation.source_features))
