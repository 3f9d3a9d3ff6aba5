"""Weights: how they start, on disk and back, and from other programs; what does not fit changes nothing."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_models import CASES, ready, refuses, shaken
from safetensors.torch import save_file
from samples import LEAST
from scipy.stats import kstest
from torch import Tensor

import pathmerge as pm
from pathmerge.layout import Layout
from pathmerge.models.config import Edges, ModelConfig, OneHot, Rotary
from pathmerge.models.transformer import Transformer
from pathmerge.models.weights import fill, import_weights, load_weights, save_weights
from pathmerge.parallel import Workers

SMALL = OneHot(input_size=14, layers=2)
State = dict[str, Tensor]


@pytest.fixture(scope="module", autouse=True)
def one_core():
    """Small operations on several cores wait for each other, ten times as long where other tests run beside them."""
    with Workers(1):
        yield


def same(a: Transformer, b: Transformer) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# How they start.


@pytest.mark.parametrize("name", CASES)
def test_weights_depend_on_the_seed_alone(name: str):
    config = CASES[name].model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        before = torch.get_rng_state()
        first = config.build(3)
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(2)
        assert same(first, config.build(3))
    other = config.build(4).state_dict()
    for parameter, value in first.state_dict().items():
        norm = re.search(r"ln\w*\.(weight|bias)$", parameter)
        if norm:
            assert (value == (norm[1] == "weight")).all()
        else:
            assert not torch.equal(value, other[parameter]), parameter


@pytest.mark.parametrize("config", [OneHot(input_size=48, layers=2), Edges(input_size=128, layers=2)])
def test_linear_maps_start_uniform_as_in_pytorch(config: ModelConfig):
    bound = config.width**-0.5
    state = config.build(5).state_dict()
    matrices = [name for name in state if re.search(r"\.(q|k|v|o|ff1|ff2)\.(weight|bias)$", name)]
    assert len(matrices) == 24
    if isinstance(config, Edges):
        matrices += ["answer.weight", "answer.bias"]
    for name in matrices:
        values = (state[name].double().flatten().numpy() / bound + 1) / 2
        assert 0 <= values.min() < values.max() <= 1
        assert kstest(values, "uniform").pvalue > LEAST, name
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        theirs = torch.nn.Linear(config.width, 400)
    for values in (theirs.weight, theirs.bias):
        assert 0.99 < float(values.detach().abs().max()) / bound <= 1
    weights = np.stack([state[name].flatten().numpy() for name in matrices[:12:2]])
    assert np.abs(np.corrcoef(weights) - np.eye(6)).max() < 5 / weights.shape[1] ** 0.5  # each has numbers of its own


@pytest.mark.parametrize(
    ("config", "tables"),
    [
        (OneHot(input_size=48, layers=1, embedding="learned", positions="learned"), ("embedding", "positions")),
        (Rotary(input_size=48, layers=1), ("embedding",)),
        (Edges(input_size=128, layers=1), ("vertices", "kinds")),
        (Edges(input_size=128, layers=1, spread=0.1), ("vertices", "kinds")),
    ],
)
def test_tables_start_normal_with_vectors_of_length_one_or_their_spread(config: ModelConfig, tables: tuple[str, ...]):
    state = config.build(6).state_dict()
    assert {name for name in state if "." not in name} == set(tables)
    for name in tables:
        spread = config.spread if isinstance(config, Edges) else state[name].shape[1] ** -0.5
        scaled = state[name].double().numpy() / spread
        assert kstest(scaled.flatten(), "norm").pvalue > LEAST, name
        assert abs((scaled**2).mean() - 1) < 0.2


def matched_entries(config: ModelConfig) -> dict[str, list[tuple[int, int]]]:
    """The (row, column) of W_q and of W_k that a matching start raises, by the rules in the models' docstrings."""
    width = config.width // config.heads
    entries: dict[str, list[tuple[int, int]]] = {"q": [], "k": []}
    for head in range(config.heads):
        if isinstance(config, Edges):
            source, target = range(config.end), range(config.end, 2 * config.end)
            forward, backward = (target, source), (source, target)  # my target is your source; the other way round
            ways = [forward, backward] if config.heads == 1 else [forward if head % 2 == 0 else backward]
        else:
            assert isinstance(config, OneHot)
            tokens = range(64) if config.text else range(1, (config.input_size - 5) // 3 + 1)
            columns = range(head * width, (head + 1) * width) if config.embedding == "learned" else tokens
            ways = [(columns, columns)]
        row = head * width
        for asked, offered in ways:
            entries["q"] += [(row + i, column) for i, column in enumerate(asked)]
            entries["k"] += [(row + i, column) for i, column in enumerate(offered)]
            row += len(asked)
    return entries


@pytest.mark.parametrize(
    "config",
    [
        OneHot(input_size=20, layers=2),
        OneHot(input_size=20, layers=1, heads=2, matching=0.25),
        OneHot(input_size=14, layers=1, text=True),
        OneHot(input_size=20, layers=1, heads=2, embedding="learned", positions="learned"),
        Rotary(input_size=20, layers=1, matching=3.0),
        Edges(input_size=20, layers=2),
        Edges(input_size=20, layers=1, heads=1),
        Edges(input_size=20, layers=1, heads=3, matching=2.0),
    ],
)
def test_matching_adds_on_its_entries_and_nowhere_else(config: ModelConfig):
    plain = config.build(7).state_dict()
    matching = replace(config, initialisation="matching").build(7).state_dict()
    assert plain.keys() == matching.keys()
    for name, value in plain.items():
        expected = value.clone()
        for part, entries in matched_entries(config).items():
            if name.endswith(f".{part}.weight"):
                for row, column in entries:
                    expected[row, column] += config.matching
        assert torch.equal(matching[name], expected), name
        assert torch.equal(matching[name], value) == (not re.search(r"\.[qk]\.weight$", name)), name


@pytest.mark.parametrize("kind", [OneHot, Edges])
def test_the_feed_forward_scale_multiplies_its_second_matrix_and_nothing_else(kind: type[ModelConfig]):
    plain, scaled = (kind(input_size=20, layers=2, feed_forward_scale=by).build(3).state_dict() for by in (1.0, 0.25))
    for name, value in plain.items():
        assert torch.equal(scaled[name], value * 0.25 if ".ff2." in name else value), name


def test_joining_rows_look_at_the_other_end_of_their_edge():
    """In the first layer of a model that starts with nothing else, and only there."""
    config = OneHot(input_size=32, layers=2, initialisation="matching", matching=0.0, joining=20.0)
    problems = pm.Balanced(input_size=32).sample(20, threads=1)
    model = config.build()
    tokens = model.inputs(problems).tokens
    site = "blocks.{}.attn.hook_pattern".format
    seen = model.run(tokens, record=[site(0), site(1)]).record
    edge = Layout(32).edge
    for at, row in zip(*torch.nonzero(tokens == edge, as_tuple=True), strict=True):
        assert seen[site(0)][at, 0, row + 1].argmax() == row + 2
        assert seen[site(0)][at, 0, row + 2].argmax() == row + 1
    plain = replace(config, joining=0.0).build().state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(value, plain[name]) == (name not in ("blocks.0.q.weight", "blocks.0.k.weight")), name


def test_following_rows_look_at_rows_of_the_vertex_at_the_other_end_of_their_edge():
    """In the second layer, once the first has joined the ends; mostly, since what is copied there is not told apart
    from other directions exactly. Below it, and in all but queries and keys, nothing changes."""
    priors: dict[str, Any] = {"initialisation": "matching", "matching": 0.0, "joining": 20.0, "following": 10.0}
    config = OneHot(input_size=32, layers=3, feed_forward_scale=0.0, **priors)
    model, plain = config.build(), replace(config, following=None).build()
    tokens = model.inputs(pm.Balanced(input_size=32).sample(20, threads=1)).tokens
    site = "blocks.1.attn.hook_pattern"
    seen, before = (found.run(tokens, record=[site]).record[site].detach()[:, 0] for found in (model, plain))
    shares: list[tuple[float, float]] = []
    for at, row in zip(*torch.nonzero(tokens == Layout(32).edge, as_tuple=True), strict=True):
        for one, other in ((row + 1, row + 2), (row + 2, row + 1)):
            there = tokens[at] == tokens[at, other]
            shares.append((float(seen[at, one][there].sum()), float(before[at, one][there].sum())))
    with_it, without = np.mean(shares, 0)
    assert with_it > 0.7
    assert with_it > 5 * without
    for name, value in model.state_dict().items():
        changed = re.fullmatch(r"blocks\.[12]\.[qk]\.weight", name) is not None
        assert torch.equal(value, plain.state_dict()[name]) != changed, name


def test_following_in_the_third_layer_looks_for_what_the_second_has_copied():
    """The image of a vertex's image under values and outputs is matched with that vertex, beside the image itself."""
    config = OneHot(input_size=20, layers=3, initialisation="matching", matching=0.0, joining=1.0, following=100.0)
    weights = config.build(seed=4).state_dict()

    def of(layer: int, part: str) -> Tensor:
        return weights[f"blocks.{layer}.{part}.weight"]

    vertices = torch.arange(1, 6)
    image = torch.nn.functional.normalize((of(0, "o") @ of(0, "v"))[:, vertices], dim=0)
    again = torch.nn.functional.normalize(of(1, "o") @ (of(1, "v") @ image), dim=0)
    for layer, read in ((1, image), (2, image), (2, again)):
        products = (of(layer, "q") @ read).T @ of(layer, "k")[:, vertices]
        assert torch.equal(products.argmax(1), torch.arange(5))


def test_asking_the_last_row_looks_at_the_goal_in_all_layers_but_the_last():
    priors: dict[str, Any] = {"initialisation": "matching", "matching": 0.0, "joining": 1.0, "following": 1.0}
    config = OneHot(input_size=32, layers=3, feed_forward_scale=0.0, asking=10.0, **priors)
    model, plain = config.build(), replace(config, asking=None).build()
    tokens = model.inputs(pm.Balanced(input_size=32).sample(20, threads=1)).tokens
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(3)]
    seen = model.run(tokens, record=names).record
    shares = [float(seen[name].detach()[:, 0, -1, -3].mean()) for name in names]  # QUERY start goal PATH start
    assert min(shares[:2]) > 0.9
    assert shares[2] < 0.5
    for name, value in model.state_dict().items():
        changed = (value != plain.state_dict()[name]).sum()
        assert changed == (re.fullmatch(r"blocks\.[01]\.[qk]\.weight", name) is not None), name


