"""Several processes that train together (`torchrun`): who I am, and sums over all of them.

Each process computes its part of every batch and gradients are added up, so that all take the same step. Without
torchrun there is one process and nothing is sent anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor


class Processes:
    """The group this process belongs to; a context manager that joins and leaves it."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self._joined = False

    @property
    def leads(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def join(self, device: torch.device) -> None:
        if self.count > 1 and not self._joined:
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
            self._joined = True

    def leave(self) -> None:
        if self._joined:
            dist.destroy_process_group()
            self._joined = False

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes, with one message."""
        if self.count == 1:
            return
        joined = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(joined)
        at = 0
        for tensor in tensors:
            tensor.copy_(joined[at : at + tensor.numel()].view_as(tensor))
            at += tensor.numel()

    def add_numbers(self, numbers: np.ndarray, device: torch.device) -> np.ndarray:
        """The sum over all processes of a vector of float64."""
        if self.count == 1:
            return numbers
        kind = torch.float64 if device.type != "mps" else torch.float32
        sums = torch.from_numpy(numbers).to(device=device, dtype=kind)
        dist.all_reduce(sums)
        return sums.cpu().numpy().astype(np.float64)

    def wait(self) -> None:
        """Until all have come to this point."""
        if self.count > 1:
            dist.barrier()
