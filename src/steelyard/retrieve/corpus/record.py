"""What an index of texts says of itself: its sources, files and settings."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steelyard.config import convert, to_plain
from steelyard.errors import DataError
from steelyard.files import read_json, write_json

__all__ = ["CorpusFile", "CorpusRecord"]

_NAME, _VERSION = "corpus.json", 1


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusFile:
    """A file that was read.

    Attributes:
        path: where it is.
        size_bytes: its size then.
        modified_ns: its time stamp then.
        first: number of its first passage.
        passages: how many it has.
        skipped: why it or some of its rows hold no text, counted.
    """

    path: str
    size_bytes: int
    modified_ns: int
    first: int
    passages: int
    skipped: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusRecord:
    """What an index of texts was built from, and how.

    Attributes:
        sources: files and folders that were named.
        files: files with passages or without, by name.
        passages: passages of all.
        words: most words of a passage.
        text_field: column or key with the text of tables, empty for a usual one.
        encoder: "latent", "none", or what the caller's encoder is known by.
        dim: numbers that a vector of a latent encoder was to have; texts may give fewer.
        fitted_on: passages when the latent encoder was fitted; 0 for others.
        kind: kind that was asked for.
        seed: seed of all draws.
        skipped: files and rows without text, by reason.
        found: what made queries found, by ranking.
        made_queries: how many of them there were.
        version: of this record.
    """

    sources: list[str]
    files: list[CorpusFile]
    passages: int
    words: int
    text_field: str
    encoder: str
    dim: int
    fitted_on: int
    kind: str
    seed: int
    skipped: dict[str, int] = field(default_factory=dict)
    found: dict[str, float] = field(default_factory=dict)
    made_queries: int = 0
    version: int = _VERSION

    def settings(self) -> tuple[Any, ...]:
        """Return what an index must share with another to be its next build."""
        return (self.sources, self.words, self.text_field, self.kind, self.seed, self.version)

    def write(self, folder: Path) -> None:
        """Write the record into the folder of an index."""
        write_json(folder / _NAME, to_plain(self))

    @classmethod
    def read(cls, folder: Path) -> "CorpusRecord":
        """Read the record of an index.

        Args:
            folder: the folder.

        Returns:
            The record.

        Raises:
            DataError: there is none, it cannot be read, or it is of another version.
        """
        path = folder / _NAME
        if not path.is_file():
            raise DataError(
                f"{folder} holds no index of texts", hint="make one by: steelyard retrieve build"
            )
        plain = read_json(path)
        if not isinstance(plain, dict) or plain.get("version") != _VERSION:
            raise DataError(f"{path} is not of version {_VERSION}", hint="build the index anew")
        return convert(plain, cls, where=str(path))
