"""Perturbed passes through a model of one head whose rows can be doubled (`TransformerSubject.doubles`): one kernel for
all layers, products with the weights included, in which a pass stays in the cache.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pathmerge.circuits.forward import forward
from pathmerge.circuits.passes import DENSE, ROUNDING, Outcome, Passes, Watched
from pathmerge.circuits.subject import TransformerSubject
from pathmerge.circuits.trace import Trace
from pathmerge.kernels import carry as kernels
from pathmerge.kernels.products import LANES, ROWS, apart
from pathmerge.kernels.softmax import WIDE
from pathmerge.models.transformer import EPSILON


def carry(
    trace: Trace, layer: int, targets: np.ndarray, mixed: Tensor, watched: Watched, tokens: np.ndarray, skip: float
) -> Outcome:
    """The outcome of passes that change one row each, targets[b] of all, in the attention of a layer below the last:
    `mixed` are its sums of values, with room for ROWS rows more."""
    model, last = trace.model, trace.model.layers - 1
    assert isinstance(model, TransformerSubject)
    owner = trace.owner[targets]
    begin, count = trace.first[owner], trace.counts[owner]
    after = min(layer + 1, last - 1)  # where there is none below the last layer, any will do
    x, allowed = trace.stacked
    scores, pattern, tops, sums, _, _, keys = trace.layers[after].base
    base = (scores, pattern, tops, sums, trace.layers[after].q.numpy(), keys, *trace.doubled(after))
    scores, pattern, tops, sums, _, sums_of_values, keys = trace.layers[last].base
    final = (scores, pattern, tops, sums, keys, sums_of_values, trace.layers[last].q.numpy(), x[last])
    made, room = torch.empty(len(targets), x.shape[2]), int(count.sum())
    change, changed = np.empty(len(targets), np.float32), np.empty(len(targets), bool)
    first, rows, left = np.empty(len(targets) + 1, np.int64), np.empty(room, np.int64), torch.empty(room, x.shape[2])
    found = kernels.carry(
        layer, targets - begin, begin, count, owner, mixed.numpy(), x, allowed, model.all_folded,
        model.doubling(after), base, final, np.float32(trace.scale), watched.pairs, watched.first, watched.was,
        model.width, np.float32(EPSILON), np.float32(ROUNDING), np.float32(skip), DENSE, _scratch(trace, model),
        made.numpy(), change, changed, first, rows, left.numpy(),
    )  # fmt: skip
    token = tokens[owner]
    logit = np.where(
        changed, model.logits(made).numpy()[np.arange(len(token)), token], trace.logits.numpy()[owner, token]
    )
    if found:
        few, end = change < 0, first[found]
        passes = Passes(owner[few], first[: found + 1], rows[:end], left[:end])
        rest = forward(trace, passes, layer + 2, watched, tokens, skip)
        logit[few], change[few] = rest.logit, rest.change
    return Outcome(logit, change)


def _scratch(trace: Trace, model: TransformerSubject) -> kernels.Scratch:
    n, width, active = int(trace.counts.max()), trace.layers[0].x.shape[1], len(model.folded(0).second)
    size, block = len(model.folded(0).mix), kernels.BLOCK
    wide = n + -n % WIDE
    return kernels.Scratch(
        *(room_for(block, columns) for columns in (width, width, size, size, size, 2 * width, 2 * width, active)),
        rows=np.empty(n, np.int64),
        x=room_for(n, width),
        one=tuple(np.zeros(shape, np.float32) for shape in (wide, 2 * width, (n + ROWS, active), (4, wide))),
        whole=(
            *(room_for(n, size), room_for(n, size), apart(np.zeros((size, n + -n % LANES), np.float32))),
            *(room_for(n, wide), room_for(n, active)),
        ),
        last=(np.empty(n, np.int64), np.empty(wide, np.float32), np.empty((n, 2), np.float32)),
    )


def room_for(rows: int, width: int) -> np.ndarray:
    """For so many rows, multiplied by fours; zeros, since what is multiplied for nothing should at least be numbers."""
    return np.zeros((rows + ROWS, width), np.float32)
