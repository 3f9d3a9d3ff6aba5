"""The models of SPEC section 3 again, slow and obviously right: one example at a time, one row of attention at a time.

Written from the definitions, not from the fast code. What makes it plain:
- Rows of padding are left out before anything is computed, and each row that remains keeps the number of its column;
  each row of attention lists the rows it sees. There is no mask.
- Rotary positions multiply complex numbers and count columns from the left.
- float64 throughout, and only the state dict and the config of a model are used. Gradients come from autograd.

At the end: the kinds of models that the tests go through.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import pathmerge as pm
from pathmerge.encodings.language import BLANK, Language
from pathmerge.encodings.language import PAD as TEXT_PAD
from pathmerge.encodings.sentences import LanguageBatch
from pathmerge.models.config import Edges, ModelConfig, OneHot, Rotary
from pathmerge.models.transformer import Inputs, Transformer
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import Distribution

Weights = Mapping[str, Tensor]
EDGE_PAD = 0
ANSWER_WORDS = 4


def plain_weights(model: Transformer) -> dict[str, Tensor]:
    """A model's weights as float64 leaves to differentiate by."""
    return {name: value.detach().double().requires_grad_() for name, value in model.state_dict().items()}


def affine(weights: Weights, name: str, x: Tensor) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def layer_norm(weights: Weights, name: str, x: Tensor) -> Tensor:
    mean = x.mean(dim=1, keepdim=True)
    variance = ((x - mean) ** 2).mean(dim=1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-5) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def turned(x: Tensor, columns: Sequence[int]) -> Tensor:
    """Rows of a head with the complex number (x_i, x_{i+K/2}) multiplied by exp(i·t·10000^(-2i/K)), t the column."""
    half = x.shape[1] // 2
    factors = [[cmath.exp(1j * t * 10000 ** (-2 * i / x.shape[1])) for i in range(half)] for t in columns]
    z = torch.complex(x[:, :half], x[:, half:]) * torch.tensor(factors, dtype=torch.complex128)
    return torch.cat([z.real, z.imag], dim=1)


