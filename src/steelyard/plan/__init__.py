"""Plans: searches for the configuration that serves a goal best, with forecasts and reasons."""

from steelyard.plan.budget import plan_training
from steelyard.plan.compression import CompressedPoint, compress_kv
from steelyard.plan.shapes import decoder_near
from steelyard.plan.types import Plan, Rejected

training = plan_training

__all__ = [
    "CompressedPoint",
    "Plan",
    "Rejected",
    "compress_kv",
    "decoder_near",
    "plan_training",
    "training",
]
