"""The demonstration: train a transformer to search in minutes, and see the paper's first finding happen.

Two copies of one model, same initial weights, same number of examples: one trained on balanced problems, one on naive
random graphs. Both are then judged on naive, star and balanced problems of every lookahead.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pathmerge.problems.naive import Naive
from pathmerge.recipes import matched
from pathmerge.training.config import RunConfig
from pathmerge.training.curriculum import Curriculum


def balanced_run(input_size: int, seed: int) -> RunConfig:
    """The run of the recipe `matched`."""
    return matched(input_size, seed)


def naive_run(config: RunConfig, examples: int) -> RunConfig:
    """The same model trained on naive problems for the same number of examples, with the same optimizer."""
    training = replace(
        config.training, examples=examples, stop="never", decay=min(config.training.decay or examples, examples)
    )
    return replace(
        config,
        problem=Naive(input_size=config.problem.input_size),
        training=training,
        curriculum=Curriculum(),
        recipe=None,
    )


def demonstrate(out: Path, input_size: int = 32, seed: int = 1) -> dict[str, Path]:
    """Train both, evaluate both; returns the directories of the runs by name."""
    from pathmerge.training.loop import train

    print(f"training on balanced problems, N={input_size}:", flush=True)
    first = train(balanced_run(input_size, seed), out)
    print(f"  {first.examples:,} examples, {first.finished}; now the same model on naive problems:", flush=True)
    second = train(naive_run(first.config, first.examples), out)
    return {"trained on balanced": first.directory, "trained on naive": second.directory}
