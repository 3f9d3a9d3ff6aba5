"""Example problems: what a model has to solve, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pathmerge.encodings import sentences
from pathmerge.encodings.language import BLANK
from pathmerge.encodings.sentences import LanguageBatch
from pathmerge.heldout import hold_out
from pathmerge.pictures import draw_problems
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import Distribution
from pathmerge.problems.problem import Problem
from pathmerge.show import problem_at, title
from pathmerge.training.config import Holding
from pathmerge.viewer.figure import drawn
from pathmerge.viewer.markup import Html, block, element, fold, join, paragraph
from pathmerge.viewer.table import table

if TYPE_CHECKING:
    from pathmerge.models.transformer import Transformer

MOST_DRAWN = 4
TRIED = 32
"""Test problems of a difficulty that are put to the model, to find one that it gets wrong."""
SEED = 1
WIDEST = 10.0
"""Inches that fit a page."""


def example_problems(distributions: Sequence[Distribution]) -> Html:
    """Some problems of these distributions, of difficulties that lie far apart."""
    chosen = spread(distributions, MOST_DRAWN)
    if not chosen:
        return Html("")
    cells = chosen[0].fixed() if len(chosen) == 1 else [d.fixed()[len(d.fixed()) // 2] for d in chosen]
    cells = spread(cells, MOST_DRAWN)
    # Of a single difficulty, the next examples of its stream.
    numbers = range(MOST_DRAWN) if len(cells) == 1 else [0] * len(cells)
    cells = cells * MOST_DRAWN if len(cells) == 1 else cells
    batches = [cell.sample(1, seed=SEED, first=i, threads=1) for cell, i in zip(cells, numbers, strict=True)]
    shown = [_Example.of(batch, 0, _heading(batch, 0)) for batch in batches]
    said = f"Problems of {', '.join(distribution.describe() for distribution in chosen)}."
    return join(_drawn(shown, "Example problems drawn as graphs", said), _told(shown))


def answered_problems(model: Transformer, problem: Distribution, held_out: Holding) -> Html:
    """Test problems of some difficulties with the model's answers: the first of each, and the first it gets wrong."""
    from pathmerge.models.judge import ModelJudge, correct
    from pathmerge.parallel import Workers

    rows: list[dict[str, Any]] = []
    shown: list[_Example] = []
    tried = min(TRIED, held_out.test)
    model.eval()
    with Workers(1) as workers:
        for cell in _cells(problem):
            batch = hold_out([cell], tried, seed=held_out.seed, split="test", threads=1).cells[0].batch
            if not len(batch):
                continue
            written, _ = ModelJudge(model, workers).answer(batch)
            right = correct(batch, written)
            for row in dict.fromkeys([0, *np.flatnonzero(~right)[:1].tolist()]):
                words = f"{len(shown) + 1}. {_heading(batch, row)} – {'right' if right[row] else 'WRONG'}"
                shown.append(_Example.of(batch, row, words, _vertex(batch, row, written[row])))
                rows.append(_line(batch, row, written[row], bool(right[row]), f"{int(right.sum())} of {len(batch)}"))
    if not shown:
        return Html("")
    note = (
        f"Test problems, which training holds out. Of each difficulty the model was given {tried} (or all there are); "
        "shown are the first and the first that it got wrong, so mistakes are not as frequent as they look."
    )
    numbered = [{"": i, **row} for i, row in enumerate(rows, 1)]
    said = "The word “model” stands under the vertex that the model chose."
    graphs = _drawn(shown, "Test problems with answers", said)
    return join(paragraph(note, class_="note"), graphs, _told(shown), table(numbered))


@dataclass(frozen=True)
class _Example:
    """A problem as it is shown."""

    problem: Problem
    label: int
    title: str
    prediction: int | None = None
    told: str | None = None
    """The text, where the problem is told in sentences: what the model reads."""

    @classmethod
    def of(cls, batch: Batch, row: int, title: str, prediction: int | None = None) -> _Example:
        told = _sentences(batch, row) if isinstance(batch, LanguageBatch) else None
        return cls(problem_at(batch, row), int(batch.label[row]), title, prediction, told)


