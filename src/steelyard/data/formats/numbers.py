"""Values of one width as buffers: integers, floating point numbers as decimals, or as they are."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.formats.buffers import EncodedColumn
from steelyard.data.formats.streams import encode_integers

__all__ = ["Numbers", "decimal_digits", "encode_numbers"]

_MOST_DIGITS = 14
_SAMPLE = 1024
_MOST_EXCEPTIONS = 0.06
_EXACT = float(1 << 53)
_SAVES = 0.9
"""Share of the plain size from which packing floating point numbers is worth it."""


def _as_decimals(values: NDArray[np.float64], digits: int) -> NDArray[np.int64]:
    """Return values times a power of ten, rounded; 0 where that is no whole number of 53 bits."""
    with np.errstate(all="ignore"):
        scaled = np.rint(values * 10.0**digits)
        return np.where(np.abs(scaled) < _EXACT, scaled, 0).astype(np.int64)


def _from_decimals(whole: NDArray[np.int64], digits: int, dtype: Any) -> NDArray[Any]:
    """Return decimals; a division is rounded as a reader of text rounds."""
    found = whole.astype(np.float64)
    if digits:
        found /= 10.0**digits
    return found.astype(dtype, copy=False)


def _differs(values: NDArray[Any], whole: NDArray[np.int64], digits: int) -> NDArray[np.bool_]:
    """Return which values do not come back bit for bit, as NaN and -0.0."""
    bits = f"u{values.dtype.itemsize}"
    return _from_decimals(whole, digits, values.dtype).view(bits) != values.view(bits)


def decimal_digits(values: NDArray[Any]) -> int | None:
    """Return after how many digits nearly all of a sample end.

    Args:
        values: float32 or float64, [values].

    Returns:
        From 0 to 14, None where they do not end.
    """
    sample = np.ascontiguousarray(values[:: max(1, len(values) // _SAMPLE)])
    for digits in range(_MOST_DIGITS + 1):
        wrong = _differs(sample, _as_decimals(sample.astype(np.float64), digits), digits)
        if np.count_nonzero(wrong) <= _MOST_EXCEPTIONS * len(sample):
            return digits
    return None


def encode_numbers(values: NDArray[Any]) -> tuple[str, int, list[Any]]:
    """Return values of one width as buffers.

    Args:
        values: integers of any width or float32 or float64; bytes of one width as void, [rows].

    Returns:
        "integers", "decimal" or "plain", its parameter, and its buffers.

    Source: Afroozeh et al. 2023, "ALP: Adaptive Lossless floating-Point Compression", for decimals
        with exceptions.
    """
    if values.dtype.kind in "iu":
        packed = encode_integers(values.astype(np.int64, copy=False))
        if len(packed) > values.nbytes:
            return "plain", 0, [values.view(np.uint8)]
        return "integers", 0, [packed]
    if values.dtype.kind == "f" and values.dtype.itemsize >= 4 and len(values):
        found = _decimal_buffers(values)
        if found and sum(map(len, found[1])) < _SAVES * values.nbytes:
            return "decimal", *found
    return "plain", 0, [values.view(np.uint8)]


def _decimal_buffers(values: NDArray[Any]) -> tuple[int, list[Any]] | None:
    digits = decimal_digits(values)
    if digits is None:
        return None
    whole = _as_decimals(values.astype(np.float64), digits)
    places = np.flatnonzero(_differs(values, whole, digits))
    if len(places) > 2 * _MOST_EXCEPTIONS * len(values):
        return None
    if len(places):
        # An exception must not widen its block.
        before = np.arange(len(values))
        before[places] = 0
        whole = whole[np.maximum.accumulate(before)]
    kept = values[places].view(np.uint8)
    return digits, [encode_integers(whole), encode_integers(places), kept]


class Numbers:
    """Values of one width in the buffers of a chunk, from one of them on."""

    def __init__(
        self, chunk: EncodedColumn, encoding: str, parameter: int, first: int, dtype: Any
    ) -> None:
        """Point to the buffers.

        Args:
            chunk: that holds them.
            encoding: what `encode_numbers` said.
            parameter: likewise.
            first: number of the first buffer.
            dtype: dtype of the values.
        """
        self._chunk, self._encoding, self._digits = chunk, encoding, parameter
        self._first, self._dtype = first, np.dtype(dtype)

    def decode(self, first: int, last: int) -> NDArray[Any]:
        """Return neighbouring values.

        Args:
            first: first value, a multiple of 1,024.
            last: one past the last.

        Returns:
            The values, shared with the file where they are plain, [last - first].
        """
        size = self._dtype.itemsize
        if self._encoding == "plain":
            raw = self._chunk.raw(self._first, first * size, last * size)
            return raw[first * size : last * size].view(self._dtype)
        stream = self._chunk.stream(self._first)
        if self._encoding == "integers":
            found = stream.decode(first, last, np.int64 if size == 8 else np.int32)
            return found.astype(self._dtype) if size < 4 else found.view(self._dtype)
        found = _from_decimals(stream.decode(first, last), self._digits, self._dtype)
        places, kept = self._exceptions()
        inside = slice(*np.searchsorted(places, [first, last]))
        found[places[inside] - first] = kept[inside]
        return found

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return single values.

        Args:
            rows: which, [rows].

        Returns:
            The values, [rows].
        """
        if self._encoding == "plain":
            raw = self._chunk.raw(self._first, *_span(rows, self._dtype.itemsize))
            return raw.view(self._dtype)[rows]
        whole = self._chunk.stream(self._first).take(rows)
        if self._encoding == "integers":
            return whole.astype(self._dtype)
        found = _from_decimals(whole, self._digits, self._dtype)
        places, kept = self._exceptions()
        if len(places):
            slots = np.minimum(np.searchsorted(places, rows), len(places) - 1)
            hit = places[slots] == rows
            found[hit] = kept[slots[hit]]
        return found

    def _exceptions(self) -> tuple[NDArray[np.int64], NDArray[Any]]:
        stream = self._chunk.stream(self._first + 1)
        kept = self._chunk.raw(self._first + 2).view(self._dtype)
        return stream.decode(0, stream.count), kept


def _span(rows: NDArray[np.int64], size: int) -> tuple[int, int]:
    """Return the first and the last byte that some rows need."""
    return (int(rows.min()) * size, (int(rows.max()) + 1) * size) if len(rows) else (0, 0)
