"""What a model answers, and how good that is: loss and correctness of each example.

Choices a reader could not guess:
- The loss of an example is -log of the probability of the whole answer: one token, or the four words of an atom.
- A prediction is the token of the largest logit among all tokens; an answer of several tokens is written greedily, each
  word given those before it. It is correct iff it is (the atom of) one of the problem's answers.
- `soft`: cross-entropy with the uniform distribution over all answers. `any`: -log of their total probability.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pathmerge.models.transformer import Inputs, Transformer
from pathmerge.parallel import Workers
from pathmerge.problems.batch import Batch

Loss = Literal["label", "soft", "any"]
LOSSES: tuple[Loss, ...] = ("label", "soft", "any")
PART_ROWS = 2048
"""Tokens computed at once: their activations stay in the cache of one core."""


def losses(logits: Tensor, targets: Tensor, answers: Tensor | None, kind: Loss) -> Tensor:
    """The loss of each example; `answers` (B x V, bool) is needed for all kinds but `label`."""
    if kind == "label":
        return (
            F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), reduction="none")
            .view(targets.shape)
            .sum(1)
        )
    assert answers is not None
    log_chance = torch.log_softmax(logits, -1)
    if kind == "soft":
        return -torch.where(answers, log_chance, 0.0).sum(1) / answers.sum(1)
    return -torch.logsumexp(log_chance.masked_fill(~answers, -torch.inf), 1)


def greedy(model: Transformer, tokens: Tensor, weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The answer's tokens (B x R) and the logits with the given tokens; writes word after word where R > 1."""
    logits = model(tokens, weights)
    if model.answer_width == 1:
        return logits.argmax(-1, keepdim=True), logits
    written = tokens.clone()
    words: list[Tensor] = []
    for place in range(model.answer_width):
        word = model(written, weights)[:, place].argmax(-1)
        words.append(word)
        if place + 1 < model.answer_width:
            written[:, place + 1 - model.answer_width] = word
    return torch.stack(words, 1), logits


def lengths(model: Transformer, tokens: Tensor) -> Tensor:
    """How many rows of each example are not padding."""
    return (~model.padding(tokens)).sum(1)


def parts(rows: Tensor, limit: int = PART_ROWS) -> list[Tensor]:
    """The examples sorted by length and cut into parts of at most `limit` rows (padding to the longest included)."""
    order = torch.argsort(rows, descending=True, stable=True)
    found: list[Tensor] = []
    at = 0
    while at < len(order):
        size = max(1, limit // max(1, int(rows[order[at]])))
        found.append(order[at : at + size])
        at += size
    return found


class ModelJudge:
    """A model as evaluation sees it: a batch in, correct (bool) and loss (float32) of each example out."""

    def __init__(self, model: Transformer, workers: Workers) -> None:
        self.model = model
        self.workers = workers

    @torch.no_grad()
    def __call__(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        prediction, loss = self.answer(batch)
        return correct(batch, prediction), loss

    @torch.no_grad()
    def answer(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """The predicted tokens, B x R, and the loss against the label."""
        inputs = self.model.inputs(batch)
        prediction = np.zeros((len(batch), self.model.answer_width), np.int64)
        loss = np.zeros(len(batch), np.float32)
        if not len(batch):
            return prediction, loss
        weights = self.model.prepare()
        split = parts(lengths(self.model, inputs.tokens).cpu())

        def compute(part: Tensor) -> tuple[np.ndarray, np.ndarray]:
            with torch.no_grad():  # a setting of each thread
                mine = Inputs(inputs.tokens[part], inputs.targets[part])
                words, logits = greedy(self.model, mine.tokens, weights)
                return words.cpu().numpy(), losses(logits, mine.targets, None, "label").cpu().numpy()

        for part, (words, cost) in zip(split, self.workers.map(compute, split), strict=True):
            prediction[part.numpy()] = words
            loss[part.numpy()] = cost
        return prediction, loss


def correct(batch: Batch, prediction: np.ndarray) -> np.ndarray:
    """Whether each predicted answer (B x R tokens) is right."""
    from pathmerge.encodings.sentences import LanguageBatch

    if isinstance(batch, LanguageBatch):
        return batch.correct(prediction)
    return batch.answers[np.arange(len(batch)), prediction[:, 0]]
