"""Models: both faces against a plain implementation, invariances, initial weights, and configs that are refused."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
from plain_models import (
    ANSWER_WORDS,
    CASES,
    gradient_error,
    gradients_of,
    plain_gradients,
    plain_logits,
    plain_loss,
    plain_weights,
    ready,
    refuses,
    shaken,
    unseen,
)
from torch import Tensor
from torch.nn.functional import cross_entropy

import pathmerge as pm
from pathmerge.encodings.edges import EDGE, PAD, QUERY, encode
from pathmerge.encodings.language import BLANK, Language
from pathmerge.encodings.sentences import LanguageBatch
from pathmerge.models.config import Edges, ModelConfig, OneHot, Rotary, model_from_dict
from pathmerge.models.transformer import Inputs, Transformer
from pathmerge.problems.distribution import Distribution

TEXT = [name for name, case in CASES.items() if isinstance(case.model, OneHot) and case.model.text]
SEQUENCES = [name for name, case in CASES.items() if isinstance(case.model, OneHot)]
SYMBOLIC = [name for name in SEQUENCES if name not in TEXT]
EDGES = [name for name in CASES if name not in SEQUENCES]

pytestmark = pytest.mark.usefixtures("one_core")


def run(model: Transformer, tokens: Tensor) -> Tensor:
    logits = model.run(tokens).logits
    assert logits is not None
    return logits


def parameter_count(config: ModelConfig) -> int:
    return sum(p.numel() for p in config.build().parameters())


# Sizes.


def test_the_papers_model_has_its_size():
    config = OneHot(input_size=128)
    assert (config.width, config.vocabulary, config.layers) == (190, 46, 6)
    assert parameter_count(config) == 1_311_380


@pytest.mark.parametrize(
    ("config", "width"),
    [
        (OneHot(input_size=14), 8 + 16 + 14),
        (OneHot(input_size=128, positions="none"), 46 + 16),
        (OneHot(input_size=128, embedding="learned", positions="learned"), 190),
        (OneHot(input_size=98, hidden=1024), 36 + 1024 + 98),
        (Rotary(input_size=128), 190),
        (Rotary(input_size=129), 192),  # 46 + 16 + 129 = 191 is odd
        (Rotary(input_size=32, text=True), 64 + 16 + 124),
        (OneHot(input_size=129), 191),
        (Edges(input_size=128), 3 * 44),  # V=41, in fours
        (Edges(input_size=32), 3 * 32),
        (Edges(input_size=32, end_width=10), 30),
    ],
)
def test_widths(config: ModelConfig, width: int):
    assert config.width == width
    config = dataclasses.replace(config, layers=2)
    d, v = width, config.vocabulary
    expected = config.layers * (6 * (d * d + d) + 4 * d) + 2 * d
    if isinstance(config, Edges):
        expected += v * config.end + 5 * d + (d + 1) * config.end
    elif isinstance(config, OneHot):
        expected += (config.embedding == "learned") * v * d + (config.positions == "learned") * config.tokens * d
    assert parameter_count(config) == expected


def test_looping_adds_layers_and_no_weights():
    once, thrice = OneHot(input_size=14, layers=2), OneHot(input_size=14, layers=2, loops=3)
    assert parameter_count(once) == parameter_count(thrice)
    assert thrice.build().layers == 6


def test_a_model_looped_again_has_the_same_weights_and_another_depth():
    model = OneHot(input_size=14, layers=2, initialisation="matching").build(3)
    twice = OneHot(input_size=14, layers=2, loops=2, initialisation="matching").build(3)
    tokens = model.inputs(pm.Balanced(input_size=14).sample(8, seed=1)).tokens
    looped = model.looped(2)
    assert looped.config == twice.config
    assert torch.equal(looped(tokens), twice(tokens))
    assert torch.equal(looped.looped(1)(tokens), model(tokens))
    assert not torch.equal(model(tokens), looped(tokens))
    with torch.no_grad():
        looped.ln_final.weight.zero_()
    assert model.ln_final.weight.all()  # a copy
    with pytest.raises(ValueError, match="loops=0"):
        model.looped(0)


# Both faces against the plain implementation.

# float32 against float64: logits near 1 and d·layers roundings of 6e-8 leave some 1e-6. A gradient jumps where a ReLU's
# input changes its sign, so the first problems are taken whose inputs all stay clear of 0 by more than that.
CLEAR = 5e-6


def clear_of_kinks(name: str) -> tuple[Transformer, Inputs, dict[str, Tensor], Tensor]:
    for seed in range(50):
        model, _, inputs = ready(name, 8, seed)
        weights = plain_weights(model)
        before: list[float] = []
        logits = plain_logits(model.config, weights, inputs.tokens, before)
        if min(before) > CLEAR:
            return model, inputs, weights, logits
    raise AssertionError("no problems without a ReLU near its kink")


@pytest.mark.parametrize("name", CASES)
def test_logits_and_gradients_are_those_of_the_plain_model(name: str):
    model, inputs, weights, plain = clear_of_kinks(name)
    config = model.config
    assert set(weights) == {n for n, _ in model.named_parameters()}
    loss = torch.stack([plain_loss(*pair) for pair in zip(plain, inputs.targets, strict=True)]).mean()
    expected = plain_gradients(loss, weights)
    for face in (model, lambda tokens: run(model, tokens)):
        model.zero_grad()
        logits = face(inputs.tokens)
        assert logits.dtype == torch.float32
        assert logits.shape == plain.shape
        assert (logits.double() - plain).abs().max() < 1e-5
        chosen = cross_entropy(logits.flatten(0, -2), inputs.targets.flatten(), reduction="sum")
        (chosen / len(plain)).backward()
        error, where = gradient_error(config, gradients_of(model), expected)
        assert error < 1e-5, where
        if face is model and model.folds:
            assert all(p.grad is None or not p.grad.any() for n, p in model.named_parameters() if unseen(config, n))
    model.zero_grad()


def test_gradients_of_both_faces_differ_only_where_a_relu_is_at_its_kink():
    # The float32 noise of this input of a ReLU straddles 0 (1e-7 in `forward`, -2e-7 in `run`), which moves gradients
    # of a whole unit. With the ReLU held open or closed in `run`, one of the two gives `forward`'s gradient.
    model = Rotary(input_size=32, layers=2, text=True).build()
    inputs = model.inputs(Language(input_size=32).sample(32, seed=100, threads=1).take(slice(24, 25)))
    site = "blocks.0.mlp.hook_pre"
    before = model.run(inputs.tokens, record=[site]).record[site].detach().abs()
    before[model.padding(inputs.tokens)] = 1.0
    nearest = before == before.min()
    assert before.min() < 1e-6
    assert nearest.sum() == 1

    def gradients(logits: Tensor) -> dict[str, Tensor]:
        model.zero_grad()
        cross_entropy(logits.flatten(0, 1), inputs.targets.flatten()).backward()
        return gradients_of(model)

    def error(held: float) -> float:
        edit = {"blocks.0.mlp.hook_mask": lambda mask: torch.where(nearest, held, mask)}
        logits = model.run(inputs.tokens, edits=edit).logits
        assert logits is not None
        return gradient_error(model.config, gradients(logits), forward)[0]

    forward = gradients(model(inputs.tokens))
    assert min(error(0.0), error(1.0)) < 1e-5
    assert max(error(0.0), error(1.0)) > 1e-4


@pytest.mark.parametrize("heads", [1, 2])
def test_both_faces_agree_in_double_precision(heads: int):
    model = shaken(OneHot(input_size=20, layers=2, heads=heads)).double()
    tokens = model.inputs(pm.Balanced(input_size=20).sample(8, threads=1)).tokens
    assert (model(tokens) - run(model, tokens)).abs().max() < 1e-12


# What models read.


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_are_read_as_they_are(name: str):
    _, batch, inputs = ready(name, 4)
    if name in SYMBOLIC:
        assert np.array_equal(inputs.tokens.numpy(), batch.tokens)
        assert inputs.targets[:, 0].tolist() == batch.label.tolist()
        return
    assert isinstance(batch, LanguageBatch)
    for row in range(len(batch)):
        *words, last = batch.label_tokens[row].tolist()
        assert inputs.tokens[row].tolist() == [*batch.tokens[row].tolist()[:-ANSWER_WORDS], BLANK, *words]
        assert inputs.targets[row].tolist() == [*words, last]
    assert (batch.tokens[:, -ANSWER_WORDS:] == BLANK).all()  # what the model reads is a copy


@pytest.mark.parametrize("name", EDGES)
def test_edges_are_read_with_padding_first_and_the_query_last(name: str):
    _, batch, inputs = ready(name, 4)
    encoded = encode(batch)
    for row in range(len(batch)):
        tokens = [tuple(token) for token in inputs.tokens[row].tolist()]
        kinds = [kind for _, _, kind in tokens]
        padding = kinds.count(PAD)
        assert kinds[:padding] == [PAD] * padding
        assert tokens[-1] == (batch.goal[row], batch.start[row], QUERY)
        present = encoded.kind[row] != PAD
        expected = np.concatenate([encoded.pairs[row], encoded.kind[row][:, None]], axis=1)[present]
        assert sorted(tokens[padding:]) == sorted(map(tuple, expected.tolist()))
        assert [token[:2] for token in tokens if token[2] == EDGE] == [(u, v) for u, v in batch.edges[row] if u]


@pytest.mark.parametrize(
    ("config", "problems", "message"),
    [
        (OneHot(input_size=20), pm.Balanced(input_size=23), r"balanced\(input_size=23\): .* input_size=20"),
        (OneHot(input_size=20), Language(input_size=20), "reads symbolic tokens"),
        (Rotary(input_size=20, text=True), pm.Balanced(input_size=20), "reads text"),
        (Edges(input_size=20), pm.Balanced(input_size=23), "reads edges of input_size=20"),
        (Edges(input_size=20), Language(input_size=20), "reads edges of input_size=20"),
    ],
)
def test_other_problems_are_refused(config: ModelConfig, problems: Distribution, message: str):
    with refuses(message):
        dataclasses.replace(config, layers=1).build().inputs(problems.sample(1, threads=1))


# What must not matter.


@pytest.mark.parametrize("name", CASES)
def test_padding_does_not_matter(name: str):
    model, _, inputs = ready(name, 4)
    together = model(inputs.tokens)
    for row in range(len(together)):
        alone = inputs.tokens[row : row + 1]
        first = int(model.padding(alone)[0].logical_not().nonzero()[0])
        for tokens in (alone, alone[:, first:]):
            assert (model(tokens) - together[row]).abs().max() < 1e-5
    assert model.padding(inputs.tokens).any()


@pytest.mark.parametrize("name", [name for name in CASES if "text" not in name])
def test_columns_of_padding_are_dropped_wherever_they_are(name: str):
    """Both faces agree where padding stands between edges, and only one of them drops columns."""
    model, _, inputs = ready(name, 4)
    tokens = inputs.tokens.clone()
    tokens[:, [0, 1, 3, 4]] = tokens[model.padding(tokens)][0]
    tokens[:, 2] = tokens[:, -3]
    assert model.padding(tokens)[:, :5].all(0).tolist() == [True, True, False, True, True]
    run = model.run(tokens).logits
    assert run is not None
    assert (model(tokens) - run).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["one-hot causal", "rotary", "rotary 2 heads, 2 loops", "rotary text"])
def test_a_causal_row_sees_nothing_later(name: str):
    model, _, inputs = ready(name, 4)
    site = f"blocks.{model.layers - 1}.hook_resid_post"
    rows = model.run(inputs.tokens, record=[site]).record[site]
    generator = torch.Generator().manual_seed(3)
    columns = inputs.tokens.shape[1]
    for column in (columns - 1, columns - 3, columns - 9):
        changed = inputs.tokens.clone()
        some = torch.randint(1, 4, changed[:, column:].shape, generator=generator)
        changed[:, column:] = torch.where(changed[:, column:] == some, some + 1, some)
        after = model.run(changed, record=[site]).record[site]
        assert torch.equal(after[:, :column], rows[:, :column])
        assert ((after - rows)[:, column:].abs().amax(2) > 1e-4).all()


@pytest.mark.parametrize("name", ["one-hot", "no positions", "one-hot 2 heads"])
def test_without_a_causal_mask_a_row_sees_what_is_later(name: str):
    model, _, inputs = ready(name, 4)
    site = "blocks.0.hook_resid_post"
    changed = inputs.tokens.clone()
    changed[:, -1] = changed[:, -1] % 3 + 1
    before, after = (model.run(tokens, record=[site]).record[site] for tokens in (inputs.tokens, changed))
    unpadded = ~model.padding(inputs.tokens)
    assert ((after - before).abs().amax(2)[unpadded] > 0).all()


@pytest.mark.parametrize("name", TEXT)
def test_words_of_the_answer_see_only_those_before_and_nobody_else_sees_them(name: str):
    model, _, inputs = ready(name, 4)
    site = f"blocks.{model.layers - 1}.hook_resid_post"
    rows, logits = model.run(inputs.tokens, record=[site]).record[site], model(inputs.tokens)
    for place in range(ANSWER_WORDS):
        changed = inputs.tokens.clone()
        changed[:, place - ANSWER_WORDS] = changed[:, place - ANSWER_WORDS] % 60 + 1
        after = model.run(changed, record=[site]).record[site]
        assert torch.equal(after[:, : place - ANSWER_WORDS], rows[:, : place - ANSWER_WORDS])
        assert torch.equal(model(changed)[:, :place], logits[:, :place])
        assert ((model(changed) - logits)[:, place:].abs().amax(2) > 1e-4).all()


@pytest.mark.parametrize("name", [*EDGES, "no positions"])
def test_the_order_of_edges_does_not_matter(name: str):
    model, _, inputs = ready(name, 4)
    logits = model(inputs.tokens)
    generator = torch.Generator().manual_seed(4)
    width = 1 if name in EDGES else 3  # tokens of an edge
    fixed = 1 if name in EDGES else 5
    start = (inputs.tokens.shape[1] - fixed) % width
    middle = inputs.tokens[:, start:-fixed].unflatten(1, (-1, width))
    for _ in range(5):
        order = torch.randperm(middle.shape[1], generator=generator)
        tokens = torch.cat([inputs.tokens[:, :start], middle[:, order].flatten(1, 2), inputs.tokens[:, -fixed:]], 1)
        for face in (model, lambda tokens: run(model, tokens)):
            assert (face(tokens) - logits).abs().max() < 1e-5
    swapped = inputs.tokens.clone()
    swapped[:, -2 if name in EDGES else -4] = swapped[:, 0]
    assert (model(swapped) - logits).abs().max() > 1e-4


# Configs.


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "onehot", "heads": 3}, "heads=3: must divide the width d=46, for instance 1, 2, 23"),
        ({"name": "onehot", "heads": 0}, r"heads=0: must be a whole number in 1\.\.46"),
        ({"name": "onehot", "heads": 47}, r"heads=47: must be a whole number in 1\.\.46"),
        ({"name": "rotary", "heads": 2}, "heads=2: rotary positions need heads of even width, d=46 gives 23"),
        (
            {"name": "onehot", "initialisation": "matching", "heads": 23},
            "heads=23: .*at least 5 wide.* d=46 gives 2",
        ),
        ({"name": "edges", "initialisation": "matching", "heads": 4}, "heads=4: .*at least 32 wide, d=96 gives 24"),
        ({"name": "edges", "heads": 5}, "heads=5: must divide the width d=96"),
        ({"name": "edges", "end_width": 0}, r"end_width=0: must be a whole number in 1\.\.16384"),
        ({"name": "onehot", "input_size": 10}, r"input_size=10: must be a whole number in 11\.\.512"),
        ({"name": "rotary", "input_size": 513}, r"input_size=513: must be a whole number in 11\.\.512"),
        ({"name": "edges", "input_size": 20.0}, r"input_size=20\.0: must be a whole number"),
        ({"name": "onehot", "layers": -1}, r"layers=-1: must be a whole number in 1\.\.1000"),
        ({"name": "onehot", "layers": 0}, "layers=0"),
        ({"name": "onehot", "layers": "3"}, "layers='3': must be a whole number"),
        ({"name": "edges", "loops": 0}, r"loops=0: must be a whole number in 1\.\.1000"),
        ({"name": "onehot", "hidden": -1}, r"hidden=-1: must be a whole number in 0\.\.65536"),
        ({"name": "onehot", "embedding": "onhot"}, r"embedding='onhot': .*onehot, learned \(did you mean onehot\?\)"),
        ({"name": "onehot", "positions": "cosine"}, "positions='cosine': must be one of onehot, learned, rotary, none"),
        ({"name": "onehot", "causal": 1}, "causal=1: must be True or False"),
        ({"name": "onehot", "text": "yes"}, "text='yes': must be True or False"),
        ({"name": "onehot", "initialisation": "xavier"}, "initialisation='xavier': must be one of default, matching"),
        ({"name": "onehot", "matching": -1.0}, r"matching=-1\.0: must be a number in 0\.\.1000"),
        ({"name": "onehot", "matching": float("nan")}, "matching=nan"),
        ({"name": "onehot", "joining": 1.0}, r"joining=1\.0: needs initialisation='matching'"),
        (
            {"name": "onehot", "joining": 1.0, "initialisation": "matching", "positions": "learned"},
            r"joining=1\.0: needs .*positions='onehot'",
        ),
        (
            {"name": "onehot", "joining": 1.0, "initialisation": "matching", "heads": 2},
            "heads=2: .*at least 25 wide.*each vertex token and position, d=46 gives 23",
        ),
        (
            {"name": "onehot", "following": 1.0, "initialisation": "matching"},
            r"following=1\.0: needs joining, heads=1, loops=1, 2 layers or more and embedding='onehot'",
        ),
        (
            {"name": "onehot", "following": 1.0, "initialisation": "matching", "joining": 1.0, "layers": 1},
            r"following=1\.0: needs .*2 layers or more",
        ),
        (
            {"name": "onehot", "following": 1.0, "initialisation": "matching", "joining": 1.0, "loops": 2},
            r"following=1\.0: needs .*loops=1",
        ),
        ({"name": "onehot", "asking": 1.0}, r"asking=1\.0: needs following"),
        ({"name": "onehot", "legible": True, "layers": 1}, r"legible=True: needs .*2 layers or more"),
        ({"name": "onehot", "legible": True, "loops": 2}, r"legible=True: needs .*loops=1"),
        ({"name": "rotary", "legible": True}, r"legible=True: needs embedding='onehot'"),
        ({"name": "onehot", "legible": 1}, r"legible=1: must be True or False"),
        ({"name": "onehot", "following": -1}, r"following=-1: must be a number in 0\.\.1000"),
        ({"name": "onehott"}, r"model.name='onehott': must be one of onehot, rotary, edges \(did you mean onehot\?\)"),
        ({}, "model.name=None: must be one of onehot, rotary, edges"),
        ({"name": "onehot", "hiden": 3}, r"onehot field='hiden': .*\(did you mean hidden\?\)"),
        ({"name": "edges", "hidden": 3}, "edges field='hidden': must be one of .*end_width"),
    ],
)
def test_bad_configs_are_refused_in_one_line(values: dict[str, Any], message: str):
    with refuses(message):
        model_from_dict({"input_size": 20, **values})


def test_a_config_without_a_size_is_refused():
    with refuses("the field input_size is missing"):
        model_from_dict({"name": "rotary"})


@pytest.mark.parametrize("name", CASES)
def test_configs_survive_a_dictionary(name: str):
    config = CASES[name].model
    values = json.loads(json.dumps(config.to_dict()))
    assert model_from_dict(values) == config
    assert type(model_from_dict(values)) is type(config)


def test_sizes_of_any_library_become_plain_numbers():
    config = OneHot(input_size=np.int64(20))  # pyright: ignore[reportArgumentType]
    assert model_from_dict(json.loads(json.dumps(config.to_dict()))) == config
