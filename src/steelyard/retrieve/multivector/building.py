"""Builds a store of token vectors from a stream: little memory, and a kill costs the last part."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.append_log import AppendLog
from steelyard.data.pack import Pack, write_pack
from steelyard.errors import ConfigError, DataError
from steelyard.files import disk_full_told, exclusive, read_json, replace_folder, write_json
from steelyard.retrieve.multivector.codecs import (
    ResidualTokens,
    TokenCodec,
    learned_of,
    token_codec,
)
from steelyard.retrieve.multivector.layout import RecordLayout
from steelyard.retrieve.multivector.writing import (
    BuildOptions,
    Document,
    Documents,
    StoreWriting,
    checked_batches,
    read_frame,
)

__all__ = [
    "MANIFEST",
    "RECORDS",
    "TABLE",
    "build_store",
]

MANIFEST, TABLE, RECORDS = "manifest.json", "table.pack", "records.bin"
_SETTINGS, _PROGRESS, _CODEC = "settings.json", "progress.log", "codec.pack"
_VERSION = 1
_SAMPLE_TOKENS, _SAMPLE_DOCUMENTS = 32_768, 4096


def build_store(path: Path, documents: Documents, options: BuildOptions) -> None:
    """Write a store; it stands at `path` when all of it is there.

    Until then it grows beside, in a folder of its own. The same call after a kill goes on where
    the last part was complete.

    Args:
        path: folder of the store; an older store is replaced at the end.
        documents: documents by ascending number, or what returns them from a place on.
        options: what the store is like.

    Raises:
        ConfigError: another folder than a store stands there, or an option is out of range.
        DataError: a document has another width, is not finite, too long or out of order (it is
            named), there is none, or those of a build that goes on are others.
        CapacityError: the disk is full; an older store stays, and the build can go on.
        StoreError: another process builds there.
    """
    if path.exists() and not (path / MANIFEST).exists() and any(path.iterdir()):
        raise ConfigError(f"{path} is there and is no store", hint="choose another folder")
    beside = path.with_name(f".{path.name}.building")
    with exclusive(beside, wait_s=0.0), disk_full_told(path):
        _build(beside, documents, options)
        replace_folder(beside, path)


def _build(folder: Path, documents: Documents, options: BuildOptions) -> None:
    """Write all files of a store into a folder, from where an earlier call ended."""
    found = _begun(folder, options)
    if found is None:
        stream = iter(documents(0) if callable(documents) else documents)
        head = _head(stream, options)
        found = _begin(folder, head, options)
        stream = chain(head, stream)
    else:
        stream = None
    layout, codec = found
    with closing(AppendLog(folder / _PROGRESS)) as log, (folder / RECORDS).open("ab") as records:
        writing = StoreWriting(folder, layout, codec, options, records, log)
        writing.resume()
        if stream is None:
            stream = _rest(documents, writing)
        for batch in checked_batches(stream, writing):
            writing.add(batch)
        writing.commit()
        _finish(writing)


def _head(stream: Iterator[Document], options: BuildOptions) -> list[Document]:
    """Return the first documents: one, or enough to learn codes from."""
    head = list(islice(stream, 1))
    if not head:
        raise DataError("a store without documents", hint="give one or more")
    if options.dtype == "pq":
        tokens = len(head[0][2])
        for document in islice(stream, _SAMPLE_DOCUMENTS):
            head.append(document)
            tokens += len(document[2])
            if tokens >= _SAMPLE_TOKENS:
                break
    return head


def _begin(
    folder: Path, head: list[Document], options: BuildOptions
) -> tuple[RecordLayout, TokenCodec]:
    """Begin a store like its first documents."""
    for left in (RECORDS, _PROGRESS, TABLE, MANIFEST, _CODEC):
        (folder / left).unlink(missing_ok=True)
    number, text, tokens = head[0]
    if np.ndim(text) != 1 or np.ndim(tokens) != 2:
        raise DataError(
            f"document {number}: vectors of shape {list(np.shape(text))} and "
            f"{list(np.shape(tokens))}",
            hint="give one vector [D] of the text and vectors [T, E] of its tokens",
        )
    dim = tokens.shape[1]
    if options.dtype == "pq":
        sample = np.concatenate([np.asarray(item[2], np.float32) for item in head])
        codec: TokenCodec = ResidualTokens.trained(sample[:_SAMPLE_TOKENS], seed=options.seed)
        write_pack(folder / _CODEC, learned_of(codec))
    else:
        codec = token_codec(options.dtype, dim)
    layout = RecordLayout(
        text_dim=len(text),
        token_dim=dim,
        token_bytes=codec.row_bytes,
        block_bytes=options.block_bytes,
        max_tokens=options.max_tokens,
    )
    write_json(folder / _SETTINGS, {"options": asdict(options), "layout": asdict(layout)})
    return layout, codec


def _begun(folder: Path, options: BuildOptions) -> tuple[RecordLayout, TokenCodec] | None:
    """Return how a build with these options was begun; None where there is none."""
    if not (folder / _SETTINGS).exists():
        return None
    kept = read_json(folder / _SETTINGS)
    if kept["options"] != asdict(options):
        return None
    layout, learned = RecordLayout(**kept["layout"]), None
    if options.dtype == "pq":
        learned = {
            name: np.array(values) for name, values in Pack.open(folder / _CODEC).sections().items()
        }
    return layout, token_codec(options.dtype, layout.token_dim, learned)


def _rest(documents: Documents, writing: StoreWriting) -> Iterator[Document]:
    """Return the documents that are not written yet."""
    done = writing.counts.documents
    if callable(documents):
        return iter(documents(done))
    stream = iter(documents)
    last = next(islice(stream, done - 1, done), None) if done else None
    if done and (last is None or int(last[0]) != writing.last):
        found = "is missing" if last is None else f"has the number {int(last[0])}"
        raise DataError(
            f"document {done - 1} {found}, and had the number {writing.last} when the build was "
            "interrupted",
            hint=f"give the same documents, or delete {writing.folder} to build anew",
        )
    return stream


def _finish(writing: StoreWriting) -> None:
    """Write the table and the manifest; then nothing is left of the building."""
    folder, count = writing.folder, writing.counts.documents
    with (folder / "numbers.tmp").open("w+b") as one, (folder / "blocks.tmp").open("w+b") as other:
        for frame in writing.log.read():
            _, numbers, blocks = read_frame(frame)
            one.write(numbers.tobytes())
            other.write(blocks.tobytes())
    # Mapped, so that the largest table takes no memory of this process.
    numbers = np.memmap(folder / "numbers.tmp", "<i8", "r", shape=(count,))
    sections: dict[str, NDArray[Any]] = {
        "blocks": np.memmap(folder / "blocks.tmp", np.uint8, "r", shape=(count,))
    }
    if int(numbers[0]) != 0 or int(numbers[-1]) != count - 1:
        sections["numbers"] = numbers
    write_pack(folder / TABLE, sections | learned_of(writing.codec))
    write_json(
        folder / MANIFEST,
        {
            "version": _VERSION,
            "layout": asdict(writing.layout),
            "dtype": writing.options.dtype,
            "encoder": writing.options.encoder,
            "long": writing.options.long,
            "bytes": (folder / RECORDS).stat().st_size,
            "counts": asdict(writing.counts),
        },
    )
    for left in (_SETTINGS, _PROGRESS, _CODEC, "numbers.tmp", "blocks.tmp"):
        (folder / left).unlink(missing_ok=True)
