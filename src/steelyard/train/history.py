"""What happened in a run up to now."""

from dataclasses import dataclass, field

import torch

from steelyard.train.checkpoint import Checkpoint

__all__ = ["History"]


@dataclass(slots=True)
class History:
    """What happened up to now; grows by one entry a step.

    Attributes:
        losses: training loss by step, nats per token for decoders.
        step_times_s: wall time by step, seconds.
        cold: whether each step was among the first after a start, when caches and allocators
            still settle.
        eval_losses: (steps done, held-out loss).
        average_losses: the same of each average of the weights, by its name.
        peak_memory_bytes: what the run needed, over all processes that worked on it.
        resident_peak_bytes: what a process came to hold, likewise.
        duration_s: wall time of all calls up to the last checkpoint.
        energy_j: electric energy of these calls; None where it could not be read in all of them.
        first_step: step this folder's own training began at.
    """

    losses: list[float] = field(default_factory=list)
    step_times_s: list[float] = field(default_factory=list)
    cold: list[bool] = field(default_factory=list)
    eval_losses: list[tuple[int, float]] = field(default_factory=list)
    average_losses: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    peak_memory_bytes: int = 0
    resident_peak_bytes: int = 0
    duration_s: float = 0.0
    energy_j: float | None = 0.0
    first_step: int = 0

    @property
    def warm_times_s(self) -> list[float]:
        """Times of the steps that were not among the first after a start."""
        pairs = zip(self.step_times_s, self.cold, strict=True)
        return [seconds for seconds, cold in pairs if not cold]

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the columns by step as tensors."""
        return {
            "history.losses": torch.tensor(self.losses, dtype=torch.float64),
            "history.step_times_s": torch.tensor(self.step_times_s, dtype=torch.float64),
            "history.cold": torch.tensor(self.cold, dtype=torch.bool),
        }

    def scalars(self) -> dict[str, object]:
        """Return the rest as JSON values."""
        names = ("peak_memory_bytes", "resident_peak_bytes", "duration_s", "energy_j", "first_step")
        return {name: getattr(self, name) for name in ("eval_losses", "average_losses", *names)}

    @classmethod
    def restore(cls, checkpoint: Checkpoint) -> "History":
        """Rebuild from a checkpoint."""
        columns = {
            name: checkpoint.tensors[f"history.{name}"].tolist()
            for name in ("losses", "step_times_s", "cold")
        }
        scalars = checkpoint.scalars
        averages = scalars.get("average_losses", {})
        return cls(
            **columns,
            eval_losses=_pairs(scalars["eval_losses"]),
            average_losses={name: _pairs(losses) for name, losses in averages.items()},
            peak_memory_bytes=int(scalars["peak_memory_bytes"]),
            resident_peak_bytes=int(scalars["resident_peak_bytes"]),
            # Checkpoints of before these were kept have neither.
            duration_s=float(scalars.get("duration_s", 0.0)),
            energy_j=scalars.get("energy_j"),
            first_step=int(scalars["first_step"]),
        )


def _pairs(losses: list[list[float]]) -> list[tuple[int, float]]:
    """Read (steps done, loss) from JSON."""
    return [(int(step), float(loss)) for step, loss in losses]
