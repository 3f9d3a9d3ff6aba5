"""The studies by name, in the order of SPEC section 7. A plug-in adds its own: `STUDIES["name"] = MyStudy()`."""

from __future__ import annotations

from pathmerge.errors import check_known
from pathmerge.studies.circuits import Circuits
from pathmerge.studies.dfs import DFSModel, DFSPadding, DFSSize
from pathmerge.studies.direction import Direction
from pathmerge.studies.graph_size import GraphSize
from pathmerge.studies.lookahead_histogram import LookaheadHistogram
from pathmerge.studies.model_size import ModelSize, RotaryModel
from pathmerge.studies.other_forms import LanguageSize, RotarySize
from pathmerge.studies.selection_inference import SelectionInferenceModel, SelectionInferenceSize
from pathmerge.studies.sensitivity import Sensitivity
from pathmerge.studies.study import Study

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Sensitivity(),
        Circuits(),
        GraphSize(),
        ModelSize(),
        LookaheadHistogram(),
        LanguageSize(),
        RotarySize(),
        RotaryModel(),
        DFSSize(),
        DFSModel(),
        DFSPadding(),
        SelectionInferenceSize(),
        SelectionInferenceModel(),
        Direction(),
    )
}


def study_named(name: str) -> Study:
    """The study of this name; the nearest one is suggested if there is none."""
    check_known("study", name, STUDIES)
    return STUDIES[name]
