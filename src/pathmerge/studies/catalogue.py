"""The studies by name, in the order of SPEC section 7. A plug-in adds its own: `STUDIES["name"] = MyStudy()`."""

from __future__ import annotations

from pathmerge.errors import check_known
from pathmerge.studies.lookahead_histogram import LookaheadHistogram
from pathmerge.studies.study import Study

STUDIES: dict[str, Study] = {study.name: study for study in (LookaheadHistogram(),)}


def study_named(name: str) -> Study:
    """The study of this name; the nearest one is suggested if there is none."""
    check_known("study", name, STUDIES)
    return STUDIES[name]
