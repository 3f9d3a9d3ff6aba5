"""Search problems as sentences: one token per word or punctuation mark (paper section 3.1.2).

``If Alex is a wumpus , then Riley sees a vumpus .`` for each edge, ``Given <start> , prove <goal> .`` for the query.

Choices a reader could not guess:
- An atom is four tokens: a name, a verb, "a", a noun; 20 names x 5 verbs x 30 nouns = 3,000 atoms. Each vertex gets a
  distinct atom for each example, drawn from the example's own key, so a word says nothing of the graph.
- Text width T(N) = 12·V + 16: twelve tokens for each of up to V sentences, twelve for the query, and the answer's region of
  four at the right end. In `tokens` that region is blank, so that no model can read the answer there; `label_tokens`
  holds it. Padding stands on the left.
- `input_size` stays the symbolic N. `answers` and `label` stay vertices; `atoms[b, v]` names vertex v.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Int64

from pathmerge.errors import check_choice
from pathmerge.problems.balanced import Balanced
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import LABELS, Cell, Distribution, Label, SearchDistribution
from pathmerge.problems.naive import Naive
from pathmerge.problems.problem import Problem
from pathmerge.problems.star import Star
from pathmerge.rng import Split

if TYPE_CHECKING:
    from pathmerge.heldout import HeldOut

MARKS = ("<pad>", "<blank>", "If", ",", "then", ".", "Given", "prove", "a")
NAMES = tuple(
    "Alex Bailey Casey Devon Emery Finley Gray Harper Indigo Jules "
    "Kai Logan Morgan Noel Oakley Parker Quinn Riley Sage Taylor".split()
)
VERBS = ("is", "sees", "likes", "fears", "follows")
NOUNS = tuple(
    "wumpus vumpus bolmer crannet dorvik elbit fendle gosper hixen jarnel kelvo lumbat merrow nuffin ostrel "
    "pimlet quorb rundle sprock tarvin ulmot velk wossel yandre zibber brindo clopper dwimmet frobin glimmet".split()
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


def atom_tokens(atoms: np.ndarray) -> np.ndarray:
    """The four tokens of each atom number, along a new last axis."""
    name, rest = np.divmod(atoms, len(VERBS) * len(NOUNS))
    verb, noun = np.divmod(rest, len(NOUNS))
    first_name, first_verb = len(MARKS), len(MARKS) + len(NAMES)
    return np.stack(
        [name + first_name, verb + first_verb, np.full_like(name, NUMBER["a"]), noun + first_verb + len(VERBS)], axis=-1
    )


def _atom_number(words: list[str], at: int) -> int:
    name, verb, article, noun = words[at : at + ATOM_WIDTH]
    if name not in NAMES or verb not in VERBS or article != "a" or noun not in NOUNS:
        raise ValueError(f"text[{at}:{at + ATOM_WIDTH}]={' '.join((name, verb, article, noun))!r}: must be an atom")
    return (NAMES.index(name) * len(VERBS) + VERBS.index(verb)) * len(NOUNS) + NOUNS.index(noun)


@dataclass(frozen=True, kw_only=True)
class LanguageBatch(Batch):
    """A batch whose `tokens` are text. The other columns are those of the symbolic problem."""

    symbolic: Batch
    atoms: Int64[np.ndarray, "batch vertices_and_1"]

    @property
    def edges(self) -> Int64[np.ndarray, "batch edges 2"]:
        return self.symbolic.edges

    @property
    def label_tokens(self) -> Int64[np.ndarray, "batch 4"]:
        """What the model should write into the answer's region."""
        return atom_tokens(self.atoms[np.arange(len(self)), self.label])

    def correct(self, written: Int64[np.ndarray, "batch 4"]) -> Bool[np.ndarray, " batch"]:
        """Whether what was written is, as a whole, the atom of a useful vertex."""
        same = (atom_tokens(self.atoms[:, 1:]) == written[:, None, :]).all(-1)
        return (same & self.answers[:, 1 : self.atoms.shape[1]]).any(1)

    def to_columns(self) -> dict[str, np.ndarray]:
        return {**super().to_columns(), "label_tokens": self.label_tokens, "atoms": self.atoms}

    def take(self, rows: Any) -> LanguageBatch:
        return replace(super().take(rows), symbolic=self.symbolic.take(rows))  # pyright: ignore[reportReturnType]


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

    name: ClassVar[str] = "language"
    difficulty_names: ClassVar[tuple[str, ...]] = ("lookahead", "spokes")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("graph", self.graph, ("balanced", "naive", "star"))
        check_choice("label", self.label, LABELS)
        for field, graphs in (("lookahead", ("balanced", "star")), ("max_lookahead", ("balanced",)), ("spokes", ("star",))):
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

    def fixed(self) -> list[Language]:
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
        return self.encode(symbolic)

    def encode(self, symbolic: Batch) -> LanguageBatch:
        """Tell a symbolic batch in sentences, with atoms from its key."""
        from pathmerge.kernels.atoms import draw_atoms
        from pathmerge.kernels.random import STATE_WORDS

        key, count = symbolic.key, len(symbolic)
        atoms = np.empty((count, self.layout.max_vertices + 1), np.int64)
        state, used = np.zeros(STATE_WORDS, np.uint64), np.zeros(ATOM_COUNT, np.uint8)
        draw_atoms(
            state, np.uint64(key.seed), key.split_number, key.stream, symbolic.first, ATOM_COUNT, used, atoms
        )
        return LanguageBatch(
            **{**symbolic.__dict__, "distribution": self, "tokens": _write(symbolic, atoms)}, symbolic=symbolic, atoms=atoms
        )