def is_padding(config: ModelConfig, token: Tensor) -> bool:
    """Whether one token of an input (a number, or source, target and kind of an edge) is padding."""
    if isinstance(config, Edges):
        return int(token[2]) == EDGE_PAD
    assert isinstance(config, OneHot)
    return int(token) == (TEXT_PAD if config.text else (config.input_size - 5) // 3 + 3)


def answer_rows(config: ModelConfig) -> int:
    return ANSWER_WORDS if isinstance(config, OneHot) and config.text else 1


def embedded(config: ModelConfig, weights: Weights, token: Tensor, column: int, columns: int) -> Tensor:
    """One row before the first layer."""
    if isinstance(config, Edges):
        table = weights["vertices"]
        source, target, kind = (int(part) for part in token)
        free = torch.zeros(table.shape[1], dtype=torch.float64)
        return torch.cat([table[source], table[target], free]) + weights["kinds"][kind]
    assert isinstance(config, OneHot)
    x = torch.zeros(config.width, dtype=torch.float64)
    if config.embedding == "onehot":
        x[int(token)] = 1
    else:
        x = x + weights["embedding"][int(token)]
    if config.positions == "onehot":
        place = torch.zeros(config.width, dtype=torch.float64)
        place[config.width - columns + column] = 1
        x = x + place
    elif config.positions == "learned":
        x = x + weights["positions"][column]
    return x


def sees(config: ModelConfig, row: int, source: int, columns: int) -> bool:
    """Whether the row of one column looks at the (unpadded) row of another."""
    if isinstance(config, OneHot) and config.causal:
        return source <= row
    if source >= columns - answer_rows(config) and answer_rows(config) > 1:
        return row >= source
    return True


def attention(
    config: ModelConfig, weights: Weights, block: str, h: Tensor, kept: Sequence[int], seen: Sequence[list[int]]
) -> Tensor:
    """`kept` are the columns of the rows of h; `seen[i]` the rows that row i looks at."""
    q, k, v = (affine(weights, f"{block}.{name}", h) for name in "qkv")
    width = config.width // config.heads
    heads: list[Tensor] = []
    for head in range(config.heads):
        part = slice(head * width, (head + 1) * width)
        q_head, k_head, v_head = q[:, part], k[:, part], v[:, part]
        if isinstance(config, OneHot) and config.positions == "rotary":
            q_head, k_head = turned(q_head, kept), turned(k_head, kept)
        rows: list[Tensor] = []
        for i, sources in enumerate(seen):
            scores = k_head[sources] @ q_head[i] / math.sqrt(width)
            weight = torch.exp(scores - scores.max())
            rows.append(weight @ v_head[sources] / weight.sum())
        heads.append(torch.stack(rows))
    return affine(weights, f"{block}.o", torch.cat(heads, dim=1))


def plain_example(config: ModelConfig, weights: Weights, tokens: Tensor, before: list[float] | None = None) -> Tensor:
    """Logits of one example, R x V. `before` collects the least distance from 0 of what a ReLU got."""
    columns, answer = len(tokens), answer_rows(config)
    padded = {t for t in range(columns) if is_padding(config, tokens[t])}
    kept = [t for t in range(columns) if t not in padded or t >= columns - answer]
    seen = [
        [j for j, source in enumerate(kept) if i == j or (source not in padded and sees(config, row, source, columns))]
        for i, row in enumerate(kept)
    ]
    x = torch.stack([embedded(config, weights, tokens[t], t, columns) for t in kept])
    layers = config.layers * config.loops
    for layer in range(layers):
        block = f"blocks.{layer % config.layers}"
        x = x + attention(config, weights, block, layer_norm(weights, f"{block}.ln1", x), kept, seen)
        inside = affine(weights, f"{block}.ff1", layer_norm(weights, f"{block}.ln2", x))
        if before is not None:
            before.append(float((inside if layer < layers - 1 else inside[-answer:]).detach().abs().min()))
        x = x + affine(weights, f"{block}.ff2", torch.where(inside > 0, inside, 0.0))
    last = layer_norm(weights, "ln_final", x)[-answer:]
    if isinstance(config, Edges):
        return affine(weights, "answer", last) @ weights["vertices"].T
    if "embedding" in weights:
        return last @ weights["embedding"].T
    return last[:, : config.vocabulary]


def plain_logits(config: ModelConfig, weights: Weights, tokens: Tensor, before: list[float] | None = None) -> Tensor:
    """Logits in the shape that the models give them: B x V, or B x R x V for text."""
    rows = torch.stack([plain_example(config, weights, example, before) for example in tokens])
    return rows if answer_rows(config) > 1 else rows[:, 0]


def plain_loss(logits: Tensor, targets: Tensor, answers: np.ndarray | None = None, kind: str = "label") -> Tensor:
    """The loss of one example from its logits (V, or R x V): -log of what is asked for."""
    chance = torch.softmax(logits.reshape(len(targets), -1), dim=1)
    if kind == "label":
        product = torch.ones((), dtype=chance.dtype)
        for row, target in enumerate(targets):
            product = product * chance[row, int(target)]
        return -torch.log(product)
    assert answers is not None
    right = [chance[0, int(v)] for v in np.flatnonzero(answers)]
    if kind == "any":
        return -torch.log(torch.stack(right).sum())
    return torch.stack([-torch.log(p) for p in right]).mean()


def plain_answer(config: ModelConfig, weights: Weights, tokens: Tensor) -> list[int]:
    """The words of one answer, one after the other, from a text whose answer's region is blank."""
    answer = answer_rows(config)
    written = tokens.clone()
    written[-answer:] = BLANK
    words: list[int] = []
    for place in range(answer):
        words.append(int(plain_example(config, weights, written)[place].argmax()))
        if place + 1 < answer:
            written[place + 1 - answer] = words[-1]
    return words


def plain_correct(batch: Batch, row: int, answer: Sequence[int]) -> bool:
    """Whether an answer is one of the problem's: a vertex, or the words of its atom."""
    useful = np.flatnonzero(batch.answers[row])
    if not isinstance(batch, LanguageBatch):
        return answer[0] in useful
    names, verbs, nouns = 20, 5, 30
    marks = 9
    atoms = {int(batch.atoms[row, v]) for v in useful}
    name, verb, article, noun = answer
    number = ((name - marks) * verbs + verb - marks - names) * nouns + noun - marks - names - verbs
    inside = 0 <= name - marks < names and 0 <= verb - marks - names < verbs and noun >= marks + names + verbs
    return inside and article == marks - 1 and number in atoms


def plain_gradients(loss: Tensor, weights: Weights) -> dict[str, Tensor]:
    found = torch.autograd.grad(
        loss, list(weights.values()), allow_unused=True, materialize_grads=True, retain_graph=True
    )
    return dict(zip(weights, found, strict=True))


def unseen(config: ModelConfig, name: str) -> bool:
    """Whether a parameter has no influence: softmax does not see a key's bias, unless a rotation stands between."""
    return name.endswith(".k.bias") and not (isinstance(config, OneHot) and config.positions == "rotary")


def gradient_error(config: ModelConfig, found: Weights, plain: Weights) -> tuple[float, str]:
    """The largest difference of gradients, relative to the largest entry of the same parameter, and where it is.

    The gradient of a key's bias that softmax does not see is 0; what rounding leaves there is measured by the gradient
    of the key's weights.
    """
    errors: list[tuple[float, str]] = []
    for name, expected in plain.items():
        scale = plain[name.replace(".bias", ".weight")] if unseen(config, name) else expected
        assert scale.abs().max() > 0, name
        errors.append((float((found[name].double() - expected).abs().max() / scale.abs().max()), name))
    return max(errors)


def gradients_of(model: Transformer) -> dict[str, Tensor]:
    """What stands in `grad`; zeros where there is none."""
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}


