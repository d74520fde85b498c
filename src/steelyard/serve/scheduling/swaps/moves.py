"""Transfers between the pool and the host tier that have not landed."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from steelyard.data.tiers.transfers import Transfer
from steelyard.serve.scheduling.request import Request

__all__ = ["Move", "Moves"]


@dataclass(kw_only=True, slots=True)
class Move:
    """A transfer that has not landed.

    Attributes:
        transfer: what the driver gets.
        key: name of the host copy.
        request: owner of the blocks; None when it has gone (aborted, or ended with its copy kept).
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

    @property
    def frees_blocks(self) -> bool:
        """Whether its device blocks come free when it has landed."""
        return self.transfer.direction == "out" or self.turned_back


class Moves:
    """The moves that have not landed, by transfer and by request."""

    def __init__(self) -> None:
        """Start without a move."""
        self._moves: dict[int, Move] = {}
        self._undrained: list[Move] = []
        self._latest: dict[str, Move] = {}
        self._count = 0

    @property
    def has_fresh(self) -> bool:
        """Whether `drain` would return a transfer."""
        return bool(self._undrained)

    @property
    def num_blocks_leaving(self) -> int:
        """Pool blocks that come free when the transfers under way have landed."""
        return sum(len(move.blocks) for move in self._moves.values() if move.frees_blocks)

    def next_number(self) -> int:
        """Return a number that names one transfer or one host copy."""
        number = self._count
        self._count += 1
        return number

    def begin(
        self,
        direction: Literal["out", "in"],
        key: str,
        request: Request | None,
        *,
        blocks: list[int],
        host_blocks: list[int],
        valid_tokens: int,
        hashes: list[bytes] | None = None,
    ) -> None:
        """Queue a transfer.

        Args:
            direction: "out" of the pool or "in" to it.
            key: name of the host copy.
            request: owner of the blocks, or None when it has ended.
            blocks: device blocks that belong to the transfer; those behind the host blocks are not
                copied.
            host_blocks: blocks of the host copy that are read or written.
            valid_tokens: tokens the host copy holds after it.
            hashes: chain hashes to keep the copy by, for another turn.
        """
        transfer = Transfer(
            id=self.next_number(),
            request_id=key,
            direction=direction,
            runs=_runs(blocks[: len(host_blocks)], host_blocks),
        )
        move = Move(
            transfer=transfer,
            key=key,
            request=request,
            blocks=blocks,
            valid_tokens=valid_tokens,
            hashes=hashes or [],
        )
        self._moves[transfer.id] = move
        self._undrained.append(move)
        if request:
            self._latest[key] = move

    def drain(self) -> list[Transfer]:
        """Return the transfers to start now; each is returned once."""
        fresh, self._undrained = self._undrained, []
        for move in fresh:
            move.started = True
        return [move.transfer for move in fresh]

    def latest(self, request_id: str) -> Move | None:
        """Return the move of a request, if it has one."""
        return self._latest.get(request_id)

    def orphan(self, move: Move) -> None:
        """Let the request of a move go; the move goes on without it."""
        if move.request is not None:
            del self._latest[move.key]
            move.request = None

    def end(self, transfer_id: int) -> Move:
        """Take a move off the books."""
        move = self._moves.pop(transfer_id)
        if move.request:
            del self._latest[move.key]
        return move

    def recall(self, move: Move) -> None:
        """Take a move off the books that the driver has not started."""
        self._undrained.remove(move)
        self.end(move.transfer.id)


def _runs(device: list[int], host: list[int]) -> np.ndarray:
    """Join pairs of blocks that are consecutive on both sides, int64 [N, 3]."""
    pairs = np.array([device, host], dtype=np.int64).T
    breaks = np.flatnonzero((np.diff(pairs, axis=0) != 1).any(axis=1)) + 1
    starts = np.concatenate([[0], breaks]).astype(np.int64)
    counts = np.diff(np.concatenate([starts, [len(pairs)]]))
    return np.column_stack([pairs[starts], counts]).astype(np.int64)
