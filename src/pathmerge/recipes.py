"""Recipes: functions from an input size to a whole config. A variant is a few changed fields on top.

Each names its track (SPEC section 9): T0 the paper's model, data and optimizer; T1 another optimizer, schedule, order
or initial scale; T2 another encoding, too; T3 extra labels from the same graph; an m behind it: attention starts with a
prior.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from pathmerge.distributions import DISTRIBUTIONS
from pathmerge.errors import check_choice
from pathmerge.models.config import MODELS, Edges, ModelConfig, OneHot
from pathmerge.problems.balanced import Balanced
from pathmerge.problems.distribution import Distribution, SearchDistribution
from pathmerge.training.config import Holding, RunConfig, Training
from pathmerge.training.curriculum import Curriculum


def layers_for(input_size: int) -> int:
    """Enough for the largest lookahead that fits: each layer can double the distance seen, two more join and read."""
    return max(3, (Balanced(input_size=input_size).largest_lookahead - 1).bit_length() + 2)


def paper(input_size: int, seed: int = 0) -> RunConfig:
    """T0: the paper's model and settings, with the optimizer its runs really used (SPEC section 8).

    `pathmerge train --recipe paper --input-size N`. The paper at N=128: 883 million examples, about 1e18 FLOP. At N=32
    (`pathmerge train --recipe paper --input-size 32 --seed S --training.examples 1500000 --training.threads 1`) 0.267,
    0.270 and 0.255 right after 1.5M examples and 4.0e13 FLOP (seeds 1, 2, 3): none has converged, nor has anything else
    that we trained with this optimizer and rate. For longer it was not trained.
    """
    return RunConfig(
        problem=Balanced(input_size=input_size),
        model=OneHot(input_size=input_size, layers=6),
        training=Training(
            optimizer="signum",
            learning_rate=1e-5,
            weight_decay=0.1,
            clip=0.0,
            batch_size=1024,
            examples=883_000_000,
            validate_every=2**18,
            log_every=2**16,
        ),
        seed=seed,
        recipe="paper",
    )


def tuned(input_size: int, seed: int = 0) -> RunConfig:
    """T1: the paper's model, tokens and labels; Muon, small batches, a rate that falls once most problems are solved,
    and weights that are a running mean. Nothing tells it how to search, and problems do not grow.

    N=32 (`pathmerge train --recipe tuned --input-size 32 --seed S`): 0.995 at each lookahead after 280,000, 360,000 and
    640,000 examples (seeds 1, 2, 3; median 360,000 and 8.0e12 FLOP; none failed). N=38, with a layer less (the
    graph-size study): one of three seeds converges within 1M examples, after 340,032 (docs/recipes.md).
    """
    base = growing(input_size, seed)
    model = replace(base.model, layers=base.model.layers + 1)  # one more than needed
    steps = {"optimizer": "muon", "learning_rate": 1e-3, "decay": 8_000 * input_size, "average": 10_000}
    training = replace(base.training, **steps)
    curriculum = Curriculum(mastery=0.9, window=1024)
    return replace(base, model=model, training=training, curriculum=curriculum, recipe="tuned")


def growing(input_size: int, seed: int = 0) -> RunConfig:
    """What the recipes with a prior have in common: AdamW, and problems that grow by two vertices whenever the model is
    right on 0.95 of them. (Without a prior it is slower than `tuned`: docs/log.md.)"""
    return RunConfig(
        problem=Balanced(input_size=input_size),
        model=OneHot(input_size=input_size, layers=layers_for(input_size), feed_forward_scale=0.03),
        training=Training(
            optimizer="adamw",
            learning_rate=5e-4,
            weight_decay=0.01,
            beta2=0.98,
            clip=1.0,
            warmup=12_800,
            schedule="linear",
            decay=4_000 * input_size,
            batch_size=64,
            examples=3_000_000,
            stop="converged_each",
            validate_every=max(20_000, 2_500 * Balanced(input_size=input_size).largest_lookahead),
            log_every=5_000,
        ),
        curriculum=Curriculum(over="size", step=2, threshold=0.95, mastery=0.9, window=1024),
        held_out=Holding(validation=2000),
        seed=seed,
    )


def matched(input_size: int, seed: int = 0) -> RunConfig:
    """T1m: problems that grow (`growing`), and attention that starts out joining the two ends of an edge and matching
    equal vertices; from 19 vertices on, following edges instead, with a last row that reads in the last layer; above,
    rows whose vertex nothing is written over; above 41, sharper.

    N=32 (`pathmerge train --recipe matched --input-size 32 --seed S`): 0.995 at each lookahead after 220,032, 140,032
    and 120,000 examples (seeds 1, 2, 3; median 140,032 and 2.3e12 FLOP; none failed). N=64: after 247,552, 292,544 and
    225,024 (median 247,552 and 3.2e13 FLOP; none failed). N=128: after 450,048 (4.3e14 FLOP; seed 1, no other yet).
    N=152 (`pathmerge train --recipe matched --input-size 152 --seed 1 --training.threads 1`): 0.995 on all lookaheads
    together after 540,032 examples (8.2e14 FLOP), at each not: 0.9885 at the worst when the rate is gone.
    """
    base = growing(input_size, seed)
    assert isinstance(base.model, OneHot)
    model, training, curriculum = base.model, base.training, base.curriculum
    vertices = Balanced(input_size=input_size).most_vertices
    if vertices >= 19:
        # What is left to learn once such problems are mastered is what to do where ways meet (docs/experiments.md).
        training = replace(training, average=20_000, loss="any", decay=310_000)
        curriculum = replace(curriculum, tangled=0.5, threshold=0.9)
    if vertices > 19:
        # The more vertices, the more a step's noise hides of what is known already; and the largest lookahead, which
        # only the last stage has, stays behind if it is rare (docs/log.md).
        training = replace(training, decay=400_000)
        curriculum = replace(curriculum, slow_from=13, largest=10)
    model = replace(model, initialisation="matching", joining=1.0)
    if vertices >= 19:
        model = replace(model, matching=0.0, following=1.4, asking=1.7)
    if vertices == 19:
        training = replace(training, learning_rate=1e-3)
    if vertices > 19:
        model = replace(model, legible=True)
    if vertices > 41:
        # The more rows there are to choose from, the sharper attention has to start. With 41 vertices it is sooner in
        # the last stage with this, too, but converges no sooner (docs/experiments.md).
        model = replace(model, following=1.7, asking=2.0)
    return replace(base, model=model, training=training, curriculum=curriculum, recipe="matched")


def efficient(input_size: int, seed: int = 0) -> RunConfig:
    """T2m: one token per edge, two heads that start out following edges forwards and backwards.

    N=64, 19 vertices (`pathmerge train --recipe efficient --input-size 64 --seed S --training.threads 1`): 0.995 at
    each lookahead after 112,512, 157,568 and 135,040 examples (seeds 1, 2, 3; median 135,040 and 3.3e12 FLOP; none
    failed). Without tangled problems after 135,040, 157,568 and 135,040; and without the prior
    (`--model.initialisation default`) after 247,552, 270,080 and 292,608.
    N=128, 41 vertices (`pathmerge train --recipe efficient --input-size 128 --seed S`): 0.995 at each lookahead after
    350,080, 300,032 and 400,000 examples (seeds 1, 2, 3; median 350,080 and 3.7e13 FLOP; none failed). Without tangled
    problems after 399,360, 350,080 and 400,000. N=305, 100 vertices (seed 1): 0.995 on all lookaheads together after
    735,104 examples; 0.9968, at the worst lookahead 0.9925, after 909,952 and 3.4e14 FLOP, when the rate is gone: not
    converged at each. One block seven times (`--model.layers 1 --model.loops 7`): 0.9983 and 0.9945 after 808,832.
    N=512, 169 vertices, one block eight times (docs/experiments.md, seed 1): 0.988 and 0.972 after 574,336.
    """
    base = edge_tokens(input_size, seed)
    vertices = Balanced(input_size=input_size).most_vertices
    if vertices >= 19:
        # What is left to learn once such problems are mastered is what to do where ways meet, and the largest
        # lookahead, which such problems cannot have and only the last stage has (docs/experiments.md).
        training = replace(base.training, loss="any")
        curriculum = replace(base.curriculum, tangled=0.5, largest=4)
        base = replace(base, training=training, curriculum=curriculum)
    if vertices > 41:
        # A rate that falls as graphs grow, and at the end for long; stages that move on at 0.9; and vectors of 48
        # numbers, which are enough to tell a hundred vertices apart, for a quarter of the work (docs/log.md).
        base = replace(
            base,
            model=replace(base.model, end_width=48),
            training=replace(base.training, decay=600_000),
            curriculum=replace(base.curriculum, slow_from=41, threshold=0.9, largest=10),
        )
    return replace(base, recipe="efficient")


def edge_tokens(input_size: int, seed: int = 0) -> RunConfig:
    """What the recipes with edge tokens have in common."""
    # Source and target stand in one token, so no layer has to join them.
    model = Edges(input_size=input_size, layers=layers_for(input_size) - 1, initialisation="matching")
    base = growing(input_size, seed)
    training = replace(base.training, learning_rate=1e-3, batch_size=128, decay=240_000, average=20_000)
    return replace(base, model=model, training=training)


def dense(input_size: int, seed: int = 0) -> RunConfig:
    """T3: `efficient` without tangled problems; while the rate is at its peak each edge also says whether it leads to
    the goal.

    N=128, 41 vertices (`pathmerge train --recipe dense --input-size 128 --seed S`): 0.995 at each lookahead after
    300,032 examples with seeds 1 and 3 (3.1e13 FLOP); seed 2 has 0.998 on all and 0.992 at lookahead 20 when the rate
    is gone, after 378,240: one of three failed.
    """
    base = edge_tokens(input_size, seed)
    model, training = replace(base.model, reach=True), replace(base.training, reach=0.5)
    return replace(base, model=model, training=training, recipe="dense")


RECIPES: dict[str, Callable[[int, int], RunConfig]] = {
    "paper": paper,
    "tuned": tuned,
    "matched": matched,
    "efficient": efficient,
    "dense": dense,
}

ARCHITECTURE = ("embedding", "positions", "causal", "heads", "loops")
"""What makes the paper's one-hot transformer another one; layers and hidden width differ in the paper too."""
STEPS = (
    "optimizer", "learning_rate", "weight_decay", "beta1", "beta2", "clip", "warmup", "schedule", "first_batch_size",
    "ramp", "loss", "average",
)  # fmt: skip
"""What makes the paper's training another one; how long it goes on does not."""
PUBLISHED_BATCHES = (256, 1024)
"""The paper's batches: 256 in its scaling studies."""


