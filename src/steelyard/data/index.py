"""A shuffled order without a stored permutation: position to example and back, by a key.

A loader whose order is a function of (seed, epoch, position) needs no state but a position, so it
goes on anywhere at once and any number of readers see the same stream.
"""

import hashlib
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from steelyard.errors import ConfigError

__all__ = ["Permutation", "derive_seed", "epoch_and_place"]

MOST_EXAMPLES = 1 << 62
_ROUNDS, _ROUNDS_OF_FEW, _FEW = 8, 32, 1024
"""Four rounds make a pseudorandom permutation of a large set; with 8, orders of 5 or 6 examples are
unequally likely, with 32 no test on 12,000 seeds tells them apart."""
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Permutation:
    """A keyed permutation of [0, size) that takes no memory per example.

    A position is split into two digits of bases a and b with a b >= size; rounds add a keyed hash
    of one digit to the other in turn. What lands at or beyond size is sent through again until it
    falls inside (cycle walking), which happens to at most about 1 / sqrt(size) of the positions.

    Attributes:
        size: number of examples n.
        seed: key of the order.
        epoch: number of the pass; each has an order of its own.

    Source: Black and Rogaway 2002 (Ciphers with arbitrary finite domains), sections 4 and 5.
    """

    def __init__(self, size: int, seed: int, epoch: int = 0) -> None:
        """Derive the keys of the rounds.

        Args:
            size: number of examples, 1 to 2^62.
            seed: key of the order, 0 or more, of any size.
            epoch: number of the pass, 0 or more.

        Raises:
            ConfigError: an argument is out of range.
        """
        if not 1 <= size <= MOST_EXAMPLES or seed < 0 or epoch < 0:
            raise ConfigError(
                f"no order of {size} examples with seed {seed} and epoch {epoch}",
                hint="give a size from 1 to 2^62, and a seed and an epoch of 0 or more",
            )
        self.size, self.seed, self.epoch = size, seed, epoch
        wide = int(np.ceil(np.sqrt(size)))
        self._bases = (np.uint64(wide), np.uint64(-(-size // wide)))
        rounds = _ROUNDS_OF_FEW if size < _FEW else _ROUNDS
        self._keys = np.random.SeedSequence((seed, epoch)).generate_state(rounds, np.uint64)

    def __call__(self, positions: np.ndarray | int) -> np.ndarray:
        """Return the examples at positions.

        Args:
            positions: integers in [0, size), any shape.

        Returns:
            int64 of the same shape.

        Raises:
            ConfigError: a position is out of range.
        """
        return self._walk(positions, self._forward)

    def inverse(self, examples: np.ndarray | int) -> np.ndarray:
        """Return the positions at which examples stand; arguments and errors as in a call."""
        return self._walk(examples, self._backward)

    def _walk(
        self, given: np.ndarray | int, step: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """Apply a step of the larger domain until every value is below the size."""
        values = np.asarray(given, dtype=np.int64)
        if values.size and not (values.min() >= 0 and values.max() < self.size):
            raise ConfigError(
                f"a position from {values.min()} to {values.max()} of {self.size} was asked",
                hint=f"give positions from 0 to {self.size - 1}",
            )
        found = step(values.ravel().astype(np.uint64))
        outside = np.flatnonzero(found >= self.size)
        while len(outside):
            again = step(found[outside])
            found[outside] = again
            outside = outside[again >= self.size]
        return found.astype(np.int64).reshape(values.shape)

    def _forward(self, values: np.ndarray) -> np.ndarray:
        """Run the rounds: digit 0 first, then 1, in turn."""
        digits = [values % self._bases[0], values // self._bases[0]]
        for number in range(len(self._keys)):
            own = number % 2
            base = self._bases[own]
            total = digits[own] + self._shift(digits[1 - own], number)
            digits[own] = np.where(total >= base, total - base, total)
        return digits[1] * self._bases[0] + digits[0]

    def _backward(self, values: np.ndarray) -> np.ndarray:
        """Take the rounds back, the last one first."""
        digits = [values % self._bases[0], values // self._bases[0]]
        for number in reversed(range(len(self._keys))):
            own = number % 2
            base = self._bases[own]
            shift = self._shift(digits[1 - own], number)
            rest = digits[own] - shift  # wraps around below 0, and back with the base
            digits[own] = np.where(digits[own] >= shift, rest, rest + base)
        return digits[1] * self._bases[0] + digits[0]

    def _shift(self, digit: np.ndarray, number: int) -> np.ndarray:
        """Hash a digit to a number below the base of the other, by SplitMix64's finalizer."""
        mixed = digit + self._keys[number]
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
        # The upper half times the base, shifted down: a division would cost as much as the rest.
        return ((mixed >> np.uint64(32)) * self._bases[number % 2]) >> np.uint64(32)


@lru_cache(maxsize=64)
def _permutation(size: int, seed: int, epoch: int) -> Permutation:
    """Return a permutation; keys are derived once."""
    return Permutation(size, seed, epoch)


def epoch_and_place(positions: np.ndarray, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Say which pass endless positions belong to, and which example stands there.

    Args:
        positions: int64 [N], 0 or more, without end.
        size: examples of a pass.
        seed: key of the orders.

    Returns:
        Epochs and examples, int64 [N] each.
    """
    positions = np.asarray(positions, dtype=np.int64)
    epochs, places = np.divmod(positions, size)
    examples = np.empty_like(places)
    for epoch in np.unique(epochs).tolist():
        here = epochs == epoch
        examples[here] = _permutation(size, seed, epoch)(places[here])
    return epochs, examples


def derive_seed(seed: int, name: str) -> int:
    """Return the seed of a named part of a run, in [0, 2^63); unequal names have unrelated ones."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
