"""Fewer features: which reduction is wanted, fitted to rows, and applied."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.data.features.pca import PrincipalComponents
from steelyard.data.features.projection import RandomProjection
from steelyard.data.features.randomized import randomized_components
from steelyard.data.features.store import blocks_of
from steelyard.data.mapped_rows import new_map
from steelyard.data.sketch import Covariance
from steelyard.errors import ConfigError

__all__ = [
    "REDUCTIONS",
    "FeatureReducer",
    "Reduction",
    "directions_of",
    "fit_reduction",
    "parse_reduction",
    "reduced",
]

_MOST_COVARIANCE = 5000
"""Columns up to which the covariance of all is kept."""


class FeatureReducer(Protocol):
    """Something that makes rows narrower."""

    def apply(self, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return narrower rows [N, K]."""
        ...

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        ...


REDUCTIONS: dict[str, Any] = {"pca": PrincipalComponents, "random": RandomProjection}
"""Reductions by what users call them."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction that is wanted.

    Attributes:
        kind: "pca" or "random".
        count: features afterwards.
    """

    kind: str
    count: int


def parse_reduction(text: str) -> Reduction | None:
    """Return the reduction that a text such as "pca:16" names.

    Args:
        text: kind and number; empty for none.

    Returns:
        The reduction, or None.

    Raises:
        ConfigError: the text is of another form.
    """
    if not text:
        return None
    kind, _, number = text.partition(":")
    if kind not in REDUCTIONS or not number.isdigit() or int(number) < 1:
        raise ConfigError(
            f"reduce is {text!r}", hint=f"give {' or '.join(REDUCTIONS)} and a number: pca:16"
        )
    return Reduction(kind, int(number))


def fit_reduction(
    wanted: Reduction, features: NDArray[np.float32], rows: NDArray[np.integer], seed: int = 0
) -> FeatureReducer:
    """Fit a reduction.

    Args:
        wanted: the reduction; more components than there are features are as many as these.
        features: [N, D].
        rows: rows that may be looked at; those kept aside are no part of them.
        seed: seed of random directions.

    Returns:
        What makes rows narrower.
    """
    width = features.shape[1]
    if wanted.kind == "random":
        return RandomProjection.drawn(width, wanted.count, seed)
    count = min(wanted.count, width)
    is_used = np.zeros(len(features), bool)
    is_used[rows] = True
    step = len(next(blocks_of(features)))

    def blocks() -> Any:
        for place, block in enumerate(blocks_of(features)):
            yield np.asarray(block)[is_used[place * step : place * step + len(block)]]

    if width > _MOST_COVARIANCE:
        return randomized_components(blocks, width, count, seed=seed)
    spread = Covariance(width)
    for block in blocks():
        spread.update(block)
    return PrincipalComponents.of(spread, count)


def directions_of(reducer: FeatureReducer) -> NDArray[np.float64]:
    """Return how far each feature moves each narrower one [K, D]."""
    if isinstance(reducer, PrincipalComponents):
        return reducer.directions
    assert isinstance(reducer, RandomProjection), "one of the reductions"
    return reducer.signs.T * (3 / reducer.signs.shape[1]) ** 0.5


def reduced(
    reducer: FeatureReducer, features: NDArray[np.float32], folder: Path | None = None
) -> NDArray[np.float32]:
    """Return narrower features.

    Args:
        reducer: what makes them narrower.
        features: [N, D].
        folder: where they lie in a mapped file; in memory when None.

    Returns:
        float32 [N, K].
    """
    parts = (reducer.apply(np.asarray(block)) for block in blocks_of(features))
    first = next(parts)
    shape = len(features), first.shape[1]
    if folder is None:
        made: NDArray[np.float32] = np.empty(shape, np.float32)
    else:
        made = new_map(folder / "reduced.f32", np.float32, shape)
    at = 0
    for part in itertools.chain([first], parts):
        made[at : at + len(part)] = part
        at += len(part)
    return made
