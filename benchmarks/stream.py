"""What the stream costs a training loop: `python benchmarks/stream.py`

A small transformer takes steps on one batch again and again (the peer), and on fresh batches from a stream, in turns in
the same run. The ratio of the two times is the price of fresh data.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import repeat

import torch
from torch import Tensor, nn

import pathmerge as pm
from pathmerge.stream import TensorBatch

STEPS = 10
ROUNDS = 10


class Model(nn.Module):
    """Two encoder layers, about a tenth of the work of the smallest model of the paper."""

    def __init__(self, size: int) -> None:
        super().__init__()
        vocabulary = pm.Layout(size).vocabulary_size
        self.embedding = nn.Embedding(vocabulary, 64)
        layer = nn.TransformerEncoderLayer(64, 2, 64, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embedding(tokens))[:, -1])


def steps(model: Model, optimizer: torch.optim.Optimizer, batches: Iterator[TensorBatch]) -> float:
    begin = time.perf_counter()
    for _ in range(STEPS):
        batch = next(batches)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch.tokens), batch.label).backward()
        optimizer.step()
    return (time.perf_counter() - begin) / STEPS


def main() -> None:
    print(
        "| N | batch | ms a step, one batch again and again | ms a step, stream | ratio |\n|---:|---:|---:|---:|---:|"
    )
    for size in (32, 64, 128):
        model = Model(size)
        optimizer = torch.optim.AdamW(model.parameters())
        with pm.Stream(pm.Balanced(input_size=size), 256, threads=1) as stream:
            same = repeat(next(stream))
            steps(model, optimizer, stream)
            old = new = float("inf")
            for _ in range(ROUNDS):
                old = min(old, steps(model, optimizer, same))
                new = min(new, steps(model, optimizer, stream))
        print(f"| {size} | 256 | {old * 1e3:.1f} | {new * 1e3:.1f} | {new / old:.3f} |", flush=True)


if __name__ == "__main__":
    main()
