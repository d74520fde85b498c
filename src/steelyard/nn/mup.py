"""Initial weights and learning rates that transfer from a narrow model to a wide one.

What is tuned on a narrow model (the base) then fits wide ones: activations and their updates keep
their size as the width grows. Any module will do: a model is compared, parameter by parameter, with
the base that the same code builds at the base width.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from steelyard.catalog.architecture import Architecture
from steelyard.errors import ConfigError

__all__ = [
    "WidthRatio",
    "activation_sizes",
    "initialize",
    "parameter_groups",
    "transferable",
    "width_ratios",
]

_VECTOR = 1


@dataclass(frozen=True, slots=True)
class WidthRatio:
    """How much wider a parameter is than its namesake in the base.

    Attributes:
        inputs: ratio of what a unit sums over (its fan-in); 1 for vectors and embedding tables,
            whose rows are chosen and not summed.
        outputs: ratio of the units (the fan-out).
    """

    inputs: float
    outputs: float

    def rate(self, optimizer: Literal["adamw", "sgd"]) -> float:
        """Return the factor of the learning rate.

        Args:
            optimizer: AdamW moves every weight by about the rate, whatever its gradient; SGD in
                proportion to it.

        Returns:
            AdamW: 1 over the ratio of inputs. SGD: ratio of outputs over that of inputs.

        Source: Yang et al. 2022 (arXiv 2203.03466), table 3.
        """
        return (1.0 if optimizer == "adamw" else self.outputs) / self.inputs

    @property
    def spread(self) -> float:
        """Factor of the initial standard deviation, from that of the base.

        Hidden weights fall with the root of the inputs; those with fixed outputs, such as a head,
        with the inputs.

        Source: Yang et al. 2022 (arXiv 2203.03466), table 3.
        """
        is_head = self.outputs == 1.0
        return 1.0 / (self.inputs if is_head else math.sqrt(self.inputs))


def width_ratios(model: nn.Module, base: nn.Module) -> dict[str, WidthRatio]:
    """Compare a model with its base.

    Args:
        model: the model; its parameters may lie on any device.
        base: what the same code builds at the base width.

    Returns:
        Ratios by name of the parameter, tied ones once.

    Raises:
        ConfigError: the two have other parameters, or other numbers of axes.
    """
    theirs = dict(base.named_parameters())
    ours = dict(model.named_parameters())
    wrong = sorted(ours.keys() ^ theirs.keys())
    wrong += [name for name in ours.keys() & theirs.keys() if ours[name].ndim != theirs[name].ndim]
    if wrong:
        raise ConfigError(
            f"the model and its base differ in {', '.join(wrong[:5])}",
            hint="build both with the same code and depth, and change widths only",
        )
    tables = {
        f"{name}.weight" if name else "weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding)
    }
    return {
        name: _ratio(parameter.shape, theirs[name].shape, name in tables)
        for name, parameter in ours.items()
    }


def _ratio(shape: torch.Size, base: torch.Size, is_table: bool) -> WidthRatio:
    """Return the ratio of one parameter; matrices are [..., outputs, inputs]."""
    if len(shape) == 0:
        return WidthRatio(1.0, 1.0)
    if len(shape) == _VECTOR:
        return WidthRatio(1.0, shape[0] / base[0])
    if is_table:
        return WidthRatio(1.0, shape[1] / base[1])
    # Kernels of a convolution are [outputs, inputs, ...], and their size is not a width.
    first = 0 if len(shape) > 3 else len(shape) - 2
    return WidthRatio(shape[first + 1] / base[first + 1], shape[first] / base[first])


@torch.no_grad()
def initialize(model: nn.Module, base: nn.Module) -> None:
    """Scale every matrix of a model to the size that transfers from its base.

    Its draws stay; they are scaled to the standard deviation of the base times `WidthRatio.spread`.
    Vectors stay as they are, and so do matrices of zeros.

    Args:
        model: freshly built; it is changed.
        base: what the same code builds at the base width, freshly built.

    Raises:
        ConfigError: the two have other parameters.
    """
    theirs = dict(base.named_parameters())
    ratios = width_ratios(model, base)
    for name, parameter in model.named_parameters():
        if parameter.ndim <= _VECTOR:
            continue
        drawn = _root_mean_square(parameter)
        if drawn:
            parameter.mul_(_root_mean_square(theirs[name]) * ratios[name].spread / drawn)


def parameter_groups(
    model: nn.Module,
    base: nn.Module,
    *,
    learning_rate: float,
    weight_decay: float = 0.0,
    optimizer: Literal["adamw", "sgd"] = "adamw",
) -> list[dict[str, Any]]:
    """Group parameters by the learning rate that transfers, for an optimizer of PyTorch.

    Matrices decay and vectors do not, as in `train`. AdamW multiplies its decay by the rate, so the
    decay is divided by the rate's factor: how fast weights decay does not depend on the width.

    Args:
        model: the model.
        base: what the same code builds at the base width.
        learning_rate: learning rate that was tuned on the base.
        weight_decay: weight decay that was tuned on the base.
        optimizer: "adamw" (any that divides by the size of gradients) or "sgd".

    Returns:
        Groups with `params`, `lr` and `weight_decay`; a schedule must multiply each group's own
        rate.

    Raises:
        ConfigError: the two have other parameters.

    Source: Yang et al. 2022 (arXiv 2203.03466), table 3 and appendix B.3 (weight decay).
    """
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    ratios = width_ratios(model, base)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            key = (ratios[name].rate(optimizer), parameter.ndim > _VECTOR)
            groups.setdefault(key, []).append(parameter)
    return [
        {
            "params": members,
            "lr": learning_rate * factor,
            "weight_decay": weight_decay / factor if decays else 0.0,
        }
        for (factor, decays), members in groups.items()
    ]


def transferable(arch: Architecture, base: Architecture) -> Architecture:
    """Return a transformer with the two scalings in its forward pass that transfer needs.

    Scores are divided by the width of a head and not by its root, and logits of a head that is tied
    to the embedding table by the ratio of widths: the table's own size belongs to the embedding.

    Args:
        arch: the wide architecture.
        base: the same at the base width.

    Returns:
        `arch` with `attention_scale` and `logit_divisor` set; equal to `arch` in what it computes
        where both have the same widths.

    Source: Yang et al. 2022 (arXiv 2203.03466), table 8 and definition 4.1 (1/d attention).
    """
    scale = base.attention_scale or base.head_dim**-0.5
    heads, widths = arch.head_dim / base.head_dim, arch.hidden_size / base.hidden_size
    divisor = base.logit_divisor * (widths if arch.tied_embeddings else 1.0)
    return replace(arch, attention_scale=scale / heads, logit_divisor=divisor)


@torch.no_grad()
def activation_sizes(model: nn.Module, *inputs: Any) -> dict[str, float]:
    """Measure what each module of a model returns: the coordinate check.

    With weights and rates that transfer, sizes after some steps of training are flat over widths.

    Args:
        model: any module.
        *inputs: what it is called with.

    Returns:
        Root mean square of each result that is a tensor, by name of the module, "" for the model;
        of a module that is called more than once, of its last call.

    Source: Yang et al. 2022 (arXiv 2203.03466), appendix D.1 (coordinate checking).
    """
    sizes: dict[str, float] = {}

    def watch(name: str) -> Any:
        def keep(module: nn.Module, given: Iterable[Any], result: Any) -> None:
            if isinstance(result, Tensor):
                sizes[name] = _root_mean_square(result)

        return keep

    hooks = [module.register_forward_hook(watch(name)) for name, module in model.named_modules()]
    try:
        model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return sizes


def _root_mean_square(x: Tensor) -> float:
    """Return the root of the mean square, 0 of nothing."""
    return float(x.detach().float().square().mean().sqrt()) if x.numel() else 0.0
