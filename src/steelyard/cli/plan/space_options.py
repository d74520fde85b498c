"""Options that set an axis of the layouts that are searched."""

from dataclasses import dataclass
from typing import Any, Literal

import cyclopts

from steelyard.cli.plan.exporting import Engine, engine_for
from steelyard.errors import ConfigError, SteelyardError, merged
from steelyard.plan.layout_space import LayoutSpace

__all__ = ["SpaceOptions"]

_ZERO_STAGES = 3
_DEGREES = {
    "data": "data",
    "tensor": "tensor",
    "pipeline": "pipeline",
    "chunks": "virtual_stages",
    "context": "context",
    "expert": "expert",
    "micro_batch": "micro_batch",
}


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SpaceOptions:
    """Axes of the layouts; one that is not given is searched.

    Searched are data, tensor (within a node), pipeline, context and expert groups, chunks of layers
    per accelerator, 1f1b and zero-bubble schedules, ZeRO stages over all replicas or over groups
    that end with a level of links, micro-batches of 1, 2, 4 and 8, and no or full recomputation.

    Args:
        data: replicas.
        tensor: accelerators that a layer is split over; also beyond a node.
        pipeline: stages that the layers are split over.
        chunks: chunks of layers per accelerator; several make 1f1b interleaved.
        schedule: order of a pipeline's passes; gpipe never wins, and is tried only here.
        context: accelerators that a sequence is split over.
        expert: accelerators that share out whole experts.
        zero: ZeRO stage, 0 to 3; 2 and 3 under a pipeline are tried only here.
        shard_groups: what may share states: all replicas alone, groups at levels of links as well,
            or groups of a size for each kind of state.
        micro_batch: sequences per micro-batch.
        recompute: what the backward pass computes again; selective is tried only here.
        sequence_parallel: whether tensor groups split norms, which they do where it is left out.
        offload: what waits in host memory, nothing where it is left out: neither that memory nor
            the host's own work is counted. With any, each is tried.
    """

    data: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    chunks: int | None = None
    schedule: Literal["1f1b", "gpipe", "zero-bubble"] | None = None
    context: int | None = None
    expert: int | None = None
    zero: int | None = None
    shard_groups: Literal["all", "levels", "per-state"] = "levels"
    micro_batch: int | None = None
    recompute: Literal["none", "selective", "full"] | None = None
    sequence_parallel: bool | None = None
    offload: Literal["optimizer", "activations", "any"] | None = None

    def space(self, *, export: Engine | None = None) -> LayoutSpace:
        """Return what is searched.

        Args:
            export: engine that has to run the layouts; any where there is none.

        Returns:
            The space.

        Raises:
            ConfigError: names every number out of range.
        """
        self._check()
        axes: dict[str, Any] = {axis: getattr(self, name) for name, axis in _DEGREES.items()}
        axes |= {"zero_stage": self.zero, "schedule": self.schedule}
        axes |= {"recompute": self.recompute, "sequence_parallel": self.sequence_parallel}
        moved = {
            f"offload_{kind}": {kind: (True,), "any": (False, True)}[self.offload]
            for kind in ("optimizer", "activations")
            if self.offload in (kind, "any")
        }
        return LayoutSpace(
            **{axis: (value,) for axis, value in axes.items() if value is not None},
            **moved,
            shard_groups=self.shard_groups,
            engine=engine_for(export),
        )

    def _check(self) -> None:
        """Refuse numbers out of range, all at once."""
        rules = dict.fromkeys(_DEGREES, (1, None)) | {"zero": (0, _ZERO_STAGES)}
        wrong: list[SteelyardError] = []
        for name, (least, most) in rules.items():
            value = getattr(self, name)
            if value is not None and (value < least or (most is not None and value > most)):
                allowed = f"at least {least}" if most is None else f"from {least} to {most}"
                flag = f"--{name.replace('_', '-')}"
                wrong.append(ConfigError(f"{flag} is {value}, but must be {allowed}"))
        if wrong:
            raise merged(wrong)
