"""The arrays of the language encoding: atoms for vertices, sentences for edges, and the way back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from pathmerge.encodings.language import (
    ATOM_COUNT,
    ATOM_WIDTH,
    BLANK,
    MARKS,
    NAMES,
    NOUNS,
    NUMBER,
    PAD,
    SENTENCE_WIDTH,
    VERBS,
    WORDS,
    Language,
    text_width,
)
from pathmerge.errors import check_range
from pathmerge.layout import Layout
from pathmerge.oracle import violations
from pathmerge.problems.batch import Batch
from pathmerge.problems.problem import Problem


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

    def take(self, rows: slice) -> LanguageBatch:
        return replace(self, **self._at(rows), symbolic=self.symbolic.take(rows))


def encode(language: Language, symbolic: Batch) -> LanguageBatch:
    """Tell a symbolic batch in sentences, with atoms from its key."""
    from pathmerge.kernels.atoms import draw_atoms
    from pathmerge.kernels.random import STATE_WORDS

    key, count = symbolic.key, len(symbolic)
    atoms = np.empty((count, language.layout.max_vertices + 1), np.int64)
    state, used = np.zeros(STATE_WORDS, np.uint64), np.zeros(ATOM_COUNT, np.uint8)
    draw_atoms(state, np.uint64(key.seed), key.split_number, key.stream, symbolic.first, ATOM_COUNT, used, atoms)
    values: dict[str, Any] = {f.name: getattr(symbolic, f.name) for f in fields(Batch)}
    values |= {"distribution": language, "tokens": _write(symbolic, atoms)}
    return LanguageBatch(**values, symbolic=symbolic, atoms=atoms)


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


def to_text(tokens: Iterable[Any]) -> str:
    """Tokens as a line of text, padding left out."""
    return " ".join(WORDS[int(t)] for t in tokens if int(t) != PAD)


def render(problem: Problem, atoms: Mapping[int, int], input_size: int) -> list[int]:
    """The text of one search problem, `atoms` giving each vertex its atom's number; the answer's region is blank."""

    for violation in violations(problem, Layout(input_size)):
        raise ValueError(violation)
    for vertex in problem.vertices:
        check_range(f"atoms[{vertex}]", atoms.get(vertex), 0, ATOM_COUNT - 1)

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


def parse(
    tokens: Iterable[Any], input_size: int, atoms: Mapping[int, int] | None = None
) -> tuple[Problem, dict[int, int]]:
    """The problem a text tells, and the atom of each vertex. What is written in the answer's region is ignored.

    Without `atoms` (vertex to atom number) vertices are numbered 1, 2, ... as they first appear.
    """
    words: list[str] = []
    most = text_width(input_size)
    for i, token in enumerate(tokens):
        if i == most:
            raise ValueError(f"tokens: more than {most} given, must be at most that at input_size={input_size}")
        words.append(WORDS[check_range(f"tokens[{i}]", token, 0, len(WORDS) - 1)])
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
        raise ValueError(
            f"tokens: {len(words) - at} words, must be {SENTENCE_WIDTH} for each sentence and {ATOM_WIDTH} more"
        )
    while at < last:
        edges.append(sentence("then"))
        at += SENTENCE_WIDTH
    start, goal = sentence("prove")
    problem = Problem("search", tuple(edges), start, goal)
    for violation in violations(problem, Layout(input_size)):
        raise ValueError(violation)
    return problem, {v: atom for atom, v in numbers.items() if v in problem.vertices}
