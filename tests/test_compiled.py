"""The compiled model: it solves what is within reach and nothing beyond; it does and needs what `true_circuit` says.

Patterns, masked operations and frozen passes are those of `model.run`; nothing of `pathmerge.circuits` is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from plain_models import refuses
from samples import problems_of
from torch import Tensor

import pathmerge as pm
from pathmerge.layout import Layout
from pathmerge.models.compiled import NO_ANSWER, compiled
from pathmerge.models.sequence_transformer import SequenceTransformer
from pathmerge.models.sites import Edit
from pathmerge.models.transformer import Transformer
from pathmerge.models.true_circuit import TrueCircuit, TrueOperation, true_circuit
from pathmerge.parallel import Workers
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import Distribution
from pathmerge.problems.problem import Problem

DISTRIBUTIONS = (pm.Naive, pm.Balanced, pm.Star)


@pytest.fixture(scope="module", autouse=True)
def one_core():
    """Small operations on several cores wait for each other, ten times as long where other tests run beside them."""
    with Workers(1), torch.no_grad():
        yield


@cache
def model_of(size: int, merges: int | None = None) -> Transformer:
    return compiled(size, merges)


@cache
def sampled(distribution: Distribution, count: int) -> Batch:
    return distribution.sample(count, seed=1, threads=1)


def tokens_of(batch: Batch) -> Tensor:
    return torch.from_numpy(batch.tokens)


def predictions(model: Transformer, tokens: Tensor) -> np.ndarray:
    parts = tokens.split(200)
    return torch.cat([model(part).argmax(1) for part in parts]).numpy()


def right(model: Transformer, batch: Batch) -> np.ndarray:
    return batch.answers[np.arange(len(batch)), predictions(model, tokens_of(batch))]


def distances(batch: Batch) -> np.ndarray:
    """Steps from start to goal."""
    found: list[int] = []
    for edges, start, goal in zip(batch.edges, batch.start, batch.goal, strict=True):
        graph: Any = nx.DiGraph([(u, v) for u, v in edges.tolist() if u])
        found.append(int(nx.shortest_path_length(graph, int(start), int(goal))))
    return np.array(found)


def places(operations: Sequence[TrueOperation]) -> set[tuple[int, int, int]]:
    return {(operation.layer, operation.target, operation.source) for operation in operations}


# Answers.


def test_it_is_an_ordinary_model_of_the_paper():
    model = compiled(128)
    assert isinstance(model, SequenceTransformer)
    assert model.config == pm.OneHot(input_size=128, layers=8, hidden=16)  # 2^6 >= 40 > 2^5
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert [compiled(size).layers - 2 for size in (14, 20, 32, 35, 64)] == [1, 2, 3, 4, 5]  # V - 1 = 2, 4, 8, 9, 18


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
@pytest.mark.parametrize("size", [14, 32, 64, 128])
def test_every_answer_is_right(size: int, kind: type[Distribution]):
    batch = sampled(kind(input_size=size), 100 if size == 128 else 400)
    assert right(model_of(size), batch).all()


@pytest.mark.long
@pytest.mark.parametrize("kind", DISTRIBUTIONS)
@pytest.mark.parametrize(("size", "count"), [(14, 10_000), (32, 10_000), (64, 10_000), (128, 10_000), (512, 50)])
def test_every_answer_is_right_of_many(size: int, count: int, kind: type[Distribution]):
    assert right(model_of(size), sampled(kind(input_size=size), count)).all()


@pytest.mark.parametrize("lookahead", [1, 2, 5, 9])
def test_every_lookahead(lookahead: int):
    assert right(model_of(64), sampled(pm.Balanced(input_size=64, lookahead=lookahead), 50)).all()


@pytest.mark.parametrize("size", [14, 33, 64])
def test_both_faces_agree(size: int):
    model = model_of(size)
    tokens = torch.cat([tokens_of(sampled(kind(input_size=size), 30)) for kind in DISTRIBUTIONS])
    logits = model.run(tokens).logits
    assert logits is not None
    # float32 knows 15 to about 1e-6; a unit that turns on or off would change 15.
    torch.testing.assert_close(model(tokens), logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("merges", [0, 1, 2, 3])
def test_it_reaches_two_to_the_number_of_merges(merges: int):
    batches = [sampled(pm.Balanced(input_size=64), 200), sampled(pm.Star(input_size=64), 100)]
    for batch in [*batches, sampled(pm.Naive(input_size=64), 200)]:
        within = distances(batch) <= 2**merges
        answer = predictions(model_of(64, merges), tokens_of(batch))
        np.testing.assert_array_equal(batch.answers[np.arange(len(batch)), answer], within)
        assert (answer[~within] == NO_ANSWER).all()
    assert 0 < (distances(batches[0]) <= 2**merges).sum() < 200


def test_more_merges_than_needed_do_no_harm():
    assert right(model_of(32, 12), sampled(pm.Naive(input_size=32), 100)).all()


def test_right_answers_are_equally_good():
    """All that are within reach have the same logit, but for the slope of 0.01 by which the smallest id wins."""
    batch = sampled(pm.Naive(input_size=64), 200)
    logits = model_of(64)(tokens_of(batch)) + 0.01 * torch.arange(24)
    answers = torch.from_numpy(batch.answers)
    several = answers.sum(1) > 1
    assert several.sum() > 20
    best = logits.max(1, keepdim=True).values
    assert ((best - logits)[answers] < 0.002).all()
    assert ((best - logits)[~answers] > 10).all()
    assert (model_of(64)(tokens_of(batch)).argmax(1) == answers.int().argmax(1)).all()


def test_it_can_be_saved_and_loaded(tmp_path: Any):
    pm.save_weights(model_of(32), tmp_path / "compiled.safetensors")
    loaded = pm.load_weights(tmp_path / "compiled.safetensors")
    tokens = tokens_of(sampled(pm.Star(input_size=32), 20))
    assert torch.equal(loaded(tokens), model_of(32)(tokens))


# Circuits.


def operations_of(circuit: TrueCircuit) -> list[tuple[int, int, int, str, int, bool, bool]]:
    return [(o.layer, o.target, o.source, o.kind, o.vertex, o.on_path, o.redundant) for o in circuit.operations]


def test_the_circuit_of_a_chain():
    """Edges' rows 7 (1 → 2), 10 (2 → 3), 13 (3 → 4), the goal's row 17, the last 19."""
    problem = Problem("search", ((1, 2), (2, 3), (3, 4)), start=1, goal=4)
    circuit = true_circuit(problem, (20, 2))
    assert circuit.prediction == 2
    assert circuit.solved
    assert operations_of(circuit) == [
        (0, 7, 8, "join", 2, True, False),
        (0, 10, 11, "join", 3, True, False),
        (0, 13, 14, "join", 4, True, False),
        (0, 19, 17, "copy", 4, True, False),
        (1, 7, 10, "merge", 2, True, False),
        (1, 10, 13, "merge", 3, False, False),
        (1, 13, 17, "merge", 4, True, False),
        (2, 7, 13, "merge", 3, True, False),
        (2, 10, 17, "merge", 4, False, False),
        (2, 13, 17, "merge", 4, False, False),
        (3, 19, 7, "read", 1, True, False),
    ]
    assert {operation.weight for operation in circuit.operations} == {1.0}


def test_the_circuit_of_a_diamond():
    """1 → 2, then over 3 or 4 to 5: everything between is there twice. Rows 1, 4, 7, 10, 13, 17 (goal), 19 (last)."""
    problem = Problem("search", ((1, 2), (2, 3), (2, 4), (3, 5), (4, 5)), start=1, goal=5)
    circuit = true_circuit(problem, (20, 2))
    assert places(circuit.needed) == {(0, 1, 2), (0, 19, 17), (3, 19, 1)}
    joins = {(0, row, row + 1) for row in (1, 4, 7, 10, 13)}
    merges = {(1, 1, 4), (1, 1, 7), (1, 10, 17), (1, 13, 17), (2, 1, 10), (2, 1, 13)}
    assert places(circuit.path) == {*joins, *merges, (0, 19, 17), (3, 19, 1)}
    weights = {(o.layer, o.target, o.source): o.weight for o in circuit.operations}
    assert [weights[place] for place in ((1, 1, 4), (1, 1, 7), (2, 1, 10))] == pytest.approx([0.5] * 3)


def test_the_circuit_of_a_goal_out_of_reach():
    problem = Problem("search", ((1, 2), (2, 3), (3, 4)), start=1, goal=4)
    circuit = true_circuit(problem, (20, 1))
    assert (circuit.prediction, circuit.solved, circuit.path) == (NO_ANSWER, False, ())


def test_a_problem_and_its_tokens_have_the_same_circuit():
    batch = sampled(pm.Naive(input_size=32), 5)
    for row, problem in zip(batch.tokens, problems_of(batch), strict=True):
        expected = true_circuit(problem, (32, 3))
        assert true_circuit(row, model_of(32)) == expected
        assert true_circuit(torch.from_numpy(row), (32, 3)) == expected
        assert true_circuit(row.tolist(), (32, 3)) == expected


def expected_patterns(circuit: TrueCircuit, size: int, layers: int) -> Tensor:
    """Attention of every row: its operations, or the rows of QUERY and PATH in equal parts."""
    pattern = torch.zeros(layers, size, size)
    for operation in circuit.operations:
        pattern[operation.layer, operation.target, operation.source] = operation.weight
    idle = pattern.sum(2) == 0
    for sink in (size - 5, size - 2):
        pattern[..., sink] += 0.5 * idle
    return pattern


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
@pytest.mark.parametrize(("size", "merges"), [(14, None), (32, None), (32, 1), (64, None)])
def test_attention_is_as_the_circuit_says(size: int, merges: int | None, kind: type[Distribution]):
    model, batch = model_of(size, merges), sampled(kind(input_size=size), 30)
    sites = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.layers)]
    logits, record = model.run(tokens_of(batch), record=sites)
    assert logits is not None
    matched = 0
    for i, row in enumerate(batch.tokens):
        circuit = true_circuit(row, model)
        assert int(logits[i].argmax()) == circuit.prediction
        seen = torch.stack([record[site][i, 0] for site in sites])
        rows = torch.from_numpy(row != model.config.vocabulary - 2)
        # LayerNorm's divisor varies a little with what a row holds: by 1e-5, times scores of 160.
        gap = (seen - expected_patterns(circuit, size, model.layers))[:, rows]
        assert gap.abs().max() < 2e-3
        matched += sum(operation.weight < 1 for operation in circuit.operations)
    assert matched > 0 or kind is pm.Star or size == 14


def removed(
    model: Transformer, row: Tensor, operations: Sequence[TrueOperation], watched: int
) -> tuple[Tensor, Tensor]:
    """Logits, and the product with which the last row reads row `watched`, without each operation in turn."""
    edits: dict[str, Edit] = {}
    for layer in range(model.layers):
        mine = [(b, o.target, o.source) for b, o in enumerate(operations) if o.layer == layer]

        def mask(scores: Tensor, mine: Sequence[tuple[int, int, int]] = tuple(mine)) -> Tensor:
            scores = scores.clone()
            for b, target, source in mine:
                scores[b, 0, target, source] = -math.inf
            return scores

        edits[f"blocks.{layer}.attn.hook_attn_scores"] = mask
    query, key = (f"blocks.{model.layers - 1}.attn.hook_{name}" for name in "qk")
    logits, record = model.run(row.expand(len(operations), -1), edits=edits, record=[query, key])
    assert logits is not None
    return logits, (record[query][:, -1, 0] * record[key][:, watched, 0]).sum(1)


def check_removals(model: Transformer, batch: Batch) -> tuple[int, int, int]:
    """Needed operations are those without which the prediction's logit falls by 0.01 or its read's product changes by
    0.01·√d; all others change neither. How many there are: needed, redundant, not on the path."""
    counts = np.zeros(3, np.int64)
    limit = 0.01 * math.sqrt(model.config.width)
    for row in tokens_of(batch):
        circuit = true_circuit(row, model)
        read = next(o for o in circuit.path if o.kind == "read")
        before = model.run(row[None]).logits
        assert before is not None
        logits, products = removed(model, row, circuit.operations, read.source)
        _, (product,) = removed(model, row, [TrueOperation(0, 0, 0, "join", 0, 1.0)], read.source)
        falls = before[0, circuit.prediction] - logits[:, circuit.prediction]
        changed = (falls >= 0.01) | ((products - product).abs() >= limit)
        assert changed.tolist() == [operation.needed for operation in circuit.operations]
        same = logits.argmax(1) == circuit.prediction
        assert not (same & torch.tensor([o.needed for o in circuit.operations])).any()
        for operation in circuit.operations:
            counts[0 if operation.needed else 1 if operation.redundant else 2] += 1
    return int(counts[0]), int(counts[1]), int(counts[2])


def test_the_needed_operations_are_those_whose_removal_matters():
    model = model_of(32)
    for kind in (pm.Balanced, pm.Star):
        needed, _, off = check_removals(model, sampled(kind(input_size=32), 25))
        assert min(needed, off) > 50
    assert check_removals(model, sampled(pm.Naive(input_size=32), 60))[1] > 10  # redundant ones are rare there


@pytest.mark.long
@pytest.mark.parametrize(("size", "count"), [(32, 200), (64, 60)])
def test_the_needed_operations_are_those_whose_removal_matters_in_many(size: int, count: int):
    counts = [check_removals(model_of(size), sampled(kind(input_size=size), count)) for kind in DISTRIBUTIONS]
    assert min(needed for needed, _, _ in counts) > 400
    assert sum(redundant for _, redundant, _ in counts) > 30


def weakened(model: Transformer, row: Tensor, circuit: TrueCircuit) -> list[tuple[TrueOperation, set[int], set[int]]]:
    """For each needed operation the vertices on which its product depends in the target and in the source.

    As in step IV of docs/circuits.md: a vertex is replaced by an absent one, attention and ReLUs are frozen, and the
    product must fall by more than √d/10.
    """
    frozen = ("attn.hook_pattern", "mlp.hook_mask")
    names = [
        f"blocks.{layer}.{name}" for layer in range(model.layers) for name in (*frozen, "attn.hook_q", "attn.hook_k")
    ]
    _, before = model.run(row[None], record=names)
    most = model.config.vocabulary - 5
    present = sorted({token for token in row.tolist() if token <= most})
    absent = min(set(range(1, most + 1)) - set(present), default=0)
    rows = torch.stack([torch.where(row == vertex, absent, row) for vertex in present])
    edits: dict[str, Edit] = {
        name: before[name].expand(len(rows), *before[name].shape[1:]) for name in names if name.endswith(frozen)
    }
    _, after = model.run(rows, edits=edits, record=names)
    found: list[tuple[TrueOperation, set[int], set[int]]] = []
    for o in circuit.needed:
        query, key = (f"blocks.{o.layer}.attn.hook_{name}" for name in "qk")
        q, k = before[query][0, o.target, 0], before[key][0, o.source, 0]
        limit = q @ k - math.sqrt(model.config.width) / 10
        in_target = (after[query][:, o.target, 0] @ k < limit).tolist()
        in_source = (after[key][:, o.source, 0] @ q < limit).tolist()
        falls = [{v for v, is_so in zip(present, side, strict=True) if is_so} for side in (in_target, in_source)]
        found.append((o, falls[0], falls[1]))
    return found


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
@pytest.mark.parametrize(("size", "count"), [(32, 40), (64, 15)])
def test_operations_depend_on_the_vertex_they_match_and_no_other(size: int, count: int, kind: type[Distribution]):
    model = model_of(size)
    forks = 0
    for row in tokens_of(sampled(kind(input_size=size), count)):
        circuit = true_circuit(row, model)
        for operation, in_target, in_source in weakened(model, row, circuit):
            match operation.kind:
                case "merge":
                    assert in_target == in_source == {operation.vertex}
                    forks += operation.layer > 1 and operation.weight < 1
                case "read":
                    # The goal is not found in the source: it is a 1 of the front, which hides what it came from.
                    assert in_target == {int(row[-4]), int(row[-3])}
                    assert in_source == {int(row[-4])}
                case _:
                    assert in_target == in_source == set()
    assert forks > 0 or kind is not pm.Naive


# Noise.


def test_no_noise_leaves_the_weights_as_they_are():
    other = compiled(20, noise=0.0, seed=3).state_dict()
    for name, weight in compiled(20).state_dict().items():
        assert torch.equal(weight, other[name]), name


def test_noise_is_relative_to_each_tensor_and_depends_on_the_seed():
    plain = dict(compiled(32).named_parameters())
    noisy = [dict(compiled(32, noise=0.1, seed=seed).named_parameters()) for seed in (0, 0, 1)]
    for name, before in plain.items():
        first, again, other = (weights[name] - before for weights in noisy)
        assert torch.equal(first, again)
        if (before.ndim == 1 and name.endswith("weight")) or not before.any():
            assert not first.any(), name
            continue
        assert not torch.equal(first, other)
        expected = 0.1 * before[before != 0].square().mean().sqrt()
        # 62 numbers at least: their deviation is known to 1/√124, four times which is 0.36.
        assert float(first.square().mean().sqrt() / expected) == pytest.approx(1, abs=0.36)


def test_a_little_noise_does_no_harm_and_much_does():
    """Measured over 8 seeds and 900 problems of N=32: all right at 1e-5, 0.96 at 5e-5, 0.51 at 1e-4, 0.08 at 1e-3."""
    batches = [sampled(kind(input_size=32), 200) for kind in DISTRIBUTIONS]
    for noise, least, most in ((1e-5, 1.0, 1.0), (1e-2, 0.0, 0.3)):
        share = np.mean([right(compiled(32, noise=noise, seed=seed), b).mean() for seed in (0, 1) for b in batches])
        assert least <= share <= most


# What is refused.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_size": 13}, "input_size=13: must be a whole number in 14..512"),
        ({"input_size": 32.5}, "input_size=32.5: must be a whole number"),
        ({"input_size": 32, "merges": -1}, "merges=-1: must be a whole number in 0..100"),
        ({"input_size": 32, "merges": 2.0}, "merges=2.0: must be a whole number in 0..100"),
        ({"input_size": 32, "noise": -0.1}, "noise=-0.1: must be a number in 0..1000"),
        ({"input_size": 32, "noise": float("nan")}, "noise=nan: must be a number in 0..1000"),
        ({"input_size": 32, "noise": float("inf")}, "noise=inf: must be a number in 0..1000"),
        ({"input_size": 32, "noise": "much"}, "noise='much': must be a number in 0..1000"),
        ({"input_size": 32, "seed": -1}, "seed=-1: must be a whole number in 0.."),
    ],
)
def test_bad_settings_are_refused(arguments: dict[str, Any], message: str):
    with refuses(message):
        compiled(**arguments)


def test_bad_problems_are_refused():
    layout = Layout(20)
    chain = Problem("search", ((1, 2), (2, 3), (3, 4)), start=1, goal=4)
    with refuses("merges=-1: must be a whole number"):
        true_circuit(chain, (20, -1))
    with refuses("task='dfs': must be one of search"):
        true_circuit(Problem("dfs", ((1, 2),), start=1, goal=2, visited=(1,)), (20, 2))
    with refuses("must be QUERY"):
        true_circuit([layout.pad] * 20, (20, 2))
    with refuses("must be a whole number in 1..9"):
        true_circuit(sampled(pm.Naive(input_size=32), 1).tokens[0, -20:], (20, 2))
