"""Mixtures of experts: loss by size and experts, and the dense models they equal."""

from steelyard.laws.forms.routed import (
    cutoff,
    effective_parameters,
    level_curve,
    routed,
    routed_coefficients,
    routed_points,
)

__all__ = [
    "cutoff",
    "effective_parameters",
    "level_curve",
    "routed",
    "routed_coefficients",
    "routed_points",
]
