"""The gallery: one pictured example of each task and encoding, made by `pathmerge gallery`, never by hand."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from pathmerge.disk import check_folder, written_whole
from pathmerge.encodings import edges, sentences
from pathmerge.encodings.language import Language
from pathmerge.encodings.sentences import LanguageBatch
from pathmerge.pictures import save
from pathmerge.problems.balanced import Balanced
from pathmerge.problems.batch import Batch
from pathmerge.problems.dfs import DFS
from pathmerge.problems.distribution import Distribution
from pathmerge.problems.naive import Naive
from pathmerge.problems.selection_inference import SelectionInference
from pathmerge.problems.star import Star
from pathmerge.problems.tangled import Tangled
from pathmerge.show import describe_tokens, picture, title

SEED = 4
EXAMPLES: dict[str, tuple[Distribution, str]] = {
    "naive": (
        Naive(input_size=64),
        "Each vertex takes one to four parents before it; the lookahead is left to chance.",
    ),
    "balanced": (
        Balanced(input_size=64, lookahead=4),
        "Every branch must be followed to the goal's depth before the right one shows: the lookahead is exactly 4.",
    ),
    "tangled": (
        Tangled(input_size=64, lookahead=4),
        "Balanced, and somewhere two ways meet: a vertex has two parents. In most balanced problems none has.",
    ),
    "star": (
        Star(input_size=64, spokes=4, lookahead=4),
        "Chains of one length from start, the goal at the end of one.",
    ),
    "dfs": (
        DFS(input_size=64, backtrack=4),
        "A depth-first search so far, and the question which vertex comes next: here it has to go back 4 vertices.",
    ),
    "dfs-padding": (
        DFS(input_size=64, backtrack=2, padding="random", prefix=True),
        "Filler between the visited vertices, and vertices visited before the one to go back to (`prefix`).",
    ),
    "selection": (
        SelectionInference(input_size=64, frontier=3, branch=3, step="selection"),
        "Visited edges so far; choose a visited vertex that has an unvisited child. Three have one.",
    ),
    "inference": (
        SelectionInference(input_size=64, frontier=2, branch=3, step="inference"),
        "The same with a vertex chosen; name one of its unvisited children.",
    ),
    "language": (
        Language(input_size=32, lookahead=2),
        "A balanced problem told in sentences; the model writes the next sentence's atom into the blanks.",
    ),
}
KINDS = {edges.EDGE: "edge", edges.QUERY: "query", edges.STEP: "step", edges.CURRENT: "current"}


def _command(distribution: Distribution) -> str:
    options: list[str] = []
    for field, value in distribution.to_dict().items():
        default = getattr(type(distribution), field, None)
        if field == "name" or (value == default and field != "input_size"):
            continue
        flag = field.replace("_", "-")
        options.append(f"--{flag}" if value is True else f"--{flag} {value}")
    return f"pathmerge sample {distribution.name} {' '.join(options)} --seed {SEED} --count 1 --picture example.png"


def _edge_tokens(batch: Batch) -> str:
    encoded = edges.encode(batch)
    return " ".join(
        f"{KINDS[int(kind)]}({u},{v})"
        for (u, v), kind in zip(encoded.pairs[0], encoded.kind[0], strict=True)
        if kind != edges.PAD
    )


def _section(name: str, distribution: Distribution, about: str, batch: Batch) -> str:
    symbolic = batch.symbolic if isinstance(batch, LanguageBatch) else batch
    answers = ", ".join(str(v) for v in np.flatnonzero(batch.answers[0]))
    lines = [
        f"## {name}",
        "",
        about,
        "",
        f"![{title(batch, 0)}](gallery/{name}.svg)",
        "",
        f"start {batch.start[0]}, goal {batch.goal[0]}, answers {answers}; label {batch.label[0]}",
        "",
        "```",
        _command(distribution),
        "```",
        "",
        "Symbolic tokens, padding left out:",
        "",
        f"    {describe_tokens(symbolic, 0)}",
        "",
        "One token per edge:",
        "",
        f"    {_edge_tokens(symbolic)}",
        "",
    ]
    if isinstance(batch, LanguageBatch):
        lines += [
            "Language:",
            "",
            f"    {describe_tokens(batch, 0)}",
            "",
            f"to be written: {sentences.to_text(batch.label_tokens[0])}",
            "",
        ]
    return "\n".join(lines)


def write_gallery(folder: Path) -> list[str]:
    """Write gallery.md and gallery/*.svg below `folder`; returns the names written."""
    check_folder("folder", folder)
    (folder / "gallery").mkdir(exist_ok=True)
    names: list[str] = []
    text = ["# Gallery", "", "One example of each task and encoding, made by `pathmerge gallery docs`.", ""]
    for name, (distribution, about) in EXAMPLES.items():
        batch = distribution.sample(1, seed=SEED)
        text.append(_section(name, distribution, about, batch))
        save(picture(batch, [0]), folder / "gallery" / f"{name}.svg")
        names.append(f"gallery/{name}.svg")
    with written_whole(folder / "gallery.md") as temporary:
        temporary.write_text("\n".join(text), encoding="utf-8")
    return ["gallery.md", *names]


def stale(folder: Path) -> list[str]:
    """The files that are not what would be written now."""
    with tempfile.TemporaryDirectory() as fresh:
        names = write_gallery(Path(fresh))
        return [
            name
            for name in names
            if not (folder / name).is_file() or (folder / name).read_bytes() != (Path(fresh) / name).read_bytes()
        ]
