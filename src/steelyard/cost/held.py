"""How many parameters one accelerator holds."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.parameters import count_parameters

__all__ = ["expert_parameters", "parameter_count", "stage_parameters"]

Array = NDArray[np.float64]


def parameter_count(arch: Architecture) -> tuple[float, float]:
    """Return the parameters of the layers, and those of embeddings and an untied head."""
    count = count_parameters(arch)
    return float(count.non_embedding), float(count.embedding + count.head)


def expert_parameters(arch: Architecture) -> float:
    """Return the parameters of all routed experts."""
    if not arch.num_experts:
        return 0.0
    count = count_parameters(arch)
    # What a token does not visit are experts; it visits `experts_per_token` of `num_experts`.
    idle = count.total - count.active
    return idle * arch.num_experts / max(arch.num_experts - arch.experts_per_token, 1)


def stage_parameters(
    arch: Architecture, axes: dict[str, Any], *, tables: Any = None
) -> tuple[Array, Array]:
    """Return the parameters that one accelerator of a stage holds.

    Args:
        arch: architecture that is trained.
        axes: arrays of "tensor", "pipeline" and "expert".
        tables: parameters of embedding and head on the stage; both when not given.

    Returns:
        Parameters outside of experts, and those of experts.
    """
    layers, both = parameter_count(arch)
    routed = expert_parameters(arch)
    held = both if tables is None else tables
    dense = ((layers - routed) / axes["pipeline"] + held) / axes["tensor"]
    split = np.where(axes["expert"] > 1, axes["expert"], axes["tensor"])
    return dense, routed / axes["pipeline"] / split
