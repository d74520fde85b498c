"""Moving requests between the pool and the host tier.

Who is where, what is copied, and when blocks are free again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from steelyard.serve.kv.blocks import BlockPool
from steelyard.serve.kv.host import HostSpace
from steelyard.serve.kv.prefix import chain_hash
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.step import Transfer

__all__ = ["Swapper"]


@dataclass(kw_only=True, slots=True)
class _Move:
    """A transfer that has not landed.

    Attributes:
        transfer: as the driver gets it.
        key: of the host copy.
        request: whose blocks they are; None when it has gone (aborted, or ended with its copy
            kept).
        blocks: device blocks the transfer reads or writes; nobody else gets them before it landed.
        valid_tokens: tokens the host copy holds after it.
        hashes: chain hashes to keep the copy by, for another turn.
        started: whether the driver has it.
        turned_back: whether the request was preempted while it came in.
        doomed: whether the host copy is dropped after it.
    """

    transfer: Transfer
    key: str
    request: Request | None
    blocks: list[int]
    valid_tokens: int
    hashes: list[bytes] = field(default_factory=list)
    started: bool = False
    turned_back: bool = False
    doomed: bool = False


class Swapper:
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
    gives, in order and after all steps planned before, and reports each to `land` or `fail`.

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
            pool: of the device.
            host: second tier.
            reuse: whether host copies stay valid after a request came back, so that the next time
                only new tokens are sent.
            keep_turns: whether the copy of a request that ended is kept for one that begins with
                its tokens.
            root: start of the chain hashes, that of the prefix index where there is one.
        """
        self.pool = pool
        self.host = host
        self.reuse = reuse
        self.keep_turns = keep_turns
        self._root = root
        self._moves: dict[int, _Move] = {}
        self._undrained: list[_Move] = []
        self._latest: dict[str, _Move] = {}
        self._count = 0

    @property
    def in_flight(self) -> list[int]:
        """Transfers the driver has and not yet reported, oldest first."""
        return [move.transfer.id for move in self._moves.values() if move.started]

    @property
    def has_fresh(self) -> bool:
        """Whether `drain` would give a transfer."""
        return bool(self._undrained)

    @property
    def num_blocks_leaving(self) -> int:
        """Pool blocks that come free when the transfers under way have landed."""
        return sum(
            len(move.blocks)
            for move in self._moves.values()
            if move.transfer.direction == "out" or move.turned_back
        )

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
        request.state = (
            "swapping_out"
            if self._send_out(request.id, request, blocks, request.num_computed, [])
            else "swapped"
        )

    def start_in(self, request: Request) -> bool:
        """Return a swapped request blocks for all its known tokens, and bring it back.

        Args:
            request: any.

        Returns:
            False when it is not swapped (yet) or the pool has too few blocks; nothing changed.
        """
        needed = -(-request.num_tokens // self.pool.block_size)
        if request.state != "swapped" or needed > self.pool.num_available:
            return False
        copy = self.host.find(request.id)
        assert copy is not None and copy.valid_tokens >= request.num_computed > 0
        copy.pinned, copy.resident = True, False
        blocks = self.pool.take(needed)
        full = -(-request.num_computed // self.pool.block_size)
        self._begin(
            "in",
            request.id,
            request,
            blocks,
            _runs(blocks[:full], copy.blocks[:full]),
            copy.valid_tokens,
        )
        request.state = "swapping_in"
        return True

    def drain(self) -> list[Transfer]:
        """Return the transfers to start now; each is given once."""
        fresh, self._undrained = self._undrained, []
        for move in fresh:
            move.started = True
        return [move.transfer for move in fresh]

    def land(self, transfer_ids: Iterable[int]) -> list[Request]:
        """Take note of transfers that are done.

        Args:
            transfer_ids: as `drain` gave them.

        Returns:
            Requests whose state changed; each is "swapped" or "running" now.
        """
        changed = []
        for name in transfer_ids:
            move = self._end(name)
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
            transfer_ids: as `drain` gave them.

        Returns:
            Requests whose state changed: "swapped" with what an earlier copy holds, or "waiting"
            with nothing computed.
        """
        changed = []
        for name in transfer_ids:
            move = self._end(name)
            copy = self.host.find(move.key)
            kept = copy.valid_tokens if copy and move.transfer.direction == "out" else 0
            move.hashes, move.doomed = [], move.doomed or not kept or move.request is None
            request = move.request
            self._settle(move, kept)
            if request:
                request.num_computed = min(request.num_computed, kept)
                request.state = "swapped" if kept else "waiting"
                changed.append(request)
        return changed

    def forget(self, request: Request) -> None:
        """Drop a request that ended or is computed again: its host copy, and its blocks if they are not in its table."""
        move = self._latest.pop(request.id, None)
        if move is None:
            self.host.drop(request.id)
            return
        move.request, move.doomed = None, True
        move.key = self._part_with(request.id)
        if not move.started:
            self._undrained.remove(move)
            self._settle(self._end(move.transfer.id), move.valid_tokens)

    def retire(self, request: Request) -> None:
        """Let a request go that ended.

        With `keep_turns`, the full blocks that its host copy lacks are sent first.

        Args:
            request: in any state. Its table keeps the blocks that no transfer took, which the
                caller frees; a step in flight may write these, and none of the others.
        """
        size, computed = (
            self.pool.block_size,
            min(request.num_computed, len(request.prompt) + len(request.output)),
        )
        full = min(computed // size, request.table.num_blocks)
        if not (
            self.keep_turns
            and full
            and request.state == "running"
            and self.host.can_extend(request.id, full * size)
        ):
            self.forget(request)
            return
        hashes, key = self._hashes(request, full), self._part_with(request.id)
        blocks = request.table.blocks.tolist()
        request.table.num_blocks = 0
        request.table.extend(blocks[full:])
        if not self._send_out(key, None, blocks[:full], full * size, hashes):
            self.host.keep(key, hashes)

    def num_kept(self, request: Request) -> int:
        """Count the leading tokens of a request that a copy kept from an earlier turn holds; at least its last token is left to run."""
        if not self.keep_turns:
            return 0
        return (
            self.host.match(
                self._hashes(request, (request.num_tokens - 1) // self.pool.block_size)
            )[1]
            * self.pool.block_size
        )

    def adopt(self, request: Request) -> int:
        """Make a copy kept from an earlier turn a waiting request's own; it is "swapped" then.

        Args:
            request: waiting, with nothing computed.

        Returns:
            Prompt tokens that the copy holds; 0 when there is none, and nothing changed.
        """
        num_tokens = self.num_kept(request)
        if not num_tokens:
            return 0
        key, _ = self.host.match(self._hashes(request, num_tokens // self.pool.block_size))
        self.host.rename(key, request.id)
        copy = self.host.find(request.id)
        assert copy is not None
        copy.valid_tokens, copy.pinned = num_tokens, True
        request.num_computed, request.state = num_tokens, "swapped"
        request.num_cached = min(num_tokens, len(request.prompt))
        return request.num_cached

    def _send_out(
        self,
        key: str,
        request: Request | None,
        blocks: list[int],
        num_tokens: int,
        hashes: list[bytes],
    ) -> bool:
        """Move a table's blocks to the host tier; True when a transfer is needed for it, False when the host holds all of it."""
        size = self.pool.block_size
        copy = self.host.extend(key, num_tokens)
        copy.resident, copy.pinned = False, True
        if not self.reuse:
            copy.valid_tokens = 0
        first, stop = copy.valid_tokens // size, -(-num_tokens // size)
        if copy.valid_tokens >= num_tokens:
            first = stop
        moving = blocks[first:stop]
        for block in (*reversed(blocks[stop:]), *reversed(blocks[:first])):
            self.pool.release(block)
        if not moving:
            copy.pinned = request is not None
            return False
        self._begin(
            "out", key, request, moving, _runs(moving, copy.blocks[first:stop]), num_tokens, hashes
        )
        return True

    def _begin(
        self,
        direction: Literal["out", "in"],
        key: str,
        request: Request | None,
        blocks: list[int],
        runs: np.ndarray,
        valid_tokens: int,
        hashes: list[bytes] | None = None,
    ) -> None:
        """Queue a transfer."""
        transfer = Transfer(id=self._count, request_id=key, direction=direction, runs=runs)
        move = _Move(
            transfer=transfer,
            key=key,
            request=request,
            blocks=blocks,
            valid_tokens=valid_tokens,
            hashes=hashes or [],
        )
        self._count += 1
        self._moves[transfer.id] = move
        self._undrained.append(move)
        if request:
            self._latest[key] = move

    def _end(self, transfer_id: int) -> _Move:
        """Take a move off the books."""
        move = self._moves.pop(transfer_id)
        if move.request:
            del self._latest[move.key]
        return move

    def _arrive(self, move: _Move, request: Request) -> None:
        """Give a request that came in its table."""
        request.table.extend(move.blocks)
        request.state = "running"
        copy = self.host.find(move.key)
        assert copy is not None
        copy.pinned, copy.resident = False, True
        if not self.reuse:
            self.host.drop(move.key)

    def _settle(self, move: _Move, valid_tokens: int) -> None:
        """Give a move's device blocks back and set what the host copy holds."""
        for block in reversed(move.blocks):
            self.pool.release(block)
        copy = self.host.find(move.key)
        assert copy is not None
        copy.valid_tokens, copy.pinned = valid_tokens, move.request is not None
        if move.request:
            move.request.state = "swapped"
        if move.doomed:
            self.host.drop(move.key)
        elif move.hashes:
            self.host.keep(move.key, move.hashes)

    def _turn_back(self, request: Request) -> None:
        """Preempt a request on its way in: its blocks come free when the transfer landed, or at once if it has not started."""
        move = self._latest[request.id]
        if move.started:
            move.turned_back, request.state = True, "swapping_out"
        else:
            self._undrained.remove(move)
            self._settle(self._end(move.transfer.id), move.valid_tokens)

    def _part_with(self, request_id: str) -> str:
        """Return the copy of a request that goes a name no later request can have."""
        name = f"{request_id}\0{self._count}"
        self._count += 1
        self.host.rename(request_id, name)
        return name

    def _hashes(self, request: Request, full: int) -> list[bytes]:
        """Hash a request's leading `full` blocks, as far as not yet done."""
        size, known = self.pool.block_size, request.block_hashes
        while len(known) < full:
            start = len(known) * size
            known.append(
                chain_hash(known[-1] if known else self._root, request.tokens(start, start + size))
            )
        return known[:full]


def _runs(device: list[int], host: list[int]) -> np.ndarray:
    """Join pairs of blocks that are consecutive on both sides, int64 [N, 3]."""
    pairs = np.array([device, host], dtype=np.int64).T
    breaks = np.flatnonzero((np.diff(pairs, axis=0) != 1).any(axis=1)) + 1
    starts = np.concatenate([[0], breaks]).astype(np.int64)
    counts = np.diff(np.concatenate([starts, [len(pairs)]]))
    return np.column_stack([pairs[starts], counts]).astype(np.int64)
