"""Text to token ids and back: bytes, a tokenizer trained here, or ids that are passed through.

The highest ids of a vocabulary may be sentinels, which stand for spans that were cut out.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np

from steelyard.data.encoding import CachedEncoder
from steelyard.data.tokenizer import END_OF_TEXT, load_tokenizer
from steelyard.errors import require
from steelyard.files import sha256_file

__all__ = ["ByteVocabulary", "PassthroughVocabulary", "TokenVocabulary", "TokenizerVocabulary"]

_FIRST_BYTE = 3
"""Ids 0 to 2 are padding, end and unknown, as in ByT5 (Xue et al. 2022, arXiv 2105.13626)."""


class TokenVocabulary(Protocol):
    """What a feature asks of its vocabulary."""

    @property
    def size(self) -> int:
        """Token ids run from 0 to `size - 1`, sentinels included."""
        ...

    @property
    def end(self) -> int | None:
        """Id that ends an example, or None where there is none."""
        ...

    @property
    def sentinels(self) -> int:
        """Number of highest ids that stand for spans."""
        ...

    @property
    def key(self) -> str:
        """Text that is equal only for vocabularies that encode alike."""
        ...

    def encode(self, text: str, /) -> np.ndarray:
        """Return the ids of a text, int64 [N], without an end."""
        ...

    def decode(self, ids: np.ndarray, /) -> str:
        """Return the text of ids; ends, padding and sentinels stand for nothing."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ByteVocabulary:
    """The bytes of UTF-8 from id 3 on, with 0 for padding and 1 for the end.

    Attributes:
        sentinels: ids above the bytes that stand for spans.
    """

    sentinels: int = 0

    @property
    def size(self) -> int:
        """Token ids run from 0 to `size - 1`."""
        return _FIRST_BYTE + 256 + self.sentinels

    @property
    def end(self) -> int:
        """Id that ends an example."""
        return 1

    @property
    def key(self) -> str:
        """Text that is equal only for vocabularies that encode alike."""
        return f"bytes+{self.sentinels}"

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text, int64 [N]."""
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64) + _FIRST_BYTE

    def decode(self, ids: np.ndarray) -> str:
        """Return the text of ids; bytes that are no UTF-8 become U+FFFD."""
        codes = np.asarray(ids) - _FIRST_BYTE
        return (
            codes[(codes >= 0) & (codes < 256)].astype(np.uint8).tobytes().decode(errors="replace")
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerVocabulary:
    """The tokenizer of a folder that `steelyard data prepare` made.

    Attributes:
        folder: folder with `tokenizer.json`.
        sentinels: ids above the tokenizer's that stand for spans.
    """

    folder: Path
    sentinels: int = 0

    @property
    def size(self) -> int:
        """Token ids run from 0 to `size - 1`."""
        return _loaded(self.folder)[0].get_vocab_size() + self.sentinels

    @property
    def end(self) -> int:
        """Id that ends an example."""
        return int(_loaded(self.folder)[0].token_to_id(END_OF_TEXT) or 0)

    @property
    def key(self) -> str:
        """Text that is equal only for vocabularies that encode alike."""
        _loaded(self.folder)  # says what is wrong where there is no tokenizer
        return f"{sha256_file(self.folder / 'tokenizer.json')}+{self.sentinels}"

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text, int64 [N]."""
        return _loaded(self.folder)[1].encode([text], 0)[:-1]

    def decode(self, ids: np.ndarray) -> str:
        """Return the text of ids."""
        ids = np.asarray(ids)
        plain = ids[ids < self.size - self.sentinels]
        return _loaded(self.folder)[0].decode(plain.tolist(), skip_special_tokens=True)


@lru_cache(maxsize=8)
def _loaded(folder: Path):
    """Return a folder's tokenizer and the fast way to it.

    Kept here and not in the vocabulary, so that a vocabulary is a value that costs nothing to send
    to another process.
    """
    tokenizer = load_tokenizer(folder)
    return tokenizer, CachedEncoder(tokenizer)


@dataclass(frozen=True, kw_only=True, slots=True)
class PassthroughVocabulary:
    """Ids that records hold already.

    Attributes:
        size: ids run from 0 to `size - 1`.
        end: id that ends an example; None for none.
        sentinels: number of highest ids that stand for spans.
    """

    size: int
    end: int | None = None
    sentinels: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes that hold no id.

        Raises:
            ConfigError: a value is out of range.
        """
        require(
            self,
            size=(self.size >= 1, "at least 1"),
            end=(self.end is None or 0 <= self.end < self.size, f"in [0, {self.size - 1}] or None"),
            sentinels=(0 <= self.sentinels < self.size, f"in [0, {self.size - 1}]"),
        )

    @property
    def key(self) -> str:
        """Text that is equal only for vocabularies that encode alike."""
        return f"ids<{self.size},{self.end}+{self.sentinels}"

    def encode(self, text: str) -> np.ndarray:
        """Read ids that blanks separate, int64 [N]."""
        return np.array(text.split(), dtype=np.int64)

    def decode(self, ids: np.ndarray) -> str:
        """Write ids with blanks between them."""
        return " ".join(map(str, np.asarray(ids).tolist()))
