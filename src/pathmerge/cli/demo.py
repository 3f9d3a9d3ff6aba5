"""The command `demo`: what `make demo` runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pathmerge.cli.evaluate import compare
from pathmerge.cli.explain import explain
from pathmerge.cli.progress import announce_compilation
from pathmerge.cli.subject import load_subject
from pathmerge.problems.balanced import Balanced


def demo(out: Path = Path("demo"), input_size: int = 32, seed: int = 1) -> int:
    """Train one model on balanced and one on naive problems, evaluate both, and see what the first computes.

    Args:
        out: Where to write runs, tables and figures.
        input_size: N, the size of the problems.
        seed: The seed of weights and data.
    """
    from pathmerge.demo import demonstrate

    announce_compilation(Balanced(input_size=input_size))
    runs = demonstrate(out / "runs", input_size, seed)
    subjects = [replace(load_subject(str(directory), "search"), name=name) for name, directory in runs.items()]
    compare(subjects, figure=out / "accuracy.png")
    first = next(iter(runs.values()))
    print("\nwhich algorithm did it learn? circuits of the model trained on balanced problems:", flush=True)
    explain(str(first), count=10, out=first / "circuits")
    print("\nthe same of its initial weights, before training, as a control:", flush=True)
    explain(str(first), count=5, out=first / "circuits-initial", pictures=0, initial=True)
    print("\nthe same of hand-written path-merging, the known truth:", flush=True)
    explain("compiled", count=5, out=out / "circuits-compiled", pictures=1, input_size=input_size)
    from pathmerge.viewer.demo import demo_page
    from pathmerge.viewer.report import REPORT, write_page

    print(f"\nall of it on one page: {write_page(out / REPORT, demo_page(out, runs))}")
    return 0
