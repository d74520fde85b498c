"""Work behind a server that runs one piece at a time, while no more than some wait."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from steelyard.errors import CapacityError

__all__ = ["TooBusyError", "Turns"]

_MOST = 64
T = TypeVar("T")


class TooBusyError(CapacityError):
    """More requests or queries wait than may."""


class Turns:
    """Runs work in a thread of its own, in the order in which it came.

    It is counted before it is handed to the thread: behind a pool it would wait uncounted.
    """

    def __init__(
        self, *, most: int = _MOST, noted: Callable[[int], None] = lambda count: None
    ) -> None:
        """Start with nothing to do.

        Args:
            most: pieces that may be under way, the running one among them.
            noted: told how many there are whenever that changes.
        """
        self._most, self._noted = most, noted
        self._count = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="turns")

    async def run(self, work: Callable[[], T]) -> T:
        """Return what work returns when its turn has come, or raise what it raises.

        Args:
            work: called in the thread.

        Returns:
            Its result.

        Raises:
            TooBusyError: too many wait already.
        """
        if self._count >= self._most:
            raise TooBusyError(
                f"{self._count} requests wait, more are not taken", hint="ask again in a second"
            )
        self._note(1)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._note(-1)

    def _note(self, change: int) -> None:
        self._count += change
        self._noted(self._count)
