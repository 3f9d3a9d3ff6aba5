"""From a finished run to a model on the shelf: its weights, judged once on the test problems, and the card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as changed
from pathlib import Path

from pathmerge.disk import written_whole
from pathmerge.errors import check_range
from pathmerge.evaluation.accuracy import cells_of
from pathmerge.evaluation.evaluate import evaluate_model
from pathmerge.evaluation.suite import hold_out_test
from pathmerge.models.weights import load_weights, save_weights
from pathmerge.recipes import command_of, track_of
from pathmerge.training.run import Run, read_versions
from pathmerge.zoo.shelf import SHELF, Card, Counts, checksum, names, weights_of


def ship(
    run: Run,
    name: str,
    about: str,
    *,
    shelf: Path = SHELF,
    replace: bool = False,
    count: int | None = None,
    half: bool = False,
    threads: int = 2,
    progress: Callable[[int], None] | None = None,
) -> Card:
    """Put a run's model on the shelf under a name; `replace`: even if there is one of that name; `count`: judge it on
    the first so many test problems of each difficulty (none: on all); `half`: round its weights to 16 bits first.

    Its weights appear when they have been judged, and the card last: without it there is no model.
    """
    check_range("threads", threads, 1, 1024)
    if count is not None:
        check_range("count", count, 1, run.config.held_out.test, "the run's test problems of each difficulty")
    if run.finished is None:
        raise ValueError(f"run={str(run.directory)!r}: is not finished; train it to its end first")
    if not name.replace("-", "").isalnum():
        raise ValueError(f"name={name!r}: must be letters, digits and hyphens")
    if not about.strip() or len(about.splitlines()) > 1:
        raise ValueError(f"about={about!r}: must be one line that says what the model is")
    if name in names(shelf) and not replace:
        raise ValueError(f"name={name!r}: there is a model of this name; choose another, or --replace it")
    track, command = track_of(run.config), command_of(run.config)
    try:
        shelf.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"shelf={str(shelf)!r}: {error.strerror}") from None
    path = weights_of(name, shelf)
    with written_whole(path, "shelf") as temporary:
        save_weights(run.model, temporary, half=half)
        model = load_weights(temporary)
        held = run.config.held_out
        cells = [
            changed(cell, batch=cell.batch.take(slice(0, count)))
            for cell in hold_out_test(run.config.problem, held.test, held.seed).cells
        ]
        table = evaluate_model(model, cells, threads=threads, heuristics=False, progress=progress)
        accuracy: Counts = {}
        for of in dict.fromkeys(row.distribution for row in table.rows):
            accuracy[of] = {row.difficulty: (row.correct, row.examples) for row in cells_of(table.rows, of)}
        end = next(line for line in reversed(run.metrics()) if line["kind"] == "end")
        card = Card(
            name=name,
            about=about,
            track=track,
            command=command,
            config=run.config.to_dict(),
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            examples=run.examples,
            flops=end["flops"],
            seconds=round(end["seconds"], 1),
            finished=run.finished,
            accuracy=accuracy,
            made_with=read_versions(run.directory),
            sha256=checksum(temporary),
        )
        path.with_suffix(".json").unlink(missing_ok=True)  # it would describe other weights
    with written_whole(path.with_suffix(".json"), "shelf") as temporary:
        temporary.write_text(card.to_json(), encoding="utf-8")
    return card
