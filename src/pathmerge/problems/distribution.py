"""What every distribution shares: an input size, a list of cells (requested difficulties), and `sample`.

A *cell* is one difficulty: a triple of whole numbers whose meaning is given by `difficulty_names`. A distribution
with several cells draws one of them uniformly for each example, before and apart from everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pathmerge.errors import check_choice, check_range, plain
from pathmerge.layout import Layout, Task
from pathmerge.rng import Key, Split

if TYPE_CHECKING:
    from pathmerge.heldout import HeldOut
    from pathmerge.problems.batch import Batch

Label = Literal["path", "vertex", "soft"]
LABELS: tuple[Label, ...] = ("path", "vertex", "soft")
Cell = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """A distribution over problems; the subclasses say which."""

    input_size: int
    """N, the number of tokens; V = (N-5)//3 vertices fit."""

    name: ClassVar[str]
    difficulty_names: ClassVar[tuple[str, ...]]
    task: ClassVar[Task] = "search"

    def __post_init__(self) -> None:
        Layout(self.input_size, self.task)

    @property
    def layout(self) -> Layout:
        return Layout(self.input_size, self.task)

    @property
    def width(self) -> int:
        """Tokens per example."""
        return self.input_size

    @property
    def columns(self) -> tuple[str, ...]:
        """The difficulty columns a file of such problems has."""
        return self.difficulty_names

    def cells(self) -> list[Cell]:
        """The difficulties this distribution draws from, uniformly; (0, 0, 0) alone if difficulty is left to chance."""
        raise NotImplementedError

    def fixed(self) -> Sequence[Distribution]:
        """One distribution for each cell, in the order of `cells`."""
        raise NotImplementedError

    def parameters(self) -> dict[str, int]:
        """What the kernel wants to know besides sizes and cells: `kind`, `label`, `option`, `padding`."""
        raise NotImplementedError

    def problem_count(self) -> int | None:
        """How many distinct problems there are, where a formula says so."""
        return None

    def describe(self) -> str:
        """The config in one line, defaults left out."""
        given = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if f.name == "input_size" or getattr(self, f.name) != f.default
        ]
        return f"{self.name}({', '.join(given)})"

    def to_dict(self) -> dict[str, Any]:
        """The config as plain values, for a header; `distribution_from_dict` is the inverse."""
        return {"name": self.name, **{key: plain(value) for key, value in asdict(self).items()}}

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
    ) -> Batch:
        """Examples first..first+count-1 of a stream, the same for any number of threads.

        Problems in `held_out` are redrawn in place. `progress` is called with the number of examples just made.
        """
        from pathmerge.problems.draw import draw

        key = Key(seed=seed, split=split, stream=stream)
        return draw(self, key, first, count, held_out=held_out, threads=threads, progress=progress)


@dataclass(frozen=True, kw_only=True)
class SearchDistribution(Distribution):
    """Naive, balanced and star: find the next vertex on a path from start to goal."""

    label: Label = "path"
    """The label: the next vertex of a uniformly drawn path, a uniform useful vertex, or (soft) their distribution."""
    vertices: int | None = None
    """The most vertices (and edges) a problem has; none: V, all that fit. Ids are drawn from 1..V all the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("label", self.label, LABELS)
        if self.vertices is not None:
            check_range("vertices", self.vertices, 3, self.layout.max_vertices, f"V at input_size={self.input_size}")

    @property
    def most_vertices(self) -> int:
        return self.layout.max_vertices if self.vertices is None else self.vertices

    @property
    def size_text(self) -> str:
        limit = "" if self.vertices is None else f", vertices={self.vertices}"
        return f"input_size={self.input_size}{limit}"

    def parameters(self) -> dict[str, int]:
        return {"label": 0 if self.label == "path" else 1, "most": self.most_vertices}
