"""What a token of a served answer waits for: the parts of its time that err apart."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.cost.operators import OperatorTable
from steelyard.cost.roofline import Machine, operator_parts

__all__ = ["SERVED_PARTS", "ServedParts", "decode_parts"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedParts:
    """Seconds per further token; numbers, or arrays over batches.

    Attributes:
        compute_s: kernels that the processor binds.
        memory_s: kernels that memory binds.
        expert_s: kernels of routed experts, of which each gets a few rows.
        launch_s: launches.
        links_s: sums over the accelerators that share the model.
        prompt_s: prompts of other requests, which hold decoding up.
    """

    compute_s: Any
    memory_s: Any
    expert_s: Any
    launch_s: Any
    links_s: Any
    prompt_s: Any

    @property
    def time_s(self) -> Any:
        """Seconds per token, all parts together."""
        return sum(getattr(self, name) for name in SERVED_PARTS)

    @property
    def shares(self) -> Array:
        """Share of the time that each part takes, [batches, parts]; rows add up to 1."""
        columns = np.broadcast_arrays(*(np.atleast_1d(getattr(self, n)) for n in SERVED_PARTS))
        rows = np.stack(columns, axis=1).astype(float)
        return rows / rows.sum(axis=1, keepdims=True)

    def at(self, index: int) -> "ServedParts":
        """Return the parts of one of several batches, as plain numbers."""
        values = {name: getattr(self, name) for name in SERVED_PARTS}
        return ServedParts(
            **{name: float(item[index] if np.ndim(item) else item) for name, item in values.items()}
        )


SERVED_PARTS = tuple(item.name for item in fields(ServedParts))
"""Parts of the time per token, in the order of shares."""


def decode_parts(
    table: OperatorTable, machine: Machine, *, links_s: ArrayLike = 0.0, prompt_s: ArrayLike = 0.0
) -> ServedParts:
    """Time a decoding step part by part.

    Args:
        table: operators of a step.
        machine: one of the accelerators.
        links_s: seconds of the step's sums over the group.
        prompt_s: seconds that prompts of others take per step.

    Returns:
        The parts; kernels and launches add up to `roofline_time_s`.
    """
    timed = operator_parts(table, machine)
    kernels_s = table.count * np.maximum(timed.compute_s, timed.memory_s)
    is_expert = np.array([name.startswith("expert_") for name in table.names])
    is_expert = is_expert.reshape(-1, *(1,) * (kernels_s.ndim - 1))
    is_memory = timed.memory_s > timed.compute_s

    def total(mask: NDArray[np.bool_]) -> Array:
        return np.where(mask, kernels_s, 0.0).sum(axis=0)

    return ServedParts(
        compute_s=total(~is_memory & ~is_expert),
        memory_s=total(is_memory & ~is_expert),
        expert_s=total(is_expert | np.zeros_like(is_memory)),
        launch_s=(table.count * timed.launch_s).sum(axis=0),
        links_s=links_s,
        prompt_s=prompt_s,
    )