def test_legible_vertices_are_not_written_over_below_the_last_layer():
    config = OneHot(input_size=20, layers=3, feed_forward_scale=0.0)
    model, plain = replace(config, legible=True).build(5), config.build(5)
    tokens = model.inputs(pm.Balanced(input_size=20).sample(8, threads=1)).tokens
    names = [f"blocks.{layer}.hook_resid_post" for layer in range(3)]
    rows = model.run(tokens, record=names).record
    own = torch.nn.functional.one_hot(tokens, config.vocabulary).float()[:, :, 1:6]
    for name in names[:2]:
        torch.testing.assert_close(rows[name][:, :, 1:6].detach(), own, atol=0, rtol=0)
    assert not torch.equal(rows[names[2]][:, :, 1:6], own)
    for name, value in model.state_dict().items():
        expected = plain.state_dict()[name].clone()
        if re.fullmatch(r"blocks\.[01]\.o\.(weight|bias)", name):
            expected[1:6] = 0
        assert torch.equal(value, expected), name


def test_matching_rows_look_at_rows_of_the_same_vertex():
    model = OneHot(input_size=32, layers=1, initialisation="matching", matching=10).build()
    tokens = model.inputs(pm.Balanced(input_size=32).sample(20, threads=1)).tokens
    site = "blocks.0.attn.hook_pattern"
    pattern = model.run(tokens, record=[site]).record[site].detach()[:, 0]
    equal = tokens[:, :, None] == tokens[:, None, :]
    vertices = (tokens >= 1) & (tokens <= 9)
    assert (pattern * equal).sum(-1)[vertices].min() > 0.99


