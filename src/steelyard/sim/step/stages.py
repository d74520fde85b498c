"""Seconds and bytes of every task of a pipeline, from plain numbers per stage."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from steelyard.errors import ConfigError
from steelyard.sim.step.timeline import Array
from steelyard.sim.taskgraph.tasks import Buffer, TaskGraph

__all__ = ["StageTimes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTimes:
    """What one micro-batch costs on each of S stages.

    Attributes:
        forward_s: [S] seconds of the forward pass.
        backward_input_s: [S] seconds of the gradients of inputs, recomputation included.
        backward_weight_s: [S] seconds of the gradients of weights.
        transfer_s: seconds of one hop of an activation or gradient to the next stage.
        gather_s: [S] seconds of gathering a stage's weights from the replicas.
        scatter_s: [S] seconds of scattering a stage's gradients to them.
        update_s: seconds of one rank's optimizer.
        load_s: seconds of reading a step's data.
        activation_bytes: [S] bytes kept of one micro-batch for its backward pass.
        gradient_bytes: bytes of the gradient that a split backward pass keeps.
    """

    forward_s: Array
    backward_input_s: Array
    backward_weight_s: Array
    transfer_s: float = 0.0
    gather_s: Array | None = None
    scatter_s: Array | None = None
    update_s: float = 0.0
    load_s: float = 0.0
    activation_bytes: Array | None = None
    gradient_bytes: float = 0.0

    @classmethod
    def equal(cls, num_stages: int, *, forward_s: float, backward_s: float) -> "StageTimes":
        """Return stages that are alike, with half of the backward pass for the weights.

        Args:
            num_stages: stages of the model.
            forward_s: seconds of a forward pass through one.
            backward_s: seconds of a backward pass through one.

        Returns:
            Times without any communication.
        """
        half = np.full(num_stages, backward_s / 2)
        return cls(
            forward_s=np.full(num_stages, forward_s), backward_input_s=half, backward_weight_s=half
        )

    def durations_s(self, graph: TaskGraph) -> Array:
        """Return the seconds of each task of a pipeline's graph, [T].

        Args:
            graph: made by `taskgraph.pipeline_graph` over as many stages.

        Returns:
            Seconds by operation and stage.

        Raises:
            ConfigError: the graph has more stages, or operations that are not known here.
        """
        known = self._by_op()
        stages = max((int(item.max()) for _, item in graph.operations.values()), default=-1) + 1
        if stages > len(self.forward_s):
            raise ConfigError(
                f"the graph has {stages} stages, but times are given for {len(self.forward_s)}",
                hint="give the times of every stage",
            )
        unknown = sorted(graph.operations.keys() - known.keys())
        if unknown:
            raise ConfigError(
                f"no time is known of {', '.join(unknown)}", hint="give durations per task instead"
            )
        found = np.zeros(len(graph.tasks))
        for op, (places, of_stage) in graph.operations.items():
            column = np.asarray(known[op])
            found[places] = column[of_stage] if column.ndim else column
        return found

    def _by_op(self) -> Mapping[str, Array | float]:
        """Return what each operation lasts: a number, or one for each stage."""
        return {
            **dict.fromkeys(("send_activation", "send_gradient"), self.transfer_s),
            # A receive ends with the send that it depends on.
            **dict.fromkeys(("recv_activation", "recv_gradient"), 0.0),
            "forward": self.forward_s,
            "backward": self.backward_input_s + self.backward_weight_s,
            "backward_input": self.backward_input_s,
            "backward_weight": self.backward_weight_s,
            "gather": 0.0 if self.gather_s is None else self.gather_s,
            "scatter": 0.0 if self.scatter_s is None else self.scatter_s,
            "update": self.update_s,
            "load": self.load_s,
        }

    def size_bytes(self, buffer: Buffer) -> float:
        """Return the bytes of a buffer of a pipeline's graph, 0 for unknown kinds."""
        if buffer.kind == "input_gradient":
            return self.gradient_bytes
        if buffer.kind != "activation" or self.activation_bytes is None:
            return 0.0
        return float(self.activation_bytes[buffer.stage])