def track_of(config: RunConfig) -> str:
    """The track (SPEC section 9) of a config, by what it changes against the paper's model, data and optimizer."""
    model, published = config.model, paper(config.problem.input_size)
    if config.training.reach:
        return "T3"
    prior = "m" if model.initialisation == "matching" else ""
    if not isinstance(model, OneHot) or _differ(model, published.model, ARCHITECTURE):
        return f"T2{prior}"
    changed = _differ(config.training, published.training, STEPS) or config.curriculum != published.curriculum
    changed |= config.training.batch_size not in PUBLISHED_BATCHES
    changed |= model.feed_forward_scale != published.model.feed_forward_scale or bool(model.legible)
    return f"T1{prior}" if changed or prior else "T0"


def _differ(one: Any, other: Any, fields: Sequence[str]) -> bool:
    return any(getattr(one, field) != getattr(other, field) for field in fields)


def on_problem(config: RunConfig, problem: Distribution, model: ModelConfig | None = None) -> RunConfig:
    """The same config for another problem, and perhaps another model, of the same size; what does not fit (a join of
    the edges of search problems and following them, a share of tangled problems, a loss over any answer where answers
    are sentences, a curriculum over sizes that another task does not have) is left out."""
    model = config.model if model is None else model
    changes: dict[str, Any] = {"text": problem.name == "language"} if hasattr(model, "text") else {}
    if isinstance(model, OneHot) and not isinstance(problem, SearchDistribution):
        model = without_edges(model)
    curriculum, training = config.curriculum, config.training
    if type(problem) is not Balanced:
        curriculum = replace(curriculum, tangled=None, largest=None)
    if problem.name == "language":
        training = replace(training, loss="label")
    if problem.task != "search" and config.problem.task == "search":
        curriculum = Curriculum()
        # Muon was chosen on search problems; the other tasks' results are with AdamW. Settings of one's own stay.
        if config.training == tuned(problem.input_size).training:
            training = growing(problem.input_size).training
    model = replace(model, **changes)
    return replace(config, problem=problem, model=model, curriculum=curriculum, training=training)


