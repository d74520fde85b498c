"""Documents with a vector of their text and one per token on a drive; a table is in memory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.pack import Pack
from steelyard.errors import DataError
from steelyard.files import read_json
from steelyard.retrieve.multivector.building import MANIFEST, RECORDS, TABLE, build_store
from steelyard.retrieve.multivector.codecs import TokenCodec, TokenKind, learned_of, token_codec
from steelyard.retrieve.multivector.layout import RecordLayout
from steelyard.retrieve.multivector.writing import (
    BuildCounts,
    BuildOptions,
    Documents,
    LongPolicy,
)

__all__ = ["MultiVectorStore"]

_VERSION = 1


@dataclass(frozen=True, slots=True)
class MultiVectorStore:
    """A store that is read document by document.

    Nine bytes per document are in memory, and eight more where numbers have gaps; vectors are on
    the drive.

    Attributes:
        path: its folder.
        layout: of its records.
        codec: of its tokens.
        encoder: name of what made the vectors.
        counts: what was written: documents, tokens, and how many were empty, truncated or split.
        offsets: first byte of each document, uint64 [N].
        blocks: blocks of each, uint8 [N].
        numbers: number of each, ascending; None where they are 0 to N - 1.

    Source: Shrestha et al. 2023 (ESPN, arXiv 2312.05417), embeddings on the drive.
    """

    path: Path
    layout: RecordLayout
    codec: TokenCodec
    encoder: str
    counts: BuildCounts
    offsets: NDArray[np.uint64]
    blocks: NDArray[np.uint8]
    numbers: NDArray[np.int64] | None

    @classmethod
    def build(
        cls,
        path: Path,
        documents: Documents,
        *,
        dtype: TokenKind = "fp16",
        block: int = 4096,
        max_tokens: int = 512,
        long: LongPolicy = "split",
        encoder: str = "",
        seed: int = 0,
        commit_bytes: int = 32 << 20,
    ) -> "MultiVectorStore":
        """Write a store from a stream of documents, in little memory, and open it.

        The same call after a kill goes on where the last part was complete. A function in place of
        the stream is told how many documents are there, so that none is encoded twice.

        Args:
            path: folder of the store; an older store is replaced at the end.
            documents: number, text vector [D] and token vectors [T, E] by ascending number, or
                what returns them from a place on. A document may have no tokens.
            dtype: what tokens are kept as: "fp16", "int8", or "pq" (residual codes).
            block: bytes of a block, a multiple of 512.
            max_tokens: tokens of a record at most.
            long: longer documents: "split" goes on in a second record behind the first, "truncate"
                leaves the rest out and counts it, "error" refuses.
            encoder: name of what made the vectors.
            seed: seed of the centers of "pq".
            commit_bytes: bytes of records after which what is written survives a kill.

        Returns:
            The open store.

        Raises:
            ConfigError: another folder stands there, or an option is out of range.
            DataError: a document has another width, is not finite, too long or out of order (it is
                named), or there is none.
            CapacityError: the disk is full; an older store stays, and the build can go on.
            StoreError: another process builds there.
        """
        options = BuildOptions(
            dtype=dtype,
            block_bytes=block,
            max_tokens=max_tokens,
            long=long,
            encoder=encoder,
            seed=seed,
            commit_bytes=commit_bytes,
        )
        build_store(path, documents, options)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> "MultiVectorStore":
        """Open a store.

        Args:
            path: its folder.

        Returns:
            The store.

        Raises:
            DataError: it is no store, of another version, cut short, or its table is damaged.
        """
        if not (path / MANIFEST).exists():
            raise DataError(
                f"{path} holds no store of token vectors", hint="make one by MultiVectorStore.build"
            )
        about = read_json(path / MANIFEST)
        if about.get("version") != _VERSION:
            raise DataError(f"{path} is of version {about.get('version')}, this reads {_VERSION}")
        layout = RecordLayout(**about["layout"])
        pack = Pack.open(path / TABLE)
        blocks = np.array(pack["blocks"])
        offsets = np.zeros(len(blocks), np.uint64)
        # In place: the table is all that is held of a document.
        np.cumsum(blocks[:-1], dtype=np.uint64, out=offsets[1:])
        offsets *= np.uint64(layout.block_bytes)
        size = (path / RECORDS).stat().st_size if (path / RECORDS).exists() else 0
        if size != about["bytes"]:
            raise DataError(
                f"{path / RECORDS} has {size:,} bytes of {about['bytes']:,}", hint="build it again"
            )
        # Copies, as kernels are compiled for arrays that may be written to.
        learned = {name: np.array(pack[name]) for name in ("coarse", "parts") if name in pack.names}
        return cls(
            path,
            layout,
            token_codec(about["dtype"], layout.token_dim, learned),
            about["encoder"],
            BuildCounts(**about["counts"]),
            offsets,
            blocks,
            np.array(pack["numbers"]) if "numbers" in pack.names else None,
        )

    def __len__(self) -> int:
        """Return how many documents there are."""
        return len(self.blocks)

    @property
    def records(self) -> Path:
        """The file of records."""
        return self.path / RECORDS

    @property
    def longest_bytes(self) -> int:
        """Bytes of the longest document."""
        return int(self.blocks.max()) * self.layout.block_bytes

    def rows_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of documents in the table.

        Args:
            numbers: of documents [N].

        Returns:
            int64 [N].

        Raises:
            DataError: one is not there.
        """
        rows = numbers
        if self.numbers is not None:
            rows = np.minimum(np.searchsorted(self.numbers, numbers), len(self) - 1)
            is_there = self.numbers[rows] == numbers
        else:
            is_there = (numbers >= 0) & (numbers < len(self))
        if not is_there.all():
            raise DataError(
                f"there is no document {int(numbers[~is_there][0])} in {self.path}",
                hint="search an index of the same documents",
            )
        return rows

    def document(self, number: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the vectors of a document, for a look; searches do not come this way.

        Args:
            number: of the document.

        Returns:
            Vector of the text [D], and of the tokens [T, E], as kept.

        Raises:
            DataError: it is not there, or is damaged.
        """
        row = int(self.rows_of(np.array([number]))[0])
        with self.records.open("rb") as file:
            file.seek(int(self.offsets[row]))
            raw = file.read(int(self.blocks[row]) * self.layout.block_bytes)
        found, text, tokens = self.layout.read(np.frombuffer(raw, np.uint8), self.codec)
        if found != number:
            raise DataError(f"the record of document {number} is that of {found}")
        return text, tokens

    def memory_bytes(self) -> dict[str, int]:
        """Return bytes that are held in memory, by part."""
        learned = learned_of(self.codec)
        numbers = self.numbers.nbytes if self.numbers is not None else 0
        return {
            "offsets": self.offsets.nbytes,
            "blocks": self.blocks.nbytes,
            "numbers": numbers,
            "codec": sum(part.nbytes for part in learned.values()),
        }

    def kernel_layout(self) -> tuple[Any, ...]:
        """Return what kernels need to know of the records."""
        layout, learned = self.layout, learned_of(self.codec)
        none = np.empty(0, np.float32)
        tables = (
            learned.get("coarse", none.reshape(0, 0)),
            learned.get("parts", none.reshape(0, 0, 0)),
            layout.token_dim,
        )
        return (
            layout.block_bytes,
            layout.text_dim,
            layout.token_bytes,
            self.codec.number,
            tables,
        )
