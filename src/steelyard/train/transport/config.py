"""What is chosen of messages: the way to sum, and the speed of an emulated link."""

from dataclasses import dataclass
from typing import Literal

from steelyard.errors import require

__all__ = ["AllReduce", "LinkSpeed"]

AllReduce = Literal["halving-doubling", "ring", "tree", "built-in"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkSpeed:
    """What a link does at best.

    Attributes:
        bits_per_s: rate in each direction; the default is Gigabit Ethernet.
        latency_s: what every message takes besides.
    """

    bits_per_s: float = 1e9
    latency_s: float = 5e-5

    def __post_init__(self) -> None:
        """Refuse links that carry nothing.

        Raises:
            ConfigError: the rate is not above 0, or the latency below it.
        """
        require(
            self,
            bits_per_s=(self.bits_per_s > 0, "above 0"),
            latency_s=(self.latency_s >= 0, "0 or more"),
        )

    def seconds(self, num_bytes: float, messages: int = 1) -> float:
        """Return how long messages take, one after the other.

        Args:
            num_bytes: bytes of all of them.
            messages: how many they are.

        Returns:
            Seconds.
        """
        return messages * self.latency_s + 8 * num_bytes / self.bits_per_s
