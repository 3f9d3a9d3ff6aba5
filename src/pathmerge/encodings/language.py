"""Search problems as sentences: one token per word or punctuation mark (paper section 3.1.2).

``If Alex is a wumpus , then Riley sees a vumpus .`` for each edge, ``Given <start> , prove <goal> .`` for the query.

Choices a reader could not guess:
- An atom is four tokens: a name, a verb, "a", a noun; 20 names x 5 verbs x 30 nouns = 3,000 atoms. Each vertex gets a
  distinct atom for each example, drawn from the example's own key, so a word says nothing of the graph.
- Text width T(N) = 12·V + 16: twelve tokens for each of up to V sentences, twelve for the query, and a region of four
  for the answer at the right end. In `tokens` that region is blank, so that no model can read the answer there;
  `label_tokens` holds it. Padding stands on the left.
- `input_size` stays the symbolic N. `answers` and `label` stay vertices; `atoms[b, v]` names vertex v.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from pathmerge.errors import check_choice
from pathmerge.problems.balanced import Balanced
from pathmerge.problems.distribution import LABELS, Cell, Distribution, Label, SearchDistribution
from pathmerge.problems.naive import Naive
from pathmerge.problems.star import Star
from pathmerge.rng import Split

if TYPE_CHECKING:
    from pathmerge.encodings.sentences import LanguageBatch
    from pathmerge.heldout import HeldOut

MARKS = ("<pad>", "<blank>", "If", ",", "then", ".", "Given", "prove", "a")
NAMES = tuple(
    "Alex Bailey Casey Devon Emery Finley Gray Harper Indigo Jules "
    "Kai Logan Morgan Noel Oakley Parker Quinn Riley Sage Taylor".split()
)
VERBS = ("is", "sees", "likes", "fears", "follows")
NOUNS = tuple(
    "wumpus vumpus bolmer crannet dorvik tolbit fendle gosper hixen jarnel kelvo lumbat merrow nuffin yostrel "
    "pimlet quorb rundle sprock tarvin hulmot velk wossel yandre zibber brindo clopper dwimmet frobin glimmet".split()
)
WORDS = (*MARKS, *NAMES, *VERBS, *NOUNS)
NUMBER = {word: i for i, word in enumerate(WORDS)}
ATOM_COUNT = len(NAMES) * len(VERBS) * len(NOUNS)
ATOM_WIDTH = 4
SENTENCE_WIDTH = 2 * ATOM_WIDTH + 4
PAD, BLANK = NUMBER["<pad>"], NUMBER["<blank>"]


def text_width(input_size: int) -> int:
    """T(N), the tokens of a text."""
    return SENTENCE_WIDTH * ((input_size - 5) // 3 + 1) + ATOM_WIDTH


@dataclass(frozen=True, kw_only=True)
class Language(Distribution):
    """Naive, balanced or star problems told in sentences."""

    graph: Literal["balanced", "naive", "star"] = "balanced"
    """The distribution the graphs come from."""
    lookahead: int | None = None
    """The lookahead (balanced, star); none: drawn uniformly."""
    max_lookahead: int | None = None
    """The largest lookahead to draw (balanced)."""
    spokes: int | None = None
    """The number of chains (star)."""
    label: Label = "path"
    """As for the symbolic problem."""
    vertices: int | None = None
    """The most vertices (and edges) a problem has; none: all that fit."""

    name: ClassVar[str] = "language"
    difficulty_names: ClassVar[tuple[str, ...]] = ("lookahead", "spokes")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("graph", self.graph, ("balanced", "naive", "star"))
        check_choice("label", self.label, LABELS)
        for field, graphs in (
            ("lookahead", ("balanced", "star")),
            ("max_lookahead", ("balanced",)),
            ("spokes", ("star",)),
        ):
            if getattr(self, field) is not None and self.graph not in graphs:
                raise ValueError(f"{field}={getattr(self, field)}: must be left out when graph={self.graph!r}")
        _ = self.symbolic

    @property
    def symbolic(self) -> SearchDistribution:
        """The distribution of the problems themselves."""
        given = {k: v for k, v in asdict(self).items() if k not in ("graph",) and v is not None}
        return {"balanced": Balanced, "naive": Naive, "star": Star}[self.graph](**given)

    @property
    def width(self) -> int:
        return text_width(self.input_size)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.symbolic.columns

    def cells(self) -> list[Cell]:
        return self.symbolic.cells()

    def fixed(self) -> Sequence[Language]:
        if self.graph == "naive":
            return [self]
        spokes = [cell[1] or None for cell in self.cells()]
        lookaheads = [cell[0] for cell in self.cells()]
        return [
            replace(self, lookahead=lookahead, max_lookahead=None, spokes=spoke)
            for lookahead, spoke in zip(lookaheads, spokes, strict=True)
        ]

    def problem_count(self) -> int | None:
        return self.symbolic.problem_count()

    def sample(
        self,
        count: int,
        *,
        seed: int = 0,
        split: Split = "train",
        stream: int = 0,
        first: int = 0,
        held_out: HeldOut | None = None,
        threads: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> LanguageBatch:
        from pathmerge.encodings.sentences import encode

        symbolic = self.symbolic.sample(
            count,
            seed=seed,
            split=split,
            stream=stream,
            first=first,
            held_out=held_out,
            threads=threads,
            progress=progress,
        )
        return encode(self, symbolic)
