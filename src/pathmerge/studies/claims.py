"""The paper's claims C1 to C15 (SPEC section 7): for each, the rule that decides, written down before the runs.

Choices a reader could not guess:
- A rule reads the rows of one or two studies at one scale and recipe, and says holds, fails or undecided *at that
  scale*. Smoke runs decide nothing, whatever their numbers.
- Between the bounds of "holds" and "fails" lies a region on purpose: there a rule says undecided. So it does when a
  study is not finished.
- The evidence is text made from the same numbers the rule looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pathmerge.disk import read_json
from pathmerge.studies import rules
from pathmerge.studies.catalogue import study_named
from pathmerge.studies.results import ABOUT, FORMAT, VERSION, Folder
from pathmerge.studies.rules import Found, NotEnough
from pathmerge.studies.study import SCALES, Row, Setting, recipe_and_track, tasks_of

HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What the paper says, and how it is decided."""

    number: str
    says: str
    studies: tuple[str, ...]
    rule: str
    decide: Callable[[Mapping[str, Sequence[Row]]], Found]
    remark: str = ""
    """What the rule does not see, or that it was replaced, when and why. A rule that turns out weak stays as it is for
    the runs there are; another one is for runs that come after it (or the remark says that it is not)."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A claim at one scale and recipe."""

    claim: str
    says: str
    rule: str
    verdict: str
    evidence: str
    scale: str
    recipe: str
    """With the track of what was trained."""
    remark: str


