"""The documents in token shards: where each lies, its text, and shards of only some of them."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from steelyard.data.manifest import MANIFEST, ShardFile
from steelyard.data.shards import TokenShards
from steelyard.data.tokenizer import load_tokenizer
from steelyard.errors import ConfigError, DataError
from steelyard.files import write_bytes, write_json

__all__ = ["DocumentSpans", "document_spans", "document_texts", "keep_documents"]


@dataclass(frozen=True, slots=True)
class DocumentSpans:
    """Where documents lie, in the order of the shards.

    Attributes:
        shard: number of the shard, int64 [N].
        start: first token in it, int64 [N].
        stop: after its last token, the end of text included, int64 [N].
    """

    shard: np.ndarray
    start: np.ndarray
    stop: np.ndarray

    def __len__(self) -> int:
        """Count the documents."""
        return len(self.shard)


def document_spans(shards: TokenShards) -> DocumentSpans:
    """Find the documents to train on.

    Args:
        shards: a prepared text.

    Returns:
        Their spans; tokens after a shard's last end of text are a document too.
    """
    found = []
    for number, tokens in enumerate(shards.train_tokens):
        stops = np.flatnonzero(tokens == shards.manifest.end_token) + 1
        if not len(stops) or stops[-1] < len(tokens):
            stops = np.append(stops, len(tokens))
        starts = np.concatenate(([0], stops[:-1]))
        found.append(np.stack((np.full(len(stops), number), starts, stops)))
    return DocumentSpans(*np.concatenate(found, axis=1).astype(np.int64))


def document_texts(shards: TokenShards, spans: DocumentSpans) -> Iterator[bytes]:
    """Yield the text of documents in UTF-8, without the end of text."""
    tokenizer = load_tokenizer(shards.directory)
    for shard, start, stop in zip(spans.shard, spans.start, spans.stop, strict=True):
        tokens = shards.train_tokens[shard][start:stop].tolist()
        yield tokenizer.decode(tokens).encode()


def keep_documents(shards: TokenShards, kept: np.ndarray, out: Path) -> Path:
    """Write a folder of shards with some of the documents.

    Tokenizer and held-out tokens are those of the whole, so that runs on both compare.

    Args:
        shards: the whole text.
        kept: numbers of the documents to keep, each once, such as `prune` returned.
        out: folder to write; it must hold no shards yet.

    Returns:
        The folder.

    Raises:
        ConfigError: the folder holds shards already.
        DataError: there are none to keep, one stands twice, or does not exist.
        CapacityError: the disk is full.
    """
    if (out / MANIFEST).exists():
        raise ConfigError(f"{out} holds token shards already", hint="choose another folder")
    spans, kept = document_spans(shards), np.unique(kept)
    if not len(kept) or kept[0] < 0 or kept[-1] >= len(spans):
        raise DataError(
            f"documents {kept[:3]}... of {len(spans)} cannot be kept",
            hint=f"give numbers from 0 to {len(spans) - 1}",
        )
    manifest, written = shards.manifest, []
    for number, tokens in enumerate(shards.train_tokens):
        rows = kept[spans.shard[kept] == number]
        parts = [tokens[spans.start[row] : spans.stop[row]] for row in rows.tolist()]
        if parts:
            written.append(_write(out, len(written), np.concatenate(parts)))
    for name in ("tokenizer.json", *(shard.name for shard in manifest.heldout)):
        write_bytes(out / name, (shards.directory / name).read_bytes())
    key = hashlib.sha256(f"{manifest.key} {kept.tolist()}".encode()).hexdigest()
    # The manifest makes the folder a finished one.
    write_json(out / MANIFEST, replace(manifest, key=key, documents=len(kept), train=written))
    return out


def _write(out: Path, number: int, tokens: np.ndarray) -> ShardFile:
    """Write one shard of little-endian ids."""
    packed = tokens.astype(tokens.dtype.newbyteorder("<")).tobytes()
    name = f"train-{number:05d}.bin"
    write_bytes(out / name, packed)
    return ShardFile(name=name, tokens=len(tokens), sha256=hashlib.sha256(packed).hexdigest())
