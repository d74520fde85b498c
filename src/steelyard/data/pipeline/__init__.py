"""Steps that prepare tables: fitted in one pass where they can be, applied to any table."""

from steelyard.data.pipeline.components import PCA
from steelyard.data.pipeline.dates import DateParts
from steelyard.data.pipeline.duplicates import Duplicates, NearDuplicates
from steelyard.data.pipeline.encoding import OneHot, Ordinal
from steelyard.data.pipeline.hashing import HashFeatures, TfIdf
from steelyard.data.pipeline.imputing import Impute
from steelyard.data.pipeline.kinds import STEPS
from steelyard.data.pipeline.neighbours import KnnImpute, RidgeImpute
from steelyard.data.pipeline.outliers import Outliers, RejectMissing
from steelyard.data.pipeline.pipeline import FittedPipeline, Pipeline
from steelyard.data.pipeline.recipe import pipeline_of, read_recipe
from steelyard.data.pipeline.reshaping import Bin, Log, QuantileMap, YeoJohnson
from steelyard.data.pipeline.scaling import Rescale
from steelyard.data.pipeline.selecting import Drop
from steelyard.data.pipeline.step import FittedStep, PipelineStep
from steelyard.data.pipeline.target_encoding import TargetEncode

__all__ = [
    "PCA",
    "STEPS",
    "Bin",
    "DateParts",
    "Drop",
    "Duplicates",
    "FittedPipeline",
    "FittedStep",
    "HashFeatures",
    "Impute",
    "KnnImpute",
    "Log",
    "NearDuplicates",
    "OneHot",
    "Ordinal",
    "Outliers",
    "Pipeline",
    "PipelineStep",
    "QuantileMap",
    "RejectMissing",
    "Rescale",
    "RidgeImpute",
    "TargetEncode",
    "TfIdf",
    "YeoJohnson",
    "pipeline_of",
    "read_recipe",
]
