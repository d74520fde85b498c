"""Passages on disk: their texts behind each other, found by number and read from the file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.data.pack import Pack
from steelyard.data.pack_writer import PackWriter, writing_pack
from steelyard.errors import DataError

__all__ = ["PassageStore", "PassageWriter", "cut_passages", "writing_passages"]

_BLOCK_BYTES = 16 << 20


def cut_passages(text: str, words: int = 256) -> list[str]:
    """Cut a text into passages.

    Args:
        text: any text; blanks between words become one.
        words: most words of a passage.

    Returns:
        Passages in order, the last one with what is left; none of a text without words.

    Source: Shao et al. 2024 (arXiv 2407.12854), datastore: passages of at most 256 words.
    """
    found = text.split()
    return [" ".join(found[at : at + words]) for at in range(0, len(found), words)]


class PassageWriter:
    """Writes passages in blocks, so that no more than a block is in memory."""

    def __init__(self, pack: PackWriter) -> None:
        """Write into a pack that is being written.

        Args:
            pack: the pack.
        """
        self._pack = pack
        self._texts: list[bytes] = []
        self._sources: dict[str, int] = {}
        self._block_bytes = self._blocks = 0
        self._firsts: list[int] = []
        self._of_passage: list[int] = []
        self._lines: list[tuple[int, int]] = []

    def add(self, text: str, source: str, lines: tuple[int, int] = (0, 0)) -> int:
        """Write a passage.

        Args:
            text: a text with a word at least.
            source: name of what it was cut from.
            lines: first and last line that it stands on there, from 1; 0 where there are none.

        Returns:
            Its number.

        Raises:
            DataError: the text is empty.
        """
        if not text.strip():
            raise DataError(f"an empty passage of {source}", hint="leave empty texts out")
        raw = text.encode()
        self._texts.append(raw)
        self._block_bytes += len(raw)
        self._of_passage.append(self._sources.setdefault(source, len(self._sources)))
        self._lines.append(lines)
        if self._block_bytes >= _BLOCK_BYTES:
            self._write_block()
        return len(self._of_passage) - 1

    def finish(self) -> None:
        """Write what is left, and where everything stands."""
        self._write_block()
        self._firsts.append(len(self._of_passage))
        names = [name.encode() for name in self._sources]
        self._pack.add("firsts", np.array(self._firsts, np.int64))
        self._pack.add("source_of", np.array(self._of_passage, np.int32))
        self._pack.add("lines", np.array(self._lines, np.int32).reshape(-1, 2))
        self._pack.add("sources", np.frombuffer(b"".join(names), np.uint8))
        self._pack.add("source_ends", np.cumsum([len(name) for name in names], dtype=np.int64))

    def _write_block(self) -> None:
        if not self._texts:
            return
        ends = np.cumsum([len(raw) for raw in self._texts], dtype=np.int64)
        self._firsts.append(len(self._of_passage) - len(self._texts))
        self._pack.add(f"text/{self._blocks}", np.frombuffer(b"".join(self._texts), np.uint8))
        self._pack.add(f"ends/{self._blocks}", ends)
        self._blocks += 1
        self._texts.clear()
        self._block_bytes = 0


@contextmanager
def writing_passages(path: Path) -> Iterator[PassageWriter]:
    """Write a file of passages; it is there when the block ends without an error.

    Args:
        path: the file; an older one is replaced at the end.

    Yields:
        What takes passages.

    Raises:
        CapacityError: the disk is full; an older file stays.
    """
    with writing_pack(path) as pack:
        writer = PassageWriter(pack)
        yield writer
        writer.finish()


class PassageStore:
    """Passages by number, read from their file when they are looked at.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        """Open a file of passages.

        Args:
            path: file of `writing_passages`.

        Raises:
            DataError: the file is no store of passages, or is damaged.
        """
        self.path, self._pack = path, Pack.open(path)
        if self._pack.find("source_of") is None:
            raise DataError(f"{path} holds no passages", hint="write them by writing_passages")
        self._firsts = self._pack["firsts"]
        self._source_of = self._pack["source_of"]
        raw = self._pack["sources"].tobytes()
        ends = self._pack["source_ends"].tolist()
        begins = [0, *ends][: len(ends)]
        self.sources = [raw[a:b].decode() for a, b in zip(begins, ends, strict=True)]
        self._blocks: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        # Stores of earlier versions know no lines.
        has_lines = self._pack.find("lines") is not None
        self._lines = self._pack["lines"] if has_lines else np.zeros((len(self), 2), np.int32)

    def __len__(self) -> int:
        """Return how many passages there are."""
        return len(self._source_of)

    def raw(self, number: int) -> bytes:
        """Return the text of a passage in UTF-8.

        Args:
            number: place of the passage, from 0.

        Returns:
            Its bytes.

        Raises:
            IndexError: there is no such passage.
            DataError: its block is damaged.
        """
        return self.raws(np.array([number]))[0]

    def raws(self, numbers: NDArray[np.int64]) -> list[bytes]:
        """Return the texts of passages in UTF-8.

        Args:
            numbers: places of passages, from 0 [N].

        Returns:
            Their bytes.

        Raises:
            IndexError: there is no such passage.
            DataError: a block is damaged.
        """
        outside = numbers[(numbers < 0) | (numbers >= len(self))]
        if len(outside):
            raise IndexError(f"passage {outside[0]} of {len(self)}")
        blocks = np.searchsorted(self._firsts, numbers, side="right") - 1
        places = numbers - self._firsts[blocks]
        found = []
        for block, place in zip(blocks.tolist(), places.tolist(), strict=True):
            if block not in self._blocks:
                self._blocks[block] = (self._pack[f"text/{block}"], self._pack[f"ends/{block}"])
            text, ends = self._blocks[block]
            first = int(ends[place - 1]) if place else 0
            found.append(text[first : int(ends[place])].tobytes())
        return found

    def text(self, number: int) -> str:
        """Return the text of a passage; errors as of `raw`."""
        return self.raw(number).decode()

    def source(self, number: int) -> str:
        """Return the name of what a passage was cut from."""
        return self.sources[int(self._source_of[number])]

    def lines(self, number: int) -> tuple[int, int]:
        """Return the first and last line that a passage stands on, from 1; 0 where not known."""
        first, last = self._lines[number].tolist()
        return first, last

    def sources_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which source each passage was cut from.

        Args:
            numbers: places of passages, any shape; below 0 for none.

        Returns:
            Places in `sources`, as `numbers`; of no passage any.
        """
        return self._source_of[np.maximum(numbers, 0)].astype(np.int64)

    def texts(self) -> Iterator[str]:
        """Yield all texts in order."""
        for number in range(len(self)):
            yield self.text(number)
