"""The gradient noise scale of a running training, from gradients at two batch sizes."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from steelyard.errors import ConfigError, require
from steelyard.train.callback import Callback, StepState
from steelyard.train.measure.example_norms import NORMS, ExampleNorms
from steelyard.train.measure.noise_estimate import NoiseEstimate, NoiseHistory, unbiased_parts

__all__ = ["GradientNoiseScale"]

Source = Literal["accumulation", "per-example", "norm-layers"]


class GradientNoiseScale(Callback):
    """Measures B_simple = tr(Sigma) / |G|^2 every few steps: the knee of steps against examples.

    Gradients are read before clipping and before weight decay. Sources: "accumulation" compares
    micro-batches, over all processes, with their mean; "per-example" compares single examples with
    the mean; "norm-layers" does so for the gains and biases of norms alone, whose noise scale
    follows the whole model's closely. Examples must be drawn independently.

    Attributes:
        name: "noise-scale", with the source behind it where that is not "accumulation".

    Source: McCandlish et al. 2018 (arXiv 1812.06162), appendix A.1; Gray et al. 2024 (arXiv
        2411.00999), section 3 (norm layers).
    """

    def __init__(
        self,
        source: Source = "accumulation",
        *,
        every: int = 10,
        decay: float = 0.99,
        precondition: Literal["none", "adam"] = "none",
    ) -> None:
        """Say how to measure.

        Args:
            source: what small gradients are.
            every: steps between measurements.
            decay: part of the running averages that a measurement keeps.
            precondition: "adam" divides gradients by Adam's root of the second moment first, so
                that directions count as they do in its steps; with "accumulation" only.

        Raises:
            ConfigError: a value is out of range.
        """
        self.name = "noise-scale" if source == "accumulation" else f"noise-scale-{source}"
        self.source = source
        self.every = every
        self.decay = decay
        self.precondition = precondition
        require(
            self,
            source=(
                source in ("accumulation", "per-example", "norm-layers"),
                "'accumulation', 'per-example' or 'norm-layers'",
            ),
            every=(every >= 1, "at least 1"),
            decay=(0 <= decay < 1, "in [0, 1)"),
            precondition=(
                precondition == "none" or source == "accumulation",
                "'none', except with source = 'accumulation'",
            ),
        )
        self._names: list[str] = []
        self._watched: dict[str, nn.Parameter] = {}
        self._examples: ExampleNorms | None = None
        self._small: list[Tensor] = []
        self._history = NoiseHistory(decay)

    def begin(self, state: StepState, /) -> None:
        """Choose the parameters; refuse a run that has gradients of one size only.

        Args:
            state: the run.

        Raises:
            ConfigError: there are no two batch sizes to compare, or no norm layers.
        """
        self._history = NoiseHistory(self.decay)
        self._watched = state.parameters
        if self.source == "norm-layers":
            self._watched = _of_norms(state)
        self._names = list(self._watched)
        batch_size = state.accumulation * state.micro_batch_size
        if self.source == "accumulation":
            if state.accumulation < 2:
                raise ConfigError(
                    "the noise scale compares gradients of two batch sizes, but a step has one "
                    "micro-batch: there is one gradient",
                    hint="set accumulation to 2 or more, or measure per example",
                )
            return
        if batch_size < 2:
            raise ConfigError(
                "the noise scale compares an example with its batch, but batch_size is 1",
                hint="set batch_size to 2 or more",
            )
        self._examples = ExampleNorms(self._watched)

    def wants_micro_batches(self, step: int, /) -> bool:
        """Whether this step is measured."""
        return step % self.every == 0

    def watching(self, state: StepState, /) -> AbstractContextManager[object]:
        """Watch the forward pass in a measured step."""
        if self._examples is None or not self.wants_micro_batches(state.step):
            return nullcontext()
        self._examples.start(state.micro_batch_size)
        return self._examples

    def after_backward(self, state: StepState, /) -> None:
        """Note the norms of the small gradients."""
        if self._examples is None:
            # The gradient is of a share of the mean loss; times the shares it is of the mean.
            scale = state.accumulation**2
            self._small.append(scale * self._squared(state))
            return
        found = self._examples.squared()
        scale = (state.accumulation * state.micro_batch_size) ** 2
        zero = torch.zeros((), device=state.loss.device)
        rows = [found[name].double().mean() if name in found else zero for name in self._names]
        self._small.append(scale * torch.stack([row.double() for row in rows]))

    def before_update(self, state: StepState, /) -> None:
        """Compare with the norm of the whole step's gradient."""
        if not self._small:
            return
        count = len(self._names)
        small = state.reducer.gather(torch.cat(self._small)).view(-1, count).mean(0)
        big = self._squared(state)
        self._small = []
        batch_size = state.accumulation * state.micro_batch_size
        unit = state.micro_batch_size if self._examples is None else 1
        signals, noises = unbiased_parts(
            small.cpu().numpy(), big.cpu().numpy(), float(unit), float(batch_size)
        )
        self._history.add(state.step, signals, noises)

    def _squared(self, state: StepState) -> Tensor:
        """Return the squared norm of each watched parameter's gradient, float64 [P]."""
        gradients = [self._seen_by_adam(state, item) for item in self._watched.values()]
        norms = torch._foreach_norm(gradients)  # pyright: ignore[reportPrivateImportUsage]
        return torch.stack(norms).double().square()

    def _seen_by_adam(self, state: StepState, parameter: nn.Parameter) -> Tensor:
        """Return a gradient, divided by the root of Adam's second moment if that is wanted."""
        gradient = parameter.grad
        if gradient is None:
            return torch.zeros(1, device=parameter.device)
        if self.precondition == "none":
            return gradient
        for optimizer in state.optimizers:
            moments = optimizer.state.get(parameter, {})
            if "exp_avg_sq" in moments:
                bias = 1 - optimizer.param_groups[0]["betas"][1] ** float(moments["step"])
                return gradient / ((moments["exp_avg_sq"] / bias).sqrt() + 1e-8)
        # Before the first update, and for what Adam does not train, there is nothing to divide by.
        return torch.full_like(gradient, math.nan)

    @property
    def estimate(self) -> NoiseEstimate:
        """The noise scale now, in examples."""
        return self._history.estimate()

    @property
    def per_layer(self) -> dict[str, float]:
        """The noise scale of each parameter alone; NaN where its signal is not positive."""
        history = self._history
        pairs = zip(history.layer_signals, history.layer_noises, strict=True)
        scales = [noise / signal if signal > 0 else math.nan for signal, noise in pairs]
        return {name: float(scale) for name, scale in zip(self._names, scales, strict=False)}

    def tensors(self) -> dict[str, Tensor]:
        """Return the history."""
        history = self._history
        columns: dict[str, NDArray[np.float64]] = {
            "steps": np.array(history.steps, dtype=np.float64),
            "signals": np.array(history.signals),
            "noises": np.array(history.noises),
            "layer_signals": history.layer_signals,
            "layer_noises": history.layer_noises,
            "skipped": np.array([float(history.skipped)]),
        }
        return {name: torch.from_numpy(column) for name, column in columns.items()}

    def restore(self, tensors: dict[str, Tensor], /) -> None:
        """Take over a history."""
        self._history = NoiseHistory(
            self.decay,
            steps=[int(step) for step in tensors["steps"]],
            signals=tensors["signals"].tolist(),
            noises=tensors["noises"].tolist(),
            layer_signals=tensors["layer_signals"].numpy().copy(),
            layer_noises=tensors["layer_noises"].numpy().copy(),
            skipped=int(tensors["skipped"][0]),
        )

    def report(self) -> dict[str, object]:
        """Return the noise scale in examples, its interval, its course and its layers."""
        found = self.estimate
        values = {"value": found.value, "low": found.low, "high": found.high}
        finite: dict[str, object] = {name: _finite(value) for name, value in values.items()}
        return finite | {
            "is_lower_bound": found.is_lower_bound,
            "measured": found.measured,
            "skipped": found.skipped,
            "source": self.source,
            "curve": [(step, _finite(value)) for step, value in self._history.curve()],
            "layers": {name: _finite(value) for name, value in self.per_layer.items()},
        }


def _of_norms(state: StepState) -> dict[str, nn.Parameter]:
    """Return the trained gains and biases of norm layers."""
    norms = {
        id(parameter)
        for module in state.module.modules()
        if isinstance(module, NORMS)
        for parameter in module.parameters()
    }
    found = {name: item for name, item in state.parameters.items() if id(item) in norms}
    if not found:
        raise ConfigError(
            "the noise scale of norm layers was asked for, but the module has no layer, root or "
            "group norm with parameters",
            hint="measure with source = 'accumulation' or 'per-example'",
        )
    return found


def _finite(value: float) -> float | None:
    """Return None for what JSON has no number for."""
    return value if math.isfinite(value) else None
