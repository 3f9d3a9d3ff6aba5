"""The circuit method against a second implementation written from docs/circuits.md alone (circuit_oracle.py).

Also here: the parts of a circuit, its file, and what is refused.
"""

from __future__ import annotations

import copy
import json
import math
import pickle
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from circuit_oracle import OracleCircuit, brute_force
from lively_models import MODELS

import pathmerge as pm
from pathmerge.circuits.assemble import rounded
from pathmerge.circuits.explain import explain, explain_all
from pathmerge.circuits.files import Circuit, load_circuit
from pathmerge.circuits.frame import frames_of
from pathmerge.circuits.reconstruct import lead
from pathmerge.circuits.subject import TransformerSubject
from pathmerge.circuits.trace import record
from pathmerge.models.sequence_transformer import SequenceTransformer
from pathmerge.models.transformer import Block

NEAR = 2e-3
"""Values this close to a threshold may fall on either side: float32 here, float64 there."""


def operations(circuit: Circuit) -> dict[tuple[int, int, int, int], int]:
    return {(o.layer, o.head, o.target, o.source): i for i, o in enumerate(circuit.operations)}


def near(value: float, threshold: float) -> bool:
    return abs(abs(value) - threshold) < NEAR * max(1.0, threshold)


def undecided(oracle: OracleCircuit, alpha: float, threshold: float) -> set[tuple[int, int, int, int]]:
    """The operations of which some effect is too near a threshold to compare decisions."""
    found = set()
    for (layer, head, target, source, _), (drop, changes) in oracle.effects.items():
        if near(drop, alpha) or any(near(change, threshold) for change in changes):
            found.add((layer, head, target, source))
    return found


def check_effects(ours: Circuit, oracle: OracleCircuit) -> None:
    """Both found the same operations important, and measured the same, wherever nothing is near a threshold."""
    threshold = math.sqrt(ours.model["head_width"]) / ours.method.kappa1
    unsure = undecided(oracle, ours.method.alpha, threshold)
    mine = operations(ours)
    assert set(mine) - unsure == set(oracle.operations) - unsure
    for at, number in mine.items():
        if at not in oracle.operations:
            continue
        here, there = ours.operations[number], oracle.operations[at]
        np.testing.assert_allclose(
            np.array(here.drop, float), (there.drop_zero, there.drop_maximum), atol=NEAR, rtol=NEAR
        )
        np.testing.assert_allclose(
            np.array(here.change, float), (there.change_zero, there.change_maximum), atol=NEAR, rtol=NEAR
        )
        if at not in unsure:
            assert here.by == ("zero",) * there.by_zero + ("maximum",) * there.by_maximum


def check_verdicts(ours: Circuit, oracle: OracleCircuit) -> bool:
    """Everything after step III is equal; only asked where operations and features are the same, else false."""
    numbers = operations(ours)
    if set(numbers) != set(oracle.operations):
        return False
    for at, there in oracle.operations.items():
        here = ours.operations[numbers[at]]
        mine = [{(f.kind, f.value) for f in side} for side in (here.target_features, here.source_features)]
        if mine != [set(there.target_features), set(there.source_features)]:
            return False
    assert {numbers[at] for at, op in oracle.operations.items() if op.kept} == set(ours.strict.kept)
    assert ours.explained == oracle.explained
    assert ours.connected == oracle.lenient
    assert ours.correct == oracle.correct
    for layer, sets in enumerate(ours.strict.sets):
        for row, vertices in zip(ours.input.rows, sets, strict=True):
            assert set(vertices) == {v for kind, v in oracle.sets[layer][row.position] if kind == "vertex"}
    trust = ours.strict.trust
    assert trust is not None
    assert (trust.sufficient, trust.complete) == (oracle.sufficiency, oracle.completeness)
    assert trust.minimal == pytest.approx(oracle.minimality)
    for at, op in oracle.operations.items():
        here = ours.operations[numbers[at]]
        if op.explainable and op.kind != "other":
            assert here.kind == op.kind
        if op.kept and op.direction in ("forward", "backward"):
            assert (here.direction, here.distance) == (op.direction, op.distance)
            assert (numbers[at] in ours.strict.maximal) == op.maximal
            assert ours.strict.maximal_vertex is not None
            assert (numbers[at] in ours.strict.maximal_vertex) == op.maximal_vertex
    return True