def _sentences(opening: str, joint: tuple[str, str], pairs: np.ndarray) -> np.ndarray:
    """``opening <atom> joint <atom> .`` for atom tokens of shape (..., 2, 4)."""
    shape = (*pairs.shape[:-2], 1)

    def word(text: str) -> np.ndarray:
        return np.full(shape, NUMBER[text], np.int64)

    first, second = pairs[..., 0, :], pairs[..., 1, :]
    return np.concatenate([word(opening), first, word(joint[0]), word(joint[1]), second, word(".")], axis=-1)


def _write(symbolic: Batch, atoms: np.ndarray) -> np.ndarray:
    count = len(symbolic)
    rows = np.arange(count)
    edges = symbolic.edges
    named = atom_tokens(atoms)
    graph = _sentences("If", (",", "then"), named[rows[:, None, None], edges])
    graph = np.where(edges[:, :, :1] > 0, graph, PAD).reshape(count, -1)
    ends = np.stack([symbolic.start, symbolic.goal], axis=1)
    query = _sentences("Given", (",", "prove"), named[rows[:, None], ends])
    return np.concatenate([graph, query, np.full((count, ATOM_WIDTH), BLANK)], axis=1)


def to_text(tokens: Iterable[int]) -> str:
    """Tokens as a line of text, padding left out."""
    return " ".join(WORDS[int(t)] for t in tokens if int(t) != PAD)


def render(problem: Problem, atoms: Mapping[int, int], input_size: int) -> list[int]:
    """The text of one search problem, `atoms` giving each vertex its atom's number; the answer's region is blank."""

    def atom(v: int) -> list[int]:
        return [int(t) for t in atom_tokens(np.array(atoms[v]))]

    def words(*parts: str) -> list[int]:
        return [NUMBER[part] for part in parts]

    tokens: list[int] = []
    for u, v in problem.edges:
        tokens += words("If") + atom(u) + words(",", "then") + atom(v) + words(".")
    tokens += words("Given") + atom(problem.start) + words(",", "prove") + atom(problem.goal) + words(".")
    tokens += [BLANK] * ATOM_WIDTH
    return [PAD] * (text_width(input_size) - len(tokens)) + tokens


def parse(tokens: Iterable[int], input_size: int, atoms: Mapping[int, int] | None = None) -> tuple[Problem, dict[int, int]]:
    """The problem a text tells, and the atom of each vertex. A written answer in the region at the right end is ignored.

    Without `atoms` (vertex to atom number) vertices are numbered 1, 2, ... as they first appear.
    """
    from pathmerge.layout import Layout
    from pathmerge.oracle import violations

    words: list[str] = []
    for i, token in enumerate(tokens):
        if not 0 <= int(token) < len(WORDS):
            raise ValueError(f"tokens[{i}]={int(token)}: must be in 0..{len(WORDS) - 1}")
        words.append(WORDS[int(token)])
    if len(words) > text_width(input_size):
        raise ValueError(f"tokens: {len(words)} given, must be at most {text_width(input_size)} at input_size={input_size}")
    at = 0
    while at < len(words) and words[at] == "<pad>":
        at += 1
    numbers = {} if atoms is None else {atom: v for v, atom in atoms.items()}

    def sentence(joint: str) -> tuple[int, int]:
        frame = (words[at], words[at + 5], words[at + 6], words[at + 11])
        opening = "If" if joint == "then" else "Given"
        if frame != (opening, ",", joint, "."):
            raise ValueError(f"text[{at}:{at + SENTENCE_WIDTH}]: must be '{opening} <atom> , {joint} <atom> .'")
        ends: list[int] = []
        for place in (at + 1, at + 7):
            atom = _atom_number(words, place)
            if atom not in numbers and atoms is not None:
                raise ValueError(f"text[{place}:{place + ATOM_WIDTH}]: atom {atom} is not that of any vertex")
            ends.append(numbers.setdefault(atom, len(numbers) + 1))
        return ends[0], ends[1]

    edges: list[tuple[int, int]] = []
    last = len(words) - ATOM_WIDTH - SENTENCE_WIDTH
    if (last - at) % SENTENCE_WIDTH or last < at:
        raise ValueError(f"tokens: {len(words) - at} words, must be {SENTENCE_WIDTH} for each sentence and {ATOM_WIDTH} more")
    while at < last:
        edges.append(sentence("then"))
        at += SENTENCE_WIDTH
    start, goal = sentence("prove")
    problem = Problem("search", tuple(edges), start, goal)
    for violation in violations(problem, Layout(input_size)):
        raise ValueError(violation)
    return problem, {v: atom for atom, v in numbers.items() if v in problem.vertices}
