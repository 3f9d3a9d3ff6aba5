"""What a draw returns: one array per column, a row per example."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float32, Int64, UInt64

from pathmerge.errors import whole
from pathmerge.problems.distribution import Distribution
from pathmerge.rng import Key

if TYPE_CHECKING:
    from pathmerge.heldout import HeldOut


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Examples first..first+len-1 of a stream.

    Besides the columns below, each difficulty is an attribute under its name: `lookahead`, `spokes`, `backtrack`,
    `frontier`, `branch`, `step` (0 selection, 1 inference), where the distribution has it.
    """

    distribution: Distribution
    key: Key
    first: int
    tokens: Int64[np.ndarray, "batch width"]
    label: Int64[np.ndarray, " batch"]
    answers: Bool[np.ndarray, "batch vocabulary"]
    """Which tokens are correct: column v is vertex v."""
    difficulty: Int64[np.ndarray, "batch 3"]
    start: Int64[np.ndarray, " batch"]
    goal: Int64[np.ndarray, " batch"]
    current: Int64[np.ndarray, " batch"]
    """Search: start; depth-first: the last visited vertex; selection-inference: the vertex that `branch` refers to."""
    identity: UInt64[np.ndarray, " batch"]
    """The canonical hash of the problem (`pathmerge.problems.identity`)."""
    attempts: Int64[np.ndarray, " batch"]
    """How many attempts the example took; count / sum is the acceptance rate."""
    redraws: Int64[np.ndarray, " batch"]
    """How often it was redrawn because the problem is held out."""
    held_out: HeldOut | None = field(default=None, repr=False)
    """What it was drawn with."""

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, index: int) -> Batch:
        """One example, as a batch of its own."""
        at = range(len(self))[whole("index", index)]
        return self.take(slice(at, at + 1))

    def __getattr__(self, name: str) -> Int64[np.ndarray, " batch"]:
        # A batch that is being unpickled or copied has nothing in it yet.
        distribution = self.__dict__.get("distribution")
        if distribution is None:
            raise AttributeError(name)
        names = distribution.difficulty_names
        if name in names:
            return self.difficulty[:, names.index(name)]
        raise AttributeError(f"{name!r}: a batch of {distribution.name} has no such column; it has {', '.join(names)}")

    @property
    def edges(self) -> Int64[np.ndarray, "batch edges 2"]:
        """The edges in input order, right-aligned; (0, 0) where there is none."""
        layout = self.distribution.layout
        end = layout.input_size - layout.region_width - 3
        slots = self.tokens[:, end - 3 * layout.max_edges : end].reshape(len(self), layout.max_edges, 3)
        return np.where(slots[:, :, :1] == layout.edge, slots[:, :, 1:], 0)

    @property
    def target(self) -> Float32[np.ndarray, "batch vocabulary"]:
        """What the loss compares with: the label, or with `label="soft"` the uniform distribution over all answers."""
        if getattr(self.distribution, "label", None) == "soft":
            return (self.answers / self.answers.sum(1, keepdims=True)).astype(np.float32)
        return np.eye(self.answers.shape[1], dtype=np.float32)[self.label]

    def to_columns(self) -> dict[str, np.ndarray]:
        """The columns of a file, by name."""
        difficulty = {name: self.difficulty[:, i] for i, name in enumerate(self.distribution.columns)}
        names = ("tokens", "label", "answers", *difficulty, "start", "goal", "current", "identity", "redraws")
        return {name: difficulty[name] if name in difficulty else getattr(self, name) for name in names}

    def take(self, rows: slice) -> Batch:
        """The examples of some consecutive rows."""
        return replace(self, **self._at(rows))

    def _at(self, rows: slice) -> dict[str, Any]:
        start, _, step = rows.indices(len(self))
        if step != 1:
            raise ValueError(f"rows={rows!r}: must be consecutive, so that the batch is still a stretch of its stream")
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        columns = {name: value[rows] for name, value in values.items() if isinstance(value, np.ndarray)}
        return {**columns, "first": self.first + start}
