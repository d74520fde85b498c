"""Which scaling a model needs in FP8: one constant for all tensors, or a maximum at each cast."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from steelyard.errors import ConfigError
from steelyard.nn.fp8.convert import converted, is_hidden, linear_maps
from steelyard.nn.fp8.linear import OCP, Formats
from steelyard.nn.fp8.monitor import CastRecord, Monitor
from steelyard.nn.fp8.recipes import Amax, ConstantBias, Recipe

__all__ = ["PrecisionChoice", "bias_interval", "choose_precision"]

_LOSS_DB = 3.0
"""A constant is too far off with which rounding has twice the noise power of a maximum's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionChoice:
    """What was found for a model.

    Attributes:
        reference: metric of the model as it was given.
        amax: metric with a maximum per tensor and cast.
        constants: metric by the one bias of all tensors.
        interval: first and last bias at which one constant keeps enough of the metric; None where
            none does.
        bias: the constant to take: the middle of the interval, or the best one.
        needs_amax: layers in which that constant loses more to rounding than a maximum would, by
            3 dB or more in their inputs or weights.
        mixed: metric with a maximum in those layers and the constant in the others.
        weight_bytes: bytes of the layers' weights in bfloat16, and in FP8 with a byte of bias each.
    """

    reference: float
    amax: float
    constants: dict[int, float]
    interval: tuple[int, int] | None
    bias: int
    needs_amax: tuple[str, ...]
    mixed: float
    weight_bytes: tuple[int, int]

    def recipe(self, name: str) -> Recipe:
        """Return the recipe of a layer, to be handed to `convert`.

        Args:
            name: the layer's name.

        Returns:
            A maximum per cast where it is needed, else the constant.
        """
        return Amax() if name in self.needs_amax else ConstantBias(self.bias)


@torch.no_grad()
def choose_precision(
    model: nn.Module,
    evaluate: Callable[[nn.Module], float],
    *,
    biases: Iterable[int] = range(-6, 15),
    share: float = 0.995,
    wanted: Callable[[str, nn.Linear], bool] = is_hidden,
    formats: Formats = OCP,
) -> PrecisionChoice:
    """Try constants on a model in inference, and find the layers for which one will not do.

    It evaluates the model once per constant, and four times more. The model is left as it was.

    Args:
        model: any module with linear maps.
        evaluate: returns a metric of the model, above 0 and higher where it is better, such as an
            accuracy, or e to the power of minus a loss.
        biases: constants that are tried.
        share: part of the metric that must be kept.
        wanted: whether a layer is cast, by name and module.
        formats: formats of the tensors.

    Returns:
        The interval of constants, and the layers that need a maximum.

    Raises:
        ConfigError: no constant is given, the metric is not above 0, or no layer is cast.

    Example:
        >>> choice = choose_precision(model, accuracy)  # doctest: +SKIP
        >>> convert(model, choice.recipe)  # doctest: +SKIP

    Source: Perez et al. 2023 (arXiv 2309.17224) (FP8-CSCALE: constants that keep 99.5 %).
    """
    tried, was_training = sorted(set(biases)), model.training
    weights = sum(module.weight.numel() for _, module in linear_maps(model, wanted))
    num_layers = len(linear_maps(model, wanted))
    model.eval()

    def measured(recipe: Recipe | Callable[[str], Recipe]) -> float:
        with converted(model, recipe, wanted=wanted, formats=formats):
            return evaluate(model)

    def watched(recipe: Recipe) -> list[CastRecord]:
        with converted(model, recipe, wanted=wanted, formats=formats), Monitor(model) as monitor:
            evaluate(model)
            return monitor.records

    try:
        reference = evaluate(model)
        if not tried or not reference > 0:
            raise ConfigError(
                f"{len(tried)} constants to try, and a metric of {reference:g}",
                hint="give some, and a metric above 0 that is higher where the model is better",
            )
        constants = {bias: measured(ConstantBias(bias)) for bias in tried}
        interval = bias_interval(constants, share * reference)
        best = max(constants, key=lambda bias: constants[bias])
        bias = sum(interval) // 2 if interval else best
        needy = _noisier(watched(ConstantBias(bias)), watched(Amax()))
        return PrecisionChoice(
            reference=reference,
            amax=measured(Amax()),
            constants=constants,
            interval=interval,
            bias=bias,
            needs_amax=needy,
            mixed=measured(lambda name: Amax() if name in needy else ConstantBias(bias)),
            weight_bytes=(2 * weights, weights + num_layers),
        )
    finally:
        model.train(was_training)


def bias_interval(metrics: dict[int, float], bar: float) -> tuple[int, int] | None:
    """Return the longest run of neighbouring constants whose metric reaches a bar.

    Args:
        metrics: metric by bias.
        bar: what is to be reached; NaN never does.

    Returns:
        First and last bias, or None where none reaches it.
    """
    runs: list[list[int]] = []
    for bias in sorted(metrics):
        if not metrics[bias] >= bar:
            continue
        if runs and bias == runs[-1][-1] + 1:
            runs[-1].append(bias)
        else:
            runs.append([bias])
    longest = max(runs, key=len, default=None)
    return (longest[0], longest[-1]) if longest else None


def _noisier(constant: list[CastRecord], amax: list[CastRecord]) -> tuple[str, ...]:
    """Return layers with a cast that lost more by a constant, in the order of their casts."""
    # Both lists come from the same evaluation, so their casts stand in the same order. A tensor
    # that lost nothing either way has no difference.
    needy = [
        one.layer
        for one, other in zip(constant, amax, strict=True)
        if other.sqnr_db - one.sqnr_db >= _LOSS_DB
    ]
    return tuple(dict.fromkeys(needy))