def without_edges(model: OneHot) -> OneHot:
    """A model without what it was told about the edges of search problems; tokens are matched instead of followed."""
    matching = model.matching if model.following is None else OneHot.matching
    return replace(model, joining=0.0, following=None, asking=None, legible=None, matching=matching)


def of_kinds(config: RunConfig, problem: str, model: str) -> RunConfig:
    """A config with these kinds of problem and model, by name; another kind brings its own defaults."""
    size, chosen, reader = config.problem.input_size, config.problem, config.model
    if problem != chosen.name:
        chosen = DISTRIBUTIONS[problem](input_size=size)
    if model != reader.name:
        kind = MODELS[model]
        names = {field.name for field in fields(kind)} & {"layers", "initialisation"}
        reader = kind(input_size=size, **{name: getattr(reader, name) for name in names if hasattr(reader, name)})
    return on_problem(config, chosen, reader)


def recipe(name: str, input_size: int, seed: int = 0) -> RunConfig:
    """The config of a recipe by its name."""
    check_choice("recipe", name, tuple(RECIPES))
    return RECIPES[name](input_size, seed)


def command_of(config: RunConfig) -> str:
    """The `pathmerge train` command of a config: its recipe, and an option for each field that differs from it."""
    assert config.recipe is not None
    plain = recipe(config.recipe, config.problem.input_size)
    words = ["pathmerge", "train", "--recipe", config.recipe, "--input-size", str(config.problem.input_size)]
    if config.problem.name != plain.problem.name:
        words += ["--problem", config.problem.name]
    if config.model.name != plain.model.name:
        words += ["--model", config.model.name]
    words += ["--seed", str(config.seed)]
    ours, base = config.to_dict(), of_kinds(plain, config.problem.name, config.model.name).to_dict()
    for table in ("problem", "model", "training", "curriculum", "held_out"):
        for field in {**base[table], **ours[table]}:
            value = ours[table].get(field)
            if value != base[table].get(field):
                words += _option(f"{table}.{field}".replace("_", "-"), value)
    return shlex.join(words)


def _option(name: str, value: object) -> list[str]:
    if isinstance(value, bool):
        at = name.rfind(".") + 1
        return [f"--{name}" if value else f"--{name[:at]}no-{name[at:]}"]
    return [f"--{name}", str(value)]
