"""The evidence behind docs/recipes.md and docs/experiments.md: trainings by name; trains what is missing.

    .venv/bin/python benchmarks/recipes.py                    # what there is, and how far each training came
    .venv/bin/python benchmarks/recipes.py train NAME ...     # train these (a name, or the beginning of several)
    .venv/bin/python benchmarks/recipes.py general            # trained on the smaller half: accuracy on all problems
    .venv/bin/python benchmarks/recipes.py write              # docs/recipes.json and the figures, from what was trained

A training is a recipe with some changed fields and a seed, so it goes on where it stopped. Posts (`post/...`) are
trained with both cores and nothing beside them; controls (`control/...`) with one core each, two at a time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import normed
import recalled
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pathmerge.models.config import Edges
from pathmerge.pictures import save
from pathmerge.problems.balanced import Balanced
from pathmerge.problems.naive import Naive
from pathmerge.problems.star import Star
from pathmerge.recipes import recipe
from pathmerge.training.config import RunConfig, to_toml
from pathmerge.training.metrics import read_metrics
from pathmerge.training.run import METRICS

RUNS = Path("runs/recipes")
SEEDS = (1, 2, 3)
RATES = {
    "signum": (1e-5, 1e-4, 1e-3),
    "sophia": (1e-4, 3e-4, 1e-3),
    "adamw": (3e-4, 1e-3, 3e-3),
    "muon": (3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
}
OTHER_PROBLEMS = {
    "naive": Naive(input_size=32),
    "star": Star(input_size=32),
    "half": Balanced(input_size=32, max_lookahead=2),
}
HALF = {128: (21, 10), 64: (11, 5)}
"""Vertices, and the largest lookahead, of trainings on the smaller half of the problems, by input size."""
CONTROL_EXAMPLES = 1_500_000
"""Of the controls, and of the paper's recipe, which has no end of its own that could be waited for."""
ABLATIONS: dict[str, dict[str, Any]] = {
    "all": {},
    "one-block-looped-5": {"model__layers": 1, "model__loops": 5},
    "two-blocks-looped-3": {"model__layers": 2, "model__loops": 3},
    "no-prior": {"model__initialisation": "default"},
    "one-block-no-prior": {"model__layers": 1, "model__loops": 5, "model__initialisation": "default"},
    "no-growing": {"curriculum__over": "none"},
    "last-weights": {"training__average": None},
    "short-vectors": {"model__spread": 0.18},
    "constant-rate": {"training__schedule": "constant"},
    "soft-target": {"training__loss": "soft"},
    "any-answer": {"training__loss": "any"},
    "batch-ramp": {"training__first_batch_size": 32, "training__ramp": 100_000},
    "tangled": {"curriculum__tangled": 0.5},
    "tangled-any": {"curriculum__tangled": 0.5, "training__loss": "any"},
    "tangled-any-largest": {"curriculum__tangled": 0.5, "training__loss": "any", "curriculum__largest": 10},
    "tangled-any-largest-4": {"curriculum__tangled": 0.5, "training__loss": "any", "curriculum__largest": 4},
    "sooner": {"curriculum__threshold": 0.9},
}
"""What `efficient` (`untangled`) is without one of its parts, with blocks that share weights, or with something more;
at N=64, one core each."""
BARE = {64: 500_000, 128: 450_048}
"""How many examples `matched` is given without its priors: the goal post's, and as many as N=128 needs with them."""
NORMED = ("all", "no-prior")
"""Of these, which are also tried with normalised queries and keys."""
ABLATION_EXAMPLES = 500_000
DEPTHS = (3, 4, 5, 6, 7, 8, 10, 12)
"""How often the blocks of looped models are applied when they are judged."""


@dataclass(frozen=True)
class Trial:
    """One training."""

    name: str
    config: RunConfig

    @property
    def directory(self) -> Path:
        return RUNS / self.config.run_name

    def lines(self) -> list[dict[str, Any]]:
        return read_metrics(self.directory / METRICS) if (self.directory / METRICS).exists() else []


def changed(config: RunConfig, **fields: Any) -> RunConfig:
    """A config with some fields changed, named `table__field`."""
    for name, value in fields.items():
        table, field = name.split("__")
        config = replace(config, **{table: replace(getattr(config, table), **{field: value})})
    return config