CLAIMS: tuple[Claim, ...] = (
    Claim(
        number="C1",
        says="Training on balanced problems gives near-perfect accuracy at every lookahead seen.",
        studies=("sensitivity",),
        rule="holds: test accuracy at least 0.98 at each lookahead; fails: some 95% interval lies below 0.98",
        decide=rules.balanced_is_learned,
    ),
    Claim(
        number="C2",
        says="Training on naive problems fails at larger lookaheads.",
        studies=("sensitivity",),
        rule="at the largest lookahead, holds: accuracy below 0.9 and at least 0.1 below the model trained on balanced "
        "problems; fails: at least 0.98",
        decide=rules.naive_fails,
    ),
    Claim(
        number="C3",
        says="Training on stars transfers only in part.",
        studies=("sensitivity",),
        rule="mean over balanced lookaheads, holds: 0.02 above guessing a child and below 0.95, with at least 0.9 on "
        "stars; fails: at least 0.98, or no better than guessing",
        decide=rules.star_transfers_in_part,
        remark="the margin of 0.02 above guessing came after the first run; it changed no verdict. At laptop scale "
        "the model trained on stars is the third: with 600,000 examples it had 0.840 on stars, with a rate that falls "
        "as in the recipe 0.8995 after 1,057,472, both undecided; the one kept has 1,500,000, over all of which the "
        "rate falls, and still guesses at arms of 5 and 6",
    ),
    Claim(
        number="C4",
        says="A model trained up to a lookahead generalises a step or two beyond it and no further.",
        studies=("sensitivity",),
        rule="holds: at least 0.9 one step beyond and below 0.9 at the largest lookahead; fails: below 0.9 one step "
        "beyond, or at least 0.9 at the largest",
        decide=rules.part_generalises_a_little,
        remark="the rule looks at one number without its interval, so it is never undecided near 0.9, and between one "
        "step beyond and the largest lookahead it does not look",
    ),
    Claim(
        number="C5",
        says="Circuits explain nearly all inputs of trained models and none of an untrained one.",
        studies=("circuits",),
        rule="inputs of lookaheads trained on, holds: strictly explained on at least 0.9 of them and on at most 0.02 "
        "of the untrained model's; fails: even leniently explained on less than 0.9, or untrained on more than 0.1",
        decide=rules.circuits_explain,
    ),
    Claim(
        number="C6",
        says="Merges are often not maximal.",
        studies=("circuits",),
        rule="share of maximal merges of the model trained on balanced problems, holds: below 0.8; fails: above 0.95",
        decide=rules.merges_not_maximal,
    ),
    Claim(
        number="C7",
        says="As graphs grow, convergence vanishes and the least loss grows.",
        studies=("graph-size",),
        rule="from the smallest to the largest size, holds: the share of seeds that converge falls from at least 2/3 "
        "to at most 1/3, and the least validation loss grows at least tenfold; fails: at least 2/3 converge at the "
        "largest",
        decide=lambda rows: rules.size_hurts(rows["graph-size"]),
        remark="replaced on 2026-11-17, before the graphs of 13 vertices were trained on: the first rule asked whether "
        "the loss on naive problems doubles, which is 0.4 and more even where a model has converged (a fifth of them "
        "have several answers, and balanced problems teach to be sure of one), and could not hold. Tenfold, since "
        "converged runs end at 0.01 to 0.04. Whether the loss grows ever faster, as the paper says, is not asked",
    ),
    Claim(
        number="C8",
        says="Width does not help to reach the global minimum, though wider models leave the start sooner.",
        studies=("model-size",),
        rule="widest against narrowest, holds: its share of converged seeds is no larger, its least loss no less than "
        "half, and its training loss halves, no later; fails: it converges in at least half of the seeds more, or its "
        "least loss is less than half",
        decide=rules.width_does_not_help,
        remark="at laptop scale a run ends when it converges, so that the losses compared are those of that moment; "
        "the shares of seeds that converge say more about the claim",
    ),
    Claim(
        number="C9",
        says="Rotary decoders behave alike.",
        studies=("rotary-size",),
        rule="as C7, for rotary decoders",
        decide=lambda rows: rules.size_hurts(rows["rotary-size"]),
        remark="as for C7, replaced before the graphs of 5 vertices were trained on; these turn out to be no size to "
        "compare with: there are 120 problems of lookahead 2, and the decoders learn the hundred they see by heart; "
        "seeds 3 and 4 of that size came later; figure 12 (rotary-model) has no rule",
    ),
    Claim(
        number="C10",
        says="Depth-first search struggles as graphs grow; larger models need fewer examples but more FLOPs.",
        studies=("dfs-size", "dfs-model"),
        rule="holds: the least test loss at the largest size is at least twice that at the smallest, and to the loss "
        "all models reach the largest takes fewer examples and more FLOPs than the smallest; fails: neither",
        decide=rules.dfs_struggles,
        remark="that a constant number of layers suffices is not asked",
    ),
    Claim(
        number="C11",
        says="Random padding extends backtracking.",
        studies=("dfs-padding",),
        rule="mean accuracy over the larger half of backtrack distances, with random padding minus without, holds: at "
        "least 0.05; fails: 0 or less",
        decide=rules.padding_extends,
    ),
    Claim(
        number="C12",
        says="Selection is easy, inference hard.",
        studies=("selection-inference-size",),
        rule="last test accuracy at the largest size, holds: selection at least 0.95 and at least 0.05 above "
        "inference; fails: inference at least as good",
        decide=rules.inference_is_harder,
        remark="figure 17 (selection-inference-model) has no rule",
    ),
    Claim(
        number="C13",
        says="Search told in sentences behaves alike.",
        studies=("language",),
        rule="as C7, for sentences",
        decide=lambda rows: rules.size_hurts(rows["language"]),
        remark="as for C7, but replaced after the runs, which the first rule had left undecided",
    ),
    Claim(
        number="C14",
        says="The direction of merges differs between seeds; merged distances double from layer to layer.",
        studies=("direction",),
        rule="holds: in some layer the shares of forward merges of two seeds (where there is one seed, as at paper "
        "scale: of the two models) differ by at least 0.5, and in one model the commonest distance never falls and at "
        "least doubles from the first to the last merging layer; fails: neither",
        decide=rules.directions_differ,
    ),
    Claim(
        number="C15",
        says="In naive graphs the lookahead falls off exponentially.",
        studies=("lookahead-histogram",),
        rule="logarithm of the counts of lookaheads from 1 with at least 10 graphs against a straight line, holds: "
        "R² at least 0.97; fails: below 0.9",
        decide=lambda rows: rules.falls_exponentially(rows["lookahead-histogram"]),
        remark="the counts fall faster than on a straight line, so at least exponentially, which may be all that the "
        "paper means; the rule asks for the line",
    ),
)