@pytest.mark.parametrize("name", MODELS)
def test_every_step_equals_that_of_the_oracle(name: str) -> None:
    model = MODELS[name]()
    batch = pm.Balanced(input_size=17).sample(3, seed=11)
    whole = compared = 0
    for i in range(3):
        oracle = brute_force(model, batch, i, alpha=0.05, kappa1=40.0, kappa2=20.0)
        ours = explain(model, batch[i], mode="exact", alpha=0.05, kappa1=40.0, kappa2=20.0)
        assert (ours.prediction, ours.method.substitute) == (oracle.prediction, oracle.substitute)
        check_effects(ours, oracle)
        whole += check_verdicts(ours, oracle)
        compared += len(ours.operations)
    assert compared > 4
    assert whole >= 1


def test_literal_sets_hold_less() -> None:
    model = MODELS["matching"]()
    batch = pm.Balanced(input_size=17).sample(6, seed=11)
    smaller = 0
    for i in range(6):
        oracle = brute_force(model, batch, i, alpha=0.05, kappa1=40.0, kappa2=20.0, sets="literal") if i < 2 else None
        literal = explain(model, batch[i], mode="exact", alpha=0.05, kappa1=40.0, kappa2=20.0, sets="literal")
        whole = explain(model, batch[i], mode="exact", alpha=0.05, kappa1=40.0, kappa2=20.0)
        if oracle is not None:
            check_verdicts(literal, oracle)
        pairs = [
            (a, b)
            for x, y in zip(literal.lenient.sets, whole.lenient.sets, strict=True)
            for a, b in zip(x, y, strict=True)
        ]
        assert all(set(a) <= set(b) for a, b in pairs)
        smaller += sum(set(a) < set(b) for a, b in pairs)
    assert smaller > 0


def test_frames_hold_the_graphs() -> None:
    """Of several inputs at once, against networkx one by one."""
    model = MODELS["one head"]()
    subject, batch = TransformerSubject(model), pm.Naive(input_size=17).sample(40, seed=4)
    trace = record(subject, subject.tokens(batch))
    frames = frames_of(batch, np.arange(len(batch)), trace, subject.has_positions)
    for g, edges in enumerate(batch.edges.tolist()):
        graph = nx.DiGraph([(u, v) for u, v in edges if u])
        vertices, positions = frames.names(g)
        assert vertices == sorted(graph)
        assert positions == list(range(17 - len(positions), 17))
        assert frames.substitutes[g] == min(set(range(1, frames.most + 1)) - set(graph), default=0)
        steps = np.full((frames.most + 1, frames.most + 1), -1)
        for origin, lengths in nx.all_pairs_shortest_path_length(graph):
            for vertex, length in lengths.items():
                steps[origin, vertex] = length
        np.testing.assert_array_equal(frames.distance[g], steps)


def test_a_path_leads_through_the_vertices_that_are_held() -> None:
    """Paths from start to goal inside random sets of rows, with and without a given second vertex, by networkx."""
    subject, batch = TransformerSubject(pm.OneHot(input_size=26).build(1)), pm.Naive(input_size=26).sample(300, seed=4)
    frames = frames_of(batch, np.arange(300), record(subject, subject.tokens(batch)), subject.has_positions)
    choose = np.random.default_rng(1)
    reached = choose.random(len(frames.held)) < 0.8
    second = np.where(choose.random(300) < 0.5, 0, choose.integers(1, frames.most + 1, 300))
    found = lead(frames, reached, second)
    for g, edges in enumerate(batch.edges.tolist()):
        own = slice(frames.first[g], frames.first[g + 1])
        through = set(frames.held[own][reached[own]].flatten().tolist()) - {0}
        whole = nx.DiGraph([(u, v) for u, v in edges if u])
        graph, start, goal = whole.subgraph(through), int(batch.start[g]), int(batch.goal[g])
        origin = int(second[g]) or start
        there = {start, goal, origin} <= set(graph) and (not second[g] or graph.has_edge(start, origin))
        assert found[g] == (there and nx.has_path(graph, origin, goal))
    assert 20 < found.sum() < 280


def test_token_0_stands_in_where_no_id_is_absent_and_absent_skips() -> None:
    model = MODELS["one head"]()
    batch = pm.Balanced(input_size=17).sample(40, seed=1)
    every = list(explain_all(model, batch, trust=False))
    full = [i for i, c in enumerate(every) if c is not None and len({v for e in c.input.edges for v in e}) == 4]
    assert full
    assert all(every[i].method.substitute == 0 for i in full)  # pyright: ignore[reportOptionalMemberAccess]
    skipped = list(explain_all(model, batch, trust=False, replacement="absent"))
    assert [i for i, circuit in enumerate(skipped) if circuit is None] == full
    with pytest.raises(ValueError, match="every vertex id occurs"):
        explain(model, batch[full[0]], replacement="absent")


