"""The gradient of a whole batch: in as many parts as memory asks for, over all processes.

What is random in a step (labels drawn for a Hessian, places of edges) depends on the seed and the number of the example
alone, so it is the same for any number of processes and after any interruption.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pathmerge.layout import Layout
from pathmerge.models.judge import PART_ROWS
from pathmerge.models.transformer import Transformer
from pathmerge.parallel import Workers
from pathmerge.problems.batch import Batch
from pathmerge.training.config import RunConfig
from pathmerge.training.gradients import Outcome, add_gradients, make_task
from pathmerge.training.processes import Processes

FEWEST_ROWS = 256


class BatchGradients:
    """Adds up gradients for a model in training."""

    def __init__(
        self, model: Transformer, config: RunConfig, workers: Workers, processes: Processes, device: torch.device
    ) -> None:
        self._model, self._config, self._workers = model, config, workers
        self._processes, self._device = processes, device

    def add(
        self,
        pieces: Sequence[Batch],
        size: int,
        first: int,
        *,
        reach: float = 0.0,
        scattered: bool = False,
        sampled: bool = False,
    ) -> Outcome:
        """The gradient of the batch of `size` examples from number `first` on, added to that of the parameters.

        `pieces`: this process's part of it, the present stage of a curriculum first. `reach`: the weight of the second
        loss. `scattered`: edges stand anywhere. `sampled`: targets are drawn from the model's own logits.
        """
        settings = self._config.training
        kind = "soft" if getattr(self._config.problem, "label", "") == "soft" else settings.loss
        numbers = self._uniform(pieces, size, first) if sampled else [None] * len(pieces)
        slots = self._slots(first) if scattered else None
        outcomes: list[Outcome] = []
        for part in range(settings.accumulate):
            taken: list[Batch] = []
            chosen: list[np.ndarray] = []
            for piece, uniform in zip(pieces, numbers, strict=True):
                begin, end = (len(piece) * i // settings.accumulate for i in (part, part + 1))
                taken.append(piece.take(slice(begin, end)))
                if uniform is not None:
                    chosen.append(uniform[begin:end])
            task = make_task(self._model, taken, slots)
            draws = torch.from_numpy(np.concatenate(chosen)) if sampled else None
            limit = self._part_rows(int(task.rows.sum()))
            found = add_gradients(
                self._model, task, self._workers, kind=kind, total=size, limit=limit, sampled=draws, reach=reach
            )
            outcomes.append(found)
        parameters = list(self._model.parameters())
        for parameter in parameters:
            if parameter.grad is None:  # a bias that the softmax does not see
                parameter.grad = torch.zeros_like(parameter)
        self._processes.add_up([p.grad for p in parameters if p.grad is not None])
        return _in_order(outcomes, pieces, settings.accumulate)

    def _part_rows(self, rows: int) -> int:
        """Tokens to compute at once: few enough for a core's cache and for every thread to get some."""
        if self._device.type != "cpu":
            return 2**40
        return max(FEWEST_ROWS, min(PART_ROWS, -(-rows // self._workers.threads)))

    def _random(self, first: int) -> np.random.Generator:
        """Random numbers for this step, the same in all processes."""
        return np.random.Generator(np.random.Philox(key=[self._config.seed & (2**63 - 1), first]))

    def _slots(self, first: int) -> np.ndarray:
        """Where the edges of this step's problems stand."""
        return self._random(first).permutation(Layout(self._config.problem.input_size).max_edges)

    def _uniform(self, pieces: Sequence[Batch], size: int, first: int) -> list[np.ndarray]:
        """Numbers to draw labels with, keyed by seed and example: the same for any number of processes."""
        whole = self._random(first).random((size, self._model.answer_width), np.float32)
        found: list[np.ndarray] = []
        at = 0
        for piece in pieces:
            mine = at + self._processes.rank * len(piece)
            found.append(whole[mine : mine + len(piece)])
            at += len(piece) * self._processes.count
        return found


def _in_order(outcomes: Sequence[Outcome], pieces: Sequence[Batch], parts: int) -> Outcome:
    """The outcomes of the parts of a batch, in the order of its pieces."""
    if len(outcomes) == 1:
        return outcomes[0]
    order: list[tuple[int, int, int]] = []
    for part in range(parts):
        at = 0
        for number, piece in enumerate(pieces):
            size = len(piece) * (part + 1) // parts - len(piece) * part // parts
            order.append((number, part, at))
            at += size
    found: dict[str, list[np.ndarray]] = {"loss": [], "correct": [], "rows": []}
    for number, part, at in sorted(order):
        piece = pieces[number]
        size = len(piece) * (part + 1) // parts - len(piece) * part // parts
        for name, values in found.items():
            values.append(getattr(outcomes[part], name)[at : at + size])
    joined = {name: np.concatenate(values) for name, values in found.items()}
    return Outcome(loss=joined["loss"], correct=joined["correct"], rows=joined["rows"])
