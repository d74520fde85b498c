"""The designs of a cluster that networks, money and power allow, the cheapest network first."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from steelyard.errors import InfeasibleError, require
from steelyard.plan.fabric import FABRICS, build_fabric
from steelyard.plan.machine import MachineDesign, NodeDesign, PartPrices
from steelyard.units import pretty

__all__ = ["BuildLimits", "machine_designs"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildLimits:
    """The most that a cluster may cost and draw.

    Attributes:
        usd: purchase price.
        watts: average power of the facility in training.
        pue: facility power over IT power.
    """

    usd: float = math.inf
    watts: float = math.inf
    pue: float = 1.0

    def __post_init__(self) -> None:
        """Refuse limits that nothing meets."""
        require(
            self,
            usd=(self.usd > 0, "positive"),
            watts=(self.watts > 0, "positive"),
            pue=(self.pue >= 1, "at least 1"),
        )

    def excess(self, design: MachineDesign) -> str:
        """Say what a design exceeds.

        Args:
            design: the cluster.

        Returns:
            What and by how much, in words; empty where it exceeds nothing.

        Raises:
            CatalogError: money is limited, and no price of a node is known.
        """
        over = []
        watts = design.power_w * self.pue
        if watts > self.watts:
            over.append(f"draws {pretty(watts, 'W')}, {pretty(watts - self.watts, 'W')} too much")
        # Without a limit an unknown price is no error.
        if self.usd < math.inf and design.total_usd > self.usd:
            usd = design.total_usd
            over.append(f"costs {pretty(usd, 'USD')}, {pretty(usd - self.usd, 'USD')} too much")
        return " and ".join(over)


def machine_designs(
    node: NodeDesign,
    num_accelerators: int,
    *,
    radix: int = 64,
    storage_nodes: int = 0,
    storage_nics: int = 2,
    parts: PartPrices | None = None,
    kinds: tuple[str, ...] = FABRICS,
    limits: BuildLimits | None = None,
) -> tuple[list[MachineDesign], dict[str, str]]:
    """Design a cluster with every network that can connect it.

    Args:
        node: server.
        num_accelerators: accelerators wanted; whole nodes are built.
        radix: ports of a switch.
        storage_nodes: storage servers.
        storage_nics: network ports of one.
        parts: prices of the rest.
        kinds: networks to try.
        limits: most money and power.

    Returns:
        The designs, the cheapest network first, and by kind why the others cannot be built.

    Raises:
        ConfigError: a count is not positive, or a kind is unknown.
    """
    bound = limits or BuildLimits()

    def design(kind: str, num_nodes: int) -> MachineDesign:
        endpoints = num_nodes * node.nics + storage_nodes * storage_nics
        return MachineDesign(
            name=f"{num_nodes * node.count} x {node.accelerator.name}, {kind}",
            node=node,
            num_nodes=num_nodes,
            fabric=build_fabric(kind, endpoints, radix),
            storage_nodes=storage_nodes,
            parts=parts or PartPrices(),
        )

    num_nodes = -(-num_accelerators // node.count)
    found, impossible = [], {}
    for kind in kinds:
        try:
            made = design(kind, num_nodes)
        except InfeasibleError as error:
            impossible[kind] = str(error).partition(": ")[2]
            continue
        excess = bound.excess(made)
        if excess:
            most = _largest(lambda count, kind=kind: bound.excess(design(kind, count)), num_nodes)
            fits = f"{most * node.count:,} accelerators fit" if most else "not even one node fits"
            impossible[kind] = f"{excess}; {fits}"
        else:
            found.append(made)
    return sorted(found, key=lambda item: item.network_usd), impossible


def _largest(excess: Callable[[int], str], too_many: int) -> int:
    """Return the most nodes that exceed nothing, by bisection; 0 where one node does."""
    # Price and power rise with every node: one boundary parts what fits from what does not.
    most, least_bad = 0, too_many
    while least_bad - most > 1:
        middle = (most + least_bad) // 2
        if excess(middle):
            least_bad = middle
        else:
            most = middle
    return most
