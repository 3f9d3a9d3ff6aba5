"""Does graph size matter as much for sentences and for rotary decoders? (paper, figures 9 and 11)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pathmerge.encodings.language import Language
from pathmerge.problems.balanced import Balanced
from pathmerge.problems.distribution import Distribution
from pathmerge.studies.learning import Budget, LearningStudy, Variant
from pathmerge.studies.study import Setting


class RotarySize(LearningStudy):
    """Rotary decoders on larger and larger graphs."""

    name: ClassVar[str] = "rotary-size"
    figure: ClassVar[str] = "Figure 11"
    question: ClassVar[str] = "Do rotary decoders struggle alike as graphs grow?"
    varied: ClassVar[str] = "vertices"
    axes: ClassVar[tuple[str, ...]] = ("examples",)
    sizes: ClassVar[Mapping[str, tuple[int, ...]]] = {
        "smoke": (17, 20),
        "laptop": (20, 26, 32, 38),
        "paper": tuple(range(32, 153, 6)),
    }
    layers: ClassVar[Mapping[str, int]] = {"smoke": 2, "laptop": 4, "paper": 8}
    more_seeds: ClassVar[Mapping[tuple[str, int], int]] = {("laptop", 20): 4}
    """Where there are more than the budget says: the smallest size, against which the others are held, is cheap."""
    published: ClassVar[str] = "N=32..152, 8 layers, 2 seeds, 524M examples"
    budgets: ClassVar[Mapping[str, Budget]] = {
        "smoke": Budget(examples=1024, seeds=1, point=512, validation=50, test=100),
        "laptop": Budget(examples=600_000, seeds=2, point=20_000),
        "paper": Budget(examples=524_000_000, seeds=2),
    }

    def says(self, setting: Setting) -> str:
        budget, sizes = self.budgets[setting.scale], ", ".join(map(str, self.sizes[setting.scale]))
        more = "".join(f" (N={n}: {seeds})" for (at, n), seeds in self.more_seeds.items() if at == setting.scale)
        return (
            f"N={sizes}, {self.layers[setting.scale]} layers, {budget.seeds} seed(s){more}, at most "
            f"{budget.examples:,} examples each; the paper: {self.published}"
        )

    def problem(self, size: int) -> Distribution:
        return Balanced(input_size=size)

    def variants(self, scale: str) -> list[Variant]:
        return [
            Variant(
                labels={"input_size": size, "vertices": (size - 5) // 3},
                problem=self.problem(size),
                layers=self.layers[scale],
                rotary=self.name == "rotary-size",
                seeds=self.more_seeds.get((scale, size)),
            )
            for size in self.sizes[scale]
        ]


class LanguageSize(RotarySize):
    """The paper's model on the same problems told in sentences."""

    name: ClassVar[str] = "language"
    figure: ClassVar[str] = "Figure 9"
    question: ClassVar[str] = "Is search in sentences learned alike?"
    axes: ClassVar[tuple[str, ...]] = ("examples", "flops")
    more_seeds: ClassVar[Mapping[tuple[str, int], int]] = {}
    sizes: ClassVar[Mapping[str, tuple[int, ...]]] = {
        "smoke": (17, 20),
        "laptop": (17, 20, 23, 26),
        "paper": (32, 48, 64, 80, 96),
    }
    published: ClassVar[str] = "N=32, 48, 64, 80, 96, 8 layers, 5 seeds, 393M examples"
    budgets: ClassVar[Mapping[str, Budget]] = {
        "smoke": Budget(examples=512, seeds=1, point=256, validation=20, test=100),
        "laptop": Budget(examples=100_000, seeds=1, point=5_000, validation=400, test=400),
        "paper": Budget(examples=393_000_000, seeds=5),
    }

    def problem(self, size: int) -> Distribution:
        return Language(input_size=size)
