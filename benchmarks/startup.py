"""How long a start takes: `python benchmarks/startup.py`

Each line is the fastest of five fresh processes, and its ratio to a process that only imports numpy, measured in the
same run. The kernels are compiled before (once), so the draws here are second starts.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

LINES: dict[str, Sequence[str]] = {
    "import numpy (the peer)": ["-c", "import numpy"],
    "pathmerge --help": ["-m", "pathmerge", "--help"],
    "import pathmerge": ["-c", "import pathmerge"],
    "draw 1 problem": ["-c", "import pathmerge; pathmerge.Balanced(input_size=128).sample(1)"],
    "pathmerge sample balanced, 4,000 problems": (
        "-m pathmerge sample balanced --input-size 128 --lookahead 8 --count 4000 --show 0".split()
    ),
}


def seconds(arguments: Sequence[str]) -> float:
    def once() -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - begin

    return min(once() for _ in range(5))


def main() -> None:
    subprocess.run([sys.executable, *LINES["draw 1 problem"]], check=True)
    peer = seconds(LINES["import numpy (the peer)"])
    print("| start | seconds | ratio |\n|---|---:|---:|")
    for name, arguments in LINES.items():
        taken = seconds(arguments)
        print(f"| {name} | {taken:.2f} | {taken / peer:.1f}x |", flush=True)


if __name__ == "__main__":
    main()
