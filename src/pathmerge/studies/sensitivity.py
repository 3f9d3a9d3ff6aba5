"""Which training distribution teaches to search? (paper, figure 2)

The models trained here are also those whose circuits `circuits` and `direction` look at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING, ClassVar

from pathmerge.evaluation.accuracy import MODEL, Table
from pathmerge.evaluation.accuracy import Row as Judged
from pathmerge.problems.balanced import Balanced
from pathmerge.problems.distribution import Distribution
from pathmerge.problems.naive import Naive
from pathmerge.problems.star import Star
from pathmerge.recipes import on_problem, recipe
from pathmerge.studies.learning import Budget, budgeted, ending
from pathmerge.studies.study import Place, Row, Setting, Study, Task, distinct, where
from pathmerge.training.config import Holding, RunConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pathmerge.training.run import Run

SIZE = {"smoke": 20, "laptop": 44, "paper": 128}
PART = {"smoke": 1, "laptop": 4, "paper": 12}
"""The largest lookahead of the model that does not see them all: of 2, 6 and 20."""
BUDGETS = {
    "smoke": Budget(examples=1024, seeds=1, point=512, validation=50, test=100),
    "laptop": Budget(examples=600_000, seeds=1, point=20_000),
    "paper": Budget(examples=883_000_000, seeds=1, batch=1024),
}
LONGER = {("laptop", "star"): 1_500_000}
"""Examples of a training that needs more of them, over all of which its rate falls once they are mastered: half of all
stars have lookahead 1, so nine in ten can be right while long arms are still at chance."""
ALL_RECIPES = ("paper", "tuned", "matched", "efficient", "dense")
FAST = {"smoke": "matched", "laptop": "matched", "paper": "paper"}


def problems(scale: str) -> dict[str, Distribution]:
    """What models are trained on, by name."""
    size, part = SIZE[scale], PART[scale]
    return {
        "naive": Naive(input_size=size),
        "star": Star(input_size=size),
        "balanced": Balanced(input_size=size),
        f"balanced, L ≤ {part}": Balanced(input_size=size, max_lookahead=part),
    }


def config_of(setting: Setting, problem: Distribution, seed: int) -> RunConfig:
    """The training of one of these models; the recipe decides its depth, but at paper scale it has six layers."""
    budget = BUDGETS[setting.scale]
    base = on_problem(recipe(setting.recipe, problem.input_size, seed), problem)
    model = replace(base.model, layers=6) if setting.scale == "paper" else base.model
    training = budgeted(base, budget)
    more = LONGER.get((setting.scale, problem.name))
    if more is not None and setting.recipe != "paper":
        training = replace(training, examples=more, decay=None)
    if setting.recipe != "paper":
        training = replace(training, stop="converged_each")
    held_out = Holding(test=budget.test, validation=budget.validation)
    return replace(base, model=model, training=training, held_out=held_out)


class Sensitivity(Study):
    """One model, four training distributions, all test distributions."""

    name: ClassVar[str] = "sensitivity"
    figure: ClassVar[str] = "Figure 2"
    question: ClassVar[str] = "Which training distribution teaches a transformer to search?"
    defaults: ClassVar[Mapping[str, str]] = FAST
    recipes: ClassVar[tuple[str, ...]] = ALL_RECIPES

    def says(self, setting: Setting) -> str:
        budget, size = BUDGETS[setting.scale], SIZE[setting.scale]
        longer = "".join(f" ({name}: {more:,})" for (at, name), more in LONGER.items() if at == setting.scale)
        return (
            f"N={size}, trained on {' / '.join(problems(setting.scale))}, {budget.seeds} seed(s), at most "
            f"{budget.examples:,} examples each{longer}, {budget.test:,} test problems per cell; the paper: N=128, 6 "
            "layers, 883M examples, 1,000 per cell"
        )

    def tasks(self, setting: Setting) -> list[Task]:
        return [
            Task(labels={"trained_on": name, "seed": seed}, config=config_of(setting, problem, seed), minutes=0.5)
            for name, problem in problems(setting.scale).items()
            for seed in range(1, BUDGETS[setting.scale].seeds + 1)
        ]

    def measure(self, task: Task, run: Run | None, setting: Setting, place: Place) -> list[Row]:
        from pathmerge.evaluation.evaluate import evaluate_model
        from pathmerge.evaluation.suite import hold_out_test

        assert run is not None
        held = run.config.held_out
        cells = hold_out_test(run.config.problem, held.test, held.seed, threads=place.threads).cells
        table = evaluate_model(run.model, cells, threads=place.threads)
        found: list[Row] = []
        for judge in table.judges:
            found += [
                {
                    "kind": "cell",
                    "judge": judge,
                    "distribution": row.distribution,
                    "difficulty": row.difficulty,
                    "lookahead": row.parameters.get("lookahead"),
                    "accuracy": row.accuracy,
                    "low": row.low,
                    "high": row.high,
                    "loss": row.loss,
                    "tested": row.examples,
                    "correct": row.correct,
                }
                for row in table[judge]
            ]
        return [*found, ending(run)]

    def draw(self, rows: Sequence[Row], setting: Setting) -> Figure:
        from pathmerge.evaluation.heatmap import heat_map, trained_on

        def table(group: Sequence[Row]) -> Table:
            judged = {
                judge: tuple(_judged(row) for row in where(group, kind="cell", judge=judge))
                for judge in distinct(group, "judge")
            }
            return Table(rows=judged.pop(MODEL), baselines=judged)

        known = problems(setting.scale)
        names = distinct(rows, "trained_on")
        tables = {f"trained on {name}": table(where(rows, trained_on=name, seed=1)) for name in names}
        trained = {f"trained on {name}": trained_on(known[name]) for name in names}
        return heat_map(tables, trained=trained, above=0.3)


def _judged(row: Row) -> Judged:
    numbers = {name: nan if row.get(name) is None else row[name] for name in ("accuracy", "low", "high", "loss")}
    return Judged(
        distribution=row["distribution"],
        difficulty=row["difficulty"],
        examples=row["tested"],
        correct=row["correct"],
        **numbers,
    )
