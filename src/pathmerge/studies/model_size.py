"""Does a larger model learn to search better? (paper, figure 7; figure 12 for rotary decoders)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pathmerge.problems.balanced import Balanced
from pathmerge.studies.learning import Budget, LearningStudy, Variant
from pathmerge.studies.study import Setting

SIZE = {"smoke": 20, "laptop": 26, "paper": 98}
LAYERS = {"smoke": 2, "laptop": 4, "paper": 8}


class ModelSize(LearningStudy):
    """One problem, wider and wider models."""

    name: ClassVar[str] = "model-size"
    figure: ClassVar[str] = "Figure 7"
    question: ClassVar[str] = "Does a wider model learn to search better?"
    varied: ClassVar[str] = "hidden"
    shown: ClassVar[str | None] = "parameters"
    axes: ClassVar[tuple[str, ...]] = ("examples", "flops")
    hidden: ClassVar[Mapping[str, tuple[int, ...]]] = {
        "smoke": (4, 16),
        "laptop": (16, 64, 128),
        "paper": (16, 64, 256, 1024),
    }
    rotary: ClassVar[bool] = False
    budgets: ClassVar[Mapping[str, Budget]] = {
        "smoke": Budget(examples=1024, seeds=2, point=512, validation=50, test=100),
        "laptop": Budget(examples=400_000, seeds=2, point=20_000),
        "paper": Budget(examples=236_000_000, seeds=4),
    }

    def says(self, setting: Setting) -> str:
        budget, paper = self.budgets[setting.scale], self.budgets["paper"]
        kind = "rotary decoder, " if self.rotary else ""
        return (
            f"{kind}N={SIZE[setting.scale]}, {LAYERS[setting.scale]} layers, "
            f"hidden {_list(self.hidden[setting.scale])}, {budget.seeds} seed(s), at most {budget.examples:,} examples "
            f"each; the paper: N=98, 8 layers, hidden {_list(self.hidden['paper'])}, {paper.seeds} seeds, "
            f"{paper.examples // 10**6}M examples"
        )

    def variants(self, scale: str) -> list[Variant]:
        problem = Balanced(input_size=SIZE[scale])
        return [
            Variant(labels={"hidden": hidden}, problem=problem, layers=LAYERS[scale], hidden=hidden, rotary=self.rotary)
            for hidden in self.hidden[scale]
        ]


class RotaryModel(ModelSize):
    """The same for rotary decoders."""

    name: ClassVar[str] = "rotary-model"
    figure: ClassVar[str] = "Figure 12"
    question: ClassVar[str] = "Does a wider rotary decoder learn to search better?"
    rotary: ClassVar[bool] = True
    hidden: ClassVar[Mapping[str, tuple[int, ...]]] = {
        "smoke": (4, 16),
        "laptop": (16, 64, 128),
        "paper": (16, 128, 256, 1024),
    }
    budgets: ClassVar[Mapping[str, Budget]] = {
        "smoke": Budget(examples=1024, seeds=1, point=512, validation=50, test=100),
        "laptop": Budget(examples=400_000, seeds=1, point=20_000),
        "paper": Budget(examples=524_000_000, seeds=2),
    }


def _list(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))
