"""The rules of the paper's claims: rows made by hand, so that each is seen to hold, to fail and to stay undecided."""

from __future__ import annotations

import pytest

from pathmerge.studies import rules
from pathmerge.studies.catalogue import STUDIES
from pathmerge.studies.claims import CLAIMS
from pathmerge.studies.study import Row


def cell(trained_on: str, accuracy: float, lookahead: int | None, distribution: str = "balanced", judge: str = "model"):
    difficulty = "all" if lookahead is None else f"lookahead={lookahead}"
    return {
        "kind": "cell",
        "judge": judge,
        "trained_on": trained_on,
        "distribution": distribution,
        "difficulty": difficulty,
        "lookahead": lookahead,
        "accuracy": accuracy,
        "high": accuracy + 0.005,
    }


def verdict(found: rules.Found) -> str:
    return "holds" if found.holds else "fails" if found.fails else "undecided"


@pytest.mark.parametrize(
    ("accuracies", "says"),
    [((1.0, 0.99, 0.98), "holds"), ((1.0, 0.99, 0.9), "fails"), ((1.0, 0.99, 0.979), "undecided")],
)
def test_c1(accuracies: tuple[float, ...], says: str):
    rows = [cell("balanced", value, i + 1) for i, value in enumerate(accuracies)]
    assert verdict(rules.balanced_is_learned({"sensitivity": rows})) == says


@pytest.mark.parametrize(("value", "says"), [(0.5, "holds"), (0.99, "fails"), (0.95, "undecided")])
def test_c2(value: float, says: str):
    rows = [cell("naive", 1.0, 1), cell("naive", value, 2), cell("balanced", 1.0, 1), cell("balanced", 1.0, 2)]
    assert verdict(rules.naive_fails({"sensitivity": rows})) == says


@pytest.mark.parametrize(("value", "says"), [(0.7, "holds"), (0.99, "fails"), (0.4, "fails"), (0.96, "undecided")])
def test_c3(value: float, says: str):
    rows = [
        cell("star", value, 1),
        cell("star", 0.97, None, "star"),
        cell("star", 0.45, 1, judge="random child"),
    ]
    assert verdict(rules.star_transfers_in_part({"sensitivity": rows})) == says


@pytest.mark.parametrize(("near", "far", "says"), [(0.95, 0.5, "holds"), (0.6, 0.5, "fails"), (0.99, 0.95, "fails")])
def test_c4(near: float, far: float, says: str):
    name = "balanced, L ≤ 2"
    rows = [cell(name, 1.0, 1), cell(name, 1.0, 2), cell(name, near, 3), cell(name, far, 4)]
    assert verdict(rules.part_generalises_a_little({"sensitivity": rows})) == says
    with pytest.raises(rules.NotEnough):
        rules.part_generalises_a_little({"sensitivity": rows[:3]})


@pytest.mark.parametrize(
    ("strict", "lenient", "control", "says"),
    [(0.95, 1.0, 0.0, "holds"), (0.5, 0.95, 0.0, "undecided"), (0.5, 0.6, 0.0, "fails"), (0.95, 1.0, 0.2, "fails")],
)
def test_c5(strict: float, lenient: float, control: float, says: str):
    common = {"kind": "cell", "distribution": "balanced", "inputs": 10}
    rows = [
        {**common, "trained_on": "balanced", "explained": strict, "lenient": lenient},
        {**common, "trained_on": "nothing (untrained)", "explained": control, "lenient": control},
    ]
    assert verdict(rules.circuits_explain({"circuits": rows})) == says


@pytest.mark.parametrize(("share", "says"), [(0.5, "holds"), (0.97, "fails"), (0.9, "undecided")])
def test_c6(share: float, says: str):
    rows = [{"kind": "cell", "trained_on": "balanced", "distribution": "balanced", "maximal": share}]
    assert verdict(rules.merges_not_maximal({"circuits": rows})) == says


def end(loss: float, *, converged: bool, **labels: int) -> Row:
    return {"kind": "end", "test_loss": loss, "valid_loss": loss, "converged_at": 5 if converged else None, **labels}


@pytest.mark.parametrize(
    ("small", "large", "losses", "says"),
    [
        (3, 0, (0.1, 1.5), "holds"),
        (3, 3, (0.1, 1.5), "fails"),
        (3, 0, (0.1, 0.5), "undecided"),
        (1, 0, (0.1, 1.5), "undecided"),
    ],
)
def test_c7(small: int, large: int, losses: tuple[float, float], says: str):
    rows = [end(losses[0], converged=i < small, vertices=5, seed=i) for i in range(3)]
    rows += [end(losses[1], converged=i < large, vertices=9, seed=i) for i in range(3)]
    rows = [{**row, "test_loss": 1 / row["valid_loss"]} for row in rows]  # naive problems' is not looked at
    assert verdict(rules.size_hurts(rows)) == says