def trials() -> Iterator[Trial]:
    """All trainings, in the order in which they are worth the time."""
    for seed in SEEDS:
        for name, size in (("matched", 32), ("efficient", 128), ("matched", 64)):
            yield Trial(f"post/{name}-{size}/seed{seed}", recipe(name, size, seed))
    for name, problem in OTHER_PROBLEMS.items():
        yield Trial(f"model/{name}-32/seed1", replace(recipe("matched", 32, 1), problem=problem))
    for seed in SEEDS:
        one_core = changed(recipe("efficient", 128, seed), training__threads=1)
        yield Trial(f"post/efficient-128-one-core/seed{seed}", one_core)
        yield Trial(f"untangled/efficient-128/seed{seed}", untangled(128, seed))
        yield Trial(f"prior/tuned-32/seed{seed}", recipe("tuned", 32, seed))
        last = changed(untangled(128, seed), training__average=None)
        yield Trial(f"average/efficient-128-last-weights/seed{seed}", last)
        bare = changed(last, model__initialisation="default")
        yield Trial(f"prior/efficient-bare-128/seed{seed}", bare)
        own = changed(recipe("matched", 64, seed), model__asking=None, model__following=None, model__matching=1.0)
        yield Trial(f"prior/matched-no-following-64/seed{seed}", own)
        yield Trial(f"prior/matched-no-joining-64/seed{seed}", changed(own, model__joining=0.0))
        yield Trial(f"prior/tuned-64/seed{seed}", recipe("tuned", 64, seed))
        yield Trial(f"dense/dense-128/seed{seed}", recipe("dense", 128, seed))
    for recipe_name, base in (("efficient", untangled(128, 1)), ("matched", recipe("matched", 64, 1))):
        size, small = base.problem.input_size, changed(base, training__average=None)
        yield Trial(f"general/{recipe_name}-{size}-half-size/seed1", changed(small, problem__vertices=HALF[size][0]))
        yield Trial(
            f"general/{recipe_name}-{size}-half-lookahead/seed1", changed(small, problem__max_lookahead=HALF[size][1])
        )
    for optimizer, rates in RATES.items():
        for rate in rates:
            yield Trial(f"control/{optimizer}-{rate:g}/seed1", control(optimizer, rate, 1))
    for seed in SEEDS:
        yield Trial(f"plain/muon-32/seed{seed}", control("muon", 1e-3, seed))
        published = {"training__examples": CONTROL_EXAMPLES, "training__threads": 1}
        yield Trial(f"paper/paper-32/seed{seed}", changed(recipe("paper", 32, seed), **published))
    yield Trial("post/matched-128/seed1", recipe("matched", 128, 1))
    yield Trial("post/matched-152/seed1", changed(recipe("matched", 152, 1), training__threads=1))
    sharper = {"model__following": 1.7, "model__asking": 2.0, "training__threads": 1}
    yield Trial("post/matched-128-sharper/seed1", changed(recipe("matched", 128, 1), **sharper))
    short = {"training__threads": 1, "training__examples": ABLATION_EXAMPLES}
    for seed in SEEDS:
        for name, changes in ABLATIONS.items():
            yield Trial(f"ablation/efficient-64-{name}/seed{seed}", changed(untangled(64, seed), **short, **changes))
    for seed in SEEDS:
        for name in NORMED:
            base = changed(untangled(64, seed), **short, **ABLATIONS[name])
            yield Trial(f"ablation/efficient-64-{name}-normed/seed{seed}", of_kind(base, normed.NormedEdges))
        base = changed(untangled(64, seed), **short, **ABLATIONS["one-block-looped-5"])
        yield Trial(f"ablation/efficient-64-one-block-recalled/seed{seed}", of_kind(base, recalled.RecalledEdges))
    for size, examples in BARE.items():
        for seed in SEEDS:
            bare = changed(recipe("matched", size, seed), training__threads=1, training__examples=examples)
            yield Trial(f"prior/matched-bare-{size}/seed{seed}", replace(bare, model=bare.model.without_prior()))
    looped = changed(untangled(128, 1), training__threads=1, model__layers=1, model__loops=6)
    yield Trial("loops/efficient-128-one-block-looped-6/seed1", looped)
    yield Trial("loops/efficient-128-one-block-no-prior/seed1", changed(looped, model__initialisation="default"))
    hundred = changed(recipe("efficient", 305, 1), training__threads=1, model__layers=1, model__loops=7)
    yield Trial("loops/efficient-305-one-block-looped-7/seed1", hundred)
    yield Trial("loops/efficient-305-one-block-no-prior/seed1", changed(hundred, model__initialisation="default"))
    largest = changed(
        recipe("efficient", 512, 1),
        model__layers=1,
        model__loops=8,
        curriculum__step=4,
        training__threads=1,
        training__decay=300_000,
        held_out__validation=500,
        held_out__test=1000,
    )
    yield Trial("loops/efficient-512-one-block-looped-8/seed1", largest)
    small = changed(looped, training__examples=700_000, problem__vertices=HALF[128][0])
    for name, changes in (("5", {"model__loops": 5}), ("6", {}), ("6-to-10", {"training__deepest": 10})):
        yield Trial(f"loops/efficient-128-half-size-looped-{name}/seed1", changed(small, **changes))


