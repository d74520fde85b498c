"""A store of token vectors while it is written: checked documents, records, and what survives."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.append_log import AppendLog
from steelyard.errors import DataError
from steelyard.retrieve.multivector.codecs import TokenCodec, TokenKind
from steelyard.retrieve.multivector.layout import MOST_BLOCKS, RecordLayout

__all__ = [
    "BuildCounts",
    "BuildOptions",
    "Document",
    "Documents",
    "LongPolicy",
    "StoreWriting",
    "checked_batches",
    "read_frame",
]

Floats = NDArray[np.float32]
Document = tuple[int, NDArray[np.generic], NDArray[np.generic]]
"""Number, vector of the text [text_dim], vectors of its tokens [T, token_dim]."""
Documents = Iterable[Document] | Callable[[int], Iterable[Document]]
"""Documents, or what returns them from a place on: how many are there already."""
LongPolicy = Literal["split", "truncate", "error"]
_BATCH_DOCUMENTS, _BATCH_TOKENS = 512, 16_384
_COUNTS = ("documents", "tokens", "empty", "truncated", "lost_tokens", "split", "longest_tokens")


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildOptions:
    """What a store is like.

    Attributes:
        dtype: what tokens are kept as.
        block_bytes: bytes of a block.
        max_tokens: tokens of a record at most.
        long: what happens to longer documents: "split" goes on in a second record, "truncate"
            leaves the rest out and counts it, "error" refuses.
        encoder: name of what made the vectors; a search by another one is refused.
        seed: seed of the centers of "pq".
        commit_bytes: bytes of records after which what is written survives a kill.
    """

    dtype: TokenKind = "fp16"
    block_bytes: int = 4096
    max_tokens: int = 512
    long: LongPolicy = "split"
    encoder: str = ""
    seed: int = 0
    commit_bytes: int = 32 << 20


@dataclass(slots=True)
class BuildCounts:
    """What has been written; the longest is that of a record."""

    documents: int = 0
    tokens: int = 0
    empty: int = 0
    truncated: int = 0
    lost_tokens: int = 0
    split: int = 0
    longest_tokens: int = 0


@dataclass(slots=True)
class StoreWriting:
    """A store that is being written.

    Attributes:
        folder: where.
        layout: of its records.
        codec: of its tokens.
        options: what it is like.
        records: its file of records.
        log: what of it survives a kill.
        counts: what has been written.
        last: number of the last document.
    """

    folder: Path
    layout: RecordLayout
    codec: TokenCodec
    options: BuildOptions
    records: IO[bytes]
    log: AppendLog
    counts: BuildCounts = field(default_factory=BuildCounts)
    last: int = -1
    _numbers: list[int] = field(default_factory=list)
    _blocks: list[int] = field(default_factory=list)
    _pending_bytes: int = 0

    def resume(self) -> None:
        """Take up what survived; what was written behind it is cut off."""
        total = 0
        for frame in self.log.read():
            counts, numbers, blocks = read_frame(frame)
            self.counts, self.last = counts, int(numbers[-1])
            total += int(blocks.sum(dtype=np.int64)) * self.layout.block_bytes
        self.records.truncate(total)
        self.records.seek(total)

    def add(self, documents: list[tuple[int, Floats, Floats]]) -> None:
        """Write some documents; their tokens are encoded at once."""
        lengths = [len(tokens) for _, _, tokens in documents]
        codes = self.codec.encode(np.concatenate([tokens for _, _, tokens in documents]))
        first = 0
        for (number, text, _), length in zip(documents, lengths, strict=True):
            raw = self.layout.packed(number, text.astype("<f2"), codes[first : first + length])
            first += length
            self._count(number, length, len(raw) // self.layout.block_bytes)
            self.records.write(raw.data)
            self._pending_bytes += len(raw)
        if self._pending_bytes >= self.options.commit_bytes:
            self.commit()

    def _count(self, number: int, tokens: int, blocks: int) -> None:
        """Note a document."""
        counts, self.last = self.counts, number
        counts.documents += 1
        counts.tokens += tokens
        counts.empty += tokens == 0
        counts.split += tokens > self.layout.max_tokens
        counts.longest_tokens = max(counts.longest_tokens, min(tokens, self.layout.max_tokens))
        self._numbers.append(number)
        self._blocks.append(blocks)

    def commit(self) -> None:
        """Make what is written survive a kill: first the records, then the word of them."""
        if not self._numbers:
            return
        self.records.flush()
        handle = self.records.fileno()
        os.fdatasync(handle)
        # The page cache has no use for records that are read past it later.
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        self.log.append(_frame(self.counts, self._numbers, self._blocks))
        self._numbers, self._blocks, self._pending_bytes = [], [], 0


def _frame(counts: BuildCounts, numbers: list[int], blocks: list[int]) -> bytes:
    """Return counts so far, and numbers and blocks of new documents, as bytes."""
    head = np.array([getattr(counts, name) for name in _COUNTS], "<i8")
    return (
        head.tobytes() + np.array(numbers, "<i8").tobytes() + np.array(blocks, np.uint8).tobytes()
    )


def read_frame(frame: bytes) -> tuple[BuildCounts, NDArray[np.int64], NDArray[np.uint8]]:
    """Return what `_frame` took."""
    head = np.frombuffer(frame, "<i8", len(_COUNTS))
    new = (len(frame) - head.nbytes) // 9
    numbers = np.frombuffer(frame, "<i8", new, head.nbytes)
    blocks = np.frombuffer(frame, np.uint8, new, head.nbytes + 8 * new)
    return BuildCounts(*head.tolist()), numbers, blocks


def checked_batches(
    stream: Iterator[Document], writing: StoreWriting
) -> Iterator[list[tuple[int, Floats, Floats]]]:
    """Yield checked documents, some at a time."""
    batch: list[tuple[int, Floats, Floats]] = []
    tokens, last = 0, writing.last
    for document in stream:
        checked = _checked(document, last, writing)
        batch.append(checked)
        last, tokens = checked[0], tokens + len(checked[2])
        if len(batch) >= _BATCH_DOCUMENTS or tokens >= _BATCH_TOKENS:
            yield batch
            batch, tokens = [], 0
    if batch:
        yield batch


def _checked(document: Document, last: int, writing: StoreWriting) -> tuple[int, Floats, Floats]:
    """Return a document as float32, of the right width, finite, and not too long."""
    number, layout = int(document[0]), writing.layout
    text, tokens = (np.asarray(part, np.float32) for part in document[1:])
    if number <= last:
        raise DataError(
            f"document {number} comes after {last}", hint="sort by number; each number once"
        )
    if text.shape != (layout.text_dim,) or tokens.shape[1:] != (layout.token_dim,):
        raise DataError(
            f"document {number}: vectors of shape {list(text.shape)} and {list(tokens.shape)}, "
            f"the first had {layout.text_dim} and {layout.token_dim} numbers",
            hint="use one encoder for all",
        )
    # Half precision ends at 65,504: a larger number would be infinite in the store.
    kind = np.float16 if writing.options.dtype == "fp16" else np.float32
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(text.astype(np.float16)).all()
        is_finite = is_finite and np.isfinite(tokens.astype(kind)).all()
    if not is_finite:
        raise DataError(
            f"document {number} has a number that is not finite, or above 65,504",
            hint="leave it out, encode it again, or scale its vectors to unit length",
        )
    return number, text, _shortened(number, tokens, writing)


def _shortened(
    number: int, tokens: NDArray[np.float32], writing: StoreWriting
) -> NDArray[np.float32]:
    """Return the tokens that are kept of a document."""
    layout, options = writing.layout, writing.options
    most = layout.max_tokens
    parts, rest = divmod(len(tokens), most)
    blocks = parts * layout.blocks_for(most) + (layout.blocks_for(rest) if rest else 0)
    if len(tokens) <= most or (options.long == "split" and blocks <= MOST_BLOCKS):
        return tokens
    if options.long == "truncate":
        writing.counts.truncated += 1
        writing.counts.lost_tokens += len(tokens) - most
        return tokens[:most]
    raise DataError(
        f"document {number} has {len(tokens):,} tokens, a record holds {most:,} and a document "
        f"{MOST_BLOCKS} blocks",
        hint="take the policy split or truncate, or larger blocks",
    )
