"""Names of nodes as arrays that a pack keeps: whole numbers, or text of any length."""

import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.sketch.hashing import hash_integers, hash_texts
from steelyard.errors import DataError

__all__ = ["NodeIds"]

_LOOKED_AT = 20_000


class NodeIds:
    """Names of nodes in the order of the nodes.

    Attributes:
        numbers: int64 [N] where names are whole numbers, None where they are text.
        offsets: where each text begins in `payload`, and the end, int64 [N + 1]; empty for numbers.
        payload: UTF-8, uint8; empty for numbers.
    """

    def __init__(
        self,
        numbers: NDArray[np.int64] | None = None,
        offsets: NDArray[np.int64] | None = None,
        payload: NDArray[np.uint8] | None = None,
    ) -> None:
        """Take the arrays; see `of_numbers` and `of_texts`."""
        self.numbers = numbers
        self.offsets = np.zeros(0, np.int64) if offsets is None else offsets
        self.payload = np.zeros(0, np.uint8) if payload is None else payload

    @classmethod
    def of_texts(cls, texts: Sequence[str]) -> "NodeIds":
        """Return names that are text."""
        raw = [text.encode() for text in texts]
        ends = np.cumsum([0, *map(len, raw)], dtype=np.int64)
        return cls(None, ends, np.frombuffer(b"".join(raw), np.uint8))

    @classmethod
    def joined(cls, parts: "Sequence[NodeIds]") -> "NodeIds":
        """Return the names of several, one after the other.

        Args:
            parts: all of numbers or all of text; there is at least one.

        Returns:
            The names.

        Raises:
            DataError: some are numbers and others text.
        """
        if len({part.numbers is None for part in parts}) > 1:
            raise DataError(
                "some nodes are named by numbers and others by text",
                hint='say that both columns are text, such as --types "a=text, b=text"',
            )
        if parts[0].numbers is not None:
            return cls(np.concatenate([part.numbers for part in parts]))  # pyright: ignore
        lengths = np.concatenate([np.diff(part.offsets) for part in parts])
        ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        return cls(None, ends, np.concatenate([part.payload for part in parts]))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.offsets) - 1 if self.numbers is None else len(self.numbers)

    def __getitem__(self, node: int) -> int | str:
        """Return one name."""
        if self.numbers is not None:
            return int(self.numbers[node])
        return self.payload[self.offsets[node] : self.offsets[node + 1]].tobytes().decode()

    def take(self, nodes: NDArray[np.int64]) -> "NodeIds":
        """Return the names of some nodes."""
        if self.numbers is not None:
            return NodeIds(self.numbers[nodes])
        lengths = self.offsets[nodes + 1] - self.offsets[nodes]
        ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        # The place of each byte: that of its name's first, and how far into the name it is.
        within = np.arange(ends[-1]) - np.repeat(ends[:-1], lengths)
        return NodeIds(None, ends, self.payload[np.repeat(self.offsets[nodes], lengths) + within])

    def hashes(self, names: Sequence[int | str]) -> NDArray[np.uint64]:
        """Return the hashes that names have in a graph of such nodes.

        Args:
            names: numbers count as text where nodes are named by text, and text that is a whole
                number as such where they are named by numbers; other text gets a hash of its own.

        Returns:
            uint64, [names].
        """
        if self.numbers is None:
            return hash_texts([str(name) for name in names])
        return np.array(
            [
                hash_integers(np.array([int(name)]))[0] if _is_whole(name) else np.uint64(0)
                for name in names
            ],
            np.uint64,
        )

    def near(self, name: int | str, count: int = 3) -> list[str]:
        """Return names that are nearly the given one, the nearest first; may be empty.

        Args:
            name: what was looked for.
            count: names at most.

        Returns:
            Names that share most of their letters and are of about the same length; the nearest
            numbers where nodes are named by those.
        """
        wanted = str(name)
        if self.numbers is not None:
            if not _is_whole(wanted):
                return []
            distance = np.abs(self.numbers.astype(np.float64) - int(wanted))
            nearest = [str(self.numbers[row]) for row in np.argsort(distance, kind="stable")[:50]]
            return list(dict.fromkeys([*_closest(wanted, nearest, count), *nearest]))[:count]
        size = len(wanted.encode())
        lengths = np.diff(self.offsets)
        alike = np.flatnonzero(np.abs(lengths - size) <= 2)
        first = wanted.encode()[:1] or b"\0"
        # Text by text would take minutes for millions of names: those of one first letter only,
        # where there are many.
        if len(alike) > _LOOKED_AT:
            alike = alike[self.payload[self.offsets[alike]] == first[0]]
        names = [str(self[node]) for node in alike[:_LOOKED_AT]]
        return _closest(wanted, names, count)

    def sections(self) -> dict[str, NDArray[Any]]:
        """Return the names as arrays by name."""
        if self.numbers is not None:
            return {"numbers": self.numbers}
        return {"offsets": self.offsets, "payload": self.payload}

    @classmethod
    def of(cls, sections: dict[str, NDArray[Any]]) -> "NodeIds":
        """Return the names of such arrays."""
        return cls(*(sections.get(name) for name in ("numbers", "offsets", "payload")))


def _is_whole(name: int | str) -> bool:
    text = str(name).strip()
    return text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and len(text) < 19


def _closest(wanted: str, names: list[str], count: int) -> list[str]:
    folded = {name.casefold(): name for name in reversed(names)}
    found = difflib.get_close_matches(wanted.casefold(), list(folded), n=count, cutoff=0.6)
    return [folded[name] for name in found]
