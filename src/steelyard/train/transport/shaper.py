"""A slower link than the one there is, emulated by waiting."""

import threading
import time

from steelyard.train.transport.config import LinkSpeed

__all__ = ["Shaper"]


class Shaper:
    """Holds each message back until a link of a given speed would have brought it over.

    It sleeps, so the processor is free for whoever computes meanwhile. The bytes of all messages
    of this process leave one after the other, whichever thread sends them. What the real link takes
    comes on top: it must be much faster than the emulated one.

    Attributes:
        speed: speed of the emulated link.
    """

    def __init__(self, speed: LinkSpeed) -> None:
        """Begin with an idle link.

        Args:
            speed: speed of the emulated link.
        """
        self.speed = speed
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    def hold(self, num_bytes: float, messages: int = 1) -> None:
        """Return when the link has carried so many more bytes.

        Args:
            num_bytes: bytes of the messages.
            messages: how many follow one another, each with the link's latency.
        """
        carried_s = 8 * num_bytes / self.speed.bits_per_s
        with self._lock:
            self._free_at_s = max(time.monotonic(), self._free_at_s) + carried_s
            # The next message may leave while this one is still on its way.
            arrival_s = self._free_at_s + messages * self.speed.latency_s
        time.sleep(max(0.0, arrival_s - time.monotonic()))
