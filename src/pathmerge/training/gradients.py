"""The gradient of one batch: sorted by length, cut into parts, computed by threads, added up in a fixed order.

Choices a reader could not guess:
- Products of weights are made once per batch (`Transformer.prepare`); the parts differentiate with respect to those,
  and one small backward pass then leads to the parameters.
- The parts and the order in which they are added do not depend on threads or timing: the sum is the same to the bit.
- A parameter without influence (the key's bias under softmax) gets a gradient of exactly zero, not rounding noise.
"""

# torch's list operations carry an underscore but are its only ones.
# pyright: reportPrivateImportUsage=false, reportArgumentType=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from pathmerge.layout import SMALLEST_INPUT_SIZE, Layout
from pathmerge.models.judge import PART_ROWS, Loss, correct, lengths, losses, parts
from pathmerge.models.transformer import Inputs, Transformer
from pathmerge.parallel import Workers
from pathmerge.problems.batch import Batch

QUERY_WIDTH = 3 + Layout(SMALLEST_INPUT_SIZE["search"]).region_width
"""Tokens after the edges of a search problem: QUERY, start, goal and the region."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a batch gave besides gradients, an entry per example, in the order of the batch."""

    loss: np.ndarray
    correct: np.ndarray
    rows: np.ndarray
    """Tokens that are not padding."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A batch ready for the model: its pieces joined."""

    pieces: Sequence[Batch]
    inputs: Inputs
    answers: Tensor
    rows: Tensor
    leads: Tensor | None
    """Which vertices lead to the goal, B x (V+1); only for models with that output."""


def make_task(model: Transformer, pieces: Sequence[Batch], slots: np.ndarray | None = None) -> Task:
    """Encode the pieces of a batch (the current stage of a curriculum and easier ones) for a model.

    `slots`: a new order of the places for edges, padding included (`Curriculum.scatter`).
    """
    encoded = [model.inputs(piece) for piece in pieces]
    width = max(inputs.tokens.shape[1] for inputs in encoded)
    assert all(inputs.tokens.shape[1] == width for inputs in encoded)
    inputs = Inputs(torch.cat([i.tokens for i in encoded]), torch.cat([i.targets for i in encoded]))
    if slots is not None:
        last = inputs.tokens.shape[1] - QUERY_WIDTH
        edges = inputs.tokens[:, last - 3 * len(slots) : last]
        edges.copy_(edges.unflatten(1, (len(slots), 3))[:, torch.from_numpy(slots)].flatten(1))
    answers = torch.from_numpy(np.concatenate([piece.answers for piece in pieces])).to(inputs.tokens.device)
    leads = None
    if model.reach is not None:
        leads = torch.from_numpy(np.concatenate([leading(piece) for piece in pieces])).to(inputs.tokens.device)
    rows = lengths(model, inputs.tokens).cpu()
    return Task(pieces=pieces, inputs=inputs, answers=answers, rows=rows, leads=leads)


def leading(batch: Batch) -> np.ndarray:
    """Which vertices have a path to the goal, or are it, B x (V+1)."""
    sources, targets = batch.edges.transpose(2, 1, 0)
    found = np.zeros((len(batch), batch.distribution.layout.max_vertices + 1), bool)
    every = np.arange(len(batch))
    found[every, batch.goal] = True
    count = -1
    while count != (count := int(found.sum())):
        for source, target in zip(sources, targets, strict=True):
            found[every, source] |= found[every, target]
    found[:, 0] = False
    return found


def add_gradients(
    model: Transformer,
    task: Task,
    workers: Workers,
    *,
    kind: Loss,
    total: int,
    limit: int = PART_ROWS,
    sampled: Tensor | None = None,
    reach: float = 0.0,
) -> Outcome:
    """Add the gradient of sum(losses)/total to the parameters' `grad`.

    `sampled`: a number in [0, 1) per token of the answer, B x R; targets are then drawn from the model's own logits.
    `reach`: the weight of the loss of the model's second output, which the reported loss leaves out.
    """
    prepared = model.prepare()
    names = list(prepared)
    leaves = {name: value.detach().requires_grad_() for name, value in prepared.items()}

    def compute(part: Tensor) -> tuple[tuple[Tensor | None, ...], Tensor, Tensor]:
        chosen = part.to(task.inputs.tokens.device)
        tokens, targets = task.inputs.tokens[chosen], task.inputs.targets[chosen]
        logits, told = model.forward_both(tokens, leaves)
        if sampled is not None:
            targets = draw(logits.detach(), sampled[part].to(logits.device))
        loss = losses(logits, targets, task.answers[chosen], kind if sampled is None else "label")
        whole = loss.sum()
        if reach and told is not None and task.leads is not None:
            whole = whole + reach * reach_losses(told, model.vertices_of(tokens), task.leads[chosen]).sum()
        found = torch.autograd.grad(whole / total, list(leaves.values()), allow_unused=True)
        return found, loss.detach(), logits.detach().argmax(-1).view(len(part), -1)

    split = parts(task.rows, limit)
    loss = np.zeros(len(task.rows), np.float32)
    prediction = np.zeros((len(task.rows), model.answer_width), np.int64)
    sums: list[Tensor | None] = [None] * len(names)
    for part, (found, cost, words) in zip(split, workers.map(compute, split), strict=True):
        loss[part.numpy()] = cost.cpu().numpy()
        prediction[part.numpy()] = words.cpu().numpy()
        first = [i for i, g in enumerate(found) if g is not None and sums[i] is None]
        more = [i for i, g in enumerate(found) if g is not None and sums[i] is not None]
        if more:
            torch._foreach_add_([sums[i] for i in more], [found[i] for i in more])  # pyright: ignore[reportCallIssue]
        for i in first:
            sums[i] = found[i]
    used = [i for i, g in enumerate(sums) if g is not None and prepared[names[i]].requires_grad]
    torch.autograd.backward([prepared[names[i]] for i in used], [sums[i] for i in used])
    right = [
        correct(piece, prediction[at : at + len(piece)])
        for at, piece in zip(np.cumsum([0, *(len(p) for p in task.pieces)])[:-1], task.pieces, strict=True)
    ]
    return Outcome(loss=loss, correct=np.concatenate(right), rows=task.rows.numpy())


def reach_losses(told: Tensor, vertices: Tensor, leads: Tensor) -> Tensor:
    """For each example the mean, over the rows that are about a vertex, of -log of the chance given to the truth."""
    about = vertices > 0
    truth = leads.gather(1, vertices).to(told.dtype)
    each = binary_cross_entropy_with_logits(told.masked_fill(~about, 0.0), truth, reduction="none")
    return torch.where(about, each, 0.0).sum(1) / about.sum(1).clamp(min=1)


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """A token for each row of logits (B x V, or B x R x V), drawn from their softmax with a given uniform number."""
    rows = logits if logits.dim() == 3 else logits[:, None]
    sums = torch.softmax(rows, -1).cumsum(-1)
    at = (sums <= uniform.view(len(rows), -1, 1) * sums[..., -1:]).sum(-1)
    return at.clamp_(max=rows.shape[-1] - 1)
