"""What `evaluate` and `explain` are given: a run, a file of weights, or the name of a shipped model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pathmerge.distributions import DISTRIBUTIONS
from pathmerge.training.config import Holding

if TYPE_CHECKING:
    from pathmerge.training.run import Run


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A trained model with what it was trained on."""

    name: str
    title: str
    model: Any
    problem: Any
    count: int
    seed: int
    run: Run | None
    loops: int | None = None
    """How often the blocks are applied, if not as in training."""

    def place(self, name: str) -> Path | None:
        """A file in the run's directory, with a name of its own for another depth."""
        if self.run is None:
            return None
        path = self.run.directory / name
        return path if self.loops is None else path.with_stem(f"{path.stem}-loops-{self.loops}")

    def looped(self, loops: int) -> Subject:
        """The same model with its blocks applied so many times."""
        return replace(self, name=f"{self.name}, loops {loops}", model=self.model.looped(loops), loops=loops)


def load_subject(given: str, task: str) -> Subject:
    """A run, a file of weights or a model of the shelf, with what it was trained on."""
    from pathmerge.zoo.shelf import card, load, names

    path = Path(given)
    if task != "search" and path.suffix != ".safetensors":
        raise ValueError(f"task={task!r}: only for a file of weights; {given!r} says itself what it was trained for")
    if not path.exists() and given in names():
        config = card(given).run_config
        title = f"{given}, {config.problem.describe()}"
        held = config.held_out
        return Subject(
            name=given,
            title=title,
            model=load(given),
            problem=config.problem,
            count=held.test,
            seed=held.seed,
            run=None,
        )
    if path.suffix == ".safetensors":
        from pathmerge.models.weights import load_weights

        model = load_weights(path)
        kind = "language" if getattr(model.config, "text", False) else {"search": "balanced"}.get(task, task)
        problem = DISTRIBUTIONS[kind](input_size=model.config.input_size)
        count, seed = Holding().test, Holding().seed
        return Subject(name=path.stem, title=str(path), model=model, problem=problem, count=count, seed=seed, run=None)
    from pathmerge.training.run import load_run

    if not path.exists() and path.name == given:
        near = get_close_matches(given, names(), n=1)
        raise ValueError(
            f"run={given!r}: not a run, nor the name of a trained model"
            + (f" (did you mean {near[0]}?)" if near else "; `pathmerge models` lists those that come with pathmerge")
        )
    run = load_run(path)
    title = f"{run.config.problem.describe()}, {run.config.model.name}, {run.examples:,} examples"
    return Subject(
        name=run.config.recipe or run.config.model.name,
        title=title,
        model=run.model,
        problem=run.config.problem,
        count=run.config.held_out.test,
        seed=run.config.held_out.seed,
        run=run,
    )
