"""Types of matrices by measured sensitivity, and the loss that they forecast."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from steelyard.files import read_json, write_json
from steelyard.nn.quantizing.layer import MATRICES, LayerRecipe, Method, StoredType
from steelyard.nn.quantizing.sensitivity import Sensitivity, measure_sensitivity
from steelyard.nn.transformer import Transformer
from steelyard.quantity import Forecast
from steelyard.serve.quantize.allocation import Choice, choose_types
from steelyard.serve.quantize.options import QuantizeOptions
from steelyard.serve.quantize.sequences import Sequences
from steelyard.serve.quantize.shrinkage import shrunk

__all__ = ["Mixture", "mixed_types"]

_TO_80 = 1.2816
"""Half-width of an 80 % interval of the normal distribution, in standard deviations."""
_NOT_ADDITIVE = 0.3
"""Share of the forecast rise that is allowed for losses that do not add up; assumed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """Chosen types.

    Attributes:
        types: type of each matrix, by name, for every layer.
        rises: forecast rise of the loss of each sequence to choose by, nats per token; of types
            that the other half of the sequences chose.
    """

    types: tuple[Mapping[str, StoredType], ...]
    rises: tuple[float, ...]

    def forecast(self, before: float, count: int) -> Forecast:
        """Forecast the loss on other sequences of the same text.

        Args:
            before: loss of the model there, nats per token.
            count: number of the sequences.

        Returns:
            The loss after rounding: the sum of what each matrix adds alone. Its interval holds the
            spread over sequences of both kinds, and an assumed share for what does not add up.
        """
        rises = torch.tensor(self.rises, dtype=torch.float64)
        rise = float(rises.mean())
        sampling = float(rises.std()) * math.sqrt(1 / len(rises) + 1 / max(1, count))
        half = math.hypot(_TO_80 * sampling, _NOT_ADDITIVE * rise)
        value = before + rise
        return Forecast(
            quantity="eval.loss",
            value=value,
            low=value - half,
            high=value + half,
            provenance="fitted",
            source="sum of the loss changes of matrices rounded one at a time",
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
        sequences: to fit to, and to choose by.
        options: with a budget of bytes or of loss.
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
    found = measure_sensitivity(
        model,
        recipe,
        tokens=sequences.tokens,
        calibration=sequences.calibration,
        choice=sequences.choice,
        advance=advance,
    )
    mixture = _allocated(found, model, options)
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


def _allocated(found: list[Sensitivity], model: Transformer, options: QuantizeOptions) -> Mixture:
    """Choose types within the budget, and add up what they are forecast to lose.

    The least of measured changes is lower than what it will be elsewhere, so no sequence forecasts
    a choice that it took part in: each half of them forecasts that of the other half.
    """
    types = _chosen(found, slice(None), model, options)
    losses = {(item.layer, item.matrix, item.kind): item.losses for item in found}
    rises = torch.zeros(len(found[0].losses), dtype=torch.float64)
    for own, others in _halves(len(rises)):
        other_types = _chosen(found, others, model, options)
        for layer, each in enumerate(other_types):
            for matrix, kind in each.items():
                rises[own] += losses[layer, matrix, kind][own]
    return Mixture(types=tuple(types), rises=tuple(rises.tolist()))


def _halves(count: int) -> list[tuple[slice, slice]]:
    """Pair every second sequence with the others; one alone is paired with itself."""
    even, odd = slice(0, None, 2), slice(1, None, 2)
    return [(even, odd), (odd, even)] if count > 1 else [(even, even)]


def _chosen(
    found: list[Sensitivity], rows: slice, model: Transformer, options: QuantizeOptions
) -> list[dict[str, StoredType]]:
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
    return types
