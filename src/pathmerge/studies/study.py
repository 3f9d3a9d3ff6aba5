"""What a study is: a list of tasks, what is measured of each, and the figure that their rows give.

Choices a reader could not guess:
- A task is a training and a measurement (or, without a config, a measurement alone). Its rows are flat: names, numbers,
  words. Everything that is shown or claimed comes from rows, never from models.
- The same config is the same run: two studies that need it share it, because runs lie in one folder and are named by
  the hash of their config.
- Each training of a study computes with one core, so that its weights are the same wherever it runs and as many run
  side by side as there are cores.
- `paper` is the published setting. `laptop` is smaller in every way that `Scale.says` names; it can confirm or refute a
  claim *at that scale*. `smoke` shows that everything works, and nothing else.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pathmerge.errors import check_choice
from pathmerge.plugins import guarded
from pathmerge.problems.distribution import Distribution
from pathmerge.recipes import RECIPES, track_of
from pathmerge.training.config import RunConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pathmerge.training.run import Run

SCALES = ("smoke", "laptop", "paper")
Value = str | int | float | bool | None
Row = dict[str, Any]
"""One line of a study's table: names and plain values."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """At which scale, and with which recipe, a study is run."""

    scale: str
    recipe: str

    def __post_init__(self) -> None:
        check_choice("scale", self.scale, SCALES)
        check_choice("recipe", self.recipe, tuple(RECIPES))

    @property
    def name(self) -> str:
        return f"{self.scale}-{self.recipe}"


@dataclass(frozen=True, kw_only=True)
class Task:
    """One unit of work."""

    labels: Mapping[str, str | int | float]
    """What tells it from the others: the first columns of its rows."""
    config: RunConfig | None = None
    """What is trained; none: nothing is."""
    minutes: float = 0.0
    """How long measuring takes on one core, roughly; for the estimate of its cost."""

    @property
    def name(self) -> str:
        """Its labels as a file name."""
        words = "-".join(f"{key}={value}" for key, value in self.labels.items()) or "all"
        plain = re.sub(r"[^\w=.+-]+", "_", words)
        if plain == words and len(plain) <= 120:
            return plain
        return f"{plain[:100]}-{hashlib.sha256(words.encode()).hexdigest()[:6]}"

    @property
    def digest(self) -> str | None:
        """The hash of its config."""
        return None if self.config is None else self.config.digest


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a task works and with how many cores."""

    folder: Path
    """For files of its own besides its rows: circuits, for instance."""
    threads: int = 1


class Study(ABC):
    """A result of the paper that can be asked for by name; the subclasses say which."""

    name: ClassVar[str]
    figure: ClassVar[str]
    """Which figure of the paper it makes again."""
    question: ClassVar[str]
    """What it asks, in one line."""
    defaults: ClassVar[Mapping[str, str]] = {"smoke": "tuned", "laptop": "tuned", "paper": "paper"}
    """The recipe of each scale."""
    recipes: ClassVar[tuple[str, ...]] = ("paper", "tuned", "matched")
    """The recipes that can train its models."""

    def setting(self, scale: str, recipe: str | None = None) -> Setting:
        """This scale with this recipe, or with the scale's own."""
        check_choice("scale", scale, SCALES)
        chosen = self.defaults[scale] if recipe is None else recipe
        check_choice("recipe", chosen, tuple(RECIPES))
        if chosen not in self.recipes:
            raise ValueError(f"recipe={chosen!r}: study {self.name} takes one of {', '.join(self.recipes)}")
        return Setting(scale=scale, recipe=chosen)

    @abstractmethod
    def says(self, setting: Setting) -> str:
        """What is run at this scale, in plain words, and how it differs from the paper."""

    @abstractmethod
    def tasks(self, setting: Setting) -> list[Task]:
        """All its tasks, the cheapest first."""

    def examples(self, setting: Setting) -> list[Distribution]:
        """The distributions of which a report shows a problem: those its models are trained on."""
        problems = [task.config.problem for task in self.tasks(setting) if task.config is not None]
        return list(dict.fromkeys(problems))

    @abstractmethod
    def measure(self, task: Task, run: Run | None, setting: Setting, place: Place) -> list[Row]:
        """The rows of one task, whose training (if it has one) is done."""

    @abstractmethod
    def draw(self, rows: Sequence[Row], setting: Setting) -> Figure:
        """The figure, from all rows there are; tasks that failed or are not done have none."""


def tasks_of(study: Study, setting: Setting) -> list[Task]:
    """The tasks of a study, checked: it may be someone's own."""
    found = guarded(study.tasks, setting)
    if not isinstance(found, list) or not all(isinstance(task, Task) for task in found):
        raise ValueError(f"study {study.name}: its tasks must be a list of Task")
    names = [task.name for task in found]
    twice = next((task for task in found if names.count(task.name) > 1), None)
    if twice is not None:
        raise ValueError(f"study {study.name}: two tasks have the labels {twice.labels}; they must differ")
    return found


def recipe_and_track(setting: Setting, tasks: Sequence[Task]) -> str:
    """The recipe of a setting with the tracks (SPEC section 9) of what is trained with it."""
    tracks = sorted({track_of(task.config) for task in tasks if task.config is not None})
    return f"{setting.recipe} ({', '.join(tracks)})" if tracks else "nothing is trained"


def numbers(rows: Sequence[Row], column: str) -> list[float]:
    """The numbers of a column, those that are there."""
    return [float(value) for row in rows if isinstance(value := row.get(column), int | float)]


def distinct(rows: Sequence[Row], column: str) -> list[Any]:
    """The values of a column, each once, in the order of the rows."""
    return list(dict.fromkeys(row[column] for row in rows if row.get(column) is not None))


def where(rows: Sequence[Row], **wanted: Value) -> list[Row]:
    """The rows with these values."""
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]
