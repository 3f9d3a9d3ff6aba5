"""The circuit method against a second implementation written from docs/circuits.md alone (circuit_oracle.py)."""

from __future__ import annotations

import copy
import json
import math
import pickle
import re
from collections.abc import Iterable
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from circuit_oracle import OracleCircuit, brute_force

import pathmerge as pm
from pathmerge.circuits import screen
from pathmerge.circuits.assemble import rounded
from pathmerge.circuits.explain import explain, explain_all
from pathmerge.circuits.features import responses
from pathmerge.circuits.files import Circuit, Feature, load_circuit
from pathmerge.circuits.frame import frames_of
from pathmerge.circuits.perturb import Important, all_operations, decide, effects, important_last, measure
from pathmerge.circuits.reconstruct import lead
from pathmerge.circuits.subject import TransformerSubject
from pathmerge.circuits.trace import Trace, record
from pathmerge.models.sequence_transformer import SequenceTransformer
from pathmerge.models.transformer import Block, Transformer

NEAR = 2e-3
"""Values this close to a threshold may fall on either side: float32 here, float64 there."""


def lively(config: pm.OneHot | pm.Edges, seed: int, factor: float = 3.0) -> Transformer:
    """An untrained model with larger weights, so that much is important and attention is uneven."""
    model = config.build(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for block in model.blocks:
            for name in ("q", "k", "v", "o"):
                getattr(block, name).weight.mul_(factor)
            for name in ("ln1", "ln2"):
                norm = getattr(block, name)
                norm.weight.add_(torch.randn(norm.weight.shape, generator=generator) * 0.3)
                norm.bias.add_(torch.randn(norm.bias.shape, generator=generator) * 0.3)
    return model


MODELS = {
    "one head": lambda: lively(pm.OneHot(input_size=17, layers=3), 1),
    "two heads": lambda: lively(pm.OneHot(input_size=17, layers=3, heads=2, hidden=18), 2),
    "causal": lambda: lively(pm.OneHot(input_size=17, layers=3, causal=True), 3),
    "learned positions": lambda: lively(
        pm.OneHot(input_size=17, layers=2, positions="learned", embedding="learned"), 4
    ),
    "no positions": lambda: lively(pm.OneHot(input_size=17, layers=3, positions="none"), 5),
    "rotary": lambda: lively(pm.Rotary(input_size=17, layers=3, heads=2, hidden=18), 6),
    "looped": lambda: lively(pm.OneHot(input_size=17, layers=1, loops=4), 7),
    "edges": lambda: lively(pm.Edges(input_size=17, layers=3), 8),
    "matching": lambda: lively(pm.OneHot(input_size=17, layers=3, initialisation="matching", matching=2.0), 9, 1.0),
    "sharp": lambda: lively(pm.OneHot(input_size=17, layers=4, initialisation="matching", matching=4.0), 10, 2.0),
}


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


def kept(circuit: Circuit, reading: str) -> set[tuple[object, ...]]:
    """The kept operations, each with everything that does not depend on rounding."""
    numbers = getattr(circuit, reading).kept
    return {
        (o.layer, o.head, o.target, o.source, o.kind, o.direction, o.by[0], o.matched, _names(o.target_features))
        for o in (circuit.operations[i] for i in numbers)
    }


def _names(features: tuple[Feature, ...]) -> tuple[tuple[str, int], ...]:
    return tuple((f.kind, f.value) for f in features)


@pytest.mark.parametrize("name", MODELS)
def test_a_screened_circuit_is_the_exact_one(name: str) -> None:
    model = MODELS[name]()
    batch = pm.Balanced(input_size=17).sample(12, seed=2)
    options: dict[str, Any] = {"alpha": 0.05, "kappa1": 40.0, "kappa2": 20.0, "trust": False}
    fewer = found = 0
    pairs = zip(explain_all(model, batch, mode="exact", **options), explain_all(model, batch, **options), strict=True)
    for exact, screened in pairs:
        assert exact is not None
        assert screened is not None
        for reading in ("strict", "lenient"):
            assert kept(exact, reading) == kept(screened, reading)
            assert getattr(exact, reading).explained == getattr(screened, reading).explained
            found += len(kept(exact, reading))
        assert screened.connected in (None, exact.connected)
        fewer += exact.passes - screened.passes
    assert fewer > 0
    assert found > 0 or name in ("no positions", "rotary", "edges", "learned positions")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "count"), [("balanced-32", 50), ("balanced-32-plain", 50), ("balanced-48-tokens", 34)]
)
def test_a_screened_circuit_of_a_trained_model_is_the_exact_one(name: str, count: int) -> None:
    """On 200 inputs and more: operations with their features, verdicts, and which merges are maximal."""
    model = pm.load(name)
    inputs = found = 0
    for cell in pm.Balanced(input_size=model.config.input_size).fixed():
        batch = cell.sample(count, seed=21, split="test")
        both = (explain_all(model, batch, mode=mode, trust=False) for mode in ("exact", "screened"))
        for exact, screened in zip(*both, strict=True):
            assert exact is not None
            assert screened is not None
            inputs += 1
            for reading in ("strict", "lenient"):
                one, other = getattr(exact, reading), getattr(screened, reading)
                assert kept(exact, reading) == kept(screened, reading)
                assert one.explained == other.explained
                assert _places(exact, one.maximal) == _places(screened, other.maximal)
                found += len(one.kept)
    assert inputs >= 200
    assert found > 10_000


