"""Types of matrices by measured sensitivity, and the loss that they forecast."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np
from scipy.special import stdtrit
from torch import Tensor

from steelyard.files import read_json, write_json
from steelyard.nn.quantizing.layer import MATRICES, LayerRecipe, Method, StoredType
from steelyard.nn.quantizing.sensitivity import (
    Sensitivity,
    losses_together,
    measure_sensitivity,
)
from steelyard.nn.quantizing.stack import Passage, uniform
from steelyard.nn.transformer import Transformer
from steelyard.quantity import Forecast
from steelyard.serve.quantize.allocation import Choice, choose_types
from steelyard.serve.quantize.options import QuantizeOptions
from steelyard.serve.quantize.sequences import Sequences
from steelyard.serve.quantize.shrinkage import shrunk

__all__ = ["Mixture", "mixed_types"]

_FOLDS = 4
"""Parts that the sequences to choose by are cut into. More of them would choose by more sequences,
but all by nearly the same, whose chance then is in every one of them."""

Types = tuple[Mapping[str, StoredType], ...]
"""Type of each matrix, by name, for every layer."""


class Passes(TypedDict):
    """The sequences that pass the model, as `measure_sensitivity` takes them."""

    tokens: Tensor
    calibration: slice
    choice: Passage


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """Chosen types.

    Attributes:
        types: type of each matrix, by name, for every layer.
        rises: forecast rise of the loss of each sequence to choose by, nats per token; of types
            that the other sequences chose.
    """

    types: Types
    rises: tuple[float, ...]

    def forecast(self, before: float, count: int) -> Forecast:
        """Forecast the loss on other sequences of the same text.

        Args:
            before: loss of the model there, nats per token.
            count: number of the sequences.

        Returns:
            The loss after rounding; its interval holds the spread over sequences of both kinds.
        """
        rises = np.array(self.rises)
        sampling = float(rises.std(ddof=1)) * math.sqrt(1 / len(rises) + 1 / max(1, count))
        half = float(stdtrit(len(rises) - 1, 0.9)) * sampling
        value = before + float(rises.mean())
        return Forecast(
            quantity="eval.loss",
            value=value,
            low=value - half,
            high=value + half,
            provenance="fitted",
            source="changes of matrices rounded one at a time, and of all of them together",
        )


def mixed_types(
    model: Transformer,
    sequences: Sequences,
    options: QuantizeOptions,
    path: Path,
    advance: Callable[[int, str], None],
) -> Mixture:
    """Choose the type of each matrix for the options' budget.

    Args:
        model: a decoder.
        sequences: text to fit to, and to choose by.
        options: options with a budget of bytes or of loss.
        path: where the choice is kept; it is taken from there by a run that was killed.
        advance: told the layers done, and a few words.

    Returns:
        The types.

    Raises:
        InfeasibleError: even the fewest bytes are too many.
    """
    if path.exists():
        stored = read_json(path)
        return Mixture(types=tuple(stored["types"]), rises=tuple(stored["rises"]))
    # Every matrix is rounded alone, so that trying all methods would take four times as long.
    is_auto = options.calibrate is not None and options.method == "auto"
    recipe = LayerRecipe(
        types={},
        method=cast(Method, "gptq" if is_auto else options.methods[0]),
        group=options.group,
        zero_points=options.zero_points,
        dtype=model.embedding.weight.dtype,
    )
    passes: Passes = {
        "tokens": sequences.tokens,
        "calibration": sequences.calibration,
        "choice": sequences.choice,
    }
    found = measure_sensitivity(model, recipe, **passes, advance=advance)
    mixture = _allocated(
        found, model, options, lambda types: losses_together(model, recipe, types, **passes)
    )
    kept: dict[str, Any] = {
        "types": mixture.types,
        "rises": mixture.rises,
        "sensitivity": [
            [item.layer, item.matrix, item.kind, item.num_bytes, float(item.losses.mean())]
            for item in found
        ],
    }
    write_json(path, kept)
    return mixture


def _allocated(
    found: list[Sensitivity],
    model: Transformer,
    options: QuantizeOptions,
    losses: Callable[[Types], Tensor],
) -> Mixture:
    """Choose types within the budget, and forecast what they lose.

    The least of measured changes is lower than what it will be elsewhere, so no sequence forecasts
    a choice that it took part in: each part of them forecasts that of the others. What changes do
    not add up to is measured with the choice of all: chance that made a type look good is in the
    sum and in what is measured, and falls out of their difference.

    Args:
        found: changes of single matrices.
        model: a decoder.
        options: options with the budget.
        losses: rounds the model to such types, and returns the losses of the same sequences.

    Returns:
        The types, and what each sequence is forecast to lose by such a choice.
    """
    types = _chosen(found, np.arange(len(found[0].losses)), model, options)
    added = _added(found, types)
    plain = uniform(len(types), "plain")
    apart = (losses(types) - losses(plain)).numpy() - added
    rises = np.empty(len(added))
    part = np.arange(len(added)) % _FOLDS
    for own in (part == number for number in set(part.tolist())):
        rises[own] = _added(found, _chosen(found, np.flatnonzero(~own), model, options))[own]
    return Mixture(types=types, rises=tuple((rises + apart).tolist()))


def _added(found: list[Sensitivity], types: Types) -> np.ndarray:
    """Add up what the matrices of some types change alone, for each sequence."""
    return sum(
        (item.losses.numpy() for item in found if types[item.layer][item.matrix] == item.kind),
        start=np.zeros(len(found[0].losses)),
    )


def _chosen(
    found: list[Sensitivity], rows: np.ndarray, model: Transformer, options: QuantizeOptions
) -> Types:
    """Choose types by what some sequences lose, for each layer."""
    losses = shrunk({(item.layer, item.matrix, item.kind): item.losses[rows] for item in found})
    parts: dict[tuple[int, str], dict[str, Choice]] = {}
    for item in found:
        choice = Choice(item.num_bytes, losses[item.layer, item.matrix, item.kind])
        parts.setdefault((item.layer, item.matrix), {})[item.kind] = choice
    # The budget is of the whole model: tables, norms and the head stay as they are.
    matrices = sum(part["plain"].num_bytes for part in parts.values())
    others = sum(item.nbytes for item in model.state_dict().values()) - matrices
    chosen = choose_types(
        list(parts.values()),
        most_bytes=options.memory_bytes - others if options.memory_bytes else math.inf,
        most_loss=math.log1p(options.max_loss or math.inf),
    )
    types: list[dict[str, StoredType]] = [{} for _ in range(model.architecture.num_layers)]
    for (layer, matrix), kind in zip(parts, chosen, strict=True):
        types[layer][matrix] = cast(StoredType, kind)
    assert all(tuple(each) == MATRICES for each in types)
    return tuple(types)
