"""Facts about hardware: accelerators, clusters of them, and the sites they stand in."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Accelerator", "Cluster", "Level", "Site"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """One level of a machine's links: several units of the level below, joined.

    The units of the innermost level are single accelerators; those of the next one are what the
    innermost joins, and so on.

    Attributes:
        name: what the level is, such as "die pair", "node" or "network".
        members: units of the level below that one unit of this level joins.
        bytes_per_s: ONE-WAY rate of the port by which one unit of the level below reaches this
            level; the accelerators within that unit share it.
        latency_s: time that one message through the level adds.
        oversubscription: how much slower a port is while all of them talk across the level at
            once; 1 for a full-bisection network.
    """

    name: str
    members: int
    bytes_per_s: float
    latency_s: float = 5e-6
    oversubscription: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    """One chip (or CPU socket) as software sees it; rates are peaks unless it was measured.

    Attributes:
        name: catalog name.
        vendor: maker of the chip.
        kind: "gpu", "tpu", "npu", "rdu" or "cpu".
        year: first year of sale.
        peak_flops_per_s: dense peak by dtype ("fp32", "tf32", "bf16", "fp16", "fp8", "int8",
            "fp64"); absent means unpublished.
        memory_bytes: capacity as sold, decimal.
        memory_bytes_per_s: peak bandwidth.
        sram_bytes: last-level on-chip memory, 0 when unknown.
        scale_up_bytes_per_s: ONE-WAY bandwidth to peers in the node, 0 for none.
        host_link_bytes_per_s: one-way bandwidth to the host's memory, 0 when unknown.
        tdp_w: board power, 0 when unknown.
        idle_w: power without work, 0 when unknown.
        price_usd_per_hour: an example on-demand rent, 0 when unknown.
        price_date: month of that rent, such as "2025-06".
        price_source: where that rent stands.
        purchase_usd: an example price of one chip, 0 when unknown.
        purchase_date: month of that price.
        purchase_source: where that price stands.
        confidence: high, medium, unsure or measured.
        source: datasheet, paper, or the date of the calibration.
    """

    name: str
    vendor: str
    kind: str
    year: int
    # By dtype and not one number: a chip's rates differ by up to 16x between its types.
    peak_flops_per_s: Mapping[str, float]
    memory_bytes: float
    memory_bytes_per_s: float
    sram_bytes: float = 0.0
    scale_up_bytes_per_s: float = 0.0
    host_link_bytes_per_s: float = 0.0
    tdp_w: float = 0.0
    idle_w: float = 0.0
    price_usd_per_hour: float = 0.0
    price_date: str = ""
    price_source: str = ""
    purchase_usd: float = 0.0
    purchase_date: str = ""
    purchase_source: str = ""
    confidence: str = "high"
    source: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Nodes of one kind behind one network.

    Attributes:
        name: catalog name.
        site: name of a `Site`, or free text.
        year: first full operation.
        num_nodes: nodes in the cluster.
        accelerator: catalog name of the accelerator.
        accelerators_per_node: accelerators per node.
        node_memory_bytes: host memory of a node, 0 when unknown.
        scale_up_bytes_per_s: one-way bandwidth between accelerators of a node.
        injection_bytes_per_s: one-way network bandwidth of a node.
        levels: levels of links from the accelerators outward, where there are more than a node and
            a network; their product is the cluster.
        topology: form of the network, free text.
        pue: power usage effectiveness, 0 when unknown.
        host_tdp_w: rated power of a node's processors beside the accelerators; 0 when unknown, or
            when the accelerators' rating has them.
        rpeak_flops_per_s: fp64 peak as TOP500 lists it, 0 when unlisted; lists mix clock rates and
            count the processors in, so that it is not accelerators times a datasheet's peak.
        rmax_flops_per_s: measured HPL rate, 0 when unlisted; seldom of all nodes.
        hpl_power_w: power in that run, 0 when unlisted.
        hpcg_flops_per_s: measured HPCG rate, 0 when unlisted.
        confidence: high, medium or unsure.
        source: list, paper or documentation where the facts stand.
    """

    name: str
    site: str
    year: int
    num_nodes: int
    accelerator: str
    accelerators_per_node: int
    node_memory_bytes: float = 0.0
    scale_up_bytes_per_s: float = 0.0
    injection_bytes_per_s: float = 0.0
    levels: tuple[Level, ...] = ()
    topology: str = ""
    pue: float = 0.0
    host_tdp_w: float = 0.0
    rpeak_flops_per_s: float = 0.0
    rmax_flops_per_s: float = 0.0
    hpl_power_w: float = 0.0
    hpcg_flops_per_s: float = 0.0
    confidence: str = "high"
    source: str = ""

    @property
    def num_accelerators(self) -> int:
        """Accelerators in all nodes."""
        # Not the product of levels: most clusters are listed by nodes only.
        return self.num_nodes * self.accelerators_per_node


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Where machines stand: what their power costs and emits.

    Attributes:
        name: catalog name.
        country: ISO country name.
        pue: facility power over IT power.
        price_usd_per_kwh: industrial electricity price, 0 when unknown.
        carbon_g_per_kwh: grid average in CO2 equivalent, 0 when unknown.
        carbon_by_month: the grid's mean of each month, January first, over that of the year; empty
            when unknown.
        confidence: high, medium or unsure.
        source: where the figures stand.
    """

    name: str
    country: str
    pue: float
    price_usd_per_kwh: float = 0.0
    carbon_g_per_kwh: float = 0.0
    carbon_by_month: tuple[float, ...] = ()
    confidence: str = "medium"
    source: str = ""
