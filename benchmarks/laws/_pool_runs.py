"""Training runs in miniature whose law is not the one fitted: averaged SGD on pools of data."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.jit import njit

__all__ = ["FLOOR", "Pool", "draw_pools", "train"]

Array = NDArray[np.float64]
_DIMENSIONS = 400
_TEST_DECAY = 1.1
_SIGNAL_DECAY = 1.35
_LEARNING_RATE = 0.25

FLOOR = 0.1
"""Error that no training removes."""


@dataclass(frozen=True)
class Pool:
    """What a pool is like.

    Attributes:
        decay: exponent of the spectrum of its inputs; the test inputs have 1.1, a larger one covers
            the tail more thinly.
        noise: standard deviation of the label noise; the labels have 1.
        copies: fraction of the samples that repeat others.
    """

    decay: float = _TEST_DECAY
    noise: float = 0.3
    copies: float = 0.0


def draw_pools(pools: list[Pool], size: int, seed: int) -> list[tuple[Array, Array]]:
    """Draw inputs [size, 400] and labels [size] of each pool."""
    generator = np.random.default_rng(seed)
    return [_draw(pool, size, generator) for pool in pools]


def _draw(pool: Pool, size: int, generator: np.random.Generator) -> tuple[Array, Array]:
    distinct = max(round(size * (1 - pool.copies)), 1)
    inputs = generator.standard_normal((distinct, _DIMENSIONS)) * np.sqrt(_spectrum(pool.decay))
    labels = inputs @ _teacher() + pool.noise * generator.standard_normal(distinct)
    rows = np.concatenate([np.arange(distinct), generator.integers(0, distinct, size - distinct)])
    return inputs[rows], labels[rows]


def _spectrum(decay: float) -> Array:
    values = np.arange(1, _DIMENSIONS + 1.0) ** -decay
    return values / values.sum()


def _teacher() -> Array:
    return np.sqrt(_spectrum(_SIGNAL_DECAY) / _spectrum(_TEST_DECAY))


def train(pools: list[tuple[Array, Array]], marks: Array, seed: int) -> Array:
    """Train on the union of pools, reshuffled in each pass.

    Args:
        pools: inputs and labels of each.
        marks: numbers of samples at which the error is taken, rising, [n].
        seed: seed of the order.

    Returns:
        Test error at each mark, [n]; it is 1.1 before training.
    """
    generator = np.random.default_rng(seed)
    inputs, labels = (np.concatenate(parts) for parts in zip(*pools, strict=True))
    steps = int(marks[-1])
    order = np.concatenate(
        [generator.permutation(len(labels)) for _ in range(-(-steps // len(labels)))]
    )[:steps]
    return FLOOR + _descend(
        inputs, labels, order, _spectrum(_TEST_DECAY), _teacher(), marks.astype(np.int64)
    )


@njit()
def _descend(inputs, labels, order, spectrum, teacher, marks):
    """Return the excess error at each mark, of the weights averaged over its second half."""
    size = inputs.shape[1]
    weights = np.zeros(size)
    total = np.zeros(size)
    begin = np.zeros((len(marks), size))
    errors = np.zeros(len(marks))
    for step in range(len(order)):
        row = inputs[order[step]]
        weights += _LEARNING_RATE * (labels[order[step]] - np.dot(row, weights)) * row
        total += weights
        for mark in range(len(marks)):
            if marks[mark] // 2 == step + 1:
                begin[mark] = total
            if marks[mark] == step + 1:
                mean = (total - begin[mark]) / (marks[mark] - marks[mark] // 2)
                errors[mark] = (spectrum * (mean - teacher) ** 2).sum()
    return errors