def test_matching_heads_of_edges_look_along_the_edges_and_back():
    model = Edges(input_size=32, layers=1, initialisation="matching", matching=10).build()
    with torch.no_grad():
        model.get_parameter("kinds").zero_()
    tokens = model.inputs(pm.Balanced(input_size=32).sample(20, threads=1)).tokens
    site = "blocks.0.attn.hook_pattern"
    pattern = model.run(tokens, record=[site]).record[site].detach()
    source, target, present = tokens[:, :, 0], tokens[:, :, 1], ~model.padding(tokens)
    follows = (target[:, :, None] == source[:, None, :]) & present[:, None, :]
    for head, joined in enumerate([follows, follows.transpose(1, 2) & present[:, None, :]]):
        some = joined.any(-1) & present
        assert some.any()
        assert (pattern[:, head] * joined).sum(-1)[some].min() > 0.9


# On disk and back.


@pytest.mark.parametrize("name", CASES)
def test_a_saved_model_comes_back(name: str, tmp_path: Path):
    model, _, inputs = ready(name, 3)
    save_weights(model, tmp_path / "model.safetensors")
    again = load_weights(str(tmp_path / "model.safetensors"))
    assert again.config == model.config
    assert type(again) is type(model)
    assert same(model, again)
    assert torch.equal(again(inputs.tokens), model(inputs.tokens))
    assert list(tmp_path.iterdir()) == [tmp_path / "model.safetensors"]


