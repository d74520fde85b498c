"""How a training job is laid over accelerators.

Every field may be an array over candidate layouts.
"""

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["RECOMPUTE", "Layout", "Recompute"]

Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
"""Recomputation policies in the order of their codes in arrays: nothing, attention scores, whole
layers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Degrees of parallelism and memory policies; plain values, or arrays that broadcast together.

    Attributes:
        data: data-parallel replicas.
        tensor: accelerators a layer is split over.
        pipeline: stages the layers are split over.
        zero_stage: 0 none, 1 optimizer states, 2 and gradients, 3 and weights sharded over the
            replicas.
        sequence_parallel: norms and residuals split over the tensor-parallel group.
        recompute: policy, or its index in `RECOMPUTE`.
    """

    data: Any = 1
    tensor: Any = 1
    pipeline: Any = 1
    zero_stage: Any = 0
    sequence_parallel: Any = False
    recompute: Any = "none"

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the fields as arrays, `recompute` as indices into `RECOMPUTE`."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        if isinstance(values["recompute"], str):
            values["recompute"] = RECOMPUTE.index(values["recompute"])
        return {name: np.asarray(value) for name, value in values.items()}

    @property
    def num_accelerators(self) -> Any:
        """Accelerators the layout occupies."""
        return self.data * self.tensor * self.pipeline
