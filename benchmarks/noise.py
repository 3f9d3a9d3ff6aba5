"""Where the extraction begins to fail: the compiled model with more and more noise on its weights.

    .venv/bin/python benchmarks/noise.py [--input-size 32] [--count 40] [--seeds 3]

The peer is the model itself: how often it still answers right. Precision and recall are those of its own operations on
the answer's path (strict reading; redundant ones count neither way), against its account without noise.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

import pathmerge as pm
from pathmerge.circuits.explain import explain_all
from pathmerge.circuits.truth import recovery

NOISE = (0.0, 1e-6, 3e-6, 1e-5, 2e-5, 4e-5, 8e-5, 1.6e-4, 3.2e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input-size", type=int, default=32)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    problem = pm.Balanced(input_size=options.input_size)
    batch = problem.sample(options.count, seed=3, split="test")
    many = problem.sample(1000, seed=4, split="test")
    print("| noise | right answers | precision | recall | explained | lenient | sufficient |")
    print("|---|---|---|---|---|---|---|")
    for noise in NOISE:
        rows: list[tuple[float, ...]] = []
        for seed in range(options.seeds if noise else 1):
            model = pm.compiled(options.input_size, noise=noise, seed=seed)
            with torch.no_grad():
                answers = model(model.inputs(many).tokens).argmax(1).numpy()
            right = float(many.answers[np.arange(len(many)), answers].mean())
            circuits = [circuit for circuit in explain_all(model, batch) if circuit is not None]
            truth = recovery(circuits)
            strict = float(np.mean([circuit.explained for circuit in circuits]))
            lenient = float(np.mean([circuit.lenient.explained for circuit in circuits]))
            sufficient = float(np.mean([c.strict.trust.sufficient for c in circuits if c.strict.trust is not None]))
            rows.append((right, truth.precision or 0, truth.recall or 0, strict, lenient, sufficient))
        print(f"| {noise:g} | " + " | ".join(f"{value:.3f}" for value in np.mean(rows, 0)) + " |", flush=True)


if __name__ == "__main__":
    main()
