"""The whole config of a run: problem, model, training, curriculum, what is held out. Frozen, complete, written as TOML.

Choices a reader could not guess:
- The config's hash names the run's directory: the same config is the same run. So everything that can change a weight
  is in it (the number of threads too), and nothing that cannot (where it is written, how often it is saved).
- Numbers of examples, not of steps, everywhere.
- TOML has no null: a field left out is None, or its default.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from pathmerge.distributions import distribution_from_dict
from pathmerge.errors import check_choice, check_number, check_range, plain
from pathmerge.models.config import MODELS, MOST_LAYERS, ModelConfig, model_from_dict
from pathmerge.problems.distribution import Distribution, SearchDistribution
from pathmerge.rng import MAX_SEED
from pathmerge.training.curriculum import Curriculum

OPTIMIZERS = ("signum", "sophia", "adamw", "muon")
SCHEDULES = ("constant", "cosine", "linear")
LOSSES = ("label", "soft", "any")
STOPS = ("never", "converged", "converged_each")
DEVICES = ("auto", "cpu", "cuda", "mps")


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a model is trained."""

    optimizer: Literal["signum", "sophia", "adamw", "muon"] = "adamw"
    """signum is what the published runs used; sophia is the real one."""
    learning_rate: float = 1e-3
    """The peak rate."""
    weight_decay: float = 0.01
    """Decoupled; the paper's is 0.1."""
    beta1: float | None = None
    """Memory of the gradient; none: the optimizer's own default."""
    beta2: float | None = None
    """Memory of its square (adamw, muon) or of the Hessian (sophia); none: the optimizer's own default."""
    hessian_every: int = 10
    """sophia: steps between estimates of the Hessian."""
    gamma: float = 0.04
    """sophia: the scale of the Hessian in a step."""
    clip: float = 1.0
    """The largest norm of a gradient; 0: any."""
    warmup: int = 0
    """Examples over which the rate rises from 0."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """How the rate falls after the warm-up."""
    decay: int | None = None
    """Examples over which it falls, at the end of the run; none: all after the warm-up. With a curriculum, or
    `curriculum.mastery` alone, the fall begins when the last stage is mastered, and the run ends when it is done."""
    floor: float = 0.0
    """The fraction of the peak it falls to."""
    batch_size: int = 256
    """Examples in a step."""
    first_batch_size: int | None = None
    """With `ramp`: the batch size at the beginning, doubled until batch_size."""
    ramp: int = 0
    """Examples over which the batch size grows."""
    accumulate: int = 1
    """In how many parts a batch is computed, for memory's sake: the step is the same."""
    loss: Literal["label", "soft", "any"] = "label"
    """Cross-entropy with the label, with the uniform distribution over all answers, or -log of their total chance."""
    reach: float = 0.0
    """The weight of a second loss (track T3), for models with `reach`: which rows' vertices lead to the goal. It fades
    with the learning rate."""
    average: int | None = None
    """Judge and keep a running mean of the weights, over so many examples; none: the last weights."""
    deepest: int | None = None
    """In each step the model's blocks are applied a number of times drawn evenly from `model.loops` to this, so that
    it learns to go on as long as it is asked to; none: always `model.loops`, with which it is judged in any case."""
    examples: int = 1_000_000
    """The run ends after this many."""
    stop: Literal["never", "converged", "converged_each"] = "never"
    """End earlier, once validation accuracy is 0.995 on all difficulties together, or on each."""
    minutes: float | None = None
    """End after this much computing time."""
    validate_every: int = 50_000
    """Examples between validations; with a curriculum they begin at its last stage."""
    log_every: int = 10_000
    """Examples between lines of metrics."""
    threads: int = 2
    """Cores to compute with. Part of the config, because sums of floats depend on how work is divided."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: cuda or mps where there is one, else the CPU."""

    def __post_init__(self) -> None:
        for name, allowed in (
            ("optimizer", OPTIMIZERS),
            ("schedule", SCHEDULES),
            ("loss", LOSSES),
            ("stop", STOPS),
            ("device", DEVICES),
        ):
            check_choice(f"training.{name}", getattr(self, name), allowed)
        check_number("training.learning_rate", self.learning_rate, 0, 1000)
        check_number("training.weight_decay", self.weight_decay, 0, 1000)
        check_number("training.clip", self.clip, 0)
        check_number("training.gamma", self.gamma, 0)
        check_number("training.floor", self.floor, 0, 1)
        check_number("training.reach", self.reach, 0, 1000)
        for name in ("beta1", "beta2"):
            if getattr(self, name) is not None:
                check_number(f"training.{name}", getattr(self, name), 0, 0.999999)
        if self.optimizer == "signum" and self.beta2 is not None:
            raise ValueError(f"training.beta2={self.beta2}: must be left out, signum has none")
        if self.minutes is not None:
            check_number("training.minutes", self.minutes, 0)
        check_range("training.examples", self.examples, 0, 10**15)
        for name, low, high in (
            ("hessian_every", 1, 10**9),
            ("warmup", 0, 10**15),
            ("batch_size", 1, 2**24),
            ("ramp", 0, 10**15),
            ("accumulate", 1, 2**24),
            ("validate_every", 1, 10**15),
            ("log_every", 1, 10**15),
            ("threads", 1, 1024),
        ):
            check_range(f"training.{name}", getattr(self, name), low, high)
        if self.first_batch_size is not None:
            check_range("training.first_batch_size", self.first_batch_size, 1, self.batch_size, "at most batch_size")
        for name, high in (("decay", 10**15), ("average", 10**15), ("deepest", MOST_LAYERS)):
            if getattr(self, name) is not None:
                check_range(f"training.{name}", getattr(self, name), 1, high)


