"""How sharp attention starts: what share of it goes, before any training, to rows some steps further along the graph.

    .venv/bin/python benchmarks/sharpness.py [N ...]       # default: 128 152; half a minute each

`matched` builds a model whose rows follow edges; `following` says how strongly. In problems of the largest lookahead
this prints, layer by layer, the mean attention that an edge's source gives to all rows whose vertex is exactly one, and
exactly two steps after its own (sources with such vertices only). A row that merges needs the second layer to find the
first of them, the third the second.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import torch

import pathmerge as pm
from pathmerge.layout import Layout

STRENGTHS = ((1.0, 1.7), (1.4, 1.7), (1.7, 2.0), (2.0, 2.3), (2.5, 2.8))
"""`following` and `asking`."""
INPUTS = 24
LAYERS = 4


def after(edges: np.ndarray, vertices: int, steps: int) -> np.ndarray:
    """Which vertex is `steps` steps after which, and no fewer."""
    link = np.zeros((vertices + 1, vertices + 1), bool)
    link[edges[:, 0], edges[:, 1]] = True
    found, known = np.eye(vertices + 1, dtype=bool), np.eye(vertices + 1, dtype=bool)
    for _ in range(steps):
        found = (found @ link) & ~known
        known |= found
    return found


def shares(model: pm.Transformer, batch: pm.Batch, steps: int) -> list[float]:
    """The mean share by layer."""
    layout = Layout(batch.distribution.input_size)
    sites = [f"blocks.{layer}.attn.hook_pattern" for layer in range(LAYERS)]
    with torch.inference_mode():
        record = model.run(model.inputs(batch).tokens, record=sites).record
    found: list[list[float]] = [[] for _ in sites]
    for i, tokens in enumerate(batch.tokens):
        marks = np.flatnonzero(tokens == layout.edge)
        edges = np.stack([tokens[marks + 1], tokens[marks + 2]], 1)
        ends = np.concatenate([marks + 1, marks + 2])
        wanted = after(edges, layout.max_vertices, steps)[edges[:, 0]][:, tokens[ends]]
        for layer, site in enumerate(sites):
            pattern = record[site][i, 0].numpy()[marks + 1][:, ends]
            found[layer] += list((pattern * wanted).sum(1)[wanted.any(1)])
    return [float(np.mean(values)) for values in found]


def main() -> None:
    torch.set_num_threads(1)
    for size in map(int, sys.argv[1:] or ("128", "152")):
        problem = pm.Balanced(input_size=size)
        batch = replace(problem, lookahead=problem.largest_lookahead).sample(INPUTS, seed=5)
        said = f"{INPUTS} problems of lookahead {problem.largest_lookahead}"
        print(f"N={size}, {said}: attention to rows one, two steps on")
        for following, asking in STRENGTHS:
            config = replace(pm.recipe("matched", size).model, following=following, asking=asking)
            model = config.build(seed=1)
            one, two = shares(model, batch, 1), shares(model, batch, 2)
            layers = "  ".join(f"{a:.2f} {b:.2f}" for a, b in zip(one, two, strict=True))
            print(f"  following {following:g}, asking {asking:g}: by layer  {layers}", flush=True)


if __name__ == "__main__":
    main()
