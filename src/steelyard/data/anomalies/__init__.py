"""Odd rows of tables: what is unlike the others, and which columns make it so."""

from steelyard.data.anomalies.detected import DetectedTable, DetectOptions, detect_table
from steelyard.data.anomalies.detector import RowDetector, drops
from steelyard.data.anomalies.half_space import HalfSpaceTrees
from steelyard.data.anomalies.isolation import IsolationForest
from steelyard.data.anomalies.local_outliers import LocalOutliers
from steelyard.data.anomalies.mahalanobis import MahalanobisDetector, shrunk_covariance
from steelyard.data.anomalies.model import DetectorModel
from steelyard.data.anomalies.residuals import ResidualDetector, residual_threshold

__all__ = [
    "DetectOptions",
    "DetectedTable",
    "DetectorModel",
    "HalfSpaceTrees",
    "IsolationForest",
    "LocalOutliers",
    "MahalanobisDetector",
    "ResidualDetector",
    "RowDetector",
    "detect_table",
    "drops",
    "residual_threshold",
    "shrunk_covariance",
]
