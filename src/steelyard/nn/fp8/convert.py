"""Puts FP8 linear maps into a model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn

from steelyard.errors import ConfigError
from steelyard.nn.fp8.linear import OCP, Float8Linear, Formats
from steelyard.nn.fp8.recipes import Recipe

__all__ = ["convert", "converted", "fp8_layers", "is_hidden", "linear_maps", "replace"]

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
    wanted: Callable[[str, nn.Linear], bool] = is_hidden,
    formats: Formats = OCP,
) -> list[str]:
    """Replace linear maps of a model by FP8 ones that share their parameters.

    Embeddings, norms and products of attention are no linear maps and stay; so does the head. State
    dictionaries, optimizers and checkpoints do not notice. Converting again exchanges the recipe.

    Args:
        model: any module; it is changed.
        recipe: recipe of all layers, or what returns that of a layer by its name.
        wanted: whether a layer is replaced, by name and module.
        formats: formats of the three tensors.

    Returns:
        Names of the layers replaced, in the model's order.

    Raises:
        ConfigError: no layer is replaced.

    Example:
        >>> names = convert(model, Amax())  # doctest: +SKIP
    """
    found = linear_maps(model, wanted)
    for name, module in found:
        chosen = recipe(name) if callable(recipe) else recipe
        replace(model, name, Float8Linear(module, chosen, formats=formats, name=name))
    return [name for name, _ in found]


@contextmanager
def converted(
    model: nn.Module,
    recipe: Recipe | Callable[[str], Recipe],
    *,
    wanted: Callable[[str, nn.Linear], bool] = is_hidden,
    formats: Formats = OCP,
) -> Iterator[nn.Module]:
    """Convert a model for a while; its own linear maps are put back at the end.

    Args:
        model: model that `convert` was given.
        recipe: recipe that `convert` was given.
        wanted: choice of layers that `convert` was given.
        formats: formats that `convert` was given.

    Yields:
        The model.

    Raises:
        ConfigError: no layer is replaced.
    """
    originals = linear_maps(model, wanted)
    convert(model, recipe, wanted=wanted, formats=formats)
    try:
        yield model
    finally:
        for name, module in originals:
            replace(model, name, module)


def replace(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module in the place of another.

    Args:
        model: what holds them; it is changed.
        name: dotted name of the place.
        module: the new one.
    """
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


def linear_maps(
    model: nn.Module, wanted: Callable[[str, nn.Linear], bool]
) -> list[tuple[str, nn.Linear]]:
    """Return the linear maps of a model that are to be replaced.

    Args:
        model: any module.
        wanted: whether a layer is replaced, by name and module.

    Returns:
        Names and modules, in the model's order.

    Raises:
        ConfigError: there is none.
    """
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name and wanted(name, module)
    ]
    if not found:
        raise ConfigError(
            "no linear map of the model is to be converted to FP8",
            hint="give a filter `wanted` that takes some, or a model that has nn.Linear inside",
        )
    return found


def fp8_layers(model: nn.Module) -> list[Float8Linear]:
    """Return the FP8 layers of a model, in its order."""
    return [module for module in model.modules() if isinstance(module, Float8Linear)]