@pytest.mark.parametrize(
    ("wide", "loss", "late", "says"),
    [(False, 0.3, 20, "holds"), (True, 0.3, 20, "fails"), (False, 0.01, 20, "fails"), (False, 0.3, 60, "undecided")],
)
def test_c8(wide: bool, loss: float, late: int, says: str):
    rows = [end(0.3, converged=False, hidden=16, seed=1), end(loss, converged=wide, hidden=64, seed=1)]
    for hidden, when in ((16, 40), (64, late)):
        rows += [
            {"kind": "point", "hidden": hidden, "seed": 1, "examples": 10, "train_loss": 2.0},
            {"kind": "point", "hidden": hidden, "seed": 1, "examples": when, "train_loss": 0.5},
        ]
    assert verdict(rules.width_does_not_help({"model-size": rows})) == says


@pytest.mark.parametrize(
    ("large", "flops", "says"), [(0.9, 500.0, "holds"), (0.1, 5.0, "fails"), (0.9, 5.0, "undecided")]
)
def test_c10(large: float, flops: float, says: str):
    point = {"kind": "point", "seed": 1}
    sizes = [{**point, "vertices": 9, "test_loss": 0.1}, {**point, "vertices": 20, "test_loss": large}]
    models = [
        {**point, "model": "small", "test_loss": 0.2, "examples": 100, "flops": 100.0},
        {**point, "model": "large", "test_loss": 0.1, "examples": 50, "flops": flops},
    ]
    assert verdict(rules.dfs_struggles({"dfs-size": sizes, "dfs-model": models})) == says


@pytest.mark.parametrize(("value", "says"), [(0.9, "holds"), (0.4, "fails"), (0.52, "undecided")])
def test_c11(value: float, says: str):
    rows = [
        {"kind": "cell", "padding": padding, "backtrack": i, "accuracy": accuracy}
        for padding, accuracies in (("standard", (1.0, 0.5)), ("random", (1.0, value)))
        for i, accuracy in enumerate(accuracies)
    ]
    assert verdict(rules.padding_extends({"dfs-padding": rows})) == says


@pytest.mark.parametrize(
    ("selection", "inference", "says"), [(0.99, 0.5, "holds"), (0.5, 0.6, "fails"), (0.99, 0.97, "undecided")]
)
def test_c12(selection: float, inference: float, says: str):
    row = {"kind": "point", "seed": 1, "vertices": 9}
    row |= {"test_accuracy_selection": selection, "test_accuracy_inference": inference}
    assert verdict(rules.inference_is_harder({"selection-inference-size": [row]})) == says


@pytest.mark.parametrize(
    ("ways", "steps", "says"),
    [
        (("forward", "backward"), (1, 1, 2, 4), "holds"),
        (("forward", "forward"), (1, 1, 1, 1), "fails"),
        (("forward", "forward"), (1, 1, 2, 4), "undecided"),
    ],
)
def test_c14(ways: tuple[str, str], steps: tuple[int, ...], says: str):
    rows: list[Row] = [
        {"kind": "distance", "trained_on": "balanced", "seed": seed, "layer": i, "way": way, "distance": d, "merges": 9}
        for seed, way in enumerate(ways)
        for i, d in enumerate(steps)
    ]
    assert verdict(rules.directions_differ({"direction": rows})) == says
    # One seed of each of two models, as the paper has.
    names = ("balanced", "balanced, L ≤ 12")
    models = [{**row, "trained_on": names[row["seed"]], "seed": 1} for row in rows]
    assert verdict(rules.directions_differ({"direction": models})) == says
    with pytest.raises(rules.NotEnough):
        rules.directions_differ({"direction": [row for row in rows if row["seed"] == 0]})


@pytest.mark.parametrize(
    ("counts", "says"), [((1000, 100, 10), "holds"), ((1000, 990, 20), "fails"), ((1000, 500, 80), "undecided")]
)
def test_c15(counts: tuple[int, ...], says: str):
    rows = [{"lookahead": i + 1, "graphs": count} for i, count in enumerate(counts)]
    assert verdict(rules.falls_exponentially(rows)) == says


def test_every_claim_has_its_studies():
    assert [claim.number for claim in CLAIMS] == [f"C{i}" for i in range(1, 16)]
    assert {name for claim in CLAIMS for name in claim.studies} | {"rotary-model", "selection-inference-model"} == set(
        STUDIES
    )
