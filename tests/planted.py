"""A model whose residuals hold exactly what a test has put there, and the problem that it is asked about."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch import Tensor

import pathmerge as pm
from pathmerge.models.transformer import Transformer

N, V = 48, 14
PROBLEM = pm.Balanced(input_size=N)
Plant = Callable[[int, nx.DiGraph, int], set[int]]
"""What the row of a vertex knows after so many layers, given the graph."""


def planted(plant: Plant, layers: int = 2, *, by: str = "vertex") -> Transformer:
    """A model that computes nothing: each row holds its token, its place and what it is said to know.

    It is said to know ids of vertices, or the places of the edges that leave them. Turned and with a little noise.
    """
    model = pm.OneHot(input_size=N, layers=layers).build()
    generator = torch.Generator().manual_seed(5)
    turn = torch.linalg.qr(torch.randn(model.config.width, model.config.width, generator=generator))[0]

    def run(tokens: Tensor, *, record: list[str]) -> Any:
        x = np.zeros((layers + 1, *tokens.shape, model.config.width), np.float32)
        for i, line in enumerate(tokens.tolist()):
            graph = nx.DiGraph((line[j + 1], line[j + 2]) for j in range(N - 5) if line[j] == V + 2)
            for layer in range(layers + 1):
                # The same dimensions hold a row's own vertex and place and those it knows.
                holds = np.eye(V + 5, model.config.width)
                for u in graph:
                    known = plant(layer, graph, u)
                    places = [j for j in range(1, N - 5) if line[j - 1] == V + 2 and line[j] in known]
                    holds[u, list(known) if by == "vertex" else [model.config.width - N + j for j in places]] = 1.0
                x[layer, i] = np.maximum(holds[line], np.eye(N, model.config.width, model.config.width - N))
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(int(tokens.sum())))
        found = (torch.from_numpy(x) + 0.02 * noise) @ turn
        assert record == [
            *(f"blocks.{n}.hook_resid_pre" for n in range(layers)),
            f"blocks.{layers - 1}.hook_resid_post",
        ]
        return SimpleNamespace(record=dict(zip(record, found, strict=True)))

    model.run = run  # type: ignore[method-assign]
    return model


def ball(graph: nx.DiGraph, u: int, steps: int) -> set[int]:
    return set(nx.single_source_shortest_path_length(graph, u, cutoff=steps))
