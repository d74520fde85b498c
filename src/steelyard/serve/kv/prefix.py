"""Which blocks hold which token prefixes, so that equal prefixes are computed once."""

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Protocol

import numpy as np

__all__ = ["PrefixIndex", "PrefixListener", "chain_hash"]


def chain_hash(previous: bytes, tokens: list[int]) -> bytes:
    """Hash a full block of tokens together with all blocks before it.

    Args:
        previous: chain hash of the block before; the index's root for the first block.
        tokens: token ids of the block.

    Returns:
        16 bytes; hashes of equal prefixes are equal, others differ for all practical purposes.
    """
    return hashlib.blake2b(
        previous + np.asarray(tokens, dtype=np.int64).tobytes(), digest_size=16
    ).digest()


class PrefixListener(Protocol):
    """Learns what an index knows, as it changes."""

    def known(self, digest: bytes) -> None:
        """Learn that a content can be found now."""
        ...

    def forgotten(self, digest: bytes) -> None:
        """Learn that a content was evicted."""
        ...


class PrefixIndex:
    """Maps chain hashes to blocks and keeps the idle ones in order of their last use.

    Attributes:
        listener: told of every content that comes and goes; None for nobody.

    Source: Kwon et al. 2023 (arXiv 2309.06180), section 4.4 (shared prefix); block hashes as in its
    engine.
    """

    def __init__(self, *, model_key: str = "") -> None:
        """Make an empty index.

        Args:
            model_key: name of weights and adapter; indexes of different keys share nothing.
        """
        self.root = hashlib.blake2b(model_key.encode(), digest_size=16).digest()
        self.listener: PrefixListener | None = None
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._kept: set[int] = set()
        self._pins: Counter[bytes] = Counter()

    @property
    def num_idle(self) -> int:
        """Known blocks that no table holds and no pin keeps."""
        return len(self._idle)

    @property
    def num_pinned(self) -> int:
        """Blocks' worth of content that is pinned, computed or not."""
        return len(self._pins)

    @property
    def digests(self) -> Iterable[bytes]:
        """Contents that can be found."""
        return self._block_of.keys()

    def __len__(self) -> int:
        return len(self._block_of)

    def knows(self, block: int) -> bool:
        """Whether a block's content can be found by its hash."""
        return block in self._hash_of

    def is_idle(self, block: int) -> bool:
        """Whether a known block is there to be evicted: no table holds it and no pin keeps it."""
        return block in self._idle

    def match(self, hashes: list[bytes]) -> list[int]:
        """Return the blocks of the longest known prefix of a hash chain."""
        blocks = []
        for digest in hashes:
            block = self._block_of.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def insert(self, digest: bytes, block: int) -> None:
        """Remember a computed full block."""
        # The first block with a content stays the one that is found: tables may share it already,
        # and a second copy is freed as soon as its only user ends.
        if digest not in self._block_of and block not in self._hash_of:
            self._block_of[digest] = block
            self._hash_of[block] = digest
            if self.listener is not None:
                self.listener.known(digest)

    def pin(self, digests: Iterable[bytes]) -> None:
        """Keep blocks of these contents until as many `unpin` as `pin` calls came.

        Args:
            digests: chain hashes of the contents; what is not computed yet is kept from when it is.
        """
        for digest in digests:
            self._pins[digest] += 1
            block = self._block_of.get(digest)
            if block in self._idle:
                del self._idle[block]
                self._kept.add(block)

    def unpin(self, digests: Iterable[bytes]) -> None:
        """Take back one `pin` of each content."""
        # Last first, so that the end of a prefix is evicted before its beginning.
        for digest in reversed(list(digests)):
            self._pins[digest] -= 1
            if self._pins[digest] > 0:
                continue
            del self._pins[digest]
            block = self._block_of.get(digest)
            if block in self._kept:
                self._kept.remove(block)
                self._idle[block] = None

    def park(self, block: int) -> None:
        """Note that a known block has no user any more."""
        if self._hash_of[block] in self._pins:
            self._kept.add(block)
        else:
            self._idle[block] = None

    def unpark(self, block: int) -> None:
        """Note that a block without users has one again."""
        if block in self._kept:
            self._kept.remove(block)
        else:
            del self._idle[block]

    def evict(self) -> int:
        """Forget the least recently used idle block and return it."""
        block, _ = self._idle.popitem(last=False)
        digest = self._hash_of.pop(block)
        del self._block_of[digest]
        if self.listener is not None:
            self.listener.forgotten(digest)
        return block
