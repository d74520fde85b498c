"""Swapping: which requests are on the host, what is copied, and when blocks are free again."""

from collections.abc import Iterable

from steelyard.serve.kv.blocks import BlockPool
from steelyard.serve.kv.host import HostCopy, HostSpace
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.swaps.moves import Move, Moves

__all__ = ["Swapper"]


class Swapper(Moves):
    """Swaps requests out of the pool and in again.

    A request's `state` says where it is:

        running      --start_out--> swapping_out --land--> swapped
        swapped      --start_in---> swapping_in  --land--> running
        swapping_in  --start_out--> swapping_out --land--> swapped  (nothing is copied: the host
        copy still holds it all)

    A request without blocks of its own has an empty table; only a running one's table holds blocks.
    Blocks that a transfer reads or writes belong to the transfer until it landed, whatever becomes
    of the request, so no one else can get them too early; blocks whose content the host holds
    already are free at once. `num_computed` is kept while a request is away.

    Deterministic; it knows no tensors and no time. The driver starts the transfers that `drain`
    returns, in order and after all steps planned before, and reports each to `land` or `fail`.

    Source: Shen et al. 2024 (arXiv 2411.18424), multithreading swap manager and KV cache reuse
    mechanism.
    """

    def __init__(
        self,
        pool: BlockPool,
        host: HostSpace,
        *,
        reuse: bool = True,
        keep_turns: bool = False,
        root: bytes = b"",
    ) -> None:
        """Start with nothing away.

        Args:
            pool: blocks of the device.
            host: second tier.
            reuse: whether host copies stay valid after a request came back, so that the next time
                only new tokens are sent.
            keep_turns: whether the copy of a request that ended is kept for one that begins with
                its tokens.
            root: start of the chain hashes, that of the prefix index where there is one.
        """
        super().__init__()
        self.pool = pool
        self.host = host
        self.reuse = reuse
        self.keep_turns = keep_turns
        self._root = root

    def can_swap_out(self, request: Request) -> bool:
        """Whether a running request has anything to move and the host tier room for it."""
        return request.state == "swapping_in" or (
            request.num_computed > 0 and self.host.can_extend(request.id, request.num_computed)
        )

    def start_out(self, request: Request) -> None:
        """Take a request's blocks; `can_swap_out` must hold.

        Args:
            request: running, or on its way in.
        """
        if request.state == "swapping_in":
            self._turn_back(request)
            return
        assert request.state == "running", f"{request.id} is {request.state}"
        blocks = request.table.blocks.tolist()
        request.table.num_blocks = 0
        is_moving = self._send_out(request.id, request, blocks, request.num_computed, [])
        request.state = "swapping_out" if is_moving else "swapped"

    def start_in(self, request: Request) -> bool:
        """Return a swapped request blocks for all its known tokens, and bring it back.

        Args:
            request: any.

        Returns:
            False when it is not swapped (yet) or the pool has too few blocks; nothing changed.
        """
        size = self.pool.block_size
        needed = -(-request.num_tokens // size)
        if request.state != "swapped" or needed > self.pool.num_available:
            return False
        copy = self._copy(request.id)
        assert copy.valid_tokens >= request.num_computed > 0
        copy.pinned = True
        copy.resident = False
        self.begin(
            "in",
            request.id,
            request,
            blocks=self.pool.take(needed),
            host_blocks=copy.blocks[: -(-request.num_computed // size)],
            valid_tokens=copy.valid_tokens,
        )
        request.state = "swapping_in"
        return True

    def land(self, transfer_ids: Iterable[int]) -> list[Request]:
        """Take note of transfers that are done.

        Args:
            transfer_ids: transfers that `drain` returned.

        Returns:
            Requests whose state changed; each is "swapped" or "running" now.
        """
        changed = []
        for name in transfer_ids:
            move = self.end(name)
            if move.transfer.direction == "in" and move.request and not move.turned_back:
                self._arrive(move, move.request)
            else:
                self._settle(move, move.valid_tokens)
            if move.request:
                changed.append(move.request)
        return changed

    def fail(self, transfer_ids: Iterable[int]) -> list[Request]:
        """Take note of transfers that did not work.

        What they were to copy is lost and has to be computed again.

        Args:
            transfer_ids: transfers that `drain` returned.

        Returns:
            Requests whose state changed: "swapped" with what an earlier copy holds, or "waiting"
            with nothing computed.
        """
        changed = []
        for name in transfer_ids:
            move = self.end(name)
            copy = self.host.find(move.key)
            # A failed way out leaves what an earlier copy sent; a failed way in says that the copy
            # cannot be read, so none of it is trusted.
            kept = copy.valid_tokens if copy and move.transfer.direction == "out" else 0
            move.hashes = []
            move.doomed = move.doomed or not kept or move.request is None
            request = move.request
            self._settle(move, kept)
            if request:
                request.num_computed = min(request.num_computed, kept)
                request.state = "swapped" if kept else "waiting"
                changed.append(request)
        return changed

    def forget(self, request: Request) -> None:
        """Drop the host copy of a request that ended or is computed again.

        Args:
            request: request in any state; blocks that a transfer of it uses come free when that
                has landed, or at once if it has not started.
        """
        move = self.latest(request.id)
        if move is None:
            self.host.drop(request.id)
            return
        self.orphan(move)
        move.doomed = True
        # Another request of the same id may come while the transfer is still under way; it must not
        # meet this copy.
        move.key = self._part_with(request.id)
        if not move.started:
            self.recall(move)
            self._settle(move, move.valid_tokens)

    def retire(self, request: Request) -> None:
        """Let a request go that ended.

        With `keep_turns`, the full blocks that its host copy lacks are sent first.

        Args:
            request: request in any state. Its table keeps the blocks that no transfer took, which
                the caller frees; a step in flight may write these, and none of the others.
        """
        size = self.pool.block_size
        # A step in flight may have been planned beyond the end; its tokens are not the request's.
        computed = min(request.num_computed, len(request.prompt) + len(request.output))
        full = min(computed // size, request.table.num_blocks)
        if not (
            self.keep_turns
            and full
            and request.state == "running"
            and self.host.can_extend(request.id, full * size)
        ):
            self.forget(request)
            return
        hashes = request.hash_blocks(self._root, size, full)
        key = self._part_with(request.id)
        blocks = request.table.blocks.tolist()
        request.table.num_blocks = 0
        request.table.extend(blocks[full:])
        if not self._send_out(key, None, blocks[:full], full * size, hashes):
            self.host.keep(key, hashes)

    def num_kept(self, request: Request) -> int:
        """Count the leading tokens of a request that a copy kept from an earlier turn holds.

        Args:
            request: waiting.

        Returns:
            A multiple of the block size; at least the request's last token is left to run.
        """
        return self._kept(request)[1] if self.keep_turns else 0

    def adopt(self, request: Request) -> int:
        """Make a copy kept from an earlier turn a waiting request's own; it is "swapped" then.

        Args:
            request: waiting, with nothing computed.

        Returns:
            Prompt tokens that the copy holds; 0 when there is none, and nothing changed.
        """
        key, num_tokens = self._kept(request) if self.keep_turns else ("", 0)
        if not num_tokens:
            return 0
        self.host.rename(key, request.id)
        copy = self._copy(request.id)
        copy.valid_tokens = num_tokens
        copy.pinned = True
        request.num_computed = num_tokens
        request.state = "swapped"
        request.num_cached = min(num_tokens, len(request.prompt))
        return request.num_cached

    def _kept(self, request: Request) -> tuple[str, int]:
        """Return the kept copy with the longest beginning of a request, and its tokens."""
        size = self.pool.block_size
        full = (request.num_tokens - 1) // size
        key, blocks = self.host.match(request.hash_blocks(self._root, size, full))
        return key, blocks * size

    def _copy(self, key: str) -> HostCopy:
        """Return a host copy that is there."""
        copy = self.host.find(key)
        assert copy is not None, f"{key} has no host copy"
        return copy

    def _send_out(
        self,
        key: str,
        request: Request | None,
        blocks: list[int],
        num_tokens: int,
        hashes: list[bytes],
    ) -> bool:
        """Move a table's blocks to the host tier; False when the host holds all of it already."""
        size = self.pool.block_size
        copy = self.host.extend(key, num_tokens)
        copy.resident = False
        copy.pinned = True
        if not self.reuse:
            copy.valid_tokens = 0
        # A block that the host has in part is sent whole: tokens were appended to it since.
        stop = -(-num_tokens // size)
        first = stop if copy.valid_tokens >= num_tokens else copy.valid_tokens // size
        moving = blocks[first:stop]
        # Last first, so that the ends of cached prefixes are forgotten before their beginnings.
        for block in (*reversed(blocks[stop:]), *reversed(blocks[:first])):
            self.pool.release(block)
        if not moving:
            copy.pinned = request is not None
            return False
        self.begin(
            "out",
            key,
            request,
            blocks=moving,
            host_blocks=copy.blocks[first:stop],
            valid_tokens=num_tokens,
            hashes=hashes,
        )
        return True

    def _arrive(self, move: Move, request: Request) -> None:
        """Fill the table of a request that came in."""
        request.table.extend(move.blocks)
        request.state = "running"
        copy = self._copy(move.key)
        copy.pinned = False
        copy.resident = True
        if not self.reuse:
            self.host.drop(move.key)

    def _settle(self, move: Move, valid_tokens: int) -> None:
        """Free a move's device blocks and set what the host copy holds."""
        for block in reversed(move.blocks):
            self.pool.release(block)
        copy = self._copy(move.key)
        copy.valid_tokens = valid_tokens
        copy.pinned = move.request is not None
        if move.request:
            move.request.state = "swapped"
        if move.doomed:
            self.host.drop(move.key)
        elif move.hashes:
            self.host.keep(move.key, move.hashes)

    def _turn_back(self, request: Request) -> None:
        """Preempt a request on its way in."""
        move = self.latest(request.id)
        assert move is not None
        # Its blocks are being written, so they come free only when the transfer has landed.
        if move.started:
            move.turned_back = True
            request.state = "swapping_out"
        else:
            self.recall(move)
            self._settle(move, move.valid_tokens)

    def _part_with(self, request_id: str) -> str:
        """Rename the copy of a request that goes, to what no later request can be called."""
        name = f"{request_id}\0{self.next_number()}"
        self.host.rename(request_id, name)
        return name
