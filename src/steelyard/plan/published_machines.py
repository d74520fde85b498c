"""Published clusters as designs: Fire-Flyer 2, and the DGX servers that it is compared with."""

from steelyard import catalog
from steelyard.plan.fabric import build_fabric
from steelyard.plan.machine import MachineDesign, node_of

__all__ = ["dgx_a100_design", "fire_flyer_design"]

_DGX_A100_USD = 199_000.0
"""Price of a DGX A100 at its release (NVIDIA, May 2020)."""


def fire_flyer_design(kind: str = "zones") -> MachineDesign:
    """Return the published cluster of 10,000 PCIe A100, with measured rates and powers.

    Args:
        kind: its network; "three-layer" for the alternative that the paper compares with.

    Returns:
        The design. Its zones have about 600 nodes and 180 ports of storage each and 20 links to
        the other, 1,560 endpoints; other networks have the 1,600 of the paper. The price of a node
        is the published 11,250 / 19,000 of a DGX A100 for 1,250 nodes (rounded there to 60 %).

    Source: An et al. 2024 (arXiv 2408.14158), section III, tables II and III.
    """
    return MachineDesign(
        name=f"Fire-Flyer 2, {kind}",
        node=node_of(
            catalog.accelerator("A100-PCIe-40GB"),
            nics=1,
            nic_gbit_per_s=200,
            usd=_DGX_A100_USD * 11_250 / 19_000,
            watts=2500,
        ),
        num_nodes=1250,
        fabric=build_fabric(kind, 1560 if kind == "zones" else 1600, 40),
        storage_nodes=180,
        gemm_flops_per_s={"tf32": 107e12, "fp16": 220e12},
    )


def dgx_a100_design() -> MachineDesign:
    """Return 10,000 A100 in DGX servers, as the same paper compares with.

    Returns:
        The design, its network of 10,000 ports for the accelerators alone.

    Source: An et al. 2024 (arXiv 2408.14158), tables II and III; price of a DGX A100 at release.
    """
    return MachineDesign(
        name="DGX A100, three-layer",
        node=node_of(
            catalog.accelerator("A100-SXM4-40GB"), nic_gbit_per_s=200, usd=_DGX_A100_USD, watts=4200
        ),
        num_nodes=1250,
        fabric=build_fabric("three-layer", 10_000, 40),
        gemm_flops_per_s={"tf32": 131e12, "fp16": 263e12},
    )