def untangled(size: int, seed: int) -> RunConfig:
    """`efficient` as it was until 2026-11-18: without tangled problems, any answer and a share of the largest
    lookahead. Most trials with edge tokens are changes of it."""
    before = {"training__loss": "label", "curriculum__largest": None, "curriculum__tangled": None}
    return changed(recipe("efficient", size, seed), **before)


def of_kind(config: RunConfig, kind: type[Edges]) -> RunConfig:
    """The same with another kind of edge tokens."""
    model = config.model
    return replace(config, model=kind(**{field.name: getattr(model, field.name) for field in fields(model)}))


def control(optimizer: str, rate: float, seed: int) -> RunConfig:
    """The paper's model at N=32 with 4 layers, its tokens and labels, no prior and no curriculum; only the optimizer
    and its rate differ."""
    base = recipe("paper", 32, seed)
    settings = {
        "optimizer": optimizer,
        "learning_rate": rate,
        "weight_decay": 0.1 if optimizer in ("signum", "sophia") else 0.01,
        "clip": 0.0 if optimizer == "signum" else 1.0,
        "warmup": 0 if optimizer == "signum" else 50_000,
        "batch_size": 256,
        "examples": CONTROL_EXAMPLES,
        "stop": "converged",
        "validate_every": 50_000,
        "log_every": 10_000,
        "threads": 1,
    }
    return changed(base, model__layers=4, **{f"training__{name}": value for name, value in settings.items()})


def outcome(trial: Trial) -> dict[str, Any] | None:
    """How far a training came; none if it has not begun."""
    lines = trial.lines()
    steps = [line for line in lines if line["kind"] == "train"]
    if not steps:
        return None
    checks = [line for line in lines if line["kind"] == "validation"]
    end = next((line for line in lines if line["kind"] == "end"), None)
    last = checks[-1] if checks else None
    first = {name: next((c for c in checks if c[name]), None) for name in ("converged", "converged_each")}
    return {
        "name": trial.name,
        "examples": steps[-1]["examples"],
        "flops": steps[-1]["flops"],
        "seconds": round(max(line["seconds"] for line in (*steps, *checks)), 1),
        "stage": steps[-1]["stage"],
        "finished": None if end is None else end["reason"],
        "accuracy": None if last is None else round(last["accuracy"], 4),
        "worst": None if last is None else round(min(last["by_difficulty"].values()), 4),
        **{name: None if line is None else line["examples"] for name, line in first.items()},
    }


def write(path: Path) -> None:
    """What was trained here, in the place of what is known of the same trainings; the others stay as they are."""
    known = {result["name"]: result for result in json.loads(path.read_text(encoding="utf-8"))}
    known |= {result["name"]: result for result in map(outcome, trials()) if result is not None}
    path.write_text(json.dumps(list(known.values()), indent=1) + "\n", encoding="utf-8")


def show() -> None:
    titles = ("examples", "FLOPs", "seconds", "valid.", "worst", "each ≥ 0.995")
    widths = (10, 8, 7, 6, 6, 12)
    columns = " ".join(f"{title:>{width}}" for title, width in zip(titles, widths, strict=True))
    print(f"{'training':42} {columns}  stage or end")
    for trial in trials():
        found = outcome(trial)
        if found is None:
            continue
        each = found["converged_each"]
        accuracy = "" if found["accuracy"] is None else f"{found['accuracy']:.4f}"
        worst = "" if found["worst"] is None else f"{found['worst']:.3f}"
        print(
            f"{trial.name:42} {found['examples']:>10,} {found['flops']:>8.1e} {found['seconds']:>7.0f} {accuracy:>6} "
            f"{worst:>6} {'' if each is None else format(each, ','):>12}  {found['finished'] or found['stage'] or ''}"
        )


def show_control() -> None:
    """The table of docs/recipes.md: how far each optimizer came at each rate."""
    titles = ("optimizer", "rate", "examples", "validation (worst lookahead)", "0.5 after", "0.9 after", "each ≥ 0.995")
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for trial in trials():
        found = outcome(trial) if trial.name.startswith("control/") else None
        if found is None or found["accuracy"] is None:
            continue
        checks = [line for line in trial.lines() if line["kind"] == "validation"]
        when = [next((c["examples"] for c in checks if c["accuracy"] >= least), None) for least in (0.5, 0.9)]
        cells = ["–" if value is None else f"{value:,}" for value in (*when, found["converged_each"])]
        training, score = trial.config.training, f"{found['accuracy']:.3f} ({found['worst']:.3f})"
        row = (training.optimizer, f"{training.learning_rate:g}", f"{found['examples']:,}", score, *cells)
        print(f"| {' | '.join(row)} |")


