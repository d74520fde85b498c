"""Studies: many runs of one recipe over sizes, lengths, rates and seeds, resumable cell by cell.

`run_study` trains a `StudyRecipe`; `run_ladder_rung` trains one size. Nothing here imports torch:
it is loaded when a run begins.
"""

from steelyard.train.study.cells import Cell, branches, rung_cells, study_cells
from steelyard.train.study.opened import OpenStudy, price_study, run_study
from steelyard.train.study.recipe import StudyRecipe, resized
from steelyard.train.study.rung import ladder_tokens, run_ladder_rung
from steelyard.train.study.runner import CellOutcome, StudyOutcome

__all__ = [
    "Cell",
    "CellOutcome",
    "OpenStudy",
    "StudyOutcome",
    "StudyRecipe",
    "branches",
    "ladder_tokens",
    "price_study",
    "resized",
    "run_ladder_rung",
    "run_study",
    "rung_cells",
    "study_cells",
]
