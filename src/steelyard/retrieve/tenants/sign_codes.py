"""One bit per number of a vector: enough to tell which vectors are worth comparing."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.jit import njit

__all__ = ["ERRORS", "LEAST_DIM", "SignCodes", "coded_query", "lower_bound_of"]

Floats = NDArray[np.float32]
_PLANES = 4
_TYPICAL = 0.61
"""Root of 1 - a^2, where a is the inner product of a turned vector of length 1 with its signs: it
is nearly the same for all vectors, sqrt(2 / pi) = .8 on average."""
LEAST_DIM = 32
"""Numbers of a vector from which on signs tell enough: an estimate is off in proportion to
1 / sqrt(D)."""
ERRORS = 2.2 * _TYPICAL
"""Errors of an estimate that a vector may be nearer than it says before it is left out."""


class SignCodes:
    """Codes of the signs of vectors after a rotation, with their lengths.

    With c the middle of all vectors, R a rotation and s the signs of R (v - c), the inner product
    of v - c and a query q is about |v - c| <s, R q> / <s, R (v - c) / |v - c|>.

    Attributes:
        middle: c float32 [D].
        rotation: R float32 [D, D], applied as `vectors @ rotation`.

    Source: Gao and Long 2024 (RaBitQ, arXiv 2405.12497), sections 3.1 and 3.2; one middle stands
        for all vectors, as a tenant's lie in many clusters.
    """

    def __init__(self, middle: Floats) -> None:
        """Draw the rotation, which is the same for all middles of one width.

        Args:
            middle: c float32 [D].
        """
        self.middle = np.ascontiguousarray(middle, np.float32)
        drawn = np.random.default_rng(0).normal(size=(len(middle), len(middle)))
        self.rotation = np.ascontiguousarray(np.linalg.qr(drawn)[0], np.float32)

    @property
    def words(self) -> int:
        """Words of 64 bits of a record: the signs, and one with two numbers."""
        return -(-len(self.middle) // 64) + 1

    def records(self, vectors: Floats) -> NDArray[np.uint64]:
        """Return records of vectors.

        Args:
            vectors: float32 [N, D].

        Returns:
            uint64 [N, words]: bits of positive signs, the first number lowest; then as two float32
            |v - c|^2 and the factor 2 |v - c|^2 / <s, R (v - c)>.
        """
        moved = vectors - self.middle
        turned = moved @ self.rotation
        is_positive = turned > 0
        bits = np.zeros((len(vectors), 64 * (self.words - 1)), np.uint8)
        bits[:, : turned.shape[1]] = is_positive
        found = np.empty((len(vectors), self.words), np.uint64)
        found[:, :-1] = np.packbits(bits, axis=1, bitorder="little").view(np.uint64)
        squared = np.einsum("nd,nd->n", moved, moved)
        products = np.abs(turned).sum(axis=1)
        facts = np.stack([squared, 2 * squared / np.maximum(products, 1e-30)], axis=1)
        found[:, -1:] = facts.astype(np.float32).view(np.uint64)
        return found


@njit(fastmath={"reassoc", "contract", "nsz"})
def coded_query(query: Any, middle: Any, rotation: Any, is_l2: Any, errors: Any) -> Any:
    """Return a query at four bits a number.

    Args:
        query: float32 [D].
        middle: middle of all vectors.
        rotation: rotation [D, D].
        is_l2: squared distances, else negative inner products.
        errors: errors of an estimate that are allowed for.

    Returns:
        Bits of the four planes uint64 [words, 4], and seven numbers for `lower_bound_of`.
    """
    dim = len(query)
    moved = query - middle if is_l2 else query.copy()
    inner, squared = np.float32(0.0), np.float32(0.0)
    turned = np.zeros(dim, np.float32)
    for place in range(dim):
        inner += query[place] * middle[place]
        squared += moved[place] * moved[place]
        for to in range(dim):
            turned[to] += moved[place] * rotation[place, to]
    low = turned.min()
    step = max((turned.max() - low) / np.float32(15), np.float32(1e-30))
    planes = np.zeros(((dim + 63) // 64, _PLANES), np.uint64)
    for place in range(dim):
        level = int((turned[place] - low) / step + np.float32(0.5))
        for plane in range(_PLANES):
            bit = np.uint64((level >> plane) & 1)
            planes[place // 64, plane] |= bit << np.uint64(place % 64)
    weight = np.float32(1.0 if is_l2 else 0.5)
    numbers = np.empty(7, np.float32)
    numbers[0] = squared if is_l2 else -inner
    numbers[1] = 1.0 if is_l2 else 0.0
    numbers[2], numbers[3], numbers[4], numbers[5] = weight, step, low, turned.sum()
    numbers[6] = weight * errors * np.sqrt(squared)
    return planes, numbers


@njit()
def _ones(word: Any) -> Any:
    """Count the bits of a word."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    low = np.uint64(0x3333333333333333)
    word = (word & low) + ((word >> np.uint64(2)) & low)
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@njit()
def lower_bound_of(record: Any, facts: Any, planes: Any, numbers: Any) -> Any:
    """Return what a vector's distance is hardly ever below.

    Args:
        record: record of the vector.
        facts: the same as float32 [2 words].
        planes: of `coded_query`.
        numbers: of `coded_query`.

    Returns:
        A distance.
    """
    ones, total = 0, 0
    for word in range(len(planes)):
        code = record[word]
        ones += _ones(code)
        for plane in range(_PLANES):
            total += _ones(code & planes[word, plane]) << plane
    base, norm_weight, weight, step, low, whole, margin = numbers
    signs = np.float32(2) * (low * np.float32(ones) + step * np.float32(total)) - whole
    at = 2 * len(planes)
    return base + norm_weight * facts[at] - facts[at + 1] * (weight * signs + margin)