def test_saving_where_it_cannot_be_is_refused(tmp_path: Path):
    model = SMALL.build()
    with refuses(r"path='.*model\.pt': the name must end in \.safetensors"):
        save_weights(model, tmp_path / "model.pt")
    with refuses("path"):
        save_weights(model, tmp_path / "nowhere" / "model.safetensors")
    assert not list(tmp_path.iterdir())


def write(path: Path, state: State, header: dict[str, str] | None) -> Path:
    save_file({name: value.clone() for name, value in state.items()}, path, header)
    return path


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (None, "not a file of pathmerge weights; import_weights reads those of other programs"),
        ({"format": "pt"}, "not a file of pathmerge weights"),
        ({"pathmerge weights": ""}, "its model cannot be read"),
        ({"pathmerge weights": "{"}, "its model cannot be read"),
        ({"pathmerge weights": "[]"}, "its model cannot be read"),
        ({"pathmerge weights": '{"name": "onehott"}'}, "did you mean onehot"),
        ({"pathmerge weights": json.dumps(replace(SMALL, layers=3).to_dict())}, "lacks tensor"),
        ({"pathmerge weights": json.dumps(replace(SMALL, layers=1).to_dict())}, "an unknown tensor"),
        ({"pathmerge weights": json.dumps(replace(SMALL, hidden=9).to_dict())}, "has shape"),
    ],
)
def test_foreign_and_damaged_files_are_refused(header: dict[str, str] | None, message: str, tmp_path: Path):
    path = write(tmp_path / "model.safetensors", SMALL.build().state_dict(), header)
    with refuses(f"path='{path}': .*{message}"):
        load_weights(path)


def test_files_that_are_none_are_refused(tmp_path: Path):
    with refuses("no such file"):
        load_weights(tmp_path / "model.safetensors")
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"not a tensor in sight")
    with refuses("cannot be read as safetensors"):
        load_weights(path)
    save_weights(SMALL.build(), path)
    path.write_bytes(path.read_bytes()[:-100])
    with refuses("cannot be read as safetensors"):
        load_weights(path)


