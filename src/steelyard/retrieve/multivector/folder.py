"""A folder that answers texts: token vectors, the index in front of them, encoder and passages."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from steelyard.errors import DataError
from steelyard.files import read_json, write_json
from steelyard.retrieve.datastore.passages import PassageStore, writing_passages
from steelyard.retrieve.ivf import IVF
from steelyard.retrieve.kinds import IVFFlat
from steelyard.retrieve.multivector.codecs import TokenKind
from steelyard.retrieve.multivector.store import MultiVectorStore
from steelyard.retrieve.multivector.writing import Document, LongPolicy
from steelyard.retrieve.opening import open_index
from steelyard.retrieve.text.encoder import LatentEncoder
from steelyard.retrieve.text.words import TokenEncoder

__all__ = ["WEIGHT", "RerankFolder", "build_folder"]

STORE, INDEX, ENCODER, PASSAGES, ABOUT = (
    "store",
    "candidates.index",
    "encoder.pack",
    "passages.pack",
    "about.json",
)
WEIGHT = 1.0
"""Of the texts' vectors in a score, chosen on odd Cranfield queries."""
_BATCH = 256


@dataclass(frozen=True, slots=True)
class RerankFolder:
    """What a folder holds.

    Attributes:
        store: token vectors.
        index: candidates.
        encoder: of texts and words.
        passages: the texts.
    """

    store: MultiVectorStore
    index: IVF
    encoder: TokenEncoder
    passages: PassageStore

    @classmethod
    def open(cls, path: Path) -> "RerankFolder":
        """Open a folder of `build_folder`.

        Args:
            path: the folder.

        Returns:
            What it holds.

        Raises:
            DataError: something is missing or damaged, or parts do not belong together.
        """
        if not (path / ABOUT).exists():
            raise DataError(
                f"{path} is no folder of token vectors, or was not finished",
                hint="make it by `steelyard retrieve rerank build`; the same call goes on",
            )
        about = read_json(path / ABOUT)
        encoder = TokenEncoder(LatentEncoder.open(path / ENCODER), int(about["token_dim"]))
        store = MultiVectorStore.open(path / STORE)
        if store.encoder != encoder.fingerprint:
            raise DataError(
                f"{path / STORE} was encoded by {store.encoder}, the folder has "
                f"{encoder.fingerprint}",
                hint="build the folder again",
            )
        return cls(store, open_index(path / INDEX), encoder, PassageStore(path / PASSAGES))


def build_folder(
    path: Path,
    texts: Sequence[tuple[str, str]],
    *,
    dtype: TokenKind = "fp16",
    block: int = 4096,
    max_tokens: int = 512,
    long: LongPolicy = "split",
    token_dim: int = 32,
    cells: int = 0,
) -> RerankFolder:
    """Encode texts, and write all that answers questions about them.

    The same call after a kill takes the encoder that is there and goes on with the store.

    Args:
        path: the folder, made where it is missing.
        texts: name and text of each document; its number is its place.
        dtype: what tokens are kept as.
        block: bytes of a block of the store.
        max_tokens: tokens of a record at most.
        long: what happens to longer documents.
        token_dim: numbers in the vector of a word.
        cells: of the index; four times the square root of the texts when 0.

    Returns:
        What was built, open.

    Raises:
        ConfigError: an option is out of range, or another folder stands there.
        DataError: there is no text, or none has a word.
        CapacityError: the disk is full; what was there before stays.
        StoreError: another process builds there.
    """
    if not texts:
        raise DataError("no texts to build from", hint="give a file or folder with texts")
    path.mkdir(parents=True, exist_ok=True)
    encoder = _encoder(path, [text for _, text in texts], token_dim)
    vectors = np.zeros((len(texts), encoder.texts.dim), np.float32)
    for first in range(0, len(texts), _BATCH):
        part = texts[first : first + _BATCH]
        vectors[first : first + len(part)] = encoder.texts.encode([text for _, text in part])
    MultiVectorStore.build(
        path / STORE,
        lambda start: _encoded(texts[start:], start, encoder),
        dtype=dtype,
        block=block,
        max_tokens=max_tokens,
        long=long,
        encoder=encoder.fingerprint,
    )
    with writing_passages(path / PASSAGES) as writer:
        for name, text in texts:
            # A passage needs a word; an empty document keeps its number.
            writer.add(text if text.strip() else "(empty)", name)
    count = min(cells or max(1, round(4 * len(texts) ** 0.5)), len(texts))
    index = IVFFlat(encoder.texts.dim, nlist=count, nprobe=max(1, count // 4), metric="ip")
    if count > 1:
        index.train(vectors)
    index.add(vectors)
    index.save(path / INDEX)
    write_json(path / ABOUT, {"token_dim": token_dim, "documents": len(texts)})
    return RerankFolder.open(path)


def _encoder(path: Path, texts: Sequence[str], token_dim: int) -> TokenEncoder:
    """Return the encoder of an interrupted build, or fit one."""
    if (path / ENCODER).exists() and not (path / ABOUT).exists():
        return TokenEncoder(LatentEncoder.open(path / ENCODER), token_dim)
    (path / ABOUT).unlink(missing_ok=True)
    encoder = TokenEncoder(LatentEncoder.fit(texts), token_dim)
    encoder.save(path / ENCODER)
    return encoder


def _encoded(
    texts: Iterable[tuple[str, str]], start: int, encoder: TokenEncoder
) -> Iterator[Document]:
    """Yield documents from a place on, encoded some at a time."""
    stream, number = iter(texts), start
    while part := [text for _, text in islice(stream, _BATCH)]:
        for text, tokens in zip(*encoder.encode(part), strict=True):
            yield number, text, tokens
            number += 1