def draw_control(path: Path) -> None:
    """Validation accuracy against examples, a panel for each optimizer, a curve for each rate; a dot where it is 0.995
    at each lookahead."""
    figure = Figure(figsize=(9.6, 3.4), layout="constrained")
    panels = figure.subplots(1, len(RATES), sharey=True)
    every = sorted({rate for rates in RATES.values() for rate in rates})
    for axes, (optimizer, rates) in zip(panels, RATES.items(), strict=True):
        for rate in rates:
            checks = [line for line in Trial("", control(optimizer, rate, 1)).lines() if line["kind"] == "validation"]
            points = [(line["examples"] / 1e6, line["accuracy"]) for line in checks]
            colour = colormaps["viridis"](0.95 * every.index(rate) / (len(every) - 1))
            axes.plot(*zip((0, 0), *points, strict=True), color=colour)
            done = [point for point, line in zip(points, checks, strict=True) if line["converged_each"]]
            for x, y in done[:1]:
                axes.plot(x, y, "o", color=colour)
        axes.axhline(0.995, color="#777777", linewidth=0.8, linestyle=":")
        axes.set(title=optimizer, xlabel="million examples", ylim=(0, 1.03), xlim=(0, CONTROL_EXAMPLES / 1e6))
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("validation accuracy, all lookaheads")
    keys = [Line2D([], [], color=colormaps["viridis"](0.95 * i / (len(every) - 1))) for i in range(len(every))]
    names = [f"{rate:g}" for rate in every]
    figure.legend(keys, names, title="rate", loc="outside lower center", ncol=len(every), frameon=False)
    save(figure, path)


def show_general() -> None:
    """Models trained on small graphs, or short lookaheads, judged on test problems of the whole size; a looped one with
    its blocks applied fewer and more times than in training, too."""
    from pathmerge.evaluation.evaluate import evaluate_model
    from pathmerge.evaluation.suite import hold_out_test
    from pathmerge.training.run import load_run

    for trial in trials():
        if "half-" not in trial.name or not (trial.directory / METRICS).exists():
            continue
        run = load_run(trial.directory)
        every = replace(run.config.problem, vertices=None, max_lookahead=None)
        cells = [cell for cell in hold_out_test(every, 500, 0).cells if cell.distribution.name == every.name]
        print(f"{trial.name}: {run.examples:,} examples, {run.finished or 'not finished'}; on {every.describe()}")
        guesses = evaluate_model(run.model, cells, heuristics=True).baselines["random child"]
        lines = {"lookahead": [row.difficulty.rpartition("=")[2] for row in guesses]}
        lines["guessing a child"] = [f"{row.accuracy:.2f}" for row in guesses]
        for loops in DEPTHS if run.config.model.loops > 1 else (1,):
            table = evaluate_model(run.model.looped(loops), cells, heuristics=False)
            lines[f"loops {loops}"] = [f"{row.accuracy:.2f}" for row in table.rows]
        for name, values in lines.items():
            print(f"  {name:16} {' '.join(f'{value:>4}' for value in values)}", flush=True)


def train_one(trial: Trial) -> None:
    """In a process of its own, so that nothing of one training is left for the next."""
    RUNS.mkdir(parents=True, exist_ok=True)
    config = RUNS / f"{trial.config.run_name}.toml"
    config.write_text(to_toml(trial.config), encoding="utf-8")
    module = sys.modules[type(trial.config.model).__module__]
    own = ["--use", str(module.__file__)] if module in (normed, recalled) else []
    program = [sys.executable, "-m", "pathmerge", *own, "train", str(config), "--out", str(RUNS), "--quiet"]
    print(f"training {trial.name}", flush=True)
    subprocess.run(program, check=False)


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["train"]:
        chosen = [trial for trial in trials() if any(trial.name.startswith(word) for word in words[1:])]
        workers = 2 if all(trial.config.training.threads == 1 for trial in chosen) else 1
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(train_one, chosen))
    elif words == ["general"]:
        show_general()
        return
    elif words == ["write"]:
        write(Path("docs/recipes.json"))
        if any(trial.lines() for trial in trials() if trial.name.startswith("control/")):
            draw_control(Path("docs/pictures/control.png"))
            show_control()
    show()


if __name__ == "__main__":
    main()
