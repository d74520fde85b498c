"""Seconds of a serving step where prompts, decoding and large batches have times of their own."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.cost.step_time import FEATURES, ServeStepTime
from steelyard.errors import FitError
from steelyard.jit import njit

__all__ = ["PHASES", "PhaseStepTime", "phase_step_s"]

PHASES = ("prompts", "decode", "large decode", "mixed", "large mixed")
"""What a step may hold: prompts alone, one token of each sequence, or both; the latter two also at
batches from `large_batch` on."""

Array = NDArray[np.float64]
Terms = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseStepTime:
    """Step time = features times the coefficients of the step's phase.

    Attributes:
        coefficients: for each of `PHASES`, seconds per unit of each of `cost.FEATURES`.
        large_batch: decoding sequences from which on a batch is large.
        relative_spread: relative error that is expected of a step.
        source: what it was made from.
    """

    coefficients: tuple[tuple[float, ...], ...]
    large_batch: float
    relative_spread: float
    source: str

    def __post_init__(self) -> None:
        """Refuse a table of the wrong shape.

        Raises:
            FitError: it does not hold every phase and feature.
        """
        shape = np.shape(np.asarray(self.coefficients))
        if shape != (len(PHASES), len(FEATURES)):
            raise FitError(
                f"step times by phase need coefficients {len(PHASES)} x {len(FEATURES)}, got "
                f"{shape}",
                hint="make them with PhaseStepTime.of or PhaseStepTime.from_fits",
            )

    @classmethod
    def of(cls, model: ServeStepTime) -> "PhaseStepTime":
        """Take a model that is the same in all phases."""
        return cls(
            coefficients=(model.coefficients,) * len(PHASES),
            large_batch=np.inf,
            relative_spread=model.relative_spread,
            source=model.source,
        )

    @classmethod
    def from_fits(
        cls,
        *,
        prefill: Terms,
        decode: Terms,
        large_decode: Terms | None = None,
        large_batch: float = 95,
        relative_spread: float = 0.05,
        source: str,
    ) -> "PhaseStepTime":
        """Take separate fits of prefill and decode steps.

        A mixed step reads the weights once: it has the larger of the two constants, and the other
        terms of both.

        Args:
            prefill: a, b, c of a + b sum(length) + c sum(length**2), seconds.
            decode: a, b, c of a + b sum(context) + c batch, seconds.
            large_decode: the same for batches from `large_batch` on; as `decode` when not given.
            large_batch: sequences from which on a batch is large.
            relative_spread: relative error of the fits.
            source: where they are from.

        Returns:
            The model.

        Source: Zhong et al. 2024 (arXiv 2401.09670), appendix A, in the form of its artifact.
        """
        prompts = _prompt_row(*prefill)
        decodes = [_decode_row(*decode), _decode_row(*(large_decode or decode))]
        mixed = [np.append(max(prompts[0], row[0]), prompts[1:] + row[1:]) for row in decodes]
        return cls(
            coefficients=tuple(tuple(map(float, row)) for row in (prompts, *decodes, *mixed)),
            large_batch=float(large_batch),
            relative_spread=relative_spread,
            source=source,
        )

    @property
    def table(self) -> Array:
        """Coefficients, float64 [phases, features]."""
        return np.array(self.coefficients, dtype=np.float64)

    def predict(self, features: ArrayLike) -> Array:
        """Return the seconds [...] of steps with features [..., 7] in the order of `FEATURES`."""
        values = np.asarray(features, dtype=np.float64)
        flat = values.reshape(-1, len(FEATURES))
        return _predict(self.table, self.large_batch, flat).reshape(values.shape[:-1])

    def scaled(self, factor: float) -> "PhaseStepTime":
        """Return the same model with every step `factor` > 0 times as long."""
        rows = tuple(tuple(factor * item for item in row) for row in self.coefficients)
        return replace(self, coefficients=rows)


def _prompt_row(constant: float, per_token: float, per_square: float) -> Array:
    """Return coefficients of prompts; n**2 is twice the pairs n (n + 1) / 2 less n."""
    row = dict.fromkeys(FEATURES, 0.0)
    row |= {"steps": constant, "prefill_tokens": per_token - per_square}
    return np.array([*(row | {"prefill_kv": 2 * per_square}).values()])


def _decode_row(constant: float, per_context: float, per_sequence: float) -> Array:
    """Return coefficients of decoding sequences."""
    row = dict.fromkeys(FEATURES, 0.0)
    row |= {"steps": constant, "decode_tokens": per_sequence, "decode_kv": per_context}
    return np.array([*row.values()])


@njit()
def phase_step_s(table: Array, large_batch: float, features: Array) -> float:
    """Return the seconds of one step.

    Args:
        table: coefficients [phases, features].
        large_batch: decoding sequences from which on a batch is large.
        features: what the step holds, in the order of `cost.FEATURES`, [7].

    Returns:
        Seconds.
    """
    prompts, decodes = features[2], features[4]
    row = 0
    if decodes > 0:
        row = (3 if prompts > 0 else 1) + (1 if decodes >= large_batch else 0)
    # In a fixed order, so that every simulator gets the same number to the last bit.
    total = 0.0
    for column in range(features.shape[0]):
        total += table[row, column] * features[column]
    return total


@njit()
def _predict(table: Array, large_batch: float, features: Array) -> Array:
    """Return the seconds of steps [n] with features [n, 7]."""
    seconds = np.empty(features.shape[0])
    for index in range(features.shape[0]):
        seconds[index] = phase_step_s(table, large_batch, features[index])
    return seconds
