"""Text that own runs train on: abstracts of papers, cut into 512 tokens, the same on any machine.

Pools of it are shards beside the whole, with its tokenizer and its held-out tokens.
"""

import gzip
import hashlib
from pathlib import Path

import msgspec
import numpy as np
from benchmarks.laws._shared import shared
from numpy.typing import NDArray

from steelyard.data.encoding import CachedEncoder
from steelyard.data.manifest import MANIFEST, Manifest, ShardFile
from steelyard.data.shards import TokenShards
from steelyard.data.token_packing import split_heldout
from steelyard.data.tokenizer import END_OF_TEXT, load_tokenizer, train_tokenizer
from steelyard.files import write_bytes, write_json

__all__ = ["BYTES", "VOCAB_SIZE", "WORK", "abstracts", "write_pool"]

VOCAB_SIZE = 512
BYTES = 257
"""Tokens of a text cut into bytes: 256, and the end of a document."""
WORK = Path(__file__).parents[1] / ".work"
"""Where text and unfinished runs of benchmarks lie; what is finished is kept in `results/cells`."""

Tokens = NDArray[np.int64]
_SOURCES = (("arxiv-abstracts", "papers", "abstract"), ("cranfield", "docs", "text"))
_HELDOUT_FRACTION = 0.03
_SAMPLE = 8


def abstracts(vocab_size: int = VOCAB_SIZE) -> Path:
    """Return the folder of the whole text, made where there is none.

    Args:
        vocab_size: tokens of its tokenizer; `BYTES` for every byte one token.

    Returns:
        A folder of token shards.
    """
    folder = WORK / ("abstracts" if vocab_size == VOCAB_SIZE else f"abstracts-{vocab_size}")
    if (folder / MANIFEST).exists():
        return folder
    documents = []
    for name, file, field in _SOURCES:
        with gzip.open(shared(name) / f"{file}.jsonl.gz", "rt", encoding="utf-8") as lines:
            documents += [msgspec.json.decode(line)[field].strip() for line in lines]
    documents = sorted({item for item in documents if len(item) > 100})
    tokenizer = train_tokenizer(documents[::_SAMPLE], vocab_size)
    write_bytes(folder / "tokenizer.json", tokenizer.to_str().encode())
    tokenizer = load_tokenizer(folder)
    held = split_heldout([item.encode() for item in documents], _HELDOUT_FRACTION, 0)
    end = int(tokenizer.token_to_id(END_OF_TEXT) or 0)
    # By their hash and not by the alphabet: a part of the text is then like the whole.
    order = sorted(range(len(documents)), key=lambda place: _digest(documents[place].encode()))
    encoder = CachedEncoder(tokenizer)
    parts = [
        [documents[place] for place in order if held[place] == wanted] for wanted in (False, True)
    ]
    train, heldout = (encoder.encode(part, end) for part in parts)
    heldout_bytes = sum(len(item.encode()) for item in parts[1])
    _write(folder, train, heldout, heldout_bytes, vocab_size)
    return folder


def write_pool(name: str, pool: str, train: Tokens) -> Path:
    """Write a pool of tokens below a folder of pools; its held-out tokens are the whole text's.

    Args:
        name: folder of the pools.
        pool: name of this one.
        train: tokens to train on.

    Returns:
        The folder of the pools.
    """
    base = TokenShards(abstracts(), check=False)
    folder = WORK / name / pool
    if not (folder / MANIFEST).exists():
        text = (base.directory / "tokenizer.json").read_bytes()
        write_bytes(folder / "tokenizer.json", text)
        heldout = base.heldout_tokens
        _write(folder, train, heldout, base.manifest.heldout_bytes)
    return folder.parent


def _write(
    folder: Path,
    train: Tokens,
    heldout: NDArray[np.generic],
    heldout_bytes: int,
    vocab_size: int = VOCAB_SIZE,
) -> None:
    """Write shards and their manifest."""
    shards = []
    for name, tokens in (("train", train), ("heldout", heldout)):
        packed = tokens.astype("<u2").tobytes()
        write_bytes(folder / f"{name}-00000.bin", packed)
        shards.append(
            ShardFile(name=f"{name}-00000.bin", tokens=len(tokens), sha256=_digest(packed))
        )
    manifest = Manifest(
        key=shards[0].sha256,
        sources=[name for name, *_ in _SOURCES],
        files_read=len(_SOURCES),
        files_skipped={},
        documents=0,
        documents_dropped={},
        text_bytes=0,
        heldout_documents=0,
        heldout_bytes=heldout_bytes,
        vocab_size=vocab_size,
        end_token=0,
        dtype="uint16",
        seed=0,
        tokenizer_sha256=_digest((folder / "tokenizer.json").read_bytes()),
        train=shards[:1],
        heldout=shards[1:],
        order="keyed",
    )
    write_json(folder / MANIFEST, manifest)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
