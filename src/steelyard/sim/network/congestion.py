"""How busy links are under a routing, and how near that is to what no routing can beat."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.sim.network.flows import RoutedFlows
from steelyard.sim.network.graph import Network
from steelyard.sim.network.maxmin import link_bytes

__all__ = ["Congestion", "congestion"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Congestion:
    """Seconds that links need for what is put on them; the busiest bounds the completion.

    Attributes:
        busiest_s: the busiest link of all.
        host_s: the busiest link of a host: no routing can be faster than that.
        switch_s: the busiest link between switches, 0 without any.
        mean_switch_s: mean over the links between switches that carry anything.
        queue_pairs: most connections of a host, one per piece.
        splits: pieces beyond one per flow.
    """

    busiest_s: float
    host_s: float
    switch_s: float
    mean_switch_s: float
    queue_pairs: int
    splits: int

    @property
    def imbalance(self) -> float:
        """Busiest link between switches over the mean of those in use; 1 where none is."""
        return self.switch_s / self.mean_switch_s if self.mean_switch_s else 1.0


def congestion(network: Network, routed: RoutedFlows) -> Congestion:
    """Return how busy the links are when all pieces have been sent.

    Args:
        network: links with their rates.
        routed: pieces on their paths.

    Returns:
        Seconds of the busiest links, and what the routing costs in connections.
    """
    need_s: NDArray[np.float64] = link_bytes(network, routed) / network.bytes_per_s
    hosts = network.num_hosts
    is_inner = (network.source >= hosts) & (network.target >= hosts)
    used = need_s[is_inner & (need_s > 0)]
    return Congestion(
        busiest_s=float(need_s.max()),
        host_s=float(need_s[~is_inner].max()),
        switch_s=float(used.max(initial=0.0)),
        mean_switch_s=float(used.mean()) if len(used) else 0.0,
        queue_pairs=int(routed.queue_pairs().max()),
        splits=routed.splits(),
    )
