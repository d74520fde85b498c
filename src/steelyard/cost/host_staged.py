"""An all-reduce that sums in host memory: what each byte passes, and which of it binds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import require

__all__ = ["HostPath", "host_staged_s"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class HostPath:
    """The way between the accelerators of a host and its memory.

    Attributes:
        link_bytes_per_s: one-way rate of one accelerator's link.
        memory_bytes_per_s: rate of the host's memory, reads and writes together.
        root_port_bytes_per_s: rate of a root port that accelerators share, both ways together.
        root_port_accelerators: how many share it; 1 where each has its own.
        paired: whether accelerators first sum in pairs over links of their own, so that one sum per
            pair goes to the host.
        numa_nodes: memory nodes of the host; each reads the result once for its accelerators.
        chunk_bytes: piece that is copied, summed and passed on while the next one follows; 0 for
            pieces so small that filling the pipeline takes no time.
    """

    link_bytes_per_s: float
    memory_bytes_per_s: float = np.inf
    root_port_bytes_per_s: float = np.inf
    root_port_accelerators: int = 1
    paired: bool = False
    numa_nodes: int = 2
    chunk_bytes: float = 0.0

    def __post_init__(self) -> None:
        """Refuse rates and counts that no host has."""
        rates = ("link_bytes_per_s", "memory_bytes_per_s", "root_port_bytes_per_s")
        counts = ("root_port_accelerators", "numa_nodes")
        require(
            self,
            **{name: (getattr(self, name) > 0, "positive") for name in rates},
            **{name: (getattr(self, name) >= 1, "at least 1") for name in counts},
            chunk_bytes=(self.chunk_bytes >= 0, "at least 0"),
        )

    @property
    def sum_bytes_per_s(self) -> float:
        """Rate at which sums come from the accelerators and return at once, each way.

        Accelerators at one root port halve its rate between the two ways, and share it. A pair
        splits its sum over the links of both, so that the one at a shared port carries less.
        """
        both_ways = self.root_port_bytes_per_s / 2 / self.root_port_accelerators
        crowded = min(self.link_bytes_per_s, both_ways)
        return self.link_bytes_per_s + crowded if self.paired else crowded

    def memory_passes(self, accelerators: ArrayLike, sent: ArrayLike) -> Array:
        """Count how often each byte is read or written in host memory.

        Args:
            accelerators: accelerators of the host that take part.
            sent: times that the host sends each byte over its port; it receives as many.

        Returns:
            Writes by the accelerators and reads to sum them, the sum's write, reads and writes for
            the port with the reads that add what came, and the reads of the result.
        """
        copies = np.asarray(accelerators) / (2 if self.paired else 1)
        return 2 * copies + 1 + 2.5 * np.asarray(sent) + self.numa_nodes


def host_staged_s(
    host: HostPath,
    size_bytes: ArrayLike,
    members: ArrayLike,
    hosts: ArrayLike,
    *,
    port_bytes_per_s: float,
    latency_s: float = 0.0,
    efficiency: float = 1.0,
) -> Array:
    """Return the seconds of an all-reduce that is staged in host memory.

    Every accelerator copies its part to the host, which sums it; the sums go up and down two trees
    of hosts, of which each carries half; the result goes back. All of it is pipelined by chunks:
    the slowest stage binds, and the first chunk passes all others once.

    Args:
        host: links and memory of one host.
        size_bytes: bytes that each member holds.
        members: members of the group.
        hosts: hosts they stand on, evenly.
        port_bytes_per_s: one-way network rate of a host.
        latency_s: time that a message through the network adds.
        efficiency: share of all rates that is reached.

    Returns:
        Seconds, broadcast over the arguments; 0 for groups of one.

    Source: An et al. 2024 (arXiv 2408.14158), section IV.
    """
    size, count, nodes = (np.asarray(item, dtype=float) for item in (size_bytes, members, hosts))
    # The trees have a link less than hosts, so that the mean host sends each byte not quite twice.
    sent = 2 * (nodes - 1) / nodes
    memory = host.memory_passes(count / nodes, sent) / host.memory_bytes_per_s
    slowest = np.maximum(np.maximum(1 / host.sum_bytes_per_s, memory), sent / port_bytes_per_s)
    hops = 2 * np.ceil(np.log2(nodes))
    # A node of a tree takes in the chunks of two children, one after the other, or sends two.
    filling = host.chunk_bytes * (2 / host.sum_bytes_per_s + 2 * hops / port_bytes_per_s)
    seconds = (size * slowest + filling) / efficiency + hops * latency_s
    return np.where(count > 1, seconds, 0.0)
