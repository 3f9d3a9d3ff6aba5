"""What is said of many circuits: shares and their bounds, and how much is found of what a model is known to do.

That the summary in a folder is the mean of its circuits is in test_explain.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from scipy import stats

import pathmerge as pm
from pathmerge.circuits.counts import student
from pathmerge.circuits.explain import explain_all
from pathmerge.circuits.options import Options
from pathmerge.circuits.summary import summarise, upper_bound
from pathmerge.circuits.truth import recovery


def test_inputs_without_a_spare_id_are_told_apart() -> None:
    model = pm.compiled(20)
    batch = pm.Balanced(input_size=20).sample(12, seed=2)
    circuits = [c for c in explain_all(model, batch, Options(trust=False)) if c is not None]
    full = [c for c in circuits if c.method.substitute == 0]
    assert 0 < len(full) < len(circuits)
    wrong = [replace(c, strict=replace(c.strict, explained=False)) if c in full[:1] else c for c in circuits]
    summary = summarise(wrong)
    assert summary["without_absent_id"] == len(full)
    assert summary["without_absent_id_apart"]["explained"] == pytest.approx(1 - 1 / len(full))
    assert summary["explained"] == pytest.approx(1 - 1 / len(circuits))
    assert "substitute" not in summary["method"]
    assert summary["recovery"] is None, "nobody said that it is the compiled model"


def test_the_bound_on_missed_operations() -> None:
    """Without a miss in n looks the exact 95% bound is 1 - 0.05^(1/n)."""
    assert upper_bound(300, 600_000) == pytest.approx(5e-4 + 1.645 * 300**0.5 / 600_000, rel=0.02)
    assert upper_bound(5, 5) == 1.0
    # Clopper and Pearson's bound for 1 of 10, from a table.
    assert upper_bound(1, 10) == pytest.approx(0.3942, abs=1e-4)
    assert upper_bound(0, 0) is None
    assert upper_bound(0, 100) == pytest.approx(1 - 0.05 ** (1 / 100))
    one, none = upper_bound(1, 100), upper_bound(0, 100)
    assert one is not None
    assert none is not None
    assert one > none


def test_students_quantile() -> None:
    for freedom in (1, 2, 3, 4, 7, 15, 39, 400):
        assert student(freedom) == pytest.approx(float(stats.t.ppf(0.975, freedom)), rel=0.01)


@pytest.mark.parametrize("size", [20, 32])
def test_the_compiled_models_own_operations_are_found(size: int) -> None:
    """The known truth: precision and recall at least 0.99, and explained wherever its path is not redundant."""
    model = pm.compiled(size)
    for problem in (pm.Star(input_size=size), pm.Balanced(input_size=size), pm.Naive(input_size=size)):
        batch = problem.sample(25, seed=7, split="test")
        circuits = [circuit for circuit in explain_all(model, batch, trust=False) if circuit is not None]
        found = recovery(circuits)
        assert found.found > 50
        assert found.precision is not None
        assert found.recall is not None
        assert found.precision >= 0.99
        assert found.recall >= 0.99
        assert found.plain_explained == found.plain
        if problem.name == "star":
            assert found.plain == 25


def test_a_circuit_that_misses_or_adds_an_operation_loses_recall_or_precision() -> None:
    model = pm.compiled(20)
    circuits = [c for c in explain_all(model, pm.Star(input_size=20).sample(4, seed=1), trust=False) if c is not None]
    fewer = [replace(c, strict=replace(c.strict, kept=c.strict.kept[1:])) for c in circuits]
    found = recovery(fewer)
    assert (found.missing, found.precision) == (4, 1.0)
    moved = [replace(c, operations=tuple(o._replace(source=o.target) for o in c.operations)) for c in circuits]
    assert recovery(moved).found == 0


def test_the_untrained_control_is_hardly_ever_explained() -> None:
    """SPEC section 6: under 2%. With PyTorch's initialisation, and with one that matches tokens."""
    for config in (pm.OneHot(input_size=32, layers=4), pm.OneHot(input_size=32, layers=4, initialisation="matching")):
        batch = pm.Balanced(input_size=32).sample(50, seed=5, split="test")
        circuits = explain_all(config.build(3), batch, trust=False)
        assert sum(c.explained for c in circuits if c is not None) == 0
