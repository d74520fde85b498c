"""Cut documents into tokens and write them as shards, an end of text after each."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from steelyard.data.encoding import CachedEncoder
from steelyard.data.manifest import ShardFile
from steelyard.files import atomic_path

__all__ = ["pack", "split_heldout", "token_dtype"]

SHARD_TOKENS = 1 << 27
_GROUP_BYTES = 1 << 20


def token_dtype(vocab_size: int) -> str:
    """Return the narrowest of uint16 and uint32 that holds all ids."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def split_heldout(documents: Sequence[bytes], fraction: float, seed: int) -> np.ndarray:
    """Choose documents to keep for evaluation, by a hash of their content and the seed.

    Args:
        documents: documents in UTF-8, at least two.
        fraction: share of all bytes to hold out, 0..1.
        seed: seed of the choice.

    Returns:
        bool [N]; at least one document is held out and one is not.
    """
    # By a hash and not by a draw, so that a document stays on its side when others come or go.
    salt = str(seed).encode()
    order = sorted(
        range(len(documents)),
        key=lambda place: hashlib.blake2b(documents[place], digest_size=16, key=salt).digest(),
    )
    lengths = np.array([len(documents[place]) for place in order], dtype=np.int64)
    count = int(np.searchsorted(np.cumsum(lengths), fraction * lengths.sum())) + 1
    chosen = np.zeros(len(documents), dtype=bool)
    chosen[order[: min(max(count, 1), len(documents) - 1)]] = True
    return chosen


def pack(
    documents: Sequence[bytes],
    tokenizer: Tokenizer,
    directory: Path,
    prefix: str,
    *,
    end_token: int,
    progress: Callable[[int], None],
    shard_tokens: int = SHARD_TOKENS,
) -> list[ShardFile]:
    """Write documents as files of little-endian token ids.

    Args:
        documents: documents in UTF-8.
        tokenizer: tokenizer that cuts them.
        directory: folder to write to.
        prefix: beginning of the file names, as in `<prefix>-00000.bin`.
        end_token: id written after each document.
        progress: callback that is told the bytes of each finished group of documents.
        shard_tokens: tokens after which a file is closed.

    Returns:
        The files, none empty.

    Raises:
        CapacityError: the disk is full.
    """
    dtype = np.dtype(token_dtype(tokenizer.get_vocab_size())).newbyteorder("<")
    groups = _encoded(documents, tokenizer, end_token, dtype, progress)
    shards: list[ShardFile] = []
    group = next(groups, None)
    while group is not None:
        path = directory / f"{prefix}-{len(shards):05d}.bin"
        tokens = 0
        # Hashed on the way to the disk, so that no file has to be read again for it.
        digest = hashlib.sha256()
        with atomic_path(path) as temporary, temporary.open("wb") as stream:
            while group is not None and tokens < shard_tokens:
                stream.write(group)
                digest.update(group)
                tokens += len(group) // dtype.itemsize
                group = next(groups, None)
        shards.append(ShardFile(name=path.name, tokens=tokens, sha256=digest.hexdigest()))
    return shards


def _encoded(
    documents: Sequence[bytes],
    tokenizer: Tokenizer,
    end_token: int,
    dtype: np.dtype,
    progress: Callable[[int], None],
) -> Iterator[bytes]:
    """Yield the token bytes of about a megabyte of documents at a time."""
    encoder = CachedEncoder(tokenizer)
    group: list[str] = []
    size = 0
    for place, document in enumerate(documents, 1):
        group.append(document.decode())
        size += len(document)
        if size >= _GROUP_BYTES or place == len(documents):
            yield encoder.encode(group, end_token).astype(dtype).tobytes()
            progress(size)
            group = []
            size = 0
