"""How the results depend on the thresholds: one of α, κ1, κ2 at a time, the others as given."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pathmerge.circuits.explain import explain_all
from pathmerge.circuits.options import Options
from pathmerge.circuits.results import Inputs
from pathmerge.circuits.summary import summarise
from pathmerge.files import written_whole

VALUES = {
    "alpha": (0.1, 0.2, 0.4, 0.8, 1.6),
    "kappa1": (5.0, 10.0, 20.0, 40.0, 80.0),
    "kappa2": (2.5, 5.0, 10.0, 20.0, 40.0),
}
COLUMNS = (
    "explained", "lenient", "maximal", "kept", "sufficiency", "sufficiency_random", "completeness",
    "completeness_random", "minimality", "minimality_random",
)  # fmt: skip


def sweep(
    model: Any, inputs: Inputs, options: Options, *, threads: int = 2, progress: Callable[[int], None] | None = None
) -> list[dict[str, Any]]:
    """A row for each setting: the three thresholds and the summary's shares."""
    batches = [batch for _, batch in inputs.batches]
    table: list[dict[str, Any]] = []
    seen: set[tuple[float, ...]] = set()
    for name, values in VALUES.items():
        for value in values:
            changed = replace(options, **{name: value})
            setting = (changed.alpha, changed.kappa1, changed.kappa2)
            if setting in seen:
                continue
            seen.add(setting)
            circuits = []
            for batch in batches:
                for circuit in explain_all(model, batch, changed, threads=threads):
                    circuits += [circuit] if circuit is not None else []
                    if progress is not None:
                        progress(1)
            summary = summarise(circuits)
            row = dict(zip(("alpha", "kappa1", "kappa2"), setting, strict=True))
            table.append({"varied": name, **row, "count": len(circuits), **{key: summary[key] for key in COLUMNS}})
    return table


def settings_count() -> int:
    """How many settings a sweep tries."""
    return sum(map(len, VALUES.values())) - 2


def write_sweep(table: list[dict[str, Any]], folder: Path) -> Path:
    """Write the table as CSV."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "sweep.csv"
    with written_whole(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    return path