def _places(circuit: Circuit, numbers: Iterable[int]) -> set[tuple[int, int, int, int]]:
    return {(o.layer, o.head, o.target, o.source) for o in (circuit.operations[i] for i in numbers)}


def test_an_audit_finds_what_a_screen_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a screen that drops everything, the audit of all operations finds exactly the kept ones it lost."""
    model = MODELS["matching"]()
    batch = pm.Balanced(input_size=17).sample(6, seed=2)
    settings: dict[str, Any] = {"alpha": 0.05, "kappa1": 40.0, "kappa2": 20.0, "trust": False}
    whole = list(explain_all(model, batch, **settings, audit=10**6))
    assert all(circuit is not None and circuit.audited > 100 and circuit.missed == 0 for circuit in whole)
    monkeypatch.setattr(screen, "_measure", _measure_none)
    lost = 0
    for before, after in zip(whole, explain_all(model, batch, **settings, audit=10**6), strict=True):
        assert before is not None
        assert after is not None
        below = sum(before.operations[i].layer < model.layers - 1 for i in before.lenient.kept)
        assert after.missed == below
        lost += after.missed
    assert lost > 0


def test_estimated_effects_change_no_circuit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above SURE tokens what moves a row by very little is not perturbed: a third of the passes less, and nothing lost
    on these inputs (docs/circuits.md has more of them)."""
    model, batch = pm.load("balanced-64"), pm.Balanced(input_size=64, lookahead=5).sample(6, seed=3, split="test")
    estimated = list(explain_all(model, batch, trust=False, audit=0))
    monkeypatch.setattr(screen, "SURE", 64)
    fewer = passes = 0
    for one, other in zip(estimated, explain_all(model, batch, trust=False, audit=0), strict=True):
        assert one is not None
        assert other is not None
        for reading in ("strict", "lenient"):
            assert kept(one, reading) == kept(other, reading)
            assert getattr(one, reading).explained == getattr(other, reading).explained
        fewer, passes = fewer + other.passes - one.passes, passes + other.passes
    assert fewer > passes / 4


def test_nothing_is_estimated_from_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled model's attention is nearly all or nothing: few perturbations move a row at all, many by 0."""
    model, batch = pm.compiled(64), pm.Balanced(input_size=64, lookahead=5).sample(3, seed=3)
    found = list(explain_all(model, batch, threads=1, trust=False, audit=0))
    monkeypatch.setattr(screen, "SURE", 64)
    assert found == list(explain_all(model, batch, threads=1, trust=False, audit=0))


