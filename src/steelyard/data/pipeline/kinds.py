"""Names of steps in recipes, and of fitted steps in files."""

from steelyard.data.pipeline.components import PCA, ComponentColumns
from steelyard.data.pipeline.dates import DateParts, SplitDates
from steelyard.data.pipeline.duplicates import Duplicates, NearDuplicates, RepeatedRows
from steelyard.data.pipeline.encoding import OneHot, OneHotColumns, Ordinal, OrdinalColumns
from steelyard.data.pipeline.hashing import HashedColumns, HashFeatures, TfIdf, WeighedWords
from steelyard.data.pipeline.imputing import FilledNumbers, FilledTexts, Impute
from steelyard.data.pipeline.neighbours import (
    KnnImpute,
    NearestRows,
    RegressedColumns,
    RidgeImpute,
)
from steelyard.data.pipeline.outliers import (
    BoundedColumns,
    Outliers,
    RejectMissing,
    RequiredColumns,
)
from steelyard.data.pipeline.reshaping import (
    Bin,
    BinnedColumns,
    Log,
    LogColumns,
    MappedColumns,
    PowerColumns,
    QuantileMap,
    YeoJohnson,
)
from steelyard.data.pipeline.scaling import AffineColumns, Rescale
from steelyard.data.pipeline.selecting import Drop, DroppedColumns
from steelyard.data.pipeline.target_encoding import TargetColumns, TargetEncode

__all__ = ["FITTED", "STEPS"]

STEPS: dict[str, type] = {
    "scale": Rescale,
    "log": Log,
    "yeo-johnson": YeoJohnson,
    "quantile-map": QuantileMap,
    "bin": Bin,
    "one-hot": OneHot,
    "ordinal": Ordinal,
    "target-encode": TargetEncode,
    "hash": HashFeatures,
    "tf-idf": TfIdf,
    "date-parts": DateParts,
    "impute": Impute,
    "knn-impute": KnnImpute,
    "ridge-impute": RidgeImpute,
    "outliers": Outliers,
    "require": RejectMissing,
    "duplicates": Duplicates,
    "near-duplicates": NearDuplicates,
    "drop": Drop,
    "pca": PCA,
}
"""Steps by their names in recipes."""

FITTED: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        AffineColumns,
        LogColumns,
        PowerColumns,
        MappedColumns,
        BinnedColumns,
        OneHotColumns,
        OrdinalColumns,
        TargetColumns,
        HashedColumns,
        WeighedWords,
        SplitDates,
        FilledNumbers,
        FilledTexts,
        NearestRows,
        RegressedColumns,
        BoundedColumns,
        RequiredColumns,
        RepeatedRows,
        DroppedColumns,
        ComponentColumns,
    )
}
"""Fitted steps by their names in files."""