@contextmanager
def refuses(message: str) -> Generator[None]:
    """A ValueError of one line."""
    with pytest.raises(ValueError, match=message) as caught:
        yield
    assert "\n" not in str(caught.value)


class Case(NamedTuple):
    """A kind of model and problems it reads."""

    model: ModelConfig
    problems: Distribution


CASES: dict[str, Case] = {
    "one-hot": Case(OneHot(input_size=32, layers=3), pm.Balanced(input_size=32)),
    "one-hot matching": Case(OneHot(input_size=20, layers=2, initialisation="matching"), pm.Star(input_size=20)),
    "one-hot 2 heads": Case(OneHot(input_size=32, layers=2, heads=2), pm.DFS(input_size=32, mode="naive")),
    "one-hot 2 loops": Case(OneHot(input_size=14, layers=2, loops=2), pm.Naive(input_size=14)),
    "one-hot 1 layer": Case(OneHot(input_size=14, layers=1), pm.Naive(input_size=14)),
    "one-hot causal": Case(OneHot(input_size=26, layers=2, causal=True), pm.SelectionInference(input_size=26)),
    "one-hot rotary": Case(OneHot(input_size=20, layers=2, positions="rotary"), pm.Balanced(input_size=20)),
    "learned": Case(
        OneHot(input_size=24, layers=2, embedding="learned", positions="learned"), pm.Balanced(input_size=24)
    ),
    "learned 3 heads": Case(
        OneHot(input_size=29, layers=2, heads=3, embedding="learned", positions="learned", hidden=18),
        pm.DFS(input_size=29, mode="naive", padding="random"),
    ),
    "no positions": Case(OneHot(input_size=48, layers=2, positions="none"), pm.Balanced(input_size=48)),
    "rotary": Case(Rotary(input_size=32, layers=2), pm.Balanced(input_size=32)),
    "rotary 2 heads, 2 loops": Case(
        Rotary(input_size=30, layers=1, loops=2, heads=2), pm.SelectionInference(input_size=30)
    ),
    "one-hot text": Case(OneHot(input_size=14, layers=2, text=True), Language(input_size=14)),
    "one-hot text 2 heads": Case(OneHot(input_size=14, layers=2, text=True, heads=2), Language(input_size=14)),
    "rotary text": Case(Rotary(input_size=20, layers=2, text=True), Language(input_size=20)),
    "edges": Case(Edges(input_size=32, layers=2, end_width=12), pm.Balanced(input_size=32)),
    "edges 1 head": Case(
        Edges(input_size=32, layers=2, heads=1, initialisation="matching"), pm.SelectionInference(input_size=32)
    ),
    "edges 3 heads, 2 loops": Case(
        Edges(input_size=24, layers=1, loops=2, heads=3, end_width=20, initialisation="matching"),
        pm.DFS(input_size=24),
    ),
}


def shaken(config: ModelConfig, seed: int = 0) -> Transformer:
    """A model whose every parameter is random: norms with gains and shifts, too, as after training."""
    model = config.build(seed)
    generator = torch.Generator().manual_seed(1000 + seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            size = 0.3 if "ln" in name else 0.05
            parameter.add_(torch.randn(parameter.shape, generator=generator) * size)
    return model


@cache
def ready(name: str, count: int = 4, seed: int = 0) -> tuple[Transformer, Batch, Inputs]:
    """A case's model, with some problems and what it reads of them; not to be changed."""
    model = shaken(CASES[name].model)
    batch = CASES[name].problems.sample(count, seed=seed, threads=1)
    return model, batch, model.inputs(batch)


def same(a: Transformer, b: Transformer) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
