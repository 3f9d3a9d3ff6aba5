"""Where models err: on balanced problems in which no ways meet, and on tangled ones (some vertex has two parents).

    .venv/bin/python benchmarks/tangled.py [RUN_OR_NAME ...] [--count 20000]

Prints a row for each model (all shipped ones trained on balanced problems, or those given): the share of problems that
are tangled, the share answered wrongly in each group (test split, seed 0), and how much of what is wrong is tangled.
"""

from __future__ import annotations

import argparse

import numpy as np

import pathmerge as pm
from pathmerge.models.judge import ModelJudge
from pathmerge.models.transformer import Transformer
from pathmerge.parallel import Workers
from pathmerge.zoo.shelf import names

TRAINED_ON_BALANCED = ("balanced", "edges")


def tangled(batch: pm.Batch) -> np.ndarray:
    """Which problems have a vertex with two parents."""
    return np.array([np.bincount(targets, minlength=2)[1:].max() > 1 for targets in batch.edges[:, :, 1]])


def row(name: str, model: Transformer, count: int, workers: Workers) -> str:
    size = model.config.input_size
    judge = ModelJudge(model, workers)
    batch = pm.Balanced(input_size=size).sample(count, split="test")
    right, meet = judge(batch)[0], tangled(batch)
    more, _ = judge(pm.Tangled(input_size=size).sample(count, split="test"))
    cells = (f"{meet.mean():.3f}", f"{1 - right[~meet].mean():.5f}", f"{1 - more.mean():.4f}")
    wrong = f"{meet[~right].mean():.2f}" if not right.all() else "-"
    return f"| {name} | {' | '.join(cells)} | {wrong} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[n for n in names() if n.startswith(TRAINED_ON_BALANCED)])
    parser.add_argument("--count", type=int, default=20_000)
    options = parser.parse_args()
    print(
        "| model | tangled, of balanced problems | wrong, where no ways meet | wrong, tangled | of all wrong answers |"
    )
    print("|---|---|---|---|---|")
    with Workers(2) as workers:
        for given in options.models:
            model = pm.load(given) if given in names() else pm.load_run(given).model
            print(row(given, model, options.count, workers), flush=True)


if __name__ == "__main__":
    main()