def test_padding_cannot_matter() -> None:
    """The same graph in a wider frame of one-hot tokens: rows are named further right, nothing else changes."""
    model = MODELS["no positions"]()
    assert isinstance(model.config, pm.OneHot)
    batch = pm.Balanced(input_size=17, vertices=3).sample(3, seed=6)
    for i in range(3):
        circuit = explain(model, batch[i], mode="exact")
        assert len(circuit.input.rows) < 17
        assert {row.position for row in circuit.input.rows} == set(range(17 - len(circuit.input.rows), 17))


class Silu(SequenceTransformer):
    """A model with a feed-forward of its own."""

    def gate(self, block: Block, before: torch.Tensor, h: torch.Tensor, /) -> torch.Tensor:
        return before.sigmoid()


def test_a_model_with_a_gate_of_its_own_survives_perturbations_that_change_nothing() -> None:
    model = Silu(pm.OneHot(input_size=17, layers=4), 1)
    with torch.no_grad():
        model.blocks[0].o.weight.zero_()  # pyright: ignore
    circuit = explain(model, pm.Balanced(input_size=17).sample(1, seed=2)[0], mode="screened")
    assert not circuit.explained


def test_numbers_in_a_circuit_have_six_digits() -> None:
    choose = np.random.default_rng(1)
    values = (choose.normal(size=5000) * 10.0 ** choose.integers(-30, 30, 5000)).astype(np.float32)
    values[:8] = 0, 1, -1, 0.1, 1e-38, 3e38, 999999.5, np.nan
    wanted = [float(f"{value:.5e}") for value in values.tolist()]
    np.testing.assert_allclose(rounded(values), wanted, rtol=1e-14)


def test_a_circuit_made_later_is_the_same_circuit() -> None:
    """Objects are made when a field is first asked for; equality, copies, pickles and files do not see it."""
    model, batch = MODELS["matching"](), pm.Balanced(input_size=17).sample(1, seed=6)
    made = explain(model, batch[0], mode="screened")
    calls: list[str] = []

    def later() -> Circuit:
        def make(name: str) -> Any:
            calls.append(name)
            return getattr(made, name)

        return Circuit.later(make)

    waiting = later()
    assert not hasattr(waiting, "no_such_field")
    assert not calls
    assert waiting.explained == made.explained
    assert calls == ["strict"]
    assert waiting == made
    assert repr(waiting) == repr(made)
    assert sorted(calls) == sorted(field.name for field in fields(Circuit))
    assert "_make" not in vars(waiting)
    for same in (pickle.loads(pickle.dumps(later())), copy.copy(later()), copy.deepcopy(later()), replace(later())):
        assert type(same) is Circuit
        assert same == made
        assert vars(same).keys() == vars(made).keys()
    assert later().to_dict() == made.to_dict()


def test_circuits_survive_their_file(tmp_path: Path) -> None:
    circuit = explain(MODELS["matching"](), pm.Balanced(input_size=17).sample(1, seed=2)[0], alpha=0.05, kappa1=40.0)
    circuit.save(tmp_path / "circuit.json")
    assert load_circuit(tmp_path / "circuit.json") == circuit
    values = json.loads((tmp_path / "circuit.json").read_text())
    for change, line in (
        ({"version": 2}, "version=2: this program reads version 1"),
        ({"format": "something"}, "not a pathmerge circuit"),
        ({"prediction": "5"}, "circuit.prediction='5': must be int"),
        ({"more": 1}, "circuit.more: unknown"),
        ({"method": {**values["method"], "mode": "rough"}}, "circuit.method.mode"),
    ):
        (tmp_path / "changed.json").write_text(json.dumps({**values, **change}))
        with pytest.raises(ValueError, match=re.escape(line)):
            load_circuit(tmp_path / "changed.json")
    (tmp_path / "changed.json").write_text((tmp_path / "circuit.json").read_text()[:500])
    with pytest.raises(ValueError, match="cut off"):
        load_circuit(tmp_path / "changed.json")


def put(values: Any, path: str, value: Any) -> Any:
    """A copy of plain JSON with another value at a dotted path."""
    first, _, rest = path.partition(".")
    copied = copy.copy(values)
    at: Any = int(first) if isinstance(values, list) else first
    copied[at] = put(values[at], rest, value) if rest else value
    return copied


