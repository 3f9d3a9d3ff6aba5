"""Models of one's own: another gate is followed everywhere, whole layers train but are not explained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

import pathmerge as pm
from pathmerge.models.config import MODELS
from pathmerge.models.sequence_transformer import SequenceTransformer
from pathmerge.models.sites import Sites
from pathmerge.models.transformer import Block
from pathmerge.parallel import Workers
from pathmerge.training.gradients import add_gradients, make_task


class PlainTransformer(SequenceTransformer):
    """ReLU once more, but by a gate of its own: everything must come out as for the built-in model."""

    def gate(self, block: Block, before: torch.Tensor, h: torch.Tensor, /) -> torch.Tensor:
        return super().gate(block, before, h)


class SiluTransformer(SequenceTransformer):
    def gate(self, block: Block, before: torch.Tensor, h: torch.Tensor, /) -> torch.Tensor:
        return before.sigmoid()


class ParallelTransformer(SequenceTransformer):
    """Attention and feed-forward side by side."""

    def apply_block(self, layer: int, x: torch.Tensor, bias: torch.Tensor, sites: Sites, /) -> torch.Tensor:
        block: Any = self.blocks[layer]
        scores = block.q(x) @ block.k(x).transpose(1, 2) + bias
        return x + block.o(torch.softmax(scores, -1) @ block.v(x)) + block.ff2(block.ff1(x).tanh())


def gradients(model: Any, batch: pm.Batch, threads: int) -> dict[str, torch.Tensor]:
    model.zero_grad()
    with Workers(threads) as workers:
        add_gradients(model, make_task(model, [batch]), workers, kind="label", total=len(batch), limit=400)
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


CONFIGS = {
    "onehot": pm.OneHot(input_size=26, layers=3),
    "heads": pm.OneHot(input_size=26, layers=2, loops=2, embedding="learned", positions="learned", heads=2, hidden=4),
    "rotary": pm.Rotary(input_size=26, layers=2, heads=2, hidden=18),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_plain_steps_give_what_the_fast_ones_give(name: str):
    batch = pm.Balanced(input_size=26).sample(40, seed=3)
    built_in, own = CONFIGS[name].build(7), PlainTransformer(CONFIGS[name], 7)
    tokens = own.inputs(batch).tokens
    assert own.own_gate
    assert not built_in.own_gate
    # float32, sums in another order: logits of about 1 agree to some 1e-6
    torch.testing.assert_close(own(tokens), built_in(tokens), atol=1e-5, rtol=1e-5)
    one, two = gradients(own, batch, 1), gradients(own, batch, 2)
    assert all(torch.equal(one[key], two[key]) for key in one)
    fast = gradients(built_in, batch, 1)
    assert one.keys() == dict(own.named_parameters()).keys()
    for key, value in fast.items():
        torch.testing.assert_close(one[key], value, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", [PlainTransformer, SiluTransformer])
@pytest.mark.parametrize("name", CONFIGS)
def test_circuits_follow_the_gate(kind: type[SequenceTransformer], name: str):
    report = pm.check_model(kind(CONFIGS[name], 7), pm.Balanced(input_size=26).sample(2, seed=3))
    assert report.passed, str(report)


def test_sites_follow_the_gate():
    model = SiluTransformer(CONFIGS["onehot"], 7)
    tokens = model.inputs(pm.Balanced(input_size=26).sample(3)).tokens
    record = model.run(tokens, record=["blocks.1.mlp.hook_pre", "blocks.1.mlp.hook_post"]).record
    before, after = (record[f"blocks.1.mlp.{name}"] for name in ("hook_pre", "hook_post"))
    torch.testing.assert_close(after, torch.nn.functional.silu(before))


def test_whole_layers_of_ones_own_train_but_are_not_explained():
    model = ParallelTransformer(CONFIGS["onehot"], 7)
    batch = pm.Balanced(input_size=26).sample(30, seed=3)
    found = gradients(model, batch, 2)
    model.zero_grad()
    logits = model.run(model.inputs(batch).tokens).logits
    assert logits is not None
    torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch.label)).backward()
    for name, value in model.named_parameters():
        if value.grad is not None:
            torch.testing.assert_close(found[name], value.grad, atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match="model=ParallelTransformer: computes its layers in its own way"):
        pm.explain(model, batch[0])


def test_a_model_of_ones_own_reads_text_where_its_parent_does(catalogues: None):
    @pm.register
    @dataclass(frozen=True, kw_only=True)
    class Deep(pm.OneHot):
        layers: int = 9
        name: ClassVar[str] = "deep"

    from pathmerge.training.config import config_from_dict

    config = config_from_dict({"input_size": 20, "problem": {"name": "language"}, "model": {"name": "deep"}})
    assert config.model == Deep(input_size=20, text=True)
    assert config_from_dict(config.to_dict()).digest == config.digest
    assert MODELS["deep"] is Deep
