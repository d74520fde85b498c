"""Design and price a cluster: nodes, network, power and money."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from steelyard.catalog.hardware import Accelerator, Site
from steelyard.cost.assumptions import Assumptions
from steelyard.cost.energy import accelerator_power_w
from steelyard.cost.money import hourly_usd, known_purchase_usd
from steelyard.errors import CatalogError, require
from steelyard.plan.fabric import Fabric

__all__ = [
    "MachineDesign",
    "NodeDesign",
    "PartPrices",
    "node_of",
]

GBIT = 1e9 / 8


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
    # Purchase prices of the catalog are shares of whole servers, so that a node is their sum.
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
        gemm_flops_per_s: measured rates of large products on an accelerator by number type, empty
            to take its peaks.
    """

    name: str
    node: NodeDesign
    num_nodes: int
    fabric: Fabric
    storage_nodes: int = 0
    parts: PartPrices = field(default_factory=PartPrices)
    gemm_flops_per_s: Mapping[str, float] = field(default_factory=dict)

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
    def compute_usd(self) -> float:
        """Price of nodes and network, without storage.

        Raises:
            CatalogError: no price of a node is known.
        """
        return self.servers_usd + self.network_usd

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
        return self.compute_usd + self.storage_usd

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
        rates = self.gemm_flops_per_s or self.node.accelerator.peak_flops_per_s
        rate = rates.get("bf16") or rates.get("fp16", 0.0)
        if not rate:
            raise CatalogError(
                f"no 16-bit peak is known for {self.node.accelerator.name}",
                hint="choose an accelerator with one",
            )
        return rate * self.num_accelerators

    def hourly_usd(self, site: Site, assumptions: Assumptions | None = None) -> float:
        """Return what an hour of an accelerator and its share costs at first, with electricity.

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
