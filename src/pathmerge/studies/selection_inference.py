"""Selection and inference, the two halves of a search step: which is harder, and do larger models help? (paper,
figures 16 and 17)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pathmerge.problems.selection_inference import SelectionInference
from pathmerge.studies.learning import Budget, LearningStudy, Variant
from pathmerge.studies.study import Setting

TESTED = {"smoke": (1, 2), "laptop": (2, 2), "paper": (4, 4)}
"""The frontier and branch tested; smaller inputs have no room for the paper's."""
STEPS = ("selection", "inference")


class SelectionInferenceSize(LearningStudy):
    """Models of four layers on larger and larger graphs."""

    name: ClassVar[str] = "selection-inference-size"
    figure: ClassVar[str] = "Figure 16"
    question: ClassVar[str] = "Which half of a search step becomes harder as graphs grow?"
    varied: ClassVar[str] = "vertices"
    sizes: ClassVar[Mapping[str, tuple[int, ...]]] = {
        "smoke": (20, 26),
        "laptop": (32, 48, 64),
        "paper": (80, 112, 144, 176, 272),
    }
    budgets: ClassVar[Mapping[str, Budget]] = {
        "smoke": Budget(examples=1024, seeds=1, point=512, validation=20, test=100),
        "laptop": Budget(examples=200_000, seeds=2, point=20_000, validation=100, test=100),
        "paper": Budget(examples=336_000_000, seeds=1, point=2**16, validation=200),
    }

    def says(self, setting: Setting) -> str:
        budget, sizes = self.budgets[setting.scale], ", ".join(map(str, self.sizes[setting.scale]))
        frontier, branch = TESTED[setting.scale]
        return (
            f"N={sizes}, 4 layers, {budget.seeds} seed(s), at most {budget.examples:,} examples each, tested at "
            f"frontier {frontier} and branch {branch}; the paper: N=80, 112, 144, 176, 272, 336M examples, (4, 4)"
        )

    def tested(self, scale: str) -> Mapping[str, str]:
        frontier, branch = TESTED[scale]
        return {f"_{step}": f"{step} frontier={frontier},branch={branch}" for step in STEPS}

    def variants(self, scale: str) -> list[Variant]:
        return [
            Variant(
                labels={"input_size": size, "vertices": (size - 5) // 3},
                problem=SelectionInference(input_size=size),
                layers=4,
            )
            for size in self.sizes[scale]
        ]


class SelectionInferenceModel(SelectionInferenceSize):
    """One size, larger and larger models."""

    name: ClassVar[str] = "selection-inference-model"
    figure: ClassVar[str] = "Figure 17"
    question: ClassVar[str] = "Do larger models learn the halves of a search step better?"
    varied: ClassVar[str] = "model"
    axes: ClassVar[tuple[str, ...]] = ("flops",)
    size: ClassVar[Mapping[str, int]] = {"smoke": 20, "laptop": 48, "paper": 272}
    models: ClassVar[Mapping[str, tuple[tuple[int, int], ...]]] = {
        "smoke": ((2, 16), (2, 32)),
        "laptop": ((4, 16), (4, 64), (6, 128)),
        "paper": ((4, 16), (4, 128), (8, 256), (4, 512), (4, 1024)),
    }
    budgets: ClassVar[Mapping[str, Budget]] = {
        "smoke": Budget(examples=1024, seeds=1, point=512, validation=20, test=100),
        "laptop": Budget(examples=200_000, seeds=1, point=20_000, validation=100, test=100),
        "paper": Budget(examples=524_000_000, seeds=1, point=2**16, validation=200),
    }

    def says(self, setting: Setting) -> str:
        budget = self.budgets[setting.scale]
        return (
            f"N={self.size[setting.scale]}, (layers, hidden) {', '.join(map(str, self.models[setting.scale]))}, "
            f"{budget.seeds} seed(s), at most {budget.examples:,} examples each; the paper: N=272, "
            f"{', '.join(map(str, self.models['paper']))}, 524M examples"
        )

    def variants(self, scale: str) -> list[Variant]:
        problem = SelectionInference(input_size=self.size[scale])
        return [
            Variant(
                labels={"model": f"{layers} layers, hidden {hidden}"}, problem=problem, layers=layers, hidden=hidden
            )
            for layers, hidden in self.models[scale]
        ]
