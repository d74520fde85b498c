"""What stands in the place of a swapper when blocks are only ever computed again."""

from collections.abc import Iterable

from steelyard.serve.kv.transfer import Transfer
from steelyard.serve.scheduling.request import Request

__all__ = ["NoSwapper"]


class NoSwapper:
    """Swaps nothing: every request yields its blocks for good.

    Attributes:
        has_fresh: whether a transfer waits to be started: never.
        num_blocks_leaving: blocks that transfers will free: none.
    """

    has_fresh = False
    num_blocks_leaving = 0

    def can_swap_out(self, request: Request) -> bool:
        """Return False: there is no host tier."""
        return False

    def start_out(self, request: Request) -> None:
        """Refuse, as `can_swap_out` never holds."""
        raise AssertionError(f"{request.id} has nowhere to go")

    def start_in(self, request: Request) -> bool:
        """Return False: no request is away."""
        return False

    def drain(self) -> list[Transfer]:
        """Return no transfer."""
        return []

    def land(self, transfer_ids: Iterable[int]) -> list[Request]:
        """Return no request."""
        return []

    def fail(self, transfer_ids: Iterable[int]) -> list[Request]:
        """Return no request."""
        return []

    def forget(self, request: Request) -> None:
        """Do nothing: there is no copy."""

    def retire(self, request: Request) -> None:
        """Do nothing: there is no copy."""

    def num_kept(self, request: Request) -> int:
        """Return 0: nothing is kept between turns."""
        return 0

    def adopt(self, request: Request) -> int:
        """Return 0: nothing is kept between turns."""
        return 0