def test_an_audit_finds_what_a_wrong_estimate_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every effect estimated, from nothing, as nothing."""
    model, batch = pm.load("balanced-64"), pm.Balanced(input_size=64, lookahead=2).sample(1, seed=3, split="test")
    monkeypatch.setattr(screen, "FAINT", math.inf)
    monkeypatch.setattr(screen, "FEWEST", 0)
    (found,) = explain_all(model, batch, trust=False, audit=2000)
    assert found is not None
    assert found.audited == 2000
    assert found.missed > 0


def test_effects_are_estimated_from_the_strongest_of_the_same_input() -> None:
    many = screen.FEWEST
    owner = np.repeat([0, 1, 2], many + 2)
    owner[-1] = 1  # so that input 2 has one less whose effect is known
    shift, effect = np.full(len(owner), 0.1), np.full(len(owner), 0.2)
    effect[[many + 2, many + 3]] = 2.0, 0.1  # at most 2 a unit of shift in input 0, 20 in input 1
    unknown = np.array([0, 1, 2 * many + 2, 2 * many + 3, 2 * many + 4, 2 * many + 5])
    effect[unknown] = np.nan
    just = 1 / screen.MARGIN
    shift[unknown] = 0.51 * just, 0.49 * just, 0.051 * just, 0.049 * just, 0.0, 0.0
    found = screen._could_matter(owner, shift, effect)
    assert found[unknown].tolist() == [True, False, True, False, True, True]


def _measure_none(
    trace: Trace,
    layer: int,
    chosen: np.ndarray,
    watched: np.ndarray,
    thresholds: tuple[float, float],
    estimated: bool,
) -> tuple[Important, np.ndarray]:
    nothing = np.empty((0, 4), np.int64)
    return decide(effects(trace, layer, nothing, watched), *thresholds), nothing


def test_threads_and_order_change_nothing() -> None:
    model = MODELS["matching"]()
    batch = pm.Balanced(input_size=17).sample(5, seed=6)
    one = list(explain_all(model, batch, threads=1))
    assert one == list(explain_all(model, batch, threads=3))
    assert one[3] == explain(model, batch[3])


@pytest.mark.parametrize("name", ["one head", "causal", "looped", "no positions", "matching", "sharp", "saturated"])
def test_doubled_rows_give_what_whole_products_give(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every perturbation of every layer, the short way of models of one head against that of all models."""
    # Saturated: a changed row's score can pass the largest before by so much that e to the difference is 0.
    model = lively(pm.OneHot(input_size=17, layers=3), 2, 24.0) if name == "saturated" else MODELS[name]()
    subject = TransformerSubject(model)
    trace = record(subject, subject.tokens(pm.Balanced(input_size=17).sample(4, seed=3)))
    assert trace.doubles
    watched = important_last(trace, 0.05).operations
    short = [measure(trace, layer, all_operations(trace, layer), watched) for layer in range(subject.layers)]
    monkeypatch.setattr(TransformerSubject, "doubles", False)
    whole = replace(trace)
    assert not whole.doubles
    moved = 0.0
    for layer, found in enumerate(short):
        wanted = measure(whole, layer, all_operations(trace, layer), watched)
        # float32: values are up to about ten, and each is a sum of about a hundred terms. Saturated: scores of
        # hundreds, whose rounding, 1e-4, is as much of a weight, and the two ways round from the first row on.
        np.testing.assert_allclose(found.logit, wanted.logit, atol=1e-3 if name == "saturated" else 2e-4)
        np.testing.assert_allclose(found.change, wanted.change, atol=2e-3, rtol=1e-4 if name == "saturated" else 1e-5)
        moved = max(moved, float(wanted.change.max()))
    assert moved > 0.1


