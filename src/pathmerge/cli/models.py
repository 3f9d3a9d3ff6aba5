"""The commands `models` and `ship`: the shelf of trained models, and how one is put there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from pathmerge.cli.progress import announce_compilation, progress_bar
from pathmerge.zoo.shelf import SHELF, Card, card, names, weights_of


def models(name: Annotated[str | None, tyro.conf.Positional] = None, shelf: Path = SHELF) -> int:
    """List the trained models that come with pathmerge; with a name, say all about one.

    `pathmerge evaluate`, `pathmerge explain` and `pathmerge.load` take these names.

    Args:
        name: A model of the list.
        shelf: Where the models are.
    """
    if not shelf.is_dir():
        raise ValueError(f"shelf={str(shelf)!r}: no such directory")
    if name is None:
        _print_list([card(found, shelf) for found in names(shelf)])
    else:
        _print_card(card(name, shelf), weights_of(name, shelf))
    return 0


def ship(
    run: Annotated[Path, tyro.conf.Positional],
    name: Annotated[str, tyro.conf.Positional],
    about: str,
    shelf: Path = SHELF,
    replace: bool = False,
    count: int | None = None,
    half: bool = False,
    threads: int = 2,
) -> int:
    """Judge a finished run on its test problems and put its model, with a card, on the shelf.

    Args:
        run: The run's directory.
        name: The name it will have.
        about: One line that says what it is.
        shelf: Where to write: NAME.safetensors and NAME.json; none: into the package.
        replace: Even if there is a model of this name.
        count: Test problems of each difficulty to judge it on; none: all. Large problems have hundreds of difficulties.
        half: Round its weights to 16 bits before they are judged and kept, for a file of half the size.
        threads: Cores to compute with.
    """
    from pathmerge.evaluation.suite import per_cell, test_suite
    from pathmerge.training.run import load_run
    from pathmerge.zoo.ship import ship as put

    loaded = load_run(run)
    announce_compilation(loaded.config.problem)
    suite = test_suite(loaded.config.problem)
    each = per_cell(suite, loaded.config.held_out.test)
    total = (each if count is None else min(each, count)) * sum(len(part.cells()) for part in suite)
    with progress_bar("judging", total, long=total > 5000) as advance:
        made = put(
            loaded, name, about, shelf=shelf, replace=replace, count=count, half=half, threads=threads, progress=advance
        )
    _print_card(made, weights_of(name, shelf))
    return 0


def _print_list(cards: list[Card]) -> None:
    from rich.table import Table

    from pathmerge.show import make_console

    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    for column in ("N", "track", "examples", "balanced", "at worst", "naive", "stars"):
        table.add_column(column, justify="left" if column == "track" else "right", no_wrap=True)
    table.add_column("what it is")
    for one in cards:
        shares = (one.share("balanced"), one.worst("balanced"), one.share("naive"), one.share("star"))
        size = str(one.config["problem"]["input_size"])
        table.add_row(one.name, size, one.track, f"{one.examples:,}", *map(_share, shares), one.about)
    make_console().print(table)


def _print_card(one: Card, path: Path) -> None:
    print(f"{one.name}: {one.about}")
    size = path.stat().st_size / 1e6
    print(f"track {one.track}, {one.parameters:,} parameters, {size:.1f} MB, sha256 {one.sha256[:16]}…")
    print(f"trained on {one.examples:,} examples, {one.flops:.3g} FLOPs, {one.seconds:.0f} s ({one.finished})")
    print(f"by: {one.command}")
    print("with: " + ", ".join(f"{name} {version}" for name, version in one.made_with.items()))
    print("accuracy on test problems (right of seen):")
    for distribution, cells in one.accuracy.items():
        share, worst = one.share(distribution), one.worst(distribution)
        print(f"  {distribution}: mean {_share(share)}, at worst {_share(worst)}")
        for difficulty, (right, seen) in cells.items():
            print(f"    {difficulty}: {_share(right / seen if seen else None)} ({right:,} of {seen:,})")


def _share(value: float | None) -> str:
    """Cut, not rounded: 0.9996 must not look like 1."""
    from pathmerge.training.progress import cut

    return "-" if value is None else cut(value)
