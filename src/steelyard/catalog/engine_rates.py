"""What the engine's own kernels reach on this machine, by number type: a part of a calibration."""

import bisect
import math
from dataclasses import dataclass
from functools import cached_property

__all__ = ["KERNEL_PARTS", "EngineRates", "LinearTime", "PartRate", "ProductTime"]

KERNEL_PARTS = (
    "embedding",
    "norms",
    "qkv",
    "rope",
    "attention",
    "out",
    "up",
    "activation",
    "down",
    "head",
)
"""Parts of a step in the engine's kernels, in the order of its timing.h; "rope" writes keys and
values to the pool as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductTime:
    """Time of a product of some rows with packed weights [n, k], many of them in turn.

    It takes n k `s_per_weight` + `call_s`.

    Attributes:
        weights: "fp32", "bf16", "int8" or "int4".
        rows: rows of activations.
        inputs: k.
        set_bytes: bytes of all weights that are walked in turn; the caches hold small sets.
        s_per_weight: seconds per weight.
        call_s: seconds of a call: threads meet, and rows are copied, and quantized for narrow
            types.
    """

    weights: str
    rows: int
    inputs: int
    set_bytes: float
    s_per_weight: float
    call_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LinearTime:
    """Seconds that a part of a step takes, as a sum of three terms, none negative.

    Attributes:
        per_call_s: seconds of each call of its kernel, or of each step outside the kernels.
        per_row_s: seconds of each row: a sequence.
        per_unit_s: seconds of each unit of work, which is named where the part is.
    """

    per_call_s: float
    per_row_s: float = 0.0
    per_unit_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PartRate:
    """Times of a part while a step walks little memory, and while it walks much.

    What lies between the two is interpolated over the logarithm of the bytes: code and data of a
    part wait in the caches for the next step, or are thrown out of them.

    Attributes:
        warm: rate in steps that walk `EngineRates.warm_bytes`, or fewer.
        cold: rate in steps that walk `EngineRates.cold_bytes`, or more.
    """

    warm: LinearTime
    cold: LinearTime


# Without slots: what is derived of the products is kept beside them.
@dataclass(frozen=True, kw_only=True)
class EngineRates:
    """Measured rates of the native kernels and of what surrounds them in a step.

    Attributes:
        products: times of products over types, rows and sets.
        decode: attention of decoding sequences by type of keys and values; called once per layer,
            its rows are sequences, its units bytes of keys and values.
        prefill: attention of prompts by type of keys and values; units are FLOPs of pairs of token
            and attended token.
        parts: "embedding", "norms", "rope", "activation": called once per layer (norms: twice),
            units are elements; "sampling": units are logits; "python": planning and the rest, its
            rows are sequences.
        warm_bytes: bytes that a step walks, as far as times are those of full caches.
        cold_bytes: bytes from which on they are those of memory.
        duration_s: time the measurement took.
    """

    products: tuple[ProductTime, ...]
    decode: dict[str, PartRate]
    prefill: dict[str, PartRate]
    parts: dict[str, PartRate]
    warm_bytes: float
    cold_bytes: float
    duration_s: float = 0.0

    def coldness(self, set_bytes: float) -> float:
        """Return how far a step that walks these bytes is from full caches, 0 to 1."""
        span = math.log(self.cold_bytes / self.warm_bytes)
        return min(max(math.log(max(set_bytes, 1.0) / self.warm_bytes) / span, 0.0), 1.0)

    @property
    def types(self) -> tuple[str, ...]:
        """Types of weights that were measured, in the order of measurement."""
        return tuple(dict.fromkeys(item.weights for item in self.products))

    def product_s(self, weights: str, rows: float, n: float, k: float, set_bytes: float) -> float:
        """Interpolate the time of a product.

        Logarithms of times are interpolated over those of rows, inputs and set, so that the answer
        lies between measured ones; beyond the most rows time is in proportion to rows.

        Args:
            weights: a measured type.
            rows: rows of the product, above 0.
            n: outputs.
            k: inputs.
            set_bytes: bytes of all weights that a step walks, and of whatever else shares the
                caches with them.

        Returns:
            Seconds.

        Raises:
            KeyError: the type was not measured.
        """
        grid = self._grids[weights]
        counts = list(grid)
        size = math.log(max(set_bytes, 1.0))
        # The two measured counts on either side of `rows`; the outermost stand for all beyond.
        above = min(max(bisect.bisect_left(counts, rows), 1), len(counts) - 1)
        around = counts[above - 1 : above + 1] if len(counts) > 1 else counts
        times = []
        for count in around:
            depths = grid[count]
            each = [
                _between(
                    size,
                    [
                        (place, math.log(n * k * weight + call * (k / inputs)))
                        for place, weight, call in sets
                    ],
                )
                for inputs, sets in depths.items()
            ]
            points = [(math.log(inputs), time) for inputs, time in zip(depths, each, strict=True)]
            times.append((math.log(count), _between(math.log(k), points)))
        beyond = max(rows / counts[-1], 1.0)
        return beyond * math.exp(_between(math.log(rows), times))

    @cached_property
    def _grids(self) -> dict[str, dict[int, dict[int, list[tuple[float, float, float]]]]]:
        """Products by type, rows and inputs, rising: logarithms of sets, rising, and both times."""
        grids: dict[str, dict[int, dict[int, list[tuple[float, float, float]]]]] = {}
        for item in sorted(self.products, key=lambda item: (item.rows, item.inputs)):
            sets = grids.setdefault(item.weights, {}).setdefault(item.rows, {})
            found = sets.setdefault(item.inputs, [])
            found.append((math.log(item.set_bytes), item.s_per_weight, item.call_s))
            found.sort()
        return grids

    def read_bytes_per_s(self, set_bytes: float, bytes_per_weight: dict[str, float]) -> float:
        """Return the best rate at which products of one row read a set of this size.

        Args:
            set_bytes: bytes of all weights that a step walks.
            bytes_per_weight: bytes of a weight of each type, for all measured ones.

        Returns:
            Bytes per second.
        """
        side = 1024.0
        return max(
            bytes_per_weight[kind] * side**2 / self.product_s(kind, 1, side, side, set_bytes)
            for kind in self.types
        )

    def flops_per_s(self, weights: str) -> float:
        """Return the best rate of products of a type, over all counts of rows in full caches."""
        return self._peaks[weights]

    @cached_property
    def _peaks(self) -> dict[str, float]:
        """Best rates of products by type."""
        side = 1024.0
        return {
            kind: max(
                2 * rows * side**2 / self.product_s(kind, rows, side, side, 1.0) for rows in grid
            )
            for kind, grid in self._grids.items()
        }


def _between(place: float, points: list[tuple[float, float]]) -> float:
    """Interpolate between points of rising places; the outermost stand for all beyond."""
    above = bisect.bisect_left(points, place, key=lambda point: point[0])
    if above in (0, len(points)):
        return points[min(above, len(points) - 1)][1]
    (left, low), (right, high) = points[above - 1], points[above]
    return low + (high - low) * (place - left) / (right - left)
