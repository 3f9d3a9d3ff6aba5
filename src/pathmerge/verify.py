"""Trust, after the fact: judge every row of a problem file with the slow oracle, and draw it again from its key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pathmerge import oracle
from pathmerge.encodings import sentences, symbolic
from pathmerge.files import ProblemFile, digest
from pathmerge.heldout import HeldOut
from pathmerge.problems.identity import identity
from pathmerge.problems.problem import Problem
from pathmerge.problems.selection_inference import STEPS


@dataclass
class Check:
    """One question asked of many rows: how many were asked, how many failed, and the first failure in words."""

    name: str
    asked: int = 0
    failed: int = 0
    first_failure: str = ""
    note: str = ""

    def ask(self, right: bool, failure: Callable[[], str]) -> None:
        self.asked += 1
        if not right:
            self.failed += 1
            self.first_failure = self.first_failure or failure()


@dataclass
class Verdict:
    """All checks of a file."""

    checks: list[Check] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return not any(check.failed for check in self.checks)


def verify(
    file: ProblemFile, held_out: ProblemFile | None = None, progress: Callable[[int], None] | None = None
) -> Verdict:
    """Recompute every answer and difficulty, draw the file again, and prove it disjoint from `held_out` if given."""
    problems, checks = _judge(file, progress)
    verdict = Verdict([*checks, *_regenerate(file, held_out)])
    if held_out is not None:
        verdict.checks.append(_disjoint(file, problems, held_out))
    return verdict


def read_row(file: ProblemFile, row: int) -> Problem:
    """The problem that a row states, parsed and judged; raises ValueError if it is not well-formed."""
    distribution, tokens = file.distribution, file.columns["tokens"][row].tolist()
    if distribution.name == "language":
        atoms = {v: int(atom) for v, atom in enumerate(file.columns["atoms"][row]) if v > 0}
        return sentences.parse(tokens, distribution.input_size, atoms)[0]
    current = int(file.columns["current"][row]) if distribution.task == "selection" else None
    return symbolic.parse(tokens, distribution.layout, current=current)


def _judge(file: ProblemFile, progress: Callable[[int], None] | None) -> tuple[list[Problem | None], list[Check]]:
    form = Check("well-formed problem")
    values = {
        name: Check(f"{name} as the oracle says")
        for name in ("answers", "label", *file.distribution.columns, "start", "goal", "identity")
    }
    problems: list[Problem | None] = []
    for row in range(len(file)):
        try:
            problem = read_row(file, row)
        except ValueError as error:
            problems.append(None)
            reason = str(error)
            form.ask(False, lambda row=row, reason=reason: f"row {row}: {reason}")
        else:
            problems.append(problem)
            form.ask(True, str)
            _judge_row(file, row, problem, values)
        if progress is not None:
            progress(1)
    return problems, [form, *values.values()]


def _judge_row(file: ProblemFile, row: int, problem: Problem, checks: dict[str, Check]) -> None:
    useful = sorted(oracle.answers(problem))
    truth: dict[str, object] = {
        "answers": useful,
        "start": problem.start,
        "goal": problem.goal,
        "identity": identity(problem),
    }
    if problem.task == "search":
        truth["lookahead"] = oracle.lookahead(problem)
        truth["spokes"] = sum(u == problem.start for u, _ in problem.edges)
    elif problem.task == "dfs":
        truth["backtrack"] = oracle.backtrack(problem)
    else:
        truth["frontier"], truth["branch"] = oracle.frontier(problem), oracle.branch(problem)
        truth["step"] = STEPS.index(problem.task)
    for name, check in checks.items():
        value = file.columns[name][row]
        given = np.flatnonzero(value).tolist() if name == "answers" else int(value)
        if name == "label":
            check.ask(given in useful, lambda given=given: f"row {row}: {given}, must be one of {useful}")
        else:
            check.ask(given == truth[name], lambda name=name, given=given: f"row {row}: {given}, must be {truth[name]}")


def _regenerate(file: ProblemFile, held_out: ProblemFile | None) -> list[Check]:
    """Draw the rows again. Rows that were redrawn because of held-out problems need those to come out the same."""
    wanted = file.header.get("held_out")
    guard: HeldOut | None = None
    rows = np.arange(len(file))
    note = ""
    if wanted is not None:
        guard = held_out.held_out if held_out is not None else None
        if guard is None or digest(guard) != wanted["digest"]:
            guard = None
            rows = np.flatnonzero(file.columns["redraws"] == 0)
            note = f"{len(file) - len(rows)} redrawn rows left out: give the held-out file they were drawn with"
    again = file.distribution.sample(
        len(file), seed=file.key.seed, split=file.key.split, stream=file.key.stream, first=file.first, held_out=guard
    )
    checks: list[Check] = []
    for name, column in again.to_columns().items():
        check = Check(f"{name} as drawn from the key", asked=len(rows), note=note)
        given = file.columns[name]
        differs = (given != column)[rows]
        differs = differs.any(1) if differs.ndim == 2 else differs
        check.failed = int(differs.sum())
        if check.failed:
            row = int(rows[np.flatnonzero(differs)[0]])
            check.first_failure = f"row {row}: {_short(given[row])}, must be {_short(column[row])}"
        checks.append(check)
    return checks


def _short(value: np.ndarray) -> str:
    text = " ".join(map(str, value.tolist())) if value.ndim else str(value)
    return text if len(text) <= 60 else f"{text[:25]} ... {text[-30:]}"


def _disjoint(file: ProblemFile, problems: list[Problem | None], held_out: ProblemFile) -> Check:
    """Compare the problems themselves, not their hashes."""
    check = Check(f"not held out in {held_out.path.name}")
    held: dict[tuple[object, ...], int] = {}
    for row in range(len(held_out)):
        try:
            held.setdefault(read_row(held_out, row).canonical(), row)
        except ValueError as error:
            raise ValueError(f"file={str(held_out.path)!r}: row {row}: {error}") from None
    for row, problem in enumerate(problems):
        if problem is not None:
            twin = held.get(problem.canonical())
            check.ask(twin is None, lambda row=row, twin=twin: f"row {row} is the same problem as held-out row {twin}")
    return check
