"""Endless batches for training, made ahead of time by threads and handed out as torch tensors, in order.

Choices a reader could not guess:
- Batch j holds examples j·size..(j+1)·size-1 of the stream, so resuming is setting `start`, and processes that share
  the work (`shard`) take contiguous parts of the same batch.
- Each worker thread makes a whole batch without the GIL; at most `ahead` batches exist at a time, so memory is bounded.
- Held-out hits are counted when a batch is handed out, not when it is made: counts belong to what training has seen.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pathmerge.errors import check_range
from pathmerge.heldout import HeldOut
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import Cell, Distribution
from pathmerge.rng import Key, Split

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class TensorBatch:
    """The columns of a `Batch` as tensors that share its memory; `source` is the batch itself."""

    source: Batch
    tokens: Tensor
    """batch x width, int64."""
    label: Tensor
    answers: Tensor
    """batch x vocabulary, bool."""
    difficulty: Tensor
    """batch x 3, int64; the names are those of the distribution."""
    start: Tensor
    goal: Tensor
    identity: Tensor
    """The canonical hash, its 64 bits read as int64."""


def to_tensors(batch: Batch) -> TensorBatch:
    """Wrap a batch in tensors without copying."""
    import torch

    return TensorBatch(
        source=batch,
        tokens=torch.from_numpy(batch.tokens),
        label=torch.from_numpy(batch.label),
        answers=torch.from_numpy(batch.answers),
        difficulty=torch.from_numpy(batch.difficulty),
        start=torch.from_numpy(batch.start),
        goal=torch.from_numpy(batch.goal),
        identity=torch.from_numpy(batch.identity.view(np.int64)),
    )


class Stream:
    """An endless iterator of `TensorBatch`; a context manager, so that its threads end with the block.

    `shard=(rank, processes)`: this process gets its part of each batch; `size` must be divisible by `processes`.
    """

    def __init__(
        self,
        distribution: Distribution,
        size: int,
        *,
        seed: int = 0,
        split: Split = "train",
        stream: int = 0,
        start: int = 0,
        held_out: HeldOut | None = None,
        shard: tuple[int, int] = (0, 1),
        threads: int = 2,
        ahead: int = 8,
    ) -> None:
        check_range("size", size, 1, 2**31)
        check_range("start", start, 0, 2**62)
        check_range("threads", threads, 1, 1024)
        check_range("ahead", ahead, 1, 2**16)
        rank, processes = shard
        check_range("shard[1]", processes, 1, size)
        check_range("shard[0]", rank, 0, processes - 1)
        if size % processes:
            raise ValueError(f"size={size}: must be a multiple of the {processes} processes that share a batch")
        self.key = Key(seed=seed, split=split, stream=stream)
        self.distribution = distribution
        self.size = size
        self.next_example = start
        """The number of the first example not yet handed out (over all shards): what a checkpoint has to keep."""
        self.hits: Counter[Cell] = Counter()
        """Redraws because of held-out problems, by the difficulty of the example that took their place."""
        self._held_out = held_out
        self._part = size // processes
        self._offset = rank * self._part
        self._made = start
        self._ahead = ahead
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="pathmerge-stream")
        self._pending: deque[Future[TensorBatch]] = deque()
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._closed = False

    def _make(self, first: int) -> TensorBatch:
        batch = self.distribution.sample(
            self._part,
            seed=self.key.seed,
            split=self.key.split,
            stream=self.key.stream,
            first=first + self._offset,
            held_out=self._held_out,
            threads=1,
        )
        return to_tensors(batch)

    def __iter__(self) -> Iterator[TensorBatch]:
        return self

    def __next__(self) -> TensorBatch:
        if self._closed or os.getpid() != self._process:
            what = "closed" if self._closed else "another process's"
            raise RuntimeError(f"this stream is {what}: make a new one with start={self.next_example}")
        with self._lock:
            return self._take()

    def _take(self) -> TensorBatch:
        while len(self._pending) < self._ahead:
            self._submit()
        # Taken off the queue only once it is there: an interrupt or an error while waiting loses nothing.
        batch = self._pending[0].result()
        self._pending.popleft()
        self._submit()
        self.next_example += self.size
        redraws = batch.source.redraws
        if redraws.any():
            for row in np.flatnonzero(redraws):
                a, b, c = batch.source.difficulty[row]
                self.hits[int(a), int(b), int(c)] += int(redraws[row])
        return batch

    def _submit(self) -> None:
        self._pending.append(self._pool.submit(self._make, self._made))
        self._made += self.size

    def close(self) -> None:
        """End the threads; batches not handed out are dropped."""
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pending.clear()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