# From other programs.

ROLES: tuple[str, ...] = ("ln1", "q", "k", "v", "o", "ln2", "ff1", "ff2")
STYLES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "GPT": (
        "transformer.h.{}",
        ("ln_1", "attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.out_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"),
        "transformer.ln_f",
    ),
    "Llama": (
        "model.layers.{}",
        (
            "input_layernorm",
            *(f"self_attn.{part}_proj" for part in "qkvo"),
            "post_attention_layernorm",
            "mlp.up_proj",
            "mlp.down_proj",
        ),
        "model.norm",
    ),
    "published": (
        "layers.{}",
        ("ln_attn", "attn.proj_q", "attn.proj_k", "attn.proj_v", "attn.linear", "ln_ff", "ff.0", "ff.3"),
        "ln_head",
    ),
    "encoder": (
        "encoder.{}",
        ("norm1", "attention.query", "attention.key", "attention.value", "attention.output", "norm2", "ff.0", "ff.2"),
        "norm",
    ),
    "own": ("blocks.{}", ROLES, "ln_final"),
}


def named(state: State, style: str) -> State:
    """A state dict under the names of another program."""
    layer, roles, final = STYLES[style]
    table = dict(zip(ROLES, roles, strict=True))
    found: State = {}
    for name, value in state.items():
        if name.startswith("blocks."):
            _, number, role, side = name.split(".")
            found[f"{layer.format(number)}.{table[role]}.{side}"] = value
        elif name.startswith("ln_final."):
            found[f"{final}.{name.split('.')[1]}"] = value
        else:
            found[name] = value
    assert len(found) == len(state)
    return found


@pytest.mark.parametrize("suffix", ["", ".safetensors", ".pt", ".pth"])
@pytest.mark.parametrize("style", STYLES)
def test_weights_are_imported_under_other_names(style: str, suffix: str, tmp_path: Path):
    model = shaken(SMALL)
    state = named(model.state_dict(), style)
    assert (list(state) == list(model.state_dict())) == (style == "own")
    path = tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        write(path, state, None)
    elif suffix:
        torch.save(state, path)
    found = import_weights(SMALL, path if suffix else state)
    assert same(found, model)
    assert found.config == SMALL


def test_norms_by_their_greek_names_prefixes_and_other_precisions():
    model = shaken(replace(SMALL, layers=11))
    state = named(model.state_dict(), "GPT")
    greek = {
        re.sub(r"(ln_\w)\.(weight|bias)", lambda m: f"{m[1]}.{'gamma' if m[2] == 'weight' else 'beta'}", name): value
        for name, value in state.items()
    }
    assert "transformer.h.10.ln_2.gamma" in greek
    assert same(import_weights(model.config, {f"module.{name}": value for name, value in greek.items()}), model)
    rough = import_weights(model.config, {name: value.half() for name, value in state.items()})
    for name, value in model.state_dict().items():
        assert rough.state_dict()[name].dtype == torch.float32
        assert torch.equal(rough.state_dict()[name], value.half().float())


def test_rename_settles_what_names_do_not_say():
    model = shaken(Rotary(input_size=14, layers=1))
    state = named(model.state_dict(), "GPT")
    state["transformer.wte.weight"] = state.pop("embedding")
    state["transformer.wpe.weight"] = torch.zeros(3)
    with refuses(r"source: 'transformer.wte.weight' has no place in the model; give rename=\{'transformer.wte.weight'"):
        import_weights(model.config, state)
    rename = {"transformer.wte.weight": "embedding", "transformer.wpe.weight": ""}
    assert same(import_weights(model.config, state, rename=rename), model)
    with refuses("'transformer.wte.weight' has no place in the model"):
        import_weights(model.config, state, rename={**rename, "transformer.wte.weight": "embeddings"})


