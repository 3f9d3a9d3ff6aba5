"""The settings of the circuit method; imports no torch, so that the command line can show them quickly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pathmerge.errors import check_choice, check_flag, check_number, check_range

Mode = Literal["exact", "screened"]
SetRule = Literal["whole", "literal"]
Replacement = Literal["any", "absent"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The method's settings; the defaults are the paper's."""

    mode: Mode = "screened"
    """`exact` measures every operation; `screened` those that can be part of a circuit."""
    alpha: float = 0.4
    """α: an operation is important if the prediction's logit falls by more."""
    kappa1: float = 20.0
    """κ1: or if the product of an important last-layer operation changes by more than √d/κ1."""
    kappa2: float = 10.0
    """κ2: an operation depends on a feature whose perturbation weakens its product by more than √d/κ2."""
    sets: SetRule = "whole"
    """What a merge adds to its target's set: the source's whole set, or the features used (as Algorithm 1 says)."""
    replacement: Replacement = "any"
    """`any`: token 0 stands in for a vertex where no id is absent; `absent`, the paper's rule, skips such inputs."""
    trust: bool = True
    """Whether to compute sufficiency, completeness and minimality."""
    audit: int | None = None
    """Screened: how many operations of each input, drawn among those not found, to measure after all; none: 32 for
    inputs of more than 48 tokens, where small effects are estimated."""
    seed: int = 0
    """The seed of random circuits and audits."""

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, ("exact", "screened"))
        check_number("alpha", self.alpha, 0, 1e6)
        for name in ("kappa1", "kappa2"):
            check_number(name, getattr(self, name), 1e-6, 1e6)
        check_choice("sets", self.sets, ("whole", "literal"))
        check_choice("replacement", self.replacement, ("any", "absent"))
        check_flag("trust", self.trust)
        if self.audit is not None:
            check_range("audit", self.audit, 0, 10**6)
            if self.audit and self.mode == "exact":
                raise ValueError(f"audit={self.audit}: only for mode='screened'; an exact result leaves nothing out")
        check_range("seed", self.seed, 0, 2**62)
