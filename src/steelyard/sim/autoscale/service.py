"""A service of equal replicas: what one carries, what it costs, and what is promised."""

import math
from dataclasses import dataclass
from typing import Literal

from steelyard.errors import require
from steelyard.sim.control import Latency

__all__ = ["Service"]

_INSTANT = Latency((0.0, 1.0), (0.0, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service whose number of replicas is controlled.

    Attributes:
        capacity: load that one ready replica carries at full use, in the unit of the demand.
        target_utilization: share of its capacity up to which a replica keeps its promise.
        allowed: share of the time in which the promise may be missed.
        min_replicas: fewest replicas.
        max_replicas: most replicas.
        startup: seconds from asking for a replica until it is ready; it is paid from the start.
        drain_s: seconds that a replica which is let go still runs; it takes no load then.
        price_usd_per_hour: price of a replica.
        goal: "utilization" promises that load stays within the target share of the ready
            capacity; "queue" that no work waits for longer than `max_wait_s`.
        max_wait_s: longest wait under the goal "queue".
    """

    capacity: float
    target_utilization: float = 0.8
    allowed: float = 0.05
    min_replicas: int = 1
    max_replicas: int = 1000
    startup: Latency = _INSTANT
    drain_s: float = 0.0
    price_usd_per_hour: float = 1.0
    goal: Literal["utilization", "queue"] = "utilization"
    max_wait_s: float = 1.0

    def __post_init__(self) -> None:
        require(
            self,
            capacity=(0 < self.capacity < math.inf, "finite and above 0"),
            target_utilization=(0 < self.target_utilization <= 1, "in (0, 1]"),
            allowed=(0 < self.allowed < 1, "in (0, 1)"),
            min_replicas=(self.min_replicas >= 1, "at least 1"),
            max_replicas=(self.max_replicas >= self.min_replicas, "at least min_replicas"),
            drain_s=(0 <= self.drain_s < math.inf, "finite seconds of 0 or more"),
            price_usd_per_hour=(0 <= self.price_usd_per_hour < math.inf, "finite, 0 or more"),
            goal=(self.goal in ("utilization", "queue"), "'utilization' or 'queue'"),
            max_wait_s=(0 <= self.max_wait_s < math.inf, "finite seconds of 0 or more"),
        )

    @property
    def load_per_replica(self) -> float:
        """Load that a replica carries within the promise."""
        return self.capacity * self.target_utilization

    @property
    def miss_ratio(self) -> float:
        """Price of a replica that is missing over that of one too many, (1 - allowed) / allowed.

        With it, the number of replicas of least expected loss is the quantile 1 - allowed of the
        number that is needed.

        Source: newsvendor problem; Arrow, Harris and Marschak 1951, "Optimal inventory policy".
        """
        return (1 - self.allowed) / self.allowed

    def clipped(self, replicas: float) -> int:
        """Return a whole number of replicas within the limits, rounded up."""
        # A hair above a whole number is rounding, not load.
        wanted = math.ceil(min(max(replicas, 0.0), self.max_replicas + 1.0) - 1e-9)
        return min(max(wanted, self.min_replicas), self.max_replicas)

    def replicas_for(self, load: float) -> int:
        """Return how many replicas carry a load within the promise and the limits."""
        return self.clipped(load / self.load_per_replica)
