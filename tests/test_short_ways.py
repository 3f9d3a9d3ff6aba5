"""What makes circuits fast changes none of them: a screen and its audit, estimates, short products, shared work."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from lively_models import MODELS, lively

import pathmerge as pm
from pathmerge.circuits import screen
from pathmerge.circuits.explain import explain, explain_all
from pathmerge.circuits.features import responses
from pathmerge.circuits.files import Circuit, Feature
from pathmerge.circuits.frame import frames_of
from pathmerge.circuits.perturb import Important, all_operations, decide, effects, important_last, measure
from pathmerge.circuits.subject import TransformerSubject
from pathmerge.circuits.trace import Trace, record

# What is not measured at all.


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


# What is measured together, or in a shorter way.


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


def test_threads_and_order_change_nothing() -> None:
    model = MODELS["matching"]()
    batch = pm.Balanced(input_size=17).sample(5, seed=6)
    one = list(explain_all(model, batch, threads=1))
    assert one == list(explain_all(model, batch, threads=3))
    assert one[3] == explain(model, batch[3])


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
