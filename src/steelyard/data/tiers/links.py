"""Links between tiers: what a copy takes at least."""

from dataclasses import dataclass

__all__ = ["LinkModel"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkModel:
    """Emulated link on which a copy takes at least its latency and its bytes over the bandwidth.

    Attributes:
        latency_s: latency of each copy.
        bytes_per_s: bandwidth of each direction.
    """

    latency_s: float
    bytes_per_s: float

    def copy_s(self, num_bytes: int) -> float:
        """Return the least seconds of one copy."""
        return self.latency_s + num_bytes / self.bytes_per_s