@pytest.mark.parametrize("name", ["one head", "causal", "looped", "no positions", "matching", "edges of one head"])
def test_features_of_one_head_give_what_whole_products_give(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step IV, the short way of models of one head against that of all models."""
    model = lively(pm.Edges(input_size=17, layers=3, heads=1), 8) if "edges" in name else MODELS[name]()
    subject, batch = TransformerSubject(model), pm.Balanced(input_size=17).sample(4, seed=3)
    trace = record(subject, subject.tokens(batch))
    assert trace.doubles
    frames = frames_of(batch, np.arange(len(batch)), trace, subject.has_positions)
    ends = np.repeat(trace.first[1:] - 1, 2)
    final = np.stack([np.zeros_like(ends), ends, np.tile([0, 2], len(trace))], 1)
    short = responses(trace, frames, final)
    monkeypatch.setattr(TransformerSubject, "doubles", False)
    for at, (one, other) in enumerate(zip(short, responses(replace(trace), frames, final), strict=True)):
        np.testing.assert_array_equal(one.after, other.after)
        np.testing.assert_array_equal(one.shift, other.shift)
        for g, (low, high) in enumerate(pairwise(trace.first.tolist())):
            after, f, i = one.after[g], frames.features[g], high - low
            j, rows = i - after, slice(after + one.shift[g], i + one.shift[g])
            sources = low + (np.array([0, 2, i - 1]) if at == subject.layers - 1 else np.arange(i))
            # float32: products are up to about a hundred, sums of about twenty terms.
            np.testing.assert_allclose(one.products[:, rows, :i], other.products[:, rows, :i], atol=2e-4)
            target, source = other.target[:, rows, :f, :i], other.source[:, sources, :f, :j]
            np.testing.assert_allclose(one.target[:, rows, :f, :i], target, atol=2e-4)
            np.testing.assert_allclose(one.source[:, sources, :f, :j], source, atol=2e-4)
            assert np.abs(target - other.products[:, rows, None, :i]).max() > 0.01


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


def test_inputs_worked_on_together_change_nothing_in_each_other() -> None:
    """To the last bit, whatever the lengths: a result must not depend on where a command was stopped and went on."""
    for name in ("one head", "two heads", "sharp", "edges"):
        model = MODELS[name]()
        batch = pm.Balanced(input_size=17).sample(9, seed=6)
        for mode in ("exact", "screened"):
            settings: dict[str, Any] = {"mode": mode, "alpha": 0.05, "kappa1": 40.0, "kappa2": 20.0}
            together = list(explain_all(model, batch, threads=1, **settings))
            assert len({len(circuit.input.rows) for circuit in together if circuit is not None}) > 1
            assert together == [explain(model, batch[i], **settings) for i in range(len(batch))]


def test_other_inputs_do_not_decide_how_a_pass_is_computed() -> None:
    """In a causal model a change of the last row stays alone; one of the row before it makes two, which are few."""
    subject = TransformerSubject(lively(pm.OneHot(input_size=17, layers=4, causal=True), 3))
    trace = record(subject, subject.tokens(pm.Balanced(input_size=17).sample(2, seed=3)))
    watched = important_last(trace, 0.05).operations
    last, other = (all_operations(trace, 0, targets) for targets in (trace.first[1:2] - 1, trace.first[2:3] - 2))
    alone = measure(trace, 0, last, watched)
    both = measure(trace, 0, np.concatenate([last, other]), watched)
    assert len(last) > 10
    assert len(other) > 2
    np.testing.assert_array_equal(alone.logit, both.logit[: len(last)])
    np.testing.assert_array_equal(alone.change, both.change[: len(last)])


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


def test_padding_cannot_matter() -> None:
    """The same graph in a wider frame of one-hot tokens: rows are named further right, nothing else changes."""
    model = MODELS["no positions"]()
    assert isinstance(model.config, pm.OneHot)
    batch = pm.Balanced(input_size=17, vertices=3).sample(3, seed=6)
    for i in range(3):
        circuit = explain(model, batch[i], mode="exact")
        assert len(circuit.input.rows) < 17
        assert {row.position for row in circuit.input.rows} == set(range(17 - len(circuit.input.rows), 17))


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


@pytest.mark.parametrize("name", MODELS)
def test_our_models_keep_what_they_promise(name: str) -> None:
    report = pm.check_model(MODELS[name](), pm.Balanced(input_size=17).sample(3, seed=1))
    assert report.passed, str(report)


def test_a_model_that_breaks_a_promise_is_told_so() -> None:
    """One broken promise at a time, and the report names it."""
    batch = pm.Balanced(input_size=17).sample(3, seed=1)
    model = MODELS["one head"]()

    class Broken(TransformerSubject):
        def update(
            self, layer: int, x: torch.Tensor, mixed: torch.Tensor, gate: torch.Tensor | None = None
        ) -> torch.Tensor:
            return super().update(layer, x, mixed)  # ignores the gate

    class Mixing(TransformerSubject):
        def update(
            self, layer: int, x: torch.Tensor, mixed: torch.Tensor, gate: torch.Tensor | None = None
        ) -> torch.Tensor:
            after = super().update(layer, x, mixed, gate)
            return after + after.mean(0)  # rows see each other

    class Deaf(TransformerSubject):
        def update(
            self, layer: int, x: torch.Tensor, mixed: torch.Tensor, gate: torch.Tensor | None = None
        ) -> torch.Tensor:
            return super().update(layer, x, torch.zeros_like(mixed) if layer == 1 else mixed, gate)

    class Fixed(TransformerSubject):
        def embed(self, tokens: torch.Tensor, without: torch.Tensor | None = None) -> torch.Tensor:
            return super().embed(tokens)

    class First(TransformerSubject):
        def embed(self, tokens: torch.Tensor, without: torch.Tensor | None = None) -> torch.Tensor:
            return super().embed(tokens[:1].expand(tokens.shape), without)  # all inputs are the first

    class Blind(TransformerSubject):
        def embed(self, tokens: torch.Tensor, without: torch.Tensor | None = None) -> torch.Tensor:
            return super().embed(tokens.clamp(min=1), without)  # what stands in for a vertex is one

    class Frozen(TransformerSubject):
        def embed(self, tokens: torch.Tensor, without: torch.Tensor | None = None) -> torch.Tensor:
            self.first = getattr(self, "first", tokens)  # no vertex is ever replaced
            return super().embed(self.first[:1].expand(tokens.shape), without)

    class Nowhere(TransformerSubject):
        def __init__(self, model: Transformer) -> None:
            super().__init__(model)
            self.has_positions = False

    for kind, name in (
        (First, "each input by itself"),
        (Blind, "token 0 and all vertices differ"),
        (Frozen, "vertices are live"),
        (Nowhere, "no position embeddings: equal tokens, equal rows"),
        (Broken, "gate of layer 0 is live"),
        (Mixing, "each row by itself"),
        (Deaf, "attention of layer 1 is live"),
        (Fixed, "position embeddings are live"),
    ):
        report = pm.check_model(kind(model), batch, reference=model)
        assert name in {check.name for check in report.checks if not check.passed}, str(report)
    alone = str(pm.check_model(TransformerSubject(model), batch))
    assert "left out  the same logits as the model itself: no reference was given" in alone
    deaf = pm.check_model(Deaf(model), batch, reference=model)
    assert "the same logits as the model itself" in {check.name for check in deaf.checks if not check.passed}
