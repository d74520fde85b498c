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
"""What the backward pass computes again, in the order of the codes in arrays: nothing, attention
scores, whole layers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Degrees of parallelism and memory policies: plain values, or arrays that broadcast together.

    Attributes:
        data: data-parallel replicas.
        tensor: accelerators a layer is split over.
        pipeline: stages the layers are split over.
        zero_stage: what the replicas shard: 0 nothing, 1 optimizer states, 2 gradients as well, 3
            weights as well.
        sequence_parallel: whether norms and residuals are split over the tensor-parallel group.
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
