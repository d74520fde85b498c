"""HyperLogLog: how many distinct values a stream has, within some kilobytes."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.data.sketch.hashing import NULL_HASH
from steelyard.errors import ConfigError
from steelyard.jit import njit

__all__ = ["HyperLogLog", "add_hash"]


@njit()
def add_hash(registers: np.ndarray, value: np.uint64, precision: int) -> None:
    """Raise a hash's register to the place of its first set bit."""
    register = value >> np.uint64(64 - precision)
    value <<= np.uint64(precision)
    known = np.uint64(registers[register])
    # Nearly all values leave the register as it is, which one comparison says.
    if known and value >> (np.uint64(64) - known):
        return
    rank, most = np.uint64(1), np.uint64(64 - precision)
    while value < np.uint64(0x8000000000000000) and rank <= most:
        value <<= np.uint64(1)
        rank += np.uint64(1)
    if rank > known:
        registers[register] = rank


@njit()
def _add(registers: np.ndarray, hashes: np.ndarray, precision: int) -> None:
    """Raise each hash's register."""
    for row in range(len(hashes)):
        if hashes[row] != NULL_HASH:
            add_hash(registers, hashes[row], precision)


class HyperLogLog:
    """Registers of the longest run of zeros; merged by their maxima, whatever the order.

    The standard error of an estimate is 1.04 / sqrt(registers): .8 % with 2^14.

    Attributes:
        precision: logarithm of the number of registers to base 2.
        registers: uint8, [2^precision].

    Source: Flajolet et al. 2007, "HyperLogLog"; estimator of Ertl 2017, arXiv 1702.01284,
        algorithm 6.
    """

    def __init__(self, precision: int = 14) -> None:
        """Begin without values.

        Args:
            precision: 4 to 18.

        Raises:
            ConfigError: the precision is out of range.
        """
        if not 4 <= precision <= 18:
            raise ConfigError(f"a precision of {precision}, but it must be in [4, 18]")
        self.precision = precision
        self.registers = np.zeros(1 << precision, np.uint8)

    @property
    def standard_error(self) -> float:
        """Relative standard error of an estimate."""
        return 1.04 / math.sqrt(len(self.registers))

    def update(self, hashes: ArrayLike) -> None:
        """Add values by their hashes; those that are missing (`NULL_HASH`) are left out.

        Args:
            hashes: uint64, [rows], well mixed as those of `hash_column`.
        """
        _add(self.registers, np.ascontiguousarray(hashes, np.uint64), self.precision)

    def merge(self, other: "HyperLogLog") -> None:
        """Take in another sketch.

        Args:
            other: one of the same precision.

        Raises:
            ConfigError: it has another precision.
        """
        if other.precision != self.precision:
            raise ConfigError(
                f"sketches of precision {self.precision} and {other.precision} cannot be merged"
            )
        np.maximum(self.registers, other.registers, out=self.registers)

    def estimate(self) -> float:
        """Return the estimated number of distinct values."""
        size, rest = len(self.registers), 64 - self.precision
        counts = np.bincount(self.registers, minlength=rest + 2)
        total = size * _tau(1 - counts[rest + 1] / size)
        for rank in range(rest, 0, -1):
            total = 0.5 * (total + counts[rank])
        total += size * _sigma(counts[0] / size)
        return float(size * size / (2 * math.log(2) * total)) if math.isfinite(total) else 0.0

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays by name."""
        return {"registers": self.registers}

    @classmethod
    def of(cls, sections: dict[str, NDArray[Any]]) -> "HyperLogLog":
        """Return the sketch of a state."""
        made = cls(len(sections["registers"]).bit_length() - 1)
        made.registers = np.array(sections["registers"], np.uint8)
        return made


def _sigma(share: float) -> float:
    """Return the correction of registers that are empty; infinite where all are."""
    if share == 1:
        return math.inf
    power, total = 1.0, share
    while True:
        share *= share
        before = total
        total += share * power
        power += power
        if total == before:
            return total


def _tau(share: float) -> float:
    """Return the correction of registers that are full."""
    if share in (0.0, 1.0):
        return 0.0
    power, total = 1.0, 1 - share
    while True:
        share = math.sqrt(share)
        before = total
        power *= 0.5
        total -= (1 - share) ** 2 * power
        if total == before:
            return total / 3
