"""How the results depend on the thresholds: one of α, κ1, κ2 at a time, the others as given.

A sweep takes a whole `explain` for each setting, so it keeps each setting's row as soon as it has it (`sweep.json`;
the table as CSV comes at the end) and does not compute a row again that is there for as many inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pathmerge.circuits.explain import explain_all
from pathmerge.circuits.files import Circuit
from pathmerge.circuits.options import Options
from pathmerge.circuits.results import Inputs, check_inputs, open_folder
from pathmerge.circuits.summary import summarise
from pathmerge.disk import read_json, write_csv, write_json

VALUES = {
    "alpha": (0.1, 0.2, 0.4, 0.8, 1.6),
    "kappa1": (5.0, 10.0, 20.0, 40.0, 80.0),
    "kappa2": (2.5, 5.0, 10.0, 20.0, 40.0),
}
COLUMNS = (
    "explained", "lenient", "maximal", "kept", "sufficiency", "sufficiency_random", "completeness",
    "completeness_random", "minimality", "minimality_random",
)  # fmt: skip
ROWS, TABLE = "sweep.json", "sweep.csv"


def settings(options: Options) -> dict[tuple[float, float, float], str]:
    """The thresholds to try, and which of them differs from what was given; that itself counts as one of α."""
    found: dict[tuple[float, float, float], str] = {}
    for name, values in VALUES.items():
        for value in sorted({*values, getattr(options, name)}):
            changed = replace(options, **{name: value})
            found.setdefault((changed.alpha, changed.kappa1, changed.kappa2), name)
    return found


def sweep(
    folder: Path,
    model: Any,
    inputs: Inputs,
    options: Options,
    *,
    threads: int = 2,
    progress: Callable[[int], None] | None = None,
) -> list[dict[str, Any]]:
    """A row for each setting: the three thresholds and the summary's shares. What is in the folder is not computed
    again; one made for something else is refused."""
    check_inputs(inputs, options)
    open_folder(folder, model, inputs, options)
    batches = [batch for _, batch in inputs.batches]
    total = sum(map(len, batches))
    known = read_json(folder / ROWS, list) if (folder / ROWS).exists() else []
    if not all(isinstance(row, dict) and _is_whole(row) for row in known):
        raise ValueError(f"out: {str(folder / ROWS)!r} is damaged; remove it, and its settings are tried again")
    there = {(row["alpha"], row["kappa1"], row["kappa2"]): row for row in known if row["inputs"] == total}
    table: list[dict[str, Any]] = []
    for setting, varied in settings(options).items():
        thresholds = dict(zip(VALUES, setting, strict=True))
        row = there.get(setting)
        if row is None:
            changed = replace(options, **thresholds)
            circuits: list[Circuit] = []
            for batch in batches:
                for circuit in explain_all(model, batch, changed, threads=threads):
                    circuits += [circuit] if circuit is not None else []
                    if progress is not None:
                        progress(1)
            summary = summarise(circuits)
            shares = {name: summary[name] for name in COLUMNS}
            row = {"varied": varied, **thresholds, "inputs": total, "count": len(circuits), **shares}
            known.append(row)
            write_json(folder / ROWS, known)
        elif progress is not None:
            progress(total)
        table.append(row)
    write_csv(folder / TABLE, table)
    return table


def _is_whole(row: dict[str, Any]) -> bool:
    """Whether a row that was read has all its numbers; shares of nothing are none."""
    known = all(isinstance(row.get(name), int | float) for name in (*VALUES, "inputs"))
    return known and all(isinstance(row.get(name, ""), int | float | None) for name in COLUMNS)
