"""Design and price a cluster: nodes, network, power and money, and how designs compare."""

from dataclasses import dataclass, field

from steelyard.catalog.hardware import Accelerator, Cluster, Site
from steelyard.cost.assumptions import Assumptions
from steelyard.cost.energy import accelerator_power_w
from steelyard.cost.money import hourly_usd, known_purchase_usd
from steelyard.errors import CatalogError, InfeasibleError, require
from steelyard.plan.fabric import FABRICS, Fabric, build_fabric

__all__ = [
    "MachineDesign",
    "NodeDesign",
    "PartPrices",
    "dgx_a100_design",
    "fire_flyer_design",
    "machine_designs",
    "node_of",
]

GBIT = 1e9 / 8

_DGX_A100_USD = 199_000.0
"""Price of a DGX A100 at its release (NVIDIA, May 2020)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartPrices:
    """Prices and powers of what stands beside the accelerators; all assumed, all replaceable.

    Attributes:
        switch_usd: a switch.
        switch_w: its power with the cables.
        cable_usd: a cable with its optics.
        storage_usd: a storage server.
        storage_w: its power.
        node_usd: a host without accelerators, where no price of a whole server is known.
    """

    switch_usd: float = 18_000.0
    switch_w: float = 400.0
    cable_usd: float = 900.0
    storage_usd: float = 30_000.0
    storage_w: float = 800.0
    node_usd: float = 25_000.0

    def __post_init__(self) -> None:
        """Refuse negative prices and powers."""
        names = ("switch_usd", "switch_w", "cable_usd", "storage_usd", "storage_w", "node_usd")
        require(self, **{name: (getattr(self, name) >= 0, "at least 0") for name in names})


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeDesign:
    """A server with its accelerators.

    Attributes:
        accelerator: record of the accelerator.
        count: accelerators in it.
        nics: network ports.
        nic_bytes_per_s: rate of one, one way.
        usd: price, 0 when unknown.
        watts: average power in training.
        source: where price and power come from.
    """

    accelerator: Accelerator
    count: int
    nics: int
    nic_bytes_per_s: float
    usd: float
    watts: float
    source: str

    def __post_init__(self) -> None:
        """Refuse a server without accelerators or network."""
        require(
            self,
            count=(self.count >= 1, "at least 1"),
            nics=(self.nics >= 1, "at least 1"),
            nic_bytes_per_s=(self.nic_bytes_per_s > 0, "positive"),
        )


def node_of(
    accelerator: Accelerator,
    *,
    count: int = 8,
    nics: int = 8,
    nic_gbit_per_s: float = 400.0,
    usd: float = 0.0,
    watts: float = 0.0,
) -> NodeDesign:
    """Return a server of an accelerator at its published price and rated power.

    Args:
        accelerator: record of the accelerator.
        count: accelerators in it.
        nics: network ports.
        nic_gbit_per_s: rate of one.
        usd: price of the whole server, in place of the published one.
        watts: average power in training, in place of the one from the rated power.

    Returns:
        The server; its price is 0 where none is known.
    """
    price, said = known_purchase_usd(accelerator)
    power = accelerator_power_w(accelerator) * count
    return NodeDesign(
        accelerator=accelerator,
        count=count,
        nics=nics,
        nic_bytes_per_s=nic_gbit_per_s * GBIT,
        usd=usd or price * count,
        watts=watts or power,
        source=("price as given" if usd else said) or "no price known",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineDesign:
    """A cluster that could be built.

    Attributes:
        name: what it is called.
        node: its servers.
        num_nodes: how many.
        fabric: its network.
        storage_nodes: storage servers.
        parts: prices and powers of the rest.
        gemm_flops_per_s: measured rate of large products on an accelerator, 0 to take its peak.
    """

    name: str
    node: NodeDesign
    num_nodes: int
    fabric: Fabric
    storage_nodes: int = 0
    parts: PartPrices = field(default_factory=PartPrices)
    gemm_flops_per_s: float = 0.0

    @property
    def num_accelerators(self) -> int:
        """Accelerators of all nodes."""
        return self.num_nodes * self.node.count

    @property
    def servers_usd(self) -> float:
        """Price of the nodes.

        Raises:
            CatalogError: no price of a node is known.
        """
        if not self.node.usd:
            raise CatalogError(
                f"no purchase price is known for {self.node.accelerator.name}",
                hint="give the price of a node",
            )
        return self.node.usd * self.num_nodes

    @property
    def network_usd(self) -> float:
        """Price of switches and cables."""
        cables = self.fabric.num_cables * self.parts.cable_usd
        return self.fabric.num_switches * self.parts.switch_usd + cables

    @property
    def storage_usd(self) -> float:
        """Price of the storage servers."""
        return self.storage_nodes * self.parts.storage_usd

    @property
    def total_usd(self) -> float:
        """Price of the cluster.

        Raises:
            CatalogError: no price of a node is known.
        """
        return self.servers_usd + self.network_usd + self.storage_usd

    @property
    def power_w(self) -> float:
        """Average IT power in training, facility overhead left out."""
        rest = self.fabric.num_switches * self.parts.switch_w
        return self.num_nodes * self.node.watts + rest + self.storage_nodes * self.parts.storage_w

    @property
    def flops_per_s(self) -> float:
        """Rate of large products on all accelerators: measured, else the 16-bit peak.

        Raises:
            CatalogError: the accelerator has neither.
        """
        peaks = self.node.accelerator.peak_flops_per_s
        rate = self.gemm_flops_per_s or peaks.get("bf16") or peaks.get("fp16", 0.0)
        if not rate:
            raise CatalogError(
                f"no 16-bit peak is known for {self.node.accelerator.name}",
                hint="choose an accelerator with one",
            )
        return rate * self.num_accelerators

    def hourly_usd(self, site: Site, assumptions: Assumptions | None = None) -> float:
        """Return what an accelerator-hour of the whole cluster costs at first, with electricity.

        Args:
            site: place with its overhead and electricity price.
            assumptions: how fast hardware loses value.

        Returns:
            US dollars; network and storage are those of the design, not an assumed share.

        Raises:
            CatalogError: a price is unknown.
        """
        if not site.price_usd_per_kwh:
            raise CatalogError(
                f"no price of electricity is known for {site.name}",
                hint="name a site with price_usd_per_kwh",
            )
        wear, _ = hourly_usd(self.total_usd / self.num_accelerators, assumptions or Assumptions())
        watts = self.power_w / self.num_accelerators * site.pue
        return wear + watts / 1000 * site.price_usd_per_kwh

    def as_cluster(self, site: str) -> Cluster:
        """Return the record by which plans know the cluster."""
        return Cluster(
            name=self.name,
            site=site,
            year=self.node.accelerator.year,
            num_nodes=self.num_nodes,
            accelerator=self.node.accelerator.name,
            accelerators_per_node=self.node.count,
            scale_up_bytes_per_s=self.node.accelerator.scale_up_bytes_per_s,
            injection_bytes_per_s=self.node.nics * self.node.nic_bytes_per_s,
            topology=self.fabric.kind,
            confidence="medium",
            source=f"designed: {self.node.source}",
        )


def machine_designs(
    node: NodeDesign,
    num_accelerators: int,
    *,
    radix: int = 64,
    storage_nodes: int = 0,
    storage_nics: int = 2,
    parts: PartPrices | None = None,
    kinds: tuple[str, ...] = FABRICS,
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

    Returns:
        The designs, the cheapest network first, and by kind why the others cannot be built.

    Raises:
        ConfigError: a count is not positive, or a kind is unknown.
    """
    num_nodes = -(-num_accelerators // node.count)
    endpoints = num_nodes * node.nics + storage_nodes * storage_nics
    found, impossible = [], {}
    for kind in kinds:
        try:
            fabric = build_fabric(kind, endpoints, radix)
        except InfeasibleError as error:
            impossible[kind] = str(error).partition(": ")[2]
            continue
        found.append(
            MachineDesign(
                name=f"{num_nodes * node.count} x {node.accelerator.name}, {kind}",
                node=node,
                num_nodes=num_nodes,
                fabric=fabric,
                storage_nodes=storage_nodes,
                parts=parts or PartPrices(),
            )
        )
    return sorted(found, key=lambda item: item.network_usd), impossible


def fire_flyer_design(accelerator: Accelerator, kind: str = "zones") -> MachineDesign:
    """Return the published cluster of 10,000 PCIe A100, with measured rates and powers.

    Args:
        accelerator: record of the A100 PCIe.
        kind: its network; "three-layer" for the alternative that the paper compares with.

    Returns:
        The design, its network of 1,600 ports. The price of a node is the published 11,250 / 19,000
        of a DGX A100 for 1,250 nodes.

    Source: An et al. 2024 (arXiv 2408.14158), section III, tables II and III.
    """
    return MachineDesign(
        name=f"Fire-Flyer 2, {kind}",
        node=node_of(
            accelerator,
            nics=1,
            nic_gbit_per_s=200,
            usd=_DGX_A100_USD * 11_250 / 19_000,
            watts=2500,
        ),
        num_nodes=1250,
        fabric=build_fabric(kind, 1600, 40),
        storage_nodes=180,
        gemm_flops_per_s=220e12,
    )


def dgx_a100_design(accelerator: Accelerator) -> MachineDesign:
    """Return 10,000 A100 in DGX servers, as the same paper compares with.

    Args:
        accelerator: record of the A100 SXM.

    Returns:
        The design, its network of 10,000 ports for the accelerators alone.

    Source: An et al. 2024 (arXiv 2408.14158), tables II and III; price of a DGX A100 at release.
    """
    return MachineDesign(
        name="DGX A100, three-layer",
        node=node_of(accelerator, nic_gbit_per_s=200, usd=_DGX_A100_USD, watts=4200),
        num_nodes=1250,
        fabric=build_fabric("three-layer", 10_000, 40),
        gemm_flops_per_s=263e12,
    )
