"""The commands `sample`, `verify` and `gallery`: problems drawn, judged and shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from pathmerge.cli.progress import announce_compilation, progress_bar
from pathmerge.errors import check_range
from pathmerge.problems.balanced import Balanced
from pathmerge.problems.distribution import Distribution
from pathmerge.rng import Split

if TYPE_CHECKING:
    from pathmerge.heldout import HeldOut

NOT_LONG = 20_000
MOST_PICTURED = 6


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """What to draw and what to do with it."""

    count: int = 10
    """How many problems to draw."""
    seed: int = 0
    """The seed; the same seed gives the same problems on every machine."""
    split: Split = "train"
    """The split to draw from; splits share no randomness."""
    stream: int = 0
    """An independent stream of the same seed and split."""
    first: int = 0
    """The number of the first example."""
    out: Path | None = None
    """Write the problems to this file: .npz, .parquet or .jsonl."""
    picture: Path | None = None
    """Draw the first problems (at most 6) to this file: .png or .svg."""
    stats: bool = False
    """Print histograms of difficulty, vertices, edges and degrees, and the acceptance rate."""
    held_out: Path | None = None
    """A problem file; its problems are redrawn wherever they come up."""
    show: int = 5
    """How many problems to print."""
    threads: int | None = None
    """Threads to draw with (none: as many as cores, at most 8); they change nothing but the time."""


def sample(distribution: Distribution, options: SampleOptions) -> int:
    """Draw problems, show them, write them."""
    from pathmerge import show
    from pathmerge.disk import check_output
    from pathmerge.files import SUFFIXES, read_problems, write_problems

    check_range("count", options.count, 1, 10**9)
    check_range("show", options.show, 0, 10**6)
    if options.out is not None:
        check_output("out", options.out, SUFFIXES)
    if options.picture is not None:
        check_output("picture", options.picture, (".png", ".svg"))
    held_out: HeldOut | None = None
    if options.held_out is not None:
        held_out = read_problems(options.held_out, "held_out").held_out
        if options.out is not None and options.out.resolve() == options.held_out.resolve():
            raise ValueError(f"out={str(options.out)!r}: must not be the held-out file itself")
    announce_compilation(distribution)
    with progress_bar("drawing", options.count, long=options.count > NOT_LONG) as advance:
        batch = distribution.sample(
            options.count,
            seed=options.seed,
            split=options.split,
            stream=options.stream,
            first=options.first,
            held_out=held_out,
            threads=options.threads,
            progress=advance,
        )
    # Files first: a reader of the output who goes away early (`| head`) must not cost them.
    if options.out is not None:
        write_problems(batch, options.out)
    pictured = min(len(batch), MOST_PICTURED)
    if options.picture is not None:
        from pathmerge.pictures import save

        save(show.picture(batch, range(pictured)), options.picture)
    show.print_table(batch, options.show)
    if options.stats:
        show.print_statistics(batch)
    if held_out is not None:
        print(f"{int(batch.redraws.sum())} held-out problems met and redrawn")
    if options.out is not None:
        print(f"wrote {len(batch)} problems to {options.out}")
    if options.picture is not None:
        print(f"drew {pictured} problems to {options.picture}")
    return 0


def verify(file: Annotated[Path, tyro.conf.Positional], held_out: Path | None = None) -> int:
    """Judge every problem of a file with the slow oracle, and draw it again from the key in its header.

    Args:
        file: The problem file: .npz, .parquet or .jsonl.
        held_out: A second file; prove that the two have no problem in common.
    """
    from pathmerge import show
    from pathmerge.files import read_problems
    from pathmerge.verify import verify as judge

    problems = read_problems(file)
    held = None if held_out is None else read_problems(held_out, "held_out")
    announce_compilation(problems.distribution)
    with progress_bar("judging", len(problems), long=len(problems) > 1000) as advance:
        verdict = judge(problems, held, advance)
    show.print_verdict(problems, verdict)
    return 0 if verdict.right else 1


def gallery(folder: Annotated[Path, tyro.conf.Positional] = Path("docs"), check: bool = False) -> int:
    """Write gallery.md and its pictures: one example of each task and encoding.

    Args:
        folder: Where to write; gallery.md stands in it, the pictures in its folder `gallery`.
        check: Write nothing; say whether what is there is what would be written, and end with 1 if not.
    """
    from pathmerge.gallery import stale, write_gallery

    announce_compilation(Balanced(input_size=64))
    if check:
        old = stale(folder)
        for name in old:
            print(f"out of date: {folder / name}")
        return 1 if old else 0
    for name in write_gallery(folder):
        print(f"wrote {folder / name}")
    return 0


def sampler(kind: type[Distribution]) -> Callable[..., int]:
    """The command that samples problems of this kind."""

    def run(
        problem: Annotated[Any, tyro.conf.arg(name="")], options: Annotated[SampleOptions, tyro.conf.arg(name="")]
    ) -> int:
        return sample(problem, options)

    run.__annotations__["problem"] = Annotated[kind, tyro.conf.arg(name="")]
    run.__annotations__["options"] = Annotated[SampleOptions, tyro.conf.arg(name="")]
    run.__doc__ = kind.__doc__
    return run
