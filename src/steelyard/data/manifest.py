"""What a folder of token shards holds, with the hash of each file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from steelyard.errors import DataError
from steelyard.files import read_json, sha256_file

__all__ = ["MANIFEST", "Manifest", "ShardFile", "missing", "read_manifest", "verify"]

MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardFile:
    """A file of little-endian token ids.

    Attributes:
        name: file name in the folder.
        tokens: number of ids it holds.
        sha256: hash of its bytes.
    """

    name: str
    tokens: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """A prepared text.

    Attributes:
        key: hash of everything the content depends on: files with size and time stamp, and all
            options.
        sources: where the text came from; the first twenty paths.
        files_read: files looked at.
        files_skipped: files dropped, by reason: "binary" or "unreadable".
        documents: documents kept.
        documents_dropped: documents dropped, by reason: "short", "repetitive", "exact duplicate",
            "near duplicate".
        text_bytes: UTF-8 bytes kept, training and held out.
        heldout_documents: documents kept for evaluation.
        heldout_bytes: UTF-8 bytes of the held-out documents.
        vocab_size: tokens the tokenizer knows; ids are below it.
        end_token: id of the end of text.
        dtype: "uint16" or "uint32".
        seed: seed of the split.
        tokenizer_sha256: hash of `tokenizer.json`.
        train: shards to train on.
        heldout: shards kept for evaluation.
        order: how `TokenShards` shuffles windows: "keyed" by `data.index`, or "stored" as a drawn
            permutation in memory. Folders made before there was a choice say nothing and keep the
            stored one, so that a run half-way goes on with the batches it began with.
    """

    key: str
    sources: list[str]
    files_read: int
    files_skipped: dict[str, int]
    documents: int
    documents_dropped: dict[str, int]
    text_bytes: int
    heldout_documents: int
    heldout_bytes: int
    vocab_size: int
    end_token: int
    dtype: str
    seed: int
    tokenizer_sha256: str
    train: list[ShardFile]
    heldout: list[ShardFile]
    order: Literal["keyed", "stored"] = "stored"

    @property
    def num_tokens(self) -> int:
        """Tokens to train on."""
        return sum(shard.tokens for shard in self.train)

    @property
    def num_heldout_tokens(self) -> int:
        """Tokens kept for evaluation."""
        return sum(shard.tokens for shard in self.heldout)

    @property
    def duplicate_fraction(self) -> float:
        """Share of clean documents dropped as exact or near duplicates, 0..1."""
        duplicates = sum(
            count
            for reason, count in self.documents_dropped.items()
            if reason.endswith("duplicate")
        )
        return duplicates / max(duplicates + self.documents, 1)

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes of an average held-out token; an end of text is a token of no bytes."""
        return self.heldout_bytes / max(self.num_heldout_tokens, 1)


def read_manifest(directory: Path | str) -> Manifest:
    """Read the manifest of a folder.

    Args:
        directory: folder that `data.text.prepare` made.

    Returns:
        The manifest; files are not checked.

    Raises:
        DataError: the folder is not there, not finished, its manifest cannot be read, or a shard
            would lie elsewhere.
    """
    directory = Path(directory)
    if not (directory / MANIFEST).is_file():
        state = "holds no finished token shards" if directory.is_dir() else "does not exist"
        raise DataError(
            f"folder {directory} {state}",
            hint="make it with: steelyard data prepare PATHS --out DIR",
        )
    hint = f"delete the folder {directory} and prepare it again"
    try:
        found = msgspec.convert(read_json(directory / MANIFEST), Manifest)
    except msgspec.ValidationError as error:
        raise DataError(f"{directory / MANIFEST}: {error}", hint=hint) from error
    if outside := [name for name in _expected(found) if Path(name).name != name]:
        raise DataError(f"{directory / MANIFEST}: {outside[0]!r} is no plain file name", hint=hint)
    return found


def verify(directory: Path, manifest: Manifest) -> None:
    """Check every file against its hash.

    Args:
        directory: folder of the manifest.
        manifest: what should be there.

    Raises:
        DataError: a file is missing or differs; it is named.
    """
    for name, sha256 in _expected(manifest).items():
        path = directory / name
        if not path.is_file():
            raise DataError(
                f"{path} is missing", hint=f"delete the folder {directory} and prepare it again"
            )
        if sha256_file(path) != sha256:
            raise DataError(
                f"{path} is corrupted: its SHA-256 is not the one in the manifest",
                hint="delete it and prepare the text again",
            )


# Two questions on purpose: a file that is gone can be made again, one that changed cannot be
# explained, so `prepare` repeats its work for the first and stops at the second.
def missing(directory: Path, manifest: Manifest) -> list[str]:
    """List files of a manifest that are not there."""
    return [name for name in _expected(manifest) if not (directory / name).is_file()]


def _expected(manifest: Manifest) -> dict[str, str]:
    """Return the hash of every file by its name."""
    shards = {shard.name: shard.sha256 for shard in (*manifest.train, *manifest.heldout)}
    return shards | {"tokenizer.json": manifest.tokenizer_sha256}
