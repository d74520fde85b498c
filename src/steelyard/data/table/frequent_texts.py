"""The most frequent values of a column, as text."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.sketch import FrequentHashes
from steelyard.data.sketch.hashing import NULL_HASH

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FrequentTexts"]

_LONGEST = 80


class FrequentTexts:
    """Counters of hashes, with the text of each value that is counted.

    Attributes:
        counters: the sketch.
    """

    def __init__(self, size: int = 256) -> None:
        """Begin without values.

        Args:
            size: most counters, a power of two from 16 to 65,536.

        Raises:
            ConfigError: it is none.
        """
        self.counters = FrequentHashes(size)
        self._texts: dict[int, str] = {}

    def update(self, values: "pa.Array", hashes: NDArray[np.uint64]) -> None:
        """Add values.

        Args:
            values: values of a column, [rows].
            hashes: theirs, [rows].
        """
        rows = self.counters.update(hashes)
        pairs = zip(rows.tolist(), hashes[rows].tolist(), strict=True)
        fresh = [row for row, key in pairs if key not in self._texts]
        if fresh:
            known = zip(hashes[fresh].tolist(), _shown(values.take(fresh)), strict=True)
            self._texts |= {key: str(value)[:_LONGEST] for key, value in known}
        if len(self._texts) > 4 * self.counters.size:
            self._keep_counted()

    def _keep_counted(self) -> None:
        """Forget the texts of values that are no longer counted."""
        keys = self.counters.counters()[0].tolist()
        self._texts = {key: self._texts[key] for key in keys if key in self._texts}

    def merge(self, other: "FrequentTexts") -> None:
        """Take in the counters of later rows."""
        self.counters.merge(other.counters)
        self._texts = other._texts | self._texts
        self._keep_counted()

    @property
    def error(self) -> int:
        """Most by which a count is too low."""
        return self.counters.error

    def counts(self, most: int, *, singles: bool = False) -> list[tuple[str, int]]:
        """Return the most frequent values, cut after 80 characters, with their least counts.

        A count that could as well be another value's says nothing and is left out.

        Args:
            most: how many are wanted.
            singles: whether values that came once count where no count can be too low.

        Returns:
            Pairs of text and count, the most frequent first.
        """
        keys, counts = self.counters.counters()
        least = max(self.error, 0 if singles else 1)
        pairs = zip(keys.tolist(), counts.tolist(), strict=True)
        known = [(self._texts[key], count) for key, count in pairs if key in self._texts]
        return [pair for pair in known if pair[1] > least][:most]

    def entries(self, most: int) -> list[tuple[str, int]]:
        """Return the most frequent values that are not missing, cut after 80 characters.

        Args:
            most: how many are wanted.

        Returns:
            Pairs of text and hash, the most frequent first; two may have one text once it is cut.
        """
        keys, counts = self.counters.counters()
        pairs = zip(keys.tolist(), counts.tolist(), strict=True)
        known = [
            (self._texts[key], key)
            for key, count in pairs
            if key in self._texts and key != int(NULL_HASH) and count > self.error
        ]
        return known[:most]

    def hashes_by_text(self) -> dict[str, int]:
        """Return the hash of each value that is counted, by its text."""
        keys = self.counters.counters()[0].tolist()
        return {self._texts[key]: key for key in keys if key in self._texts}

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays by name."""
        # Which other texts are still known depends on how rows were cut into batches.
        self._keep_counted()
        raw = [text.encode() for text in self._texts.values()]
        texts = {
            "keys": np.array(list(self._texts), np.uint64),
            "lengths": np.array([len(item) for item in raw], np.int64),
            "bytes": np.frombuffer(b"".join(raw), np.uint8),
        }
        own = {f"counters.{name}": values for name, values in self.counters.sections().items()}
        return own | {f"texts.{name}": values for name, values in texts.items()}

    @classmethod
    def of(cls, sections: dict[str, NDArray[Any]]) -> "FrequentTexts":
        """Return the sketch of a state."""
        parts = {
            name.removeprefix("counters."): values
            for name, values in sections.items()
            if name.startswith("counters.")
        }
        made = cls(int(parts["facts"][0]))
        made.counters = FrequentHashes.of(parts)
        raw, place = sections["texts.bytes"].tobytes(), 0
        lengths = sections["texts.lengths"].tolist()
        for key, length in zip(sections["texts.keys"].tolist(), lengths, strict=True):
            made._texts[key] = raw[place : place + length].decode()
            place += length
        return made


def _shown(values: "pa.Array") -> list[Any]:
    """Return values for people; times that Python has no form for, as Arrow writes them."""
    import pyarrow as pa

    try:
        return values.to_pylist()
    except (OverflowError, ValueError):
        try:
            return values.cast(pa.string()).to_pylist()
        except pa.ArrowException:
            return ["?"] * len(values)
