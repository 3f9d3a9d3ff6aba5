"""Sites: each is read in its shape and is alive, edits act where they should, and those that could not are errors."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
import torch
from plain_models import ANSWER_WORDS, CASES, ready, refuses
from torch import Tensor

from pathmerge.models.config import OneHot
from pathmerge.models.sites import Edit
from pathmerge.models.transformer import Transformer
from pathmerge.parallel import Workers

PER_HEAD = ("attn.hook_q", "attn.hook_k", "attn.hook_v", "attn.hook_rot_q", "attn.hook_rot_k", "attn.hook_z")
TWO_HEADS = ["one-hot 2 heads", "rotary 2 heads, 2 loops", "one-hot text 2 heads", "edges"]


@pytest.fixture(scope="module", autouse=True)
def one_core():
    """Small operations on several cores wait for each other, ten times as long where other tests run beside them."""
    with Workers(1), torch.no_grad():
        yield


@cache
def recorded(name: str) -> tuple[Transformer, Tensor, dict[str, Tensor], Tensor]:
    """A model, its input, everything that can be recorded, and the logits."""
    model, _, inputs = ready(name, 3)
    with torch.no_grad():
        logits, record = model.run(inputs.tokens, record=model.sites)
    assert logits is not None
    return model, inputs.tokens, record, logits


def edited(model: Transformer, tokens: Tensor, edits: dict[str, Edit], **options: Any) -> Tensor:
    """Logits with edits, by the same steps as in `recorded`: all sites are asked for."""
    skipped = options.get("start_layer", 0)
    reached = [site for site in model.sites if layer_of(model, site) >= skipped]
    logits = model.run(tokens, edits=edits, record=reached, **options).logits
    assert logits is not None
    return logits


def layer_of(model: Transformer, site: str) -> int:
    found = re.match(r"blocks\.(\d+)\.", site)
    return int(found[1]) if found else model.layers if site.startswith("ln_final") else -1


def out_bias(model: Transformer, layer: int) -> Tensor:
    return model.state_dict()[f"blocks.{layer % model.config.layers}.o.bias"]


def noise(value: Tensor, seed: int = 0) -> Tensor:
    return torch.randn(value.shape, generator=torch.Generator().manual_seed(seed))


def other(site: str, value: Tensor) -> Tensor:
    """Another value that the site could have."""
    if site.endswith("hook_mask"):
        return 1 - value
    if site.endswith("hook_pattern"):
        return torch.softmax(value.log() + noise(value), -1)
    if site.endswith("hook_scale"):
        return value * (1 + 0.1 * noise(value).abs())
    return value + 0.3 * noise(value)


# Reading.


@pytest.mark.parametrize("name", CASES)
def test_every_site_is_recorded_in_its_shape(name: str):
    model, tokens, record, logits = recorded(name)
    b, t, d, h = *tokens.shape[:2], model.config.width, model.config.heads
    head, rows, square = (b, t, h, d // h), (b, t, d), (b, h, t, t)
    shapes = {
        **dict.fromkeys(PER_HEAD, head),
        "attn.hook_attn_scores": square,
        "attn.hook_pattern": square,
        "attn.hook_result": (b, t, h, d),
    }
    assert set(record) == set(model.sites)
    assert len(set(model.sites)) == len(model.sites)
    for site, value in record.items():
        last = site.split(".", 2)[-1] if site.startswith("blocks.") else site
        expected = (b, t, 1) if site.endswith("hook_scale") else shapes.get(last, rows)
        assert value.shape == expected, site
        assert value.dtype == torch.float32
    plain = model.run(tokens).logits
    assert plain is not None
    assert (plain - logits).abs().max() < 1e-5


@pytest.mark.parametrize("name", CASES)
def test_the_sites_are_those_of_the_kind(name: str):
    model, _, _, _ = recorded(name)
    config = model.config
    rotary = isinstance(config, OneHot) and config.positions == "rotary"
    placed = isinstance(config, OneHot) and config.positions in ("onehot", "learned")
    assert ("blocks.0.attn.hook_rot_q" in model.sites) == ("blocks.0.attn.hook_rot_k" in model.sites) == rotary
    assert ("hook_pos_embed" in model.sites) == placed
    assert len(model.sites) == config.layers * config.loops * (19 + 2 * rotary) + 3 + placed


@pytest.mark.parametrize("name", CASES)
def test_recorded_values_belong_together(name: str):
    model, tokens, record, _ = recorded(name)
    seen = ~model.padding(tokens)
    for layer in range(model.layers):
        at = {site.split(".", 2)[2]: v for site, v in record.items() if site.startswith(f"blocks.{layer}.")}
        pattern = at["attn.hook_pattern"]
        assert torch.allclose(pattern.sum(-1)[:, 0], torch.ones(tokens.shape[:2]), atol=1e-5)
        assert not (pattern * (seen[:, None, :, None] & ~seen[:, None, None])).any()  # nothing looks at padding
        mixed = torch.stack([pattern[:, h] @ at["attn.hook_v"][:, :, h] for h in range(model.heads)], 2)
        assert torch.allclose(at["attn.hook_z"], mixed, atol=1e-5)
        assert torch.allclose(at["attn.hook_result"].sum(2) + out_bias(model, layer), at["hook_attn_out"], atol=1e-5)
        assert torch.equal(at["hook_resid_mid"], at["hook_resid_pre"] + at["hook_attn_out"])
        assert torch.equal(at["hook_resid_post"], at["hook_resid_mid"] + at["hook_mlp_out"])
        assert torch.equal(at["mlp.hook_post"], torch.relu(at["mlp.hook_pre"]))
        if layer:
            assert torch.equal(at["hook_resid_pre"], record[f"blocks.{layer - 1}.hook_resid_post"])


# Writing.


@pytest.mark.parametrize("name", CASES)
def test_every_site_is_alive_and_what_was_there_changes_nothing(name: str):
    model, tokens, record, logits = recorded(name)
    for site in model.sites:
        value = record[site]
        assert torch.equal(edited(model, tokens, {site: value}), logits), site
        by_tensor = edited(model, tokens, {site: other(site, value)})
        if layer_of(model, site) in (-1, 0, model.layers):
            by_function = edited(model, tokens, {site: lambda old, site=site: other(site, old)})
            assert torch.equal(by_tensor, by_function), site
        assert ((by_tensor - logits).abs().flatten(1).amax(1) > 1e-5).all(), site
        assert by_tensor.isfinite().all(), site


@pytest.mark.parametrize("name", TWO_HEADS)
def test_every_head_is_alive(name: str):
    model, tokens, record, logits = recorded(name)
    for site in model.sites:
        axis = 1 if site.endswith(("scores", "pattern")) else 2
        if ".attn." not in site:
            continue
        for head in range(model.heads):
            value = record[site].clone()
            value.select(axis, head).copy_(other(site, record[site]).select(axis, head))
            assert ((edited(model, tokens, {site: value}) - logits).abs().flatten(1).amax(1) > 1e-5).all(), site


@pytest.mark.parametrize("name", CASES)
def test_only_rows_that_the_answer_needs_matter_in_the_last_layer(name: str):
    model, tokens, record, logits = recorded(name)
    answer = ANSWER_WORDS if logits.dim() == 3 else 1
    last = f"blocks.{model.layers - 1}."
    for site in ("attn.hook_q", "attn.hook_z", "hook_resid_mid", "mlp.hook_mask", "hook_resid_post"):
        value = other(last + site, record[last + site])
        elsewhere, there = value.clone(), record[last + site].clone()
        elsewhere[:, -answer:], there[:, -answer:] = there[:, -answer:], value[:, -answer:]
        assert torch.equal(edited(model, tokens, {last + site: elsewhere}), logits)
        assert (
            edited(model, tokens, {last + site: there}) - edited(model, tokens, {last + site: value})
        ).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["one-hot", "one-hot 2 heads", "rotary", "learned", "one-hot 2 loops"])
def test_a_stream_from_another_input_gives_its_answer(name: str):
    model, tokens, _, logits = recorded(name)
    vertices = model.config.vocabulary - 5
    swapped = torch.where(tokens <= vertices, vertices + 1 - tokens, tokens)  # the same places are padding
    wanted, record = model.run(swapped, record=model.sites)
    assert wanted is not None
    assert (wanted - logits).abs().max() > 1e-2
    for layer in range(model.layers):
        for site in ("hook_resid_pre", "hook_resid_mid", "hook_resid_post"):
            full = f"blocks.{layer}.{site}"
            assert torch.equal(edited(model, tokens, {full: record[full]}), wanted)


@pytest.mark.parametrize("name", TWO_HEADS)
def test_a_head_that_looks_at_one_row_gives_its_value(name: str):
    model, tokens, record, _ = recorded(name)
    for layer in range(model.layers):
        for head in range(model.heads):
            pattern = record[f"blocks.{layer}.attn.hook_pattern"].clone()
            row, source = tokens.shape[1] - 1, tokens.shape[1] - 2
            pattern[:, head, row] = 0
            pattern[:, head, row, source] = 1
            z = f"blocks.{layer}.attn.hook_z"
            edits: dict[str, Edit] = {f"blocks.{layer}.attn.hook_pattern": pattern}
            found = model.run(tokens, edits=edits, record=model.sites).record[z]
            expected = record[z].clone()
            expected[:, row, head] = record[f"blocks.{layer}.attn.hook_v"][:, source, head]
            assert torch.equal(found, expected)


@pytest.mark.parametrize("name", CASES)
def test_a_row_with_all_its_sources_masked_gets_nothing(name: str):
    model, tokens, record, logits = recorded(name)
    for layer in range(model.layers):
        prefix = f"blocks.{layer}."
        scores = record[prefix + "attn.hook_attn_scores"].clone()
        scores[:, :, -1] = -torch.inf
        names = [prefix + "attn.hook_pattern", prefix + "attn.hook_z", prefix + "hook_attn_out"]
        after, found = model.run(tokens, edits={prefix + "attn.hook_attn_scores": scores}, record=names)
        assert after is not None
        assert after.isfinite().all()
        assert (after - logits).abs().max() > 1e-5
        pattern, z, out = (found[site] for site in names)
        assert not pattern[:, :, -1].any()
        assert not z[:, -1].any()
        assert torch.equal(out[:, -1], out_bias(model, layer).expand(len(tokens), -1))
        assert torch.equal(pattern[:, :, :-1], record[names[0]][:, :, :-1])


def test_masking_one_score_takes_one_source_away():
    model, tokens, record, _ = recorded("one-hot")
    site = "blocks.1.attn.hook_attn_scores"
    scores = record[site].clone()
    scores[:, :, -1, -3] = -torch.inf
    found = model.run(tokens, edits={site: scores}, record=["blocks.1.attn.hook_pattern"]).record
    expected = record["blocks.1.attn.hook_pattern"][:, :, -1].clone()
    expected[:, :, -3] = 0
    expected /= expected.sum(-1, keepdim=True)
    assert torch.allclose(found["blocks.1.attn.hook_pattern"][:, :, -1], expected, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_recorded_masks_freeze_the_relu(name: str):
    model, tokens, record, _ = recorded(name)
    masks = [site for site in model.sites if site.endswith("hook_mask")]
    assert all(set(record[site].unique().tolist()) <= {0.0, 1.0} for site in masks)
    edits: dict[str, Edit] = {site: record[site] for site in masks}
    edits["blocks.0.mlp.hook_pre"] = lambda value: value + noise(value)
    found = model.run(tokens, edits=edits, record=model.sites).record
    for layer in range(model.layers):
        pre, mask, post = (f"blocks.{layer}.mlp.hook_{part}" for part in ("pre", "mask", "post"))
        assert torch.equal(found[mask], record[mask])
        assert torch.equal(found[post], found[pre] * record[mask])
    assert (found["blocks.0.mlp.hook_post"] < 0).any()
    free = model.run(tokens, edits={"blocks.0.mlp.hook_pre": edits["blocks.0.mlp.hook_pre"]}, record=masks).record
    assert not torch.equal(free[masks[0]], record[masks[0]])  # the mask follows an edit of what stands before it


# A part of the layers.


@pytest.mark.parametrize("name", CASES)
def test_a_run_starts_in_the_middle_and_stops_there(name: str):
    model, tokens, record, logits = recorded(name)
    for layer in range(1, model.layers):
        site = f"blocks.{layer}.hook_resid_pre"
        assert torch.equal(edited(model, tokens, {site: record[site]}, start_layer=layer), logits)
        reached = [name for name in model.sites if layer_of(model, name) < layer]
        stopped = model.run(tokens, stop_layer=layer, record=reached)
        assert stopped.logits is None
        assert all(torch.equal(stopped.record[name], record[name]) for name in reached)
    whole = model.run(tokens, stop_layer=model.layers).logits
    assert whole is not None
    assert torch.allclose(whole, logits, atol=1e-5)


def test_a_run_of_one_layer_in_the_middle():
    model, tokens, record, _ = recorded("one-hot")
    first, last = "blocks.1.hook_resid_pre", "blocks.1.hook_resid_post"
    part = model.run(tokens, start_layer=1, stop_layer=2, edits={first: record[first]}, record=[last])
    assert part.logits is None
    assert torch.allclose(part.record[last], record[last], atol=1e-5)


# Edits that could not take effect.


@pytest.mark.parametrize(
    ("edits", "record", "options", "message"),
    [
        ({"blocks.0.attn.hook_patern": None}, [], {}, r"did you mean 'blocks\.0\.attn\.hook_pattern'\?"),
        ({"blocks.3.hook_resid_pre": None}, [], {}, r"edits='blocks\.3\.hook_resid_pre': no such site"),
        ({"blocks.0.attn.hook_rot_q": None}, [], {}, "no such site"),
        ({}, ["hook_embeds"], {}, r"record='hook_embeds': .*did you mean 'hook_embed'\?"),
        (
            {"hook_embed": torch.zeros(3, 32)},
            [],
            {},
            r"edits\['hook_embed'\]: has shape \(3, 32\), must be \(3, 32, 62\)",
        ),
        ({"hook_embed": lambda old: old[:, :1]}, [], {}, r"has shape \(3, 1, 62\), must be \(3, 32, 62\)"),
        ({"hook_embed": lambda old: old[:1]}, [], {}, r"has shape \(1, 32, 62\), must be \(3, 32, 62\)"),
        ({"hook_embed": lambda old: old.double()}, [], {}, r"is torch\.float64 on cpu, must be torch\.float32 on cpu"),
        ({"hook_embed": lambda old: old > 0}, [], {}, r"is torch\.bool on cpu"),
        ({"hook_embed": lambda old: None}, [], {}, "gave NoneType, must give a tensor"),
        ({"hook_embed": lambda old: old.numpy()}, [], {}, "gave ndarray, must give a tensor"),
        ({"hook_embed": None}, [], {"start_layer": 1}, r"edits\['hook_embed'\]: never took effect"),
        ({"blocks.0.hook_mlp_out": None}, [], {"start_layer": 1}, "never took effect"),
        ({"blocks.1.hook_resid_pre": None}, [], {"stop_layer": 1}, "never took effect"),
        ({"ln_final.hook_scale": None}, [], {"stop_layer": 2}, "never took effect"),
        ({}, ["blocks.0.hook_mlp_out"], {"start_layer": 1}, "record: 'blocks.0.hook_mlp_out' was not reached"),
        ({}, ["ln_final.hook_scale"], {"stop_layer": 1}, "'ln_final.hook_scale' was not reached"),
        ({}, [], {"start_layer": 1}, r"start_layer=1: edits must give the tensor 'blocks\.1\.hook_resid_pre'"),
        ({"blocks.1.hook_resid_pre": lambda old: old}, [], {"start_layer": 1}, "edits must give the tensor"),
        ({"blocks.1.hook_resid_pre": torch.zeros(3, 31, 62)}, [], {"start_layer": 1}, "has shape"),
        ({}, [], {"start_layer": -1}, r"start_layer=-1: must be a whole number in 0\.\.2"),
        ({}, [], {"start_layer": 2, "stop_layer": 1}, r"start_layer=2: must be a whole number in 0\.\.1"),
        ({}, [], {"stop_layer": 4}, r"stop_layer=4: must be a whole number in 0\.\.3"),
    ],
)
def test_what_cannot_take_effect_is_refused(
    edits: dict[str, Any], record: list[str], options: dict[str, int], message: str
):
    model, tokens, values, _ = recorded("one-hot")
    given = {site: values.get(site, torch.zeros(1)) if edit is None else edit for site, edit in edits.items()}
    start = options.get("start_layer", 0)
    if "must give" not in message and start > 0:
        given.setdefault(f"blocks.{start}.hook_resid_pre", values[f"blocks.{start}.hook_resid_pre"])
    with refuses(message):
        model.run(tokens, edits=given, record=record, **options)


@pytest.mark.parametrize("edit", [None, 0.0, [1.0]])
def test_an_edit_that_is_neither_tensor_nor_function_is_refused(edit: Any):
    model, tokens, _, _ = recorded("one-hot")
    with refuses(r"edits\['hook_embed'\].*must be a tensor or a function"):
        model.run(tokens, edits={"hook_embed": edit})


@pytest.mark.parametrize("kind", [torch.float64, torch.int64])
def test_a_start_of_another_type_is_refused(kind: torch.dtype):
    model, tokens, record, _ = recorded("one-hot")
    site = "blocks.1.hook_resid_pre"
    with refuses("must be torch.float32"):
        model.run(tokens, start_layer=1, edits={site: record[site].to(kind)})


def test_edits_reach_every_layer_of_a_loop_apart():
    model, tokens, _, logits = recorded("one-hot 2 loops")
    found = [edited(model, tokens, {f"blocks.{layer}.hook_mlp_out": torch.zeros_like}) for layer in range(4)]
    assert all((a - b).abs().max() > 1e-4 for i, a in enumerate([*found, logits]) for b in found[:i])
