"""One training run in this process: model, optimizer and history, one step at a time."""

import contextlib
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from steelyard.errors import DataError, DivergedError
from steelyard.nn.transformer import build
from steelyard.train import optimizer as optimizers
from steelyard.train import schedules
from steelyard.train.checkpoint import Checkpoint
from steelyard.train.config import TrainConfig
from steelyard.train.source import TokenSource

__all__ = ["History", "Session"]

_COLD_STEPS = 5
_STRICT_STEPS = 3


@dataclass(slots=True)
class History:
    """What happened up to now; grows by one entry a step.

    Attributes:
        losses: training loss by step, nats per token.
        step_times_s: wall time by step, seconds.
        cold: by step, whether it was among the first after a start, when caches and allocators
            still settle.
        eval_losses: (steps done, held-out loss).
        peak_memory_bytes: what the run needed, over all processes that worked on it.
        resident_peak_bytes: what a process came to hold, likewise.
        first_step: step this folder's own training began at.
    """

    losses: list[float] = field(default_factory=list)
    step_times_s: list[float] = field(default_factory=list)
    cold: list[bool] = field(default_factory=list)
    eval_losses: list[tuple[int, float]] = field(default_factory=list)
    peak_memory_bytes: int = 0
    resident_peak_bytes: int = 0
    first_step: int = 0

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the columns by step as tensors."""
        return {
            "history.losses": torch.tensor(self.losses, dtype=torch.float64),
            "history.step_times_s": torch.tensor(self.step_times_s, dtype=torch.float64),
            "history.cold": torch.tensor(self.cold, dtype=torch.bool),
        }

    def scalars(self) -> dict[str, object]:
        """Return the rest as JSON values."""
        names = ("eval_losses", "peak_memory_bytes", "resident_peak_bytes", "first_step")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def restore(cls, checkpoint: Checkpoint) -> "History":
        """Rebuild from a checkpoint."""
        columns = {
            name: checkpoint.tensors[f"history.{name}"].tolist()
            for name in ("losses", "step_times_s", "cold")
        }
        scalars = checkpoint.scalars
        pairs = [(int(step), float(loss)) for step, loss in scalars["eval_losses"]]
        return cls(
            **columns,
            eval_losses=pairs,
            peak_memory_bytes=int(scalars["peak_memory_bytes"]),
            resident_peak_bytes=int(scalars["resident_peak_bytes"]),
            first_step=int(scalars["first_step"]),
        )


class Session:
    """Model, optimizer, schedule and history of a run, advanced by `step`."""

    def __init__(self, config: TrainConfig, source: TokenSource) -> None:
        """Build the model with its seed; the session stands before step 0.

        Args:
            config: the run.
            source: where batches come from.
        """
        self.config = config
        self.model = build(
            config.architecture, dtype=torch.float32, device=config.device, seed=config.seed
        )
        self.model.train()
        self.optimizer = optimizers.adamw(self.model, config)
        self.history = History()
        self._source = source
        self._schedule = schedules.for_config(config)
        self._parameters = [
            parameter for parameter in self.model.parameters() if parameter.requires_grad
        ]
        self._steps_here = 0

    @property
    def steps_done(self) -> int:
        """Optimizer steps behind the current weights."""
        return len(self.history.losses)

    @property
    def is_settled(self) -> bool:
        """Whether this process has trained the steps in which every kind of tensor was made."""
        return self._steps_here >= _STRICT_STEPS

    @property
    def precision(self) -> Callable[[], AbstractContextManager[object]]:
        """Makes the context of a forward pass: autocast for bf16, nothing for fp32."""
        if self.config.dtype == "bf16":
            return lambda: torch.autocast(self.config.device.split(":")[0], dtype=torch.bfloat16)
        return contextlib.nullcontext

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self.config.learning_rate * float(self._schedule[step])

    def step(self) -> tuple[float, float]:
        """Train one step on the batch of its number.

        Returns:
            Loss in nats per token before the update, and the wall time in seconds.

        Raises:
            DivergedError: the loss is no longer finite.
        """
        index = self.steps_done
        start = time.perf_counter()
        loss = self._update(index)
        seconds = time.perf_counter() - start
        if not math.isfinite(loss):
            raise DivergedError(
                f"training diverged: the loss of step {index + 1} is {loss}",
                hint=f"lower learning_rate = {self.config.learning_rate:g} (a third is a good "
                f"try), or lengthen the warm-up",
            )
        self.history.losses.append(loss)
        self.history.step_times_s.append(seconds)
        self.history.cold.append(self._steps_here < _COLD_STEPS)
        self._steps_here += 1
        return loss, seconds

    def _update(self, index: int) -> float:
        """Run forward, backward and the optimizer for one batch."""
        config = self.config
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(index)
        batch = self._source.batch(index, config.batch_size, config.sequence_length, config.seed)
        tokens = torch.from_numpy(batch).to(config.device, non_blocking=True)
        # Each micro-batch's gradient is added to the last, so its loss counts by its share: the sum
        # is the gradient of the whole batch's mean.
        losses = []
        for micro in tokens.split(config.micro_batch_size):
            loss = self._loss(micro) / config.accumulation
            loss.backward()
            losses.append(loss.detach())
        if config.clip:
            torch.nn.utils.clip_grad_norm_(self._parameters, config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(torch.stack(losses).sum().item())

    def _loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy of tokens [B, T + 1]."""
        # Logits go to float32 first: a log-softmax over a vocabulary in bfloat16 loses what a small
        # step of the loss consists of.
        with self.precision():
            logits = self.model(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return everything a checkpoint holds as tensors."""
        # The random state belongs to it although the data order needs none: a layer that draws,
        # such as dropout, would otherwise go on differently after a resume.
        state = optimizers.named_state(self.model, self.optimizer)
        return state | self.history.tensors() | {"random.torch": torch.get_rng_state()}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint.

        Args:
            checkpoint: checkpoint of a run with the same architecture.

        Raises:
            DataError: the checkpoint is of another model.
        """
        try:
            optimizers.load_state(self.model, self.optimizer, checkpoint.tensors, checkpoint.step)
            self.history = History.restore(checkpoint)
        except (KeyError, RuntimeError) as error:
            raise DataError(
                f"the checkpoint of step {checkpoint.step} does not fit "
                f"{self.config.architecture.name!r}: {error}",
                hint="start from a checkpoint of the same architecture",
            ) from error
        torch.set_rng_state(checkpoint.tensors["random.torch"])