def without(name: str) -> Callable[[State], State]:
    return lambda state: {n: v for n, v in state.items() if n != name}


def changed(name: str, value: Any) -> Callable[[State], State]:
    return lambda state: {**state, name: value}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("layers.1.attn.proj_k.bias"), "source: lacks tensor 'blocks.1.k.bias'"),
        (without("ln_head.weight"), "source: lacks tensor 'ln_final.weight'"),
        (changed("layers.2.ff.0.weight", torch.zeros(2)), "'layers.2.ff.0.weight' has no place in the model"),
        (changed("layers.1.attn.mask", torch.zeros(2)), "'layers.1.attn.mask' has no place in the model"),
        (changed("head.weight", torch.zeros(2)), "'head.weight' has no place in the model"),
        (changed("step", 3), "'step' is int, must be a tensor"),
        (
            changed("layers.0.ff.0.bias", torch.zeros(2)),
            r"'blocks.0.ff1.bias' has shape \(2,\), the model's has \(38,\)",
        ),
        (changed("layers.0.ff.0.bias", torch.zeros(38, dtype=torch.int64)), "holds torch.int64, must hold floats"),
        (
            changed("layers.1.attn.wq.weight", torch.zeros(38, 38)),
            "'layers.1.attn.proj_q.weight' and 'layers.1.attn.wq.weight' both mean 'blocks.1.q.weight'; give rename",
        ),
    ],
)
def test_what_does_not_fit_is_refused(change: Callable[[State], State], message: str):
    state = named(shaken(SMALL).state_dict(), "published")
    with refuses(message):
        import_weights(SMALL, change(state))


def test_keys_that_are_not_text_are_refused():
    with refuses("source"):
        import_weights(SMALL, {1: torch.zeros(2)})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("wrong", [torch.zeros(2), torch.zeros(38, dtype=torch.int64)])
def test_nothing_is_filled_in_half(wrong: Tensor):
    model = shaken(SMALL)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    zeros = {name: torch.zeros_like(value) for name, value in before.items()}
    for state in ({**zeros, "ln_final.bias": wrong}, {**zeros, "zz": wrong}, without("ln_final.bias")(zeros)):
        with refuses("here: "):
            fill(model, state, "here")
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    fill(model, zeros, "here")
    assert not any(value.any() for value in model.state_dict().values())


class Executes:
    """What a malicious file would hold."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("as_zip", [True, False])
@pytest.mark.parametrize("suffix", [".pt", ".pth"])
def test_a_file_that_would_run_code_is_refused_and_runs_nothing(suffix: str, as_zip: bool, tmp_path: Path):
    mark, path = tmp_path / "executed", tmp_path / f"weights{suffix}"
    content = {**SMALL.build().state_dict(), "more": Executes(mark)}
    if as_zip:
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content))
    with refuses(f"source='{path}': cannot be read as plain weights"):
        import_weights(SMALL, path)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Executes(mark)))
    assert mark.exists()  # it would have


def test_sources_that_are_no_weights_are_refused(tmp_path: Path):
    with refuses(r"source='weights\.bin': the name must end in \.safetensors, \.pt or \.pth"):
        import_weights(SMALL, "weights.bin")
    for suffix in (".pt", ".safetensors"):
        with refuses("no such file"):
            import_weights(SMALL, tmp_path / f"weights{suffix}")
        (tmp_path / f"weights{suffix}").write_bytes(b"nothing of the kind")
        with refuses("cannot be read as"):
            import_weights(SMALL, tmp_path / f"weights{suffix}")
    torch.save([torch.zeros(2)], tmp_path / "list.pt")
    with refuses("holds list, must hold a mapping of tensors"):
        import_weights(SMALL, tmp_path / "list.pt")
    torch.save({"model": SMALL.build().state_dict()}, tmp_path / "nested.pt")
    with refuses("'model' is .*[dD]ict, must be a tensor"):
        import_weights(SMALL, tmp_path / "nested.pt")
