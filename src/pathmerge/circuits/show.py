"""What `pathmerge explain` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from pathmerge.show import make_console

if TYPE_CHECKING:
    from pathmerge.circuits.history import History
    from pathmerge.circuits.plan import Plan

NOTHING = "–"


def print_summary(summary: Mapping[str, Any], title: str) -> None:
    """Explained and trust, by lookahead and for both readings."""
    console = make_console()
    if not summary["count"]:
        console.print(f"{title}: no circuits; {summary['skipped']} inputs skipped (every vertex id occurs in them)")
        return
    columns = ("lookahead", "count", "correct", "explained", "lenient", "maximal", "kept")
    console.print(f"{title}: explained by path-merging")
    console.print(_table(columns, summary["by_lookahead"]))
    rows = [{"reading": name, **values} for name, values in (("strict", summary["strict"]), ("lenient", summary))]
    for row in rows:
        for name in ("sufficiency", "completeness", "minimality"):
            row[name] = f"{_text(row[name])} ({_text(row[f'{name}_random'])})"
    columns = ("reading", "kept", "sufficiency", "completeness", "minimality")
    console.print("can the circuits be trusted? (in brackets: a random circuit of equal size)")
    console.print(_table(columns, rows))
    skipped = f", {summary['skipped']} skipped" if summary["skipped"] else ""
    zero = summary["without_absent_id"]
    apart = summary["without_absent_id_apart"]
    shares = f"(there explained {_text(apart['explained'])}, lenient {_text(apart['lenient'])})"
    substitute = f"; in {zero} every vertex id occurs, token 0 stood in {shares}" if zero else ""
    console.print(f"{summary['count']} inputs{skipped}, {summary['method']['mode']}{substitute}")
    if summary["audited"]:
        console.print(
            f"audit: {summary['missed']} of {summary['audited']} operations left out should have been kept; "
            f"with 95% confidence at most {summary['missed_at_most']:.2%} are"
        )
    found = summary["recovery"]
    if found is not None and found["precision"] is not None and found["recall"] is not None:
        console.print(
            f"its own operations on the answer's path: precision {found['precision']:.4f}, recall "
            f"{found['recall']:.4f} ({found['found']} found, {found['missing']} missing, {found['extra']} extra; "
            f"{found['redundant']} redundant)"
        )
    if summary["seconds_per_input"] is not None:
        console.print(f"{_seconds(summary['seconds_per_input'])} per input")


def print_plan(plan: Plan, title: str) -> None:
    """What explaining will cost."""
    console = make_console()
    times = f", {plan.rounds} times" if plan.rounds > 1 else ""
    console.print(f"{title}: {plan.inputs} inputs of {plan.rows} rows, {plan.layers} layers, {plan.mode}{times}")
    console.print(f"forward passes   {plan.passes:,} perturbed passes per input (brute force: {plan.brute_force:,})")
    console.print(f"memory           about {plan.memory / 1e9:.2f} GB besides Python and torch")
    console.print(f"time             about {_seconds(plan.seconds)} per input, {_seconds(plan.total)} in all")


def print_sweep(table: Sequence[Mapping[str, Any]], title: str) -> None:
    columns = ("alpha", "kappa1", "kappa2", "explained", "lenient", "kept", "sufficiency", "completeness", "minimality")
    console = make_console()
    console.print(f"{title}: thresholds, over {table[0]['count']} inputs")
    console.print(_table(columns, table))


def print_history(history: History) -> None:
    """Right answers by lookahead and operations already there by layer; and when these appeared."""
    rows = [
        {
            "examples": f"{moment.examples:,}",
            **{f"right L={n}": value for n, value in moment.correct.items()},
            **{f"layer {i + 1}": value for i, value in enumerate(moment.present)},
        }
        for moment in history.moments
    ]
    console = make_console()
    console.print("right answers by lookahead; share of the final circuits' operations already there, by layer")
    console.print(_table(tuple(rows[0]), rows))
    for layer in sorted({found.layer for found in history.appearances}):
        own = [found for found in history.appearances if found.layer == layer]
        first, good = (median_low([getattr(found, name) for found in own]) for name in ("appears", "for_good"))
        console.print(
            f"layer {layer + 1}: half of its {len(own)} operations appear by {first:,} examples and are there for good "
            f"by {good:,}"
        )


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(_text(row[name]) for name in columns))
    return table


def _text(value: Any) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, float):
        return f"{value:.3f}" if value < 10 else f"{value:.1f}"
    return str(value)


def _seconds(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