def test_circuits_that_contradict_themselves_are_refused(tmp_path: Path) -> None:
    circuit = explain(MODELS["matching"](), pm.Balanced(input_size=17).sample(1, seed=2)[0], alpha=0.05, kappa1=40.0)
    values, n = circuit.to_dict(), len(circuit.operations)
    assert circuit.lenient.kept
    u, v = circuit.input.edges[0]
    for path, value, line in (
        ("lenient.sets", [], "circuit.lenient.sets: must have"),
        ("lenient.position_sets.1", [], "circuit.lenient.position_sets: must have"),
        ("strict.sets.0", [], "circuit.strict.sets: must have"),
        ("lenient.kept", [circuit.lenient.kept[0]] * 2, "circuit.lenient.kept: must be some of links, each once"),
        ("lenient.links", [n], "circuit.lenient.links: must be some of the operations"),
        ("lenient.maximal", [n], "circuit.lenient.maximal: must be some of ranked"),
        ("input.rows", [], "circuit.input.rows: must be the rows"),
        ("input.rows.0.position", 99, "circuit.input.rows: must be the rows"),
        ("input.key", {}, "circuit.input.key.index=None: must be a whole number"),
        ("input.edges.0", [v, u], "circuit.input.edges="),
        ("input.goal", circuit.input.start, "circuit.input.goal="),
        ("input.tokens.0", 999, "circuit.input.tokens[0]=999"),
        ("model", {}, "circuit.model.layers=None: must be a whole number from 1"),
        ("model.layers", "x", "circuit.model.layers='x': must be a whole number from 1"),
        ("model.heads", 0, "circuit.model.heads=0: must be a whole number from 1"),
        ("correct", not circuit.correct, "circuit.correct="),
        ("operations.0.layer", 77, "circuit.operations[0].layer=77: there is none such"),
        ("operations.0.target", 999, "circuit.operations[0].target=999: there is none such"),
        ("operations.0.source", -1, "circuit.operations[0].source=-1: there is none such"),
        ("operations.0.matched", [99], "circuit.operations[0].matched=99: there is none such"),
        ("operations.0.weight", float("nan"), "circuit.operations[0]: a number is infinite"),
        ("operations.0.kind", "zoken", "[0].kind='zoken': must be one of token, position, copy, other"),
    ):
        (tmp_path / "changed.json").write_text(json.dumps(put(values, path, value)))
        with pytest.raises(ValueError, match=re.escape(line)):
            load_circuit(tmp_path / "changed.json")
    (tmp_path / "same.json").write_text(json.dumps(put(values, "correct", circuit.correct)))
    assert load_circuit(tmp_path / "same.json") == circuit


@pytest.mark.parametrize("mode", ["exact", "screened"])
def test_a_file_is_the_json_of_the_circuit_to_the_letter(mode: str, tmp_path: Path) -> None:
    batch = pm.Balanced(input_size=17).sample(3, seed=2)
    for circuit in explain_all(MODELS["matching"](), batch, mode=mode, alpha=0.05, kappa1=40.0):
        assert circuit is not None
        circuit.save(tmp_path / "circuit.json")
        text = json.dumps(circuit.to_dict(), separators=(",", ":"), allow_nan=False)
        assert (tmp_path / "circuit.json").read_text() == text + "\n"
        operation = circuit.operations[0]._replace(weight=float("inf"))
        bad = replace(circuit, operations=(operation, *circuit.operations[1:]))
        with pytest.raises(ValueError, match=r"circuit\.operations: a number is infinite or none"):
            bad.save(tmp_path / "bad.json")
        assert [path.name for path in tmp_path.iterdir()] == ["circuit.json"]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"alpha": -1.0}, "alpha=-1.0: must be a number in 0"),
        ({"kappa1": 0.0}, "kappa1=0.0: must be a number in"),
        ({"kappa2": float("nan")}, "kappa2=nan: must be a number in"),
        ({"mode": "fast"}, "mode='fast': must be one of exact, screened"),
        ({"sets": "half"}, "sets='half': must be one of whole, literal"),
        ({"replacement": "none"}, "replacement='none': must be one of any, absent"),
        ({"audit": -1}, "audit=-1: must be a whole number"),
    ],
)
def test_settings_out_of_range_are_one_line(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=re.escape(line)):
        explain(MODELS["one head"](), pm.Balanced(input_size=17).sample(1)[0], **settings)


def test_models_and_problems_that_do_not_fit_are_one_line() -> None:
    batch = pm.Balanced(input_size=17).sample(2)
    with pytest.raises(ValueError, match="has no attention weights to perturb"):
        explain(torch.nn.Linear(3, 3), batch[0])
    with pytest.raises(ValueError, match="the model reads symbolic tokens of input_size=20"):
        explain(pm.OneHot(input_size=20).build(), batch[0])
    with pytest.raises(ValueError, match="reads and writes text"):
        explain(pm.OneHot(input_size=17, text=True).build(), batch[0])
    with pytest.raises(ValueError, match="must be one of naive, balanced, star"):
        explain(pm.OneHot(input_size=20).build(), pm.DFS(input_size=20).sample(1)[0])
    with pytest.raises(ValueError, match="2 problems given, must be one"):
        explain(MODELS["one head"](), batch)
