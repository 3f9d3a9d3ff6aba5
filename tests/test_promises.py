"""What the circuit method asks of a model: ours keep every promise, and one that breaks a promise is told which."""

from __future__ import annotations

import pytest
import torch
from lively_models import MODELS

import pathmerge as pm
from pathmerge.circuits.subject import TransformerSubject
from pathmerge.models.transformer import Transformer


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
