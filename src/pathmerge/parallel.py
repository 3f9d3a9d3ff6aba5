"""Threads that each compute a part with one core: faster for small models than many cores on one operation.

Torch releases the GIL inside its operations, so Python threads with one core each scale, and what one part gives does
not depend on how many threads there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from pathmerge.errors import check_range

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers:
    """A context in which torch computes with one core per operation and `map` with `threads` of them."""

    def __init__(self, threads: int) -> None:
        self.threads = check_range("threads", threads, 1, 1024)
        self._pool: ThreadPoolExecutor | None = None
        self._before = 1

    def __enter__(self) -> Workers:
        self._before = torch.get_num_threads()
        torch.set_num_threads(1)
        if self.threads > 1:
            self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="pathmerge-worker")
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        torch.set_num_threads(self._before)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """The results in the order of the items."""
        return map(function, items) if self._pool is None else self._pool.map(function, items)
