"""Tables in files: scanned lazily, folded in one pass, rows that break a rule set aside."""

from steelyard.data.table import folds
from steelyard.data.table.fold import Fold
from steelyard.data.table.folding import Folded
from steelyard.data.table.kinds import KINDS
from steelyard.data.table.once import parsed_once
from steelyard.data.table.partitions import TableFile
from steelyard.data.table.profile import ColumnProfile, ProfileFold, TableProfile
from steelyard.data.table.quarantine import BadRow, Quarantine
from steelyard.data.table.row_folds import CovarianceFold, RowCountFold, RowHashFold
from steelyard.data.table.table import DataTable

__all__ = [
    "KINDS",
    "BadRow",
    "ColumnProfile",
    "CovarianceFold",
    "DataTable",
    "Fold",
    "Folded",
    "ProfileFold",
    "Quarantine",
    "RowCountFold",
    "RowHashFold",
    "TableFile",
    "TableProfile",
    "folds",
    "parsed_once",
]
