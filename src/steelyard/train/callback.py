"""What watches a run: a few hooks per step, and state that lives in the checkpoint."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from steelyard.train.batches import Batch
from steelyard.train.reducer import Reducer

__all__ = ["Callback", "StepState"]


@dataclass(slots=True)
class StepState:
    """Where a run stands when a hook is called; one object, changed in place.

    Attributes:
        module: what is trained.
        parameters: trained parameters by name, each once.
        optimizers: optimizers, each with its share of the parameters.
        reducer: what joins the processes of a step.
        accumulation: micro-batches of a step, over all processes.
        micro_batch_size: examples of a micro-batch.
        step: number of the step in progress, from 0.
        learning_rate: its rate.
        micro_batch: number of the micro-batch in progress among this process's, from 0.
        batch: the micro-batch's tensors.
        loss: its loss, without auxiliary ones; a scalar without gradient.
    """

    module: nn.Module
    parameters: dict[str, nn.Parameter]
    optimizers: list[torch.optim.Optimizer]
    reducer: Reducer
    accumulation: int
    micro_batch_size: int
    step: int = 0
    learning_rate: float = 0.0
    micro_batch: int = 0
    batch: Batch = ()
    loss: Tensor = field(default_factory=lambda: torch.tensor(torch.nan))


class Callback(Protocol):
    """Watches the steps of a run; subclasses override the hooks they need.

    Gradients in the hooks are of the step's mean loss: a micro-batch's gradient is its own mean's
    over `accumulation`.

    Attributes:
        name: unique among the callbacks of a run; names its state and its report.
    """

    name: str

    def begin(self, state: StepState, /) -> None:
        """Prepare for a run before its first step here, or refuse it with a ConfigError."""

    def watching(self, state: StepState, /) -> AbstractContextManager[object]:
        """Return what surrounds the forward pass of a micro-batch."""
        return nullcontext()

    def wants_micro_batches(self, step: int, /) -> bool:
        """Whether `after_backward` is wanted in this step; it costs a pass over the gradients."""
        return False

    def after_backward(self, state: StepState, /) -> None:
        """Read the gradients of one micro-batch alone, in a step whose micro-batches it wants."""

    def before_update(self, state: StepState, /) -> None:
        """Read the gradients of the whole step, over all processes and before clipping."""

    def after_update(self, state: StepState, /) -> None:
        """Read the new weights."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the state that a checkpoint keeps."""
        return {}

    def restore(self, tensors: dict[str, Tensor], /) -> None:
        """Take over what `tensors` returned; called after `begin`, never without such a state."""

    def report(self) -> dict[str, object]:
        """Return what was found as JSON values, for the run's result."""
        return {}
