"""Books of the second tier: which of its blocks hold which tokens of which sequence."""

from dataclasses import dataclass, field

from steelyard.errors import CapacityError
from steelyard.serve.kv.groups import GroupPool

__all__ = ["HostCopy", "HostSpace"]


@dataclass(kw_only=True, slots=True)
class HostCopy:
    """Copy of the beginning of one sequence in the second tier.

    Attributes:
        blocks: host blocks in token order.
        valid_tokens: leading tokens whose keys and values are there; the rest of the blocks is room
            or on its way.
        pinned: whether the sequence has no other copy, or a transfer uses this one; it is not given
            up then.
        resident: whether the sequence has its keys and values in the pool as well.
        hashes: chain hashes of the leading full blocks, of a copy kept for another turn; else
            empty.
    """

    blocks: list[int] = field(default_factory=list)
    valid_tokens: int = 0
    pinned: bool = False
    resident: bool = False
    hashes: list[bytes] = field(default_factory=list)


class HostSpace:
    """Blocks of the second tier and the copies in them.

    Keys and values are only ever appended, so a copy's valid range is its beginning, and a later
    copy of the same sequence sends only what came since. When room is short, copies of sequences
    that are in the pool anyway are given up first, the latest resumed before the others, since it
    will be asked for last; then those kept for another turn, the longest unused first. They are
    given up from their end, so that the beginning stays of use. Copies that are the only ones are
    never given up.

    Source: Shen et al. 2024 (arXiv 2411.18424), KV cache reuse mechanism.
    """

    def __init__(self, num_blocks: int, block_size: int, *, group_blocks: int = 0) -> None:
        """Make an empty space.

        Args:
            num_blocks: blocks of the tier, at least 1.
            block_size: token slots per block, a power of two; that of the pool.
            group_blocks: blocks set aside at once for a copy to grow into; 0 for a derived default.

        Raises:
            ConfigError: a size is out of range.
        """
        self.block_size = block_size
        self.pool = GroupPool(num_blocks, block_size, group_blocks=min(group_blocks, num_blocks))
        self._copies: dict[str, HostCopy] = {}
        self._kept: dict[bytes, str] = {}

    def find(self, key: str) -> HostCopy | None:
        """Return the copy of a sequence."""
        return self._copies.get(key)

    def can_extend(self, key: str, num_tokens: int) -> bool:
        """Whether a copy can be made to hold `num_tokens`, others given up if need be."""
        lacking = self._missing(key, num_tokens) - self.pool.num_available
        return lacking <= 0 or lacking <= sum(
            len(copy.blocks)
            for name, copy in self._copies.items()
            if name != key and not copy.pinned
        )

    def extend(self, key: str, num_tokens: int) -> HostCopy:
        """Make room for `num_tokens` in a sequence's copy, and make it the most recent one.

        Args:
            key: name of the sequence; an empty copy is made when it has none.
            num_tokens: tokens it has to have room for.

        Returns:
            The copy, its valid range unchanged.

        Raises:
            CapacityError: there is no room even if other copies are given up; nothing changed.
        """
        if not self.can_extend(key, num_tokens):
            raise CapacityError(
                f"the host tier has no room for {num_tokens} tokens", hint="give it more blocks"
            )
        missing = self._missing(key, num_tokens)
        copy = self._copies.pop(key, None) or HostCopy()
        while missing > self.pool.num_available:
            self._give_up(missing - self.pool.num_available)
        copy.blocks += self.pool.take(missing, after=copy.blocks[-1] if copy.blocks else -1)
        self._copies[key] = copy
        return copy

    def drop(self, key: str) -> None:
        """Release all blocks of a copy; nothing happens when there is none."""
        copy = self._copies.get(key)
        if copy:
            self._shorten(key, copy, len(copy.blocks))

    def keep(self, key: str, hashes: list[bytes]) -> None:
        """Let a copy be found by the chain hashes of its content.

        Args:
            key: name of a copy.
            hashes: chain hashes of its leading full blocks, as many as it has.
        """
        copy = self._copies[key]
        copy.hashes = list(hashes)
        copy.resident = False
        self._index(key, copy)

    def match(self, hashes: list[bytes]) -> tuple[str, int]:
        """Find the kept copy with the longest content that begins a sequence.

        Args:
            hashes: chain hashes of the sequence's leading full blocks.

        Returns:
            The copy's key and its full blocks; ("", 0) when there is none.
        """
        for count in range(len(hashes), 0, -1):
            key = self._kept.get(hashes[count - 1])
            if key is not None:
                return key, count
        return "", 0

    def rename(self, key: str, new_key: str) -> None:
        """Rename a copy, if there is one; it can no longer be found by its content.

        Args:
            key: name of the copy.
            new_key: name that is not in use.
        """
        copy = self._copies.pop(key, None)
        if copy:
            self._unindex(copy)
            copy.hashes = []
            self._copies[new_key] = copy

    def _missing(self, key: str, num_tokens: int) -> int:
        """Count the blocks to add."""
        copy = self._copies.get(key)
        return max(0, -(-num_tokens // self.block_size) - (len(copy.blocks) if copy else 0))

    def _give_up(self, count: int) -> None:
        """Shorten the copy that is worth least by `count` blocks, or by all it has."""
        # The copies are in order of their last use, so the last resident one belongs to the request
        # that came back latest. It keeps the pool longest, and its copy is asked for last.
        resident = [
            name for name, copy in self._copies.items() if copy.resident and not copy.pinned
        ]
        key = (
            resident[-1]
            if resident
            else next(name for name, copy in self._copies.items() if not copy.pinned)
        )
        copy = self._copies[key]
        self._shorten(key, copy, min(count, len(copy.blocks)))

    def _shorten(self, key: str, copy: HostCopy, count: int) -> None:
        """Release the last `count` blocks of a copy."""
        self._unindex(copy)
        for block in reversed(copy.blocks[len(copy.blocks) - count :]):
            self.pool.release(block)
        del copy.blocks[len(copy.blocks) - count :]
        copy.valid_tokens = min(copy.valid_tokens, len(copy.blocks) * self.block_size)
        if copy.blocks:
            self._index(key, copy)
        else:
            del self._copies[key]

    def _index(self, key: str, copy: HostCopy) -> None:
        """Enter a kept copy under the hash of its last full block.

        An older copy of equal content is dropped, unless a transfer or a request uses it: then this
        one cannot be found, and goes when room is short.

        Args:
            key: name of the copy.
            copy: the copy.
        """
        full = min(copy.valid_tokens // self.block_size, len(copy.hashes))
        del copy.hashes[full:]
        if full:
            older = self._kept.get(copy.hashes[-1])
            if older is not None and older != key:
                if self._copies[older].pinned:
                    copy.hashes.clear()
                    return
                self.drop(older)
            self._kept[copy.hashes[-1]] = key

    def _unindex(self, copy: HostCopy) -> None:
        """Take a kept copy out of the index."""
        if copy.hashes:
            self._kept.pop(copy.hashes[-1], None)
