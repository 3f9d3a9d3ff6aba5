"""The distributions by name, for files and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pathmerge.encodings.language import Language
from pathmerge.errors import check_choice, check_known
from pathmerge.problems.balanced import Balanced
from pathmerge.problems.dfs import DFS
from pathmerge.problems.distribution import Distribution
from pathmerge.problems.naive import Naive
from pathmerge.problems.selection_inference import SelectionInference
from pathmerge.problems.star import Star
from pathmerge.problems.tangled import Tangled

DISTRIBUTIONS: dict[str, type[Distribution]] = {
    kind.name: kind for kind in (Balanced, Tangled, Naive, Star, DFS, SelectionInference, Language)
}


def distribution_from_dict(values: Mapping[str, Any]) -> Distribution:
    """The inverse of `Distribution.to_dict`; unknown names and fields are errors."""
    given = dict(values)
    name = given.pop("name", None)
    check_known("distribution", name, DISTRIBUTIONS)
    kind = DISTRIBUTIONS[str(name)]
    known = [f.name for f in fields(kind)]
    for field in given:
        check_choice(f"{name} field", field, known)
    if "input_size" not in given:
        raise ValueError(f"{name}: the field input_size is missing")
    return kind(**given)