def settings_in(root: Path, study: str) -> list[Setting]:
    """The settings a study was run at, by what is in a folder of results."""
    found: list[Setting] = []
    for path in sorted((root / study).glob(f"*/{ABOUT}")):
        about = read_json(path, field="results")
        known = (about.get("format"), about.get("version")) == (FORMAT, VERSION) and about.get("scale") in SCALES
        if not known:
            raise ValueError(f"results: {str(path)!r} is of another version, or no study's; move its folder elsewhere")
        setting = Setting(scale=about["scale"], recipe=str(about.get("recipe")))
        if path.parent.name == setting.name:  # else a copy that someone put aside
            found.append(setting)
    return sorted(found, key=lambda setting: (SCALES.index(setting.scale), setting.recipe))


def rows_of(root: Path, study: str, setting: Setting) -> list[Row]:
    """What a study found; raises `NotEnough` while tasks are missing or failed."""
    chosen = study_named(study)
    folder = Folder(root=root, study=chosen, setting=setting)
    tasks = tasks_of(chosen, setting)
    folder.check(tasks)
    rows = folder.rows(tasks)
    failed = sum(row.get("error") is not None for row in rows)
    missing = sum(folder.outcome(task.name) is None for task in tasks)
    if failed or missing:
        raise NotEnough(f"{study}: {missing} of {len(tasks)} tasks not done, {failed} failed")
    return rows


def judge(claim: Claim, root: Path, setting: Setting) -> Verdict:
    """A claim by the results of one setting."""
    tasks = [task for study in claim.studies for task in tasks_of(study_named(study), setting)]
    try:
        found = _decide(claim, {study: rows_of(root, study, setting) for study in claim.studies})
        verdict = HOLDS if found.holds else FAILS if found.fails else UNDECIDED
        evidence = found.evidence
    except NotEnough as error:
        verdict, evidence = UNDECIDED, str(error)
    if setting.scale == "smoke":
        verdict = UNDECIDED
    return Verdict(
        claim=claim.number,
        says=claim.says,
        rule=claim.rule,
        verdict=verdict,
        evidence=evidence,
        scale=setting.scale,
        recipe=recipe_and_track(setting, tasks),
        remark=claim.remark,
    )


def _decide(claim: Claim, rows: Mapping[str, Sequence[Row]]) -> Found:
    try:
        return claim.decide(rows)
    except (LookupError, TypeError, ValueError) as error:
        raise NotEnough(f"rows lack what the rule looks at ({type(error).__name__}: {error})") from None


def verdicts(root: Path) -> dict[str, list[Verdict]]:
    """All claims, each with its verdicts at the settings it was run at; an empty list where it was not."""
    return {claim.number: _verdicts(claim, root) for claim in CLAIMS}


def _verdicts(claim: Claim, root: Path) -> list[Verdict]:
    there = [settings_in(root, study) for study in claim.studies]
    return [judge(claim, root, setting) for setting in there[0] if all(setting in others for others in there)]


def touched(root: Path, study: str) -> list[Verdict]:
    """The verdicts that a study has a part in. Where another study's results, which it needs too, cannot be read, there
    is none: they are not this study's fault."""
    found: list[Verdict] = []
    for claim in CLAIMS:
        if study in claim.studies:
            with suppress(ValueError):
                found += _verdicts(claim, root)
    return found


def as_markdown(found: Mapping[str, Sequence[Verdict]]) -> str:
    """docs/claims.md: every claim with its rule, and what was found at each scale."""
    lines = [
        "# The paper's claims",
        "",
        "Made by `pathmerge claims RESULTS --write docs/claims.md` from what was run. Each rule was written before the "
        "runs that decide it (`src/pathmerge/studies/claims.py`), but where a remark says otherwise. A verdict holds "
        "for its scale and recipe only; in brackets the track, what differs from the paper (T0 nothing, T1 the "
        "optimizer or the order, T1m a prior on attention, T2 the encoding or the architecture).",
        "",
    ]
    for claim in CLAIMS:
        lines += [f"## {claim.number}: {claim.says}", "", f"*Rule* ({', '.join(claim.studies)}): {claim.rule}.", ""]
        for verdict in found.get(claim.number, ()):
            lines.append(f"- {verdict.scale}, {verdict.recipe}: **{verdict.verdict}**. {verdict.evidence}")
        if not found.get(claim.number):
            lines.append("- not run yet")
        lines += ["", f"*Remark:* {claim.remark}.", ""] if claim.remark else [""]
    return "\n".join(lines)
