"""Records of documents: a head with a checksum, one vector of the whole text, one per token.

A record fills whole blocks, so that one aligned read fetches it. Tokens beyond what one record may
hold go on in the next record of the same document, directly behind it.
"""

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.data.checksums import word_sum
from steelyard.errors import ConfigError, DataError
from steelyard.retrieve.multivector.codecs import TokenCodec

__all__ = ["GOES_ON", "HEAD_BYTES", "MOST_BLOCKS", "RecordLayout"]

HEAD_BYTES = 16
MOST_BLOCKS = 255
"""A document's blocks are counted in one byte."""
GOES_ON = 1
"""Flag of a record whose document has another one behind it."""
_LEAST_BLOCK = 512
_HEAD = struct.Struct("<IHHq")


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordLayout:
    """How documents lie in the file.

    A record is its checksum (4 bytes), tokens (2), flags (2), the document's number (8), the
    vector of the text in float16, the tokens' codes, and zeros up to a whole block.

    Attributes:
        text_dim: numbers in the vector of a text.
        token_dim: numbers in the vector of a token.
        token_bytes: bytes of a token's code.
        block_bytes: bytes of a block; reads are aligned to it.
        max_tokens: tokens of a record at most.

    Source: Shrestha et al. 2023 (ESPN, arXiv 2312.05417), layout on the drive; the head with
        checksum and number is added.
    """

    text_dim: int
    token_dim: int
    token_bytes: int
    block_bytes: int = 4096
    max_tokens: int = 512

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ConfigError: one is out of range.
        """
        block = self.block_bytes
        if min(self.text_dim, self.token_dim) < 1 or block < _LEAST_BLOCK or block % _LEAST_BLOCK:
            raise ConfigError(
                f"texts of {self.text_dim} numbers, tokens of {self.token_dim}, blocks of {block}"
                " bytes",
                hint=f"give 1 number or more, and blocks that are multiples of {_LEAST_BLOCK}",
            )
        if not 1 <= self.max_tokens < 1 << 16 or self.blocks_for(self.max_tokens) > MOST_BLOCKS:
            room = MOST_BLOCKS * block - HEAD_BYTES - 2 * self.text_dim
            most = min(room // self.token_bytes, (1 << 16) - 1)
            raise ConfigError(
                f"records of up to {self.max_tokens} tokens", hint=f"give 1 to {most} tokens"
            )

    def blocks_for(self, tokens: int) -> int:
        """Return the blocks of a record of so many tokens."""
        used = HEAD_BYTES + 2 * self.text_dim + tokens * self.token_bytes
        return -(-used // self.block_bytes)

    def packed(
        self, number: int, text: NDArray[np.float16], codes: NDArray[np.uint8]
    ) -> NDArray[np.uint8]:
        """Return the records of a document.

        Args:
            number: the document's number.
            text: its vector [text_dim].
            codes: codes of its tokens [T, token_bytes].

        Returns:
            uint8, whole blocks.
        """
        most, found = self.max_tokens, []
        for first in range(0, max(len(codes), 1), most):
            flags = GOES_ON if first + most < len(codes) else 0
            found.append(self._record(number, text, codes[first : first + most], flags))
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _record(
        self, number: int, text: NDArray[np.float16], codes: NDArray[np.uint8], flags: int
    ) -> NDArray[np.uint8]:
        """Return one record."""
        found = np.zeros(self.blocks_for(len(codes)) * self.block_bytes, np.uint8)
        found[:HEAD_BYTES] = np.frombuffer(_HEAD.pack(0, len(codes), flags, number), np.uint8)
        at = HEAD_BYTES + 2 * self.text_dim
        found[HEAD_BYTES:at] = text.view(np.uint8)
        found[at : at + codes.size] = codes.reshape(-1)
        words = found.view("<u8")
        checked = int(word_sum(words[1:], found[:0])) ^ int(words[0] >> np.uint64(32))
        found[:4] = np.array([checked], "<u4").view(np.uint8)
        return found

    def read(
        self, raw: NDArray[np.uint8], codec: TokenCodec
    ) -> tuple[int, NDArray[np.float32], NDArray[np.float32]]:
        """Read a document's records back, slowly: the kernels do it faster.

        Args:
            raw: its blocks.
            codec: of its tokens.

        Returns:
            Number, vector of the text [text_dim] and of the tokens [T, token_dim].

        Raises:
            DataError: a checksum does not fit.
        """
        found: list[NDArray[np.uint8]] = []
        place, flags, number = 0, GOES_ON, -1
        text = np.empty(0, np.float16)
        while flags & GOES_ON:
            checksum, tokens, flags, number = _HEAD.unpack(
                raw[place : place + HEAD_BYTES].tobytes()
            )
            size = self.blocks_for(tokens) * self.block_bytes
            part = raw[place : place + size]
            words = part.view("<u8")
            if len(part) < size or checksum != int(word_sum(words[1:], part[:0])) ^ int(
                words[0] >> np.uint64(32)
            ):
                raise DataError(f"the record at byte {place} of a document is damaged")
            at = HEAD_BYTES + 2 * self.text_dim
            text = part[HEAD_BYTES:at].view(np.float16)
            codes = part[at : at + tokens * self.token_bytes]
            found.append(codes.reshape(tokens, self.token_bytes))
            place += size
        return number, text.astype(np.float32), codec.decode(np.concatenate(found))
