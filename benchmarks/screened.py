"""Is a screened circuit the exact one, operation for operation? On balanced inputs of every lookahead.

    .venv/bin/python benchmarks/screened.py RUN_OR_NAME [--count 50]

Inputs of more than 48 tokens, for which exact circuits take minutes, are compared with screened ones in which no effect
is estimated.
"""

from __future__ import annotations

import argparse
import time

import pathmerge as pm
from pathmerge.circuits import screen
from pathmerge.circuits.explain import explain_all
from pathmerge.circuits.files import Circuit
from pathmerge.models.transformer import Transformer
from pathmerge.zoo.shelf import names


def kept(circuit: Circuit, reading: str) -> set[tuple[object, ...]]:
    operations = (circuit.operations[i] for i in getattr(circuit, reading).kept)
    return {(o.layer, o.head, o.target, o.source, o.kind, o.direction) for o in operations}


def found(circuit: Circuit) -> set[tuple[object, ...]]:
    """What a screened circuit says of importance: the first perturbation under which each operation is."""
    return {(o.layer, o.head, o.target, o.source, o.by[0]) for o in circuit.operations}


def surely(model: Transformer, batch: pm.Batch, long: bool) -> list[Circuit]:
    """Circuits with nothing estimated."""
    if not long:
        return [c for c in explain_all(model, batch, mode="exact", trust=False) if c is not None]
    estimated_from, screen.SURE = screen.SURE, batch.tokens.shape[1]
    try:
        return [c for c in explain_all(model, batch, mode="screened", trust=False, audit=0) if c is not None]
    finally:
        screen.SURE = estimated_from


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a run, or a shipped model")
    parser.add_argument("--count", type=int, default=50)
    options = parser.parse_args()
    given: str = options.model
    model = pm.load(given) if given in names() else pm.load_run(given).model
    problem = pm.Balanced(input_size=model.config.input_size)
    long = model.inputs(problem.sample(1)).tokens.shape[1] > screen.SURE
    sure = "not estimated" if long else "exact"
    inputs = compared = different = verdicts = others = 0
    seconds, passes = {sure: 0.0, "screened": 0.0}, {sure: 0, "screened": 0}
    for cell in problem.fixed():
        batch = cell.sample(options.count, seed=21, split="test")
        made: dict[str, list[Circuit]] = {}
        for name in (sure, "screened"):
            began = time.perf_counter()
            if name == sure:
                made[name] = surely(model, batch, long)
            else:
                made[name] = [c for c in explain_all(model, batch, trust=False, audit=0) if c is not None]
            passes[name] += sum(circuit.passes for circuit in made[name])
            seconds[name] += time.perf_counter() - began
        for one, screened in zip(made[sure], made["screened"], strict=True):
            inputs += 1
            others += len(found(one) ^ found(screened)) if long else 0
            for reading in ("strict", "lenient"):
                compared += len(kept(one, reading))
                different += len(kept(one, reading) ^ kept(screened, reading))
            verdicts += one.explained != screened.explained
            verdicts += one.lenient.explained != screened.lenient.explained
    print(f"{inputs} inputs: {compared:,} kept operations, {different} different; {verdicts} verdicts different")
    if long:
        print(f"important operations of which only one of both knows, or under another perturbation: {others}")
    for name in (sure, "screened"):
        print(f"{name}: {seconds[name] / inputs:.4f} seconds and {passes[name] / inputs:,.0f} passes per input")


if __name__ == "__main__":
    main()