@dataclass(frozen=True, kw_only=True)
class Holding:
    """What evaluation uses and training never sees, per difficulty."""

    test: int = 4000
    """Test problems of each difficulty."""
    validation: int = 1000
    """Validation problems of each difficulty."""
    seed: int = 0
    """Their seed; runs with the same one are tested on the same problems."""
    watch: Literal["naive"] | None = None
    """Another distribution to judge at each validation, as the paper's test curves do; no stop rule looks at it."""

    def __post_init__(self) -> None:
        if self.watch is not None:
            check_choice("held_out.watch", self.watch, ("naive",))
        check_range("held_out.test", self.test, 1, 10**7)
        check_range("held_out.validation", self.validation, 1, 10**7)
        check_range("held_out.seed", self.seed, 0, MAX_SEED)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole run. `input_size` of the problem and of the model must agree."""

    problem: Distribution
    model: ModelConfig
    training: Training = field(default_factory=Training)
    curriculum: Curriculum = field(default_factory=Curriculum)
    held_out: Holding = field(default_factory=Holding)
    seed: int = 0
    """The seed of the weights and of the training stream."""
    recipe: str | None = None
    """The recipe this config began as, for the record."""

    def __post_init__(self) -> None:
        check_range("seed", self.seed, 0, MAX_SEED)
        if self.problem.input_size != self.model.input_size:
            raise ValueError(
                f"model.input_size={self.model.input_size}: must be that of the problem, {self.problem.input_size}"
            )
        text = getattr(self.model, "text", None)
        if self.problem.name == "language" and text is None:
            raise ValueError(f"model.name={self.model.name!r}: cannot read language problems; onehot and rotary can")
        if text is not None and text != (self.problem.name == "language"):
            raise ValueError(f"model.text={text}: must be {not text} for {self.problem.name} problems")
        if self.training.loss != "label" and text:
            raise ValueError(f"training.loss={self.training.loss!r}: must be 'label' for language problems")
        if (self.training.reach > 0) != self.model.reach:
            raise ValueError(
                f"training.reach={self.training.reach}: must be above 0 if model.reach is true and 0 if not; it is "
                f"{self.model.reach}"
            )
        for name in ("reach", "joining"):
            value = getattr(self.model, name, None)
            if value and not isinstance(self.problem, SearchDistribution):
                raise ValueError(f"model.{name}={value}: needs balanced, naive, star problems, not {self.problem.name}")
        deepest = self.training.deepest
        if deepest is not None and deepest < self.model.loops:
            raise ValueError(f"training.deepest={deepest}: must be at least model.loops={self.model.loops}")
        if self.curriculum.scatter and (text or getattr(self.model, "positions", "none") == "none"):
            raise ValueError("curriculum.scatter=True: needs a model of symbolic tokens with positions")
        if self.held_out.watch is not None and self.problem.task != "search":
            raise ValueError(
                f"held_out.watch={self.held_out.watch!r}: must be left out for {self.problem.name} problems"
            )
        share, batch = self.curriculum.tangled, self.training.batch_size
        if share and not self.curriculum.tangled_part(batch):
            raise ValueError(
                f"curriculum.tangled={share}: must be at least {16 / batch:g}, sixteen problems of a batch of {batch}"
            )
        self.curriculum.sources(self.problem)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `config_from_dict` is the inverse."""
        return {
            "seed": plain(self.seed),
            "recipe": self.recipe,
            "problem": self.problem.to_dict(),
            "model": self.model.to_dict(),
            "training": _plain(self.training),
            "curriculum": _plain(self.curriculum),
            "held_out": _plain(self.held_out),
        }

    @property
    def digest(self) -> str:
        """The hash that names the run: of everything but the recipe's name."""
        values = self.to_dict()
        del values["recipe"]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def run_name(self) -> str:
        return f"{self.problem.name}-{self.model.name}-{self.problem.input_size}-{self.digest}"


