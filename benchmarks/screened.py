"""Is a screened circuit the exact one, operation for operation? On balanced inputs of every lookahead.

.venv/bin/python benchmarks/screened.py RUN_OR_NAME [--count 50]
"""

from __future__ import annotations

import argparse
import time

import pathmerge as pm
from pathmerge.circuits.explain import explain_all
from pathmerge.circuits.files import Circuit
from pathmerge.zoo.shelf import names


def kept(circuit: Circuit, reading: str) -> set[tuple[object, ...]]:
    operations = (circuit.operations[i] for i in getattr(circuit, reading).kept)
    return {(o.layer, o.head, o.target, o.source, o.kind, o.direction) for o in operations}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a run, or a shipped model")
    parser.add_argument("--count", type=int, default=50)
    options = parser.parse_args()
    given: str = options.model
    model = pm.load(given) if given in names() else pm.load_run(given).model
    problem = pm.Balanced(input_size=model.config.input_size)
    inputs = compared = different = verdicts = 0
    seconds = {"exact": 0.0, "screened": 0.0}
    for cell in problem.fixed():
        batch = cell.sample(options.count, seed=21, split="test")
        found: dict[str, list[Circuit]] = {}
        for mode in ("exact", "screened"):
            began = time.perf_counter()
            found[mode] = [c for c in explain_all(model, batch, mode=mode, trust=False) if c is not None]
            seconds[mode] += time.perf_counter() - began
        for exact, screened in zip(found["exact"], found["screened"], strict=True):
            inputs += 1
            for reading in ("strict", "lenient"):
                compared += len(kept(exact, reading))
                different += len(kept(exact, reading) ^ kept(screened, reading))
            verdicts += exact.explained != screened.explained
            verdicts += exact.lenient.explained != screened.lenient.explained
    print(f"{inputs} inputs: {compared:,} kept operations, {different} different; {verdicts} verdicts different")
    print("seconds per input: " + ", ".join(f"{mode} {value / inputs:.4f}" for mode, value in seconds.items()))


if __name__ == "__main__":
    main()
