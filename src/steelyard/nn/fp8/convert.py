"""Puts FP8 linear maps into a model."""

from collections.abc import Callable

from torch import nn

from steelyard.errors import ConfigError
from steelyard.nn.fp8.linear import OCP, Float8Linear, Formats
from steelyard.nn.fp8.recipes import Recipe

__all__ = ["convert", "fp8_layers", "is_hidden"]

_HEADS = ("output", "head", "lm_head", "classifier", "fc", "logits")
"""Last parts of names that layers before a loss have."""


def is_hidden(name: str, module: nn.Linear) -> bool:
    """Whether a linear map is not the head by its name: the layers that `convert` takes.

    Args:
        name: its dotted name in the model.
        module: the map.

    Returns:
        False for names that end in output, head, lm_head, classifier, fc or logits.
    """
    return name.rpartition(".")[2] not in _HEADS


def convert(
    model: nn.Module,
    recipe: Recipe | Callable[[str], Recipe],
    *,
    keep: Callable[[str, nn.Linear], bool] = is_hidden,
    formats: Formats = OCP,
) -> list[str]:
    """Replace linear maps of a model by FP8 ones that share their parameters.

    Embeddings, norms and products of attention are no linear maps and stay; so does the head. State
    dictionaries, optimizers and checkpoints do not notice. Converting again exchanges the recipe.

    Args:
        model: any module; it is changed.
        recipe: recipe of all layers, or what returns that of a layer by its name.
        keep: whether a layer is replaced, by name and module.
        formats: formats of the three tensors.

    Returns:
        Names of the layers replaced, in the model's order.

    Raises:
        ConfigError: no layer is replaced.

    Example:
        >>> names = convert(model, Amax())  # doctest: +SKIP
    """
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name and keep(name, module)
    ]
    if not found:
        raise ConfigError(
            "no linear map of the model is to be converted to FP8",
            hint="give a filter `keep` that takes some, or a model that has nn.Linear inside",
        )
    for name, module in found:
        parent, _, child = name.rpartition(".")
        chosen = recipe(name) if callable(recipe) else recipe
        layer = Float8Linear(module, chosen, formats=formats, name=name)
        setattr(model.get_submodule(parent), child, layer)
    return [name for name, _ in found]


def fp8_layers(model: nn.Module) -> list[Float8Linear]:
    """Return the FP8 layers of a model, in its order."""
    return [module for module in model.modules() if isinstance(module, Float8Linear)]
