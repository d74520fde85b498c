"""How a training job is laid over accelerators.

Every field may be an array over candidate layouts.
"""

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ORDER",
    "RECOMPUTE",
    "SCHEDULES",
    "STATE_STAGES",
    "Layout",
    "Recompute",
    "Schedule",
    "State",
]

Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
"""What the backward pass computes again, in the order of the codes in arrays: nothing, attention
scores, whole layers."""

Schedule = Literal["1f1b", "gpipe", "zero-bubble"]
SCHEDULES: tuple[Schedule, ...] = ("1f1b", "gpipe", "zero-bubble")
"""Order of a pipeline's passes, in the order of the codes in arrays: one forward one backward, all
forward then all backward, and backward split so that weight gradients fill the bubble."""

State = Literal["weights", "gradients", "optimizer"]
STATE_STAGES: dict[State, int] = {"weights": 3, "gradients": 2, "optimizer": 1}
"""Least ZeRO stage that shards a kind of state."""

ORDER = ("tensor", "context", "data", "pipeline")
"""Axes from the one whose members stand next to each other outward, as Megatron-LM numbers ranks.
Expert groups lie over the first three."""

_WORDS: dict[str, tuple[str, ...]] = {"recompute": RECOMPUTE, "schedule": SCHEDULES}


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Degrees of parallelism and memory policies: plain values, or arrays that broadcast together.

    Attributes:
        data: data-parallel replicas.
        tensor: accelerators a layer is split over.
        pipeline: stages the layers are split over.
        context: accelerators a sequence is split over.
        expert: accelerators of one stage that share out whole experts; it divides tensor x context
            x data. With 1 every expert is split over the tensor group like other layers.
        virtual_stages: chunks of layers per accelerator, taken in turn (interleaved schedule); 1
            for contiguous stages.
        schedule: order of the pipeline's passes, or its index in `SCHEDULES`.
        zero_stage: what the replicas shard: 0 nothing, 1 optimizer states, 2 gradients as well, 3
            weights as well.
        weight_shards: consecutive replicas that share one copy of the weights; 0 for what
            `zero_stage` says.
        weight_copy_shards: consecutive replicas that share a second copy of the weights, from which
            the backward pass gathers; 0 for no second copy.
        gradient_shards: replicas that share one copy of the gradients; 0 for what `zero_stage`
            says.
        optimizer_shards: replicas that share one copy of the optimizer states; 0 for what
            `zero_stage` says.
        weight_wire_bits: bits of one weight on the wire between replicas; 0 for the compute dtype.
        gradient_wire_bits: bits of one gradient on the wire between replicas; 0 for the compute
            dtype.
        sequence_parallel: whether norms and residuals are split over the tensor-parallel group.
        recompute: policy, or its index in `RECOMPUTE`.
        offload_optimizer: whether optimizer states and the update live in host memory.
        offload_activations: whether saved activations wait in host memory.

    Source: Rajbhandari et al. 2020 (ZeRO stages); arXiv 2501.04266 (a level per state and a second
        copy); Narayanan et al. 2021 (virtual stages).
    """

    data: Any = 1
    tensor: Any = 1
    pipeline: Any = 1
    context: Any = 1
    expert: Any = 1
    virtual_stages: Any = 1
    schedule: Any = "1f1b"
    zero_stage: Any = 0
    weight_shards: Any = 0
    weight_copy_shards: Any = 0
    gradient_shards: Any = 0
    optimizer_shards: Any = 0
    weight_wire_bits: Any = 0
    gradient_wire_bits: Any = 0
    sequence_parallel: Any = False
    recompute: Any = "none"
    offload_optimizer: Any = False
    offload_activations: Any = False

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the fields as arrays, words as indices into `RECOMPUTE` and `SCHEDULES`."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        for name, words in _WORDS.items():
            # Searches pass arrays of indices, which broadcast with numbers as words do not.
            if isinstance(values[name], str):
                values[name] = words.index(values[name])
        return {name: np.asarray(value) for name, value in values.items()}

    @property
    def num_accelerators(self) -> Any:
        """Accelerators the layout occupies."""
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def replicas(self) -> Any:
        """Accelerators that hold the same part of the weights: data times context."""
        return self.data * self.context

    def shards(self, state: State) -> Any:
        """Return over how many accelerators one copy of a kind of state is split.

        Args:
            state: kind of state.

        Returns:
            1 where each replica keeps all; at most `replicas`.
        """
        # A number of shards that is named wins over the stage.
        own = np.asarray(getattr(self, f"{state.removesuffix('s')}_shards"))
        staged = np.where(np.asarray(self.zero_stage) >= STATE_STAGES[state], self.replicas, 1)
        return np.where(own > 0, own, staged)
