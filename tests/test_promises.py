"""What the circuit method asks of a model: ours keep every promise, and one that breaks a promise is told which."""

from __future__ import annotations

import pytest
import torch
from lively_models import MODELS

import pathmerge as pm
from pathmerge.circuits.conformance import Report
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


def failed(report: Report) -> set[str]:
    return {check.name for check in report.checks if not check.passed}


def test_positions_that_are_left_out_wrongly_are_found() -> None:
    """Step IV leaves out another position in each of many copies; a model that does it for one row, for the first copy,
    or for half of the numbers passes every other check."""
    batch, model = pm.Balanced(input_size=17).sample(3, seed=1), MODELS["one head"]()
    assert not failed(pm.check_model(TransformerSubject(model), batch, reference=model))

    class LastRowOnly(TransformerSubject):
        def embed(self, tokens: torch.Tensor, without: torch.Tensor | None = None) -> torch.Tensor:
            if without is not None:
                without = without.clone()
                without[:, :-1] = False
            return super().embed(tokens, without)

    class FirstCopyOnly(TransformerSubject):
        def embed(self, tokens: torch.Tensor, without: torch.Tensor | None = None) -> torch.Tensor:
            return super().embed(tokens, without if without is None else without[:1].expand(without.shape))

    class Everything(TransformerSubject):
        def embed(self, tokens: torch.Tensor, without: torch.Tensor | None = None) -> torch.Tensor:
            found = super().embed(tokens)
            return found if without is None else found.masked_fill(without[:, :, None], 0.0)

    class Half(TransformerSubject):
        def embed(self, tokens: torch.Tensor, without: torch.Tensor | None = None) -> torch.Tensor:
            return (super().embed(tokens, without) + super().embed(tokens)) / 2

    for kind, name in (
        (LastRowOnly, "position embeddings are live"),
        (FirstCopyOnly, "position embeddings are live"),
        (Everything, "without positions a row is its token"),
        (Half, "without positions a row is its token"),
    ):
        found = failed(pm.check_model(kind(model), batch, reference=model))
        assert name in found, kind
        assert found <= {"position embeddings are live", "without positions a row is its token"}, kind


def test_a_model_that_raises_fails_its_check_and_no_more() -> None:
    batch, model = pm.Balanced(input_size=17).sample(3, seed=1), MODELS["one head"]()

    class NoGate(TransformerSubject):
        def update(self, layer: int, x: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            return super().update(layer, x, mixed)

    class NoWithout(TransformerSubject):
        def embed(self, tokens: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            return super().embed(tokens)

    class Flat(TransformerSubject):
        def logits(self, x: torch.Tensor) -> torch.Tensor:
            return super().logits(x)[0]

    class Endless(TransformerSubject):
        def logits(self, x: torch.Tensor) -> torch.Tensor:
            return super().logits(x) * torch.inf

    def raising(tokens: torch.Tensor) -> torch.Tensor:
        raise TypeError("no")

    for kind, reference, name, words in (
        (NoGate, model, "a frozen replay gives the same logits", "TypeError: "),
        (NoWithout, model, "what is embedded", "TypeError: "),
        (Flat, model, "shape of logits", "9, must be 1 x any"),
        (Endless, model, "an ordinary pass", "Error: "),
        (TransformerSubject, raising, "the same logits as the model itself", "TypeError: no"),
        (
            TransformerSubject,
            lambda t: model(t)[:, :3],
            "the same logits as the model itself",
            "gives 3 x 3 logits, must",
        ),
        (TransformerSubject, lambda t: model(t)[:1], "the same logits as the model itself", "gives 1 x "),
        (TransformerSubject, lambda t: model(t)[:, None], "the same logits as the model itself", "gives 3 x 1 x "),
    ):
        report = pm.check_model(kind(model), batch, reference=reference)
        assert name in failed(report), (kind, str(report))
        assert words in next(check.detail for check in report.checks if check.name == name and not check.passed)
    with pytest.raises(ValueError, match="batch=ndarray: must be a batch of problems"):
        pm.check_model(model, batch.tokens)  # pyright: ignore[reportArgumentType]
