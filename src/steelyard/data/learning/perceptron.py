"""Perceptrons as arrays: what a neural learner leaves, which scores rows without its library."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from steelyard.data.learning.learners import FittedLearner

__all__ = ["Perceptron"]

_BLOCK = 8192
"""Rows whose inner layers are held at a time."""


@dataclass(frozen=True, kw_only=True)
class Perceptron:
    """Layers of weights with rectified sums between them.

    Attributes:
        layers: weights of each layer, the last column is the constant, float32 [out, in + 1]; the
            last layer has as many outputs as rows have scores.
        effects: how much each input does to scores, 0 or more [D]; empty where it is unknown.
    """

    kind: ClassVar[str] = "neural"
    layers: tuple[NDArray[np.float32], ...]
    effects: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))

    def scores(self, given: NDArray[Any]) -> NDArray[np.float32]:
        """Score rows by their features [N, D]."""
        found = np.empty((len(self.layers[-1]), len(given)), np.float32)
        for first in range(0, len(given), _BLOCK):
            held = np.asarray(given[first : first + _BLOCK], np.float32)
            for place, layer in enumerate(self.layers):
                held = held @ layer[:, :-1].T + layer[:, -1]
                if place < len(self.layers) - 1:
                    np.maximum(held, 0.0, out=held)
            found[:, first : first + len(held)] = held.T
        return found

    def weights(self, count: int) -> NDArray[np.float64]:
        """Return how much scores of rows change with each input, as shares [count]."""
        if not len(self.effects):
            return np.zeros(count)
        found = self.effects.astype(np.float64)
        return found / max(float(found.sum()), 1e-300)

    def with_effects(self, rows: NDArray[Any]) -> "Perceptron":
        """Return the perceptron with what the inputs of some rows do to its scores.

        Args:
            rows: features float32 [N, D], some thousands.

        Returns:
            It; an input's effect is its mean size times the slope there.

        Source: Shrikumar et al. 2016 (arXiv 1605.01713), gradient times input.
        """
        held, masks = np.asarray(rows, np.float32), []
        for layer in self.layers[:-1]:
            held = held @ layer[:, :-1].T + layer[:, -1]
            masks.append(held > 0)
            held = np.where(masks[-1], held, 0.0)
        effects = np.zeros(rows.shape[1])
        for score in self.layers[-1][:, :-1]:
            slopes = np.broadcast_to(score, (len(rows), len(score)))
            for layer, mask in zip(self.layers[-2::-1], masks[::-1], strict=True):
                slopes = (slopes * mask) @ layer[:, :-1]
            effects += np.abs(slopes * rows).mean(axis=0)
        return replace(self, effects=effects.astype(np.float32))

    def about(self) -> dict[str, Any]:
        """Return the plain values."""
        return {"layers": len(self.layers)}

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        layers = {f"layer{place}": layer for place, layer in enumerate(self.layers)}
        return layers | {"effects": self.effects}

    @classmethod
    def restored(cls, about: dict[str, Any], sections: dict[str, NDArray[Any]]) -> FittedLearner:
        """Return the perceptron of arrays by name."""
        names = (f"layer{place}" for place in range(about["layers"]))
        layers = tuple(np.array(sections[name]) for name in names)
        return cls(layers=layers, effects=np.array(sections["effects"]))
