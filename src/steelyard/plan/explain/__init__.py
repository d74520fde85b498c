"""What departs in a running job: its log read, its step simulated, the difference named."""

from steelyard.plan.explain.causes import Finding
from steelyard.plan.explain.diagnosis import JobDiagnosis, diagnose
from steelyard.plan.explain.log import StepLog, read_step_log
from steelyard.plan.explain.terms import TERMS, StepModel, StepTerms, WorkFactors

__all__ = [
    "TERMS",
    "Finding",
    "JobDiagnosis",
    "StepLog",
    "StepModel",
    "StepTerms",
    "WorkFactors",
    "diagnose",
    "read_step_log",
]