LATER = ("watch", "average", "deepest", "slow_from", "tangled", "largest", "newest")
"""Fields that came later: left out when not set, so that runs without them have the names they had before."""


def _plain(table: Any) -> dict[str, Any]:
    return {key: plain(value) for key, value in asdict(table).items() if key not in LATER or value is not None}


_TABLES: dict[str, type] = {"training": Training, "curriculum": Curriculum, "held_out": Holding}


def config_from_dict(values: Mapping[str, Any]) -> RunConfig:
    """A config from plain values. Unknown keys are errors; the model's input size may be left to the problem's."""
    given = dict(values)
    for key in given:
        check_choice("key", key, ("input_size", "seed", "recipe", "problem", "model", *_TABLES))
    size = given.pop("input_size", None)
    problem, model = dict(_table(given, "problem")), dict(_table(given, "model"))
    for table in (problem, model):
        if size is not None:
            table.setdefault("input_size", size)
    problem.setdefault("name", "balanced")
    model.setdefault("name", "onehot")
    if "input_size" in problem:
        model.setdefault("input_size", problem["input_size"])
    elif "input_size" in model:
        problem["input_size"] = model["input_size"]
    if problem["name"] == "language" and hasattr(MODELS.get(str(model["name"])), "text"):
        model.setdefault("text", True)
    built: dict[str, Any] = {}
    for name, kind in _TABLES.items():
        table = _table(given, name)
        _check_fields(name, table, kind)
        built[name] = kind(**table)
    return RunConfig(
        problem=distribution_from_dict(problem),
        model=model_from_dict(model),
        seed=given.get("seed", 0),
        recipe=given.get("recipe"),
        **built,
    )


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = values.get(name, {})
    if not isinstance(table, Mapping):
        raise ValueError(f"{name}={table!r}: must be a table of fields")
    return table


def _check_fields(name: str, table: Mapping[str, Any], kind: type) -> None:
    known = {f.name: f for f in fields(kind)}
    for key in table:
        check_choice(f"{name} field", key, tuple(known))


def read_config(path: Path | str) -> dict[str, Any]:
    """The values of a TOML file, not yet a config: the command line may change them."""
    path = Path(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"config={str(path)!r}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"config={str(path)!r}: cannot be read ({error})") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"config={str(path)!r}: is not TOML ({error})") from None


def load_config(path: Path | str) -> RunConfig:
    """The config in a TOML file."""
    try:
        return config_from_dict(read_config(path))
    except ValueError as error:
        text = str(error)
        raise ValueError(text if text.startswith("config=") else f"config={str(path)!r}: {text}") from None


def to_toml(config: RunConfig) -> str:
    """The config as TOML, every field written out but those that are None."""
    values = config.to_dict()
    single = {key: value for key, value in values.items() if not isinstance(value, dict) and value is not None}
    lines = [f"{key} = {_toml(value)}" for key, value in single.items()]
    for name, table in values.items():
        if isinstance(table, dict):
            lines += ["", f"[{name}]"]
            lines += [f"{key} = {_toml(value)}" for key, value in table.items() if value is not None]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
