"""Studies: many runs of one recipe over sizes, lengths, rates and seeds, resumable cell by cell.

`run_study` trains a `StudyRecipe`. Nothing here imports torch: it is loaded when a run begins.
"""

from steelyard.train.study.cells import Cell, branches, rung_cells, study_cells
from steelyard.train.study.in_process import InProcess
from steelyard.train.study.opened import OpenStudy, price_study, run_study
from steelyard.train.study.recipe import StudyRecipe, resized
from steelyard.train.study.runner import CellOutcome, CellRunner, StudyOutcome
from steelyard.train.study.store import cell_keeper

__all__ = [
    "Cell",
    "CellOutcome",
    "CellRunner",
    "InProcess",
    "OpenStudy",
    "StudyOutcome",
    "StudyRecipe",
    "branches",
    "cell_keeper",
    "price_study",
    "resized",
    "run_study",
    "rung_cells",
    "study_cells",
]
