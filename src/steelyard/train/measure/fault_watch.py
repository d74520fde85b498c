"""What every module of a model lets through in a step, and where it first stops being finite."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from steelyard.train.batches import count_examples
from steelyard.train.callback import Callback, StepState

__all__ = ["Fault", "FaultWatch", "StepTrace"]

FaultKind = Literal["activation", "gradient", "weight"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """The first thing of a step that is not finite.

    Attributes:
        kind: "activation" in the forward pass, "gradient" in the backward pass, or "weight" after
            the update.
        layer: dotted name of the module; "input of NAME" where it was handed such values by what is
            no module.
        rows: examples of the step's batch that are not finite there, ascending; empty where they
            cannot be told apart, as in a weight.
    """

    kind: FaultKind
    layer: str
    rows: tuple[int, ...] = ()


@dataclass(kw_only=True, slots=True)
class StepTrace:
    """What was seen in one step.

    Attributes:
        step: its number, from 0.
        loss: mean loss over the micro-batches seen.
        activations: root mean square of each module's output, that of the largest example, in the
            order of the forward pass.
        gradients: norm of each parameter's gradient, before clipping.
        fault: the first thing that is not finite, None for a sound step.
    """

    step: int
    loss: float = 0.0
    activations: dict[str, float] = field(default_factory=dict)
    gradients: dict[str, float] = field(default_factory=dict)
    fault: Fault | None = None

    @property
    def gradient_norm(self) -> float:
        """Norm of all gradients together."""
        return sum(norm**2 for norm in self.gradients.values()) ** 0.5


class FaultWatch(Callback):
    """Watches every module's output and gradient, and every weight; it changes no bit of a loss.

    Attributes:
        name: "fault-watch".
        traces: what was seen, a step each.
    """

    name = "fault-watch"

    def __init__(self, *, first_step: int = 0) -> None:
        """Say from when on.

        Args:
            first_step: steps before it are not watched.
        """
        self.first_step = first_step
        self.traces: list[StepTrace] = []

    def begin(self, state: StepState, /) -> None:
        """Forget an earlier run."""
        self.traces = []

    @contextmanager
    def watching(self, state: StepState, /) -> Iterator[None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Watch the forward pass of a micro-batch, and the backward pass that follows it."""
        if state.step < self.first_step:
            yield
            return
        if not state.micro_batch:
            self.traces.append(StepTrace(step=state.step))
        with watched(state.module, self.traces[-1], state):
            yield

    def wants_micro_batches(self, step: int, /) -> bool:
        """Whether the step is watched: the loss of each micro-batch is read."""
        return step >= self.first_step

    def after_backward(self, state: StepState, /) -> None:
        """Add the loss of a micro-batch."""
        self.traces[-1].loss += float(state.loss) / state.accumulation

    def before_update(self, state: StepState, /) -> None:
        """Measure the gradients."""
        if state.step < self.first_step:
            return
        trace = self.traces[-1]
        for name, parameter in state.parameters.items():
            if parameter.grad is not None:
                trace.gradients[name] = float(parameter.grad.norm())
                _note(trace, "gradient", _owner(name), parameter.grad, count=0)

    def after_update(self, state: StepState, /) -> None:
        """Look at the new weights."""
        if state.step < self.first_step:
            return
        for name, parameter in state.parameters.items():
            _note(self.traces[-1], "weight", _owner(name), parameter.detach(), count=0)


@contextmanager
def watched(module: nn.Module, trace: StepTrace, state: StepState) -> Iterator[None]:
    """Hook every module for a forward pass, and the gradients of its outputs for the backward one.

    Args:
        module: what runs.
        trace: where findings go.
        state: the micro-batch in progress.

    Yields:
        Nothing.
    """
    count = count_examples(state.batch)
    before = state.micro_batch * state.micro_batch_size
    with ExitStack() as hooks:
        for name, part in module.named_modules():
            into, out = _hooks(name or "the model", trace, count, before)
            hooks.callback(part.register_forward_pre_hook(into).remove)
            hooks.callback(part.register_forward_hook(out).remove)
        yield


def _hooks(
    name: str, trace: StepTrace, count: int, before: int
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Make what looks at the inputs and outputs of one module."""

    def into(_: nn.Module, inputs: Any) -> None:
        for tensor in _floats(inputs):
            _note(trace, "activation", f"input of {name}", tensor.detach(), count, before)

    def out(_: nn.Module, __: Any, outputs: Any) -> None:
        for tensor in _floats(outputs):
            values = tensor.detach()
            _note(trace, "activation", name, values, count, before)
            size = float(_by_row(values, count).square().mean(1).max().sqrt())
            trace.activations[name] = max(trace.activations.get(name, 0.0), size)
            if tensor.requires_grad:
                tensor.register_hook(
                    lambda gradient: _note(trace, "gradient", name, gradient, count, before)
                )

    return into, out


def _floats(values: Any) -> list[Tensor]:
    """List the floating tensors among inputs or outputs."""
    items = values if isinstance(values, tuple | list) else [values]
    return [
        item
        for item in items
        if isinstance(item, Tensor) and item.is_floating_point() and item.numel()
    ]


def _note(
    trace: StepTrace, kind: FaultKind, layer: str, values: Tensor, count: int, before: int = 0
) -> None:
    """Write a fault down, unless there was an earlier one or all is finite."""
    # A sum is finite only where all values are; one that overflows is looked at more closely.
    if trace.fault is not None or bool(values.float().sum().isfinite()):
        return
    finite = values.isfinite()
    if finite.all():
        return
    rows: tuple[int, ...] = ()
    if count and len(values) % count == 0:
        bad = (~finite).reshape(count, -1).any(1).nonzero().flatten().tolist()
        rows = tuple(before + row for row in bad)
    trace.fault = Fault(kind=kind, layer=layer, rows=rows)


def _by_row(values: Tensor, count: int) -> Tensor:
    """Return values [examples, rest], or one row of them where they have no such axis."""
    rows = count if values.ndim and len(values) % count == 0 else 1
    return values.float().reshape(rows, -1)


def _owner(parameter: str) -> str:
    """Return the module that holds a parameter."""
    return parameter.rpartition(".")[0] or parameter
