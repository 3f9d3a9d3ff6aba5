"""A running mean of the weights: what is judged and kept, while training goes on from the last ones.

At a rate that has not fallen yet the weights move about where they should be; their mean lies nearer. Each step counts
by its examples, with a weight that falls off over `span` of them (exponentially); before so many have been seen, all
count alike.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """The mean of some named parameters."""

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], span: int) -> None:
        self.span = span
        self._names = [name for name, _ in named]
        self._parameters: list[Tensor] = [parameter.detach() for _, parameter in named]
        self._mean = [value.clone() for value in self._parameters]

    def add(self, size: int, examples: int) -> None:
        """Take in the weights after a step of `size` examples, `examples` in all."""
        weight = size / max(size, min(self.span, examples))
        torch._foreach_lerp_(self._mean, self._parameters, weight)  # pyright: ignore[reportPrivateImportUsage]

    @contextmanager
    def in_place(self) -> Generator[None]:
        """For a while, the model has the mean for its weights."""
        last = [value.clone() for value in self._parameters]
        _copy(self._mean, self._parameters)
        try:
            yield
        finally:
            _copy(last, self._parameters)

    def state(self) -> dict[str, Tensor]:
        return dict(zip(self._names, self._mean, strict=True))

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        _copy([tensors[name] for name in self._names], self._mean)


def _copy(values: Sequence[Tensor], into: Sequence[Tensor]) -> None:
    for value, place in zip(values, into, strict=True):
        place.copy_(value)
