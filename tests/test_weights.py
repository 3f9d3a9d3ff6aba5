"""Weights on disk and back, and from other programs; what does not fit changes nothing."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_models import CASES, ready, refuses, same, shaken
from safetensors.torch import save_file
from torch import Tensor

from pathmerge.models.config import OneHot, Rotary
from pathmerge.models.weights import fill, import_weights, load_weights, save_weights

pytestmark = pytest.mark.usefixtures("one_core")
SMALL = OneHot(input_size=14, layers=2)
State = dict[str, Tensor]


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
