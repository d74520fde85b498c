"""Copies of blocks between the pool and the host tier, and who carries them out."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

__all__ = ["Tiers", "Transfer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """Blocks of one request to copy between the pool and the host tier.

    Attributes:
        id: name of the transfer when it has landed.
        request_id: owner of the blocks.
        direction: "out" of the pool or "in" to it.
        runs: int64 [N, 3] (first device block, first host block, count) of runs that are
            consecutive on both sides.
    """

    id: int
    request_id: str
    direction: Literal["out", "in"]
    runs: np.ndarray


class Tiers:
    """Carries out transfers between the pool and a second tier; by itself, where there are none.

    Attributes:
        took_s: seconds from the submission of each transfer of the latest `landed` to its end.
        num_under_way: transfers submitted and not yet reported by `landed` or `failed`.
    """

    num_under_way: int = 0

    def __init__(self) -> None:
        """Start with nothing under way."""
        self.took_s: dict[int, float] = {}

    def submit(self, transfers: Iterable[Transfer]) -> None:
        """Start transfers; the steps that write the blocks they read must have run."""
        raise AssertionError("a scheduler that swaps needs tiers")

    def landed(self) -> list[int]:
        """Return the transfers that are done, each once."""
        return []

    def failed(self) -> list[int]:
        """Return the transfers that did not work, each once."""
        return []

    def wait(self, transfer_ids: Iterable[int] | None = None) -> None:
        """Wait for transfers, or for at least one of those under way."""

    def close(self) -> None:
        """Wait for what is under way and give the second tier back."""