def _drawn(examples: Sequence[_Example], says: str, caption: str) -> Html:
    """All in one figure with one legend; where that would be too wide for a page, one figure for each."""
    figure = draw_problems(
        [example.problem for example in examples],
        labels=[example.label for example in examples],
        titles=[example.title for example in examples],
        predictions=[example.prediction for example in examples],
    )
    if len(examples) == 1 or figure.get_figwidth() <= WIDEST:
        return drawn(figure, says, caption)
    figures = [_drawn([example], says, "") for example in examples]
    return join(element("div", *figures, class_="row"), paragraph(caption, class_="note"))


def _told(examples: Sequence[_Example]) -> Html:
    """The sentences that were drawn as graphs; the first problem's can be read at once."""
    told = [example for example in examples if example.told is not None]
    return join(
        paragraph("As the model reads them, each sentence beside the edge it tells:") if told else None,
        *(fold(example.title, block(str(example.told)), open_=example is told[0]) for example in told),
    )


def _sentences(batch: LanguageBatch, row: int) -> str:
    """A sentence a line, beside it the vertices it is about; last, the answer that training asks for."""
    edges = batch.edges[row][batch.edges[row, :, 0] > 0]
    about = [f"{source} → {target}" for source, target in edges.tolist()]
    about += [f"{batch.start[row]} … {batch.goal[row]}", f"{batch.label[row]}"]
    text = sentences.to_text(batch.tokens[row][batch.tokens[row] != BLANK])
    lines = [*text.replace(" . ", " .\n").split("\n"), sentences.to_text(batch.label_tokens[row])]
    wide = max(map(len, about))
    return "\n".join(f"{vertices:>{wide}}   {line}" for vertices, line in zip(about, lines, strict=True))


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """So many of them, evenly: the first and the last always."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _cells(problem: Distribution) -> list[Distribution]:
    """Difficulties of the model's test suite: some of its own, and the hardest of all if it has just one."""
    from pathmerge.evaluation.suite import test_suite

    suite = test_suite(problem)
    own = next((d for d in suite if type(d) is type(problem) and _kind(d) == _kind(problem)), suite[-1])
    cells = spread(own.fixed(), MOST_DRAWN)
    hardest = suite[-1].fixed()[-1]
    return [*cells, hardest] if len(cells) == 1 and hardest not in cells else cells


def _kind(problem: Any) -> Any:
    return getattr(problem, "graph", None) or getattr(problem, "mode", None)


def _heading(batch: Batch, row: int) -> str:
    return title(batch.symbolic if isinstance(batch, LanguageBatch) else batch, row)


def _vertex(batch: Batch, row: int, written: np.ndarray) -> int | None:
    """The vertex that was answered; none if it is none of this problem's."""
    if isinstance(batch, LanguageBatch):
        named = sentences.atom_tokens(batch.atoms[row, 1:])
        found = np.flatnonzero((named == written).all(-1))
        vertex = int(found[0]) + 1 if len(found) else None
    else:
        vertex = int(written[0])
    return vertex if vertex in problem_at(batch, row).vertices else None


def _line(batch: Batch, row: int, written: np.ndarray, right: bool, share: str) -> dict[str, Any]:
    vertex = _vertex(batch, row, written)
    words = sentences.to_text(written) if isinstance(batch, LanguageBatch) else f"token {int(written[0])}"
    return {
        "problem": _heading(batch, row),
        "start": int(batch.start[row]),
        "goal": int(batch.goal[row]),
        "right answers": ", ".join(str(v) for v in np.flatnonzero(batch.answers[row])),
        "the model answers": words if vertex is None else str(vertex),
        "which is": element("span", "right" if right else "wrong", class_="good" if right else "bad"),
        "right at this difficulty": share,
    }
