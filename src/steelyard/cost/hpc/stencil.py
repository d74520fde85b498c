"""Weak scaling of a stencil: seconds of a step on ever more nodes, each with as many sites."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from steelyard.catalog.hardware import Accelerator, Cluster
from steelyard.errors import CatalogError, FitError

__all__ = ["D3Q19", "Lattice", "StencilNode", "calibrated", "grid_of", "halo_bytes", "step_s"]

_FILL = 0.8
"""Share of the accelerators' memory that two lattices fill."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lattice:
    """What one site of a stencil moves.

    Attributes:
        moved_bytes: bytes of memory that an update of a site reads and writes.
        held_bytes: bytes that a site occupies.
        face_bytes: bytes of a site that cross a face of the domain in a step.
    """

    moved_bytes: float
    held_bytes: float
    face_bytes: float


D3Q19 = Lattice(moved_bytes=2 * 19 * 8.0, held_bytes=2 * 19 * 8.0, face_bytes=5 * 8.0)
"""Lattice Boltzmann with 19 doubles per site in two lattices; 5 of them cross a face."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StencilNode:
    """One node of a stencil's weak scaling.

    Attributes:
        accelerators: accelerators of the node; each has a cube of the grid.
        sites: sites of each.
        memory_bytes_per_s: memory bandwidth that one of them reaches in a step.
        scale_up_bytes_per_s: one-way rate between two of them.
        injection_bytes_per_s: one-way network rate of the node.
        core_s_per_site: time of a site's update that does not overlap its memory traffic, as on
            processors; 0 where the traffic hides it.
        latency_s: time of a message, six of which follow each other in a step.
        overlap: share of the exchange that hides behind the update, 0 to 1.
        network_share: share of the injection rate that the exchange reaches.
        noise_s: standard deviation of what delays an accelerator in a step; the slowest is waited
            for.
    """

    accelerators: int
    sites: float
    memory_bytes_per_s: float
    scale_up_bytes_per_s: float
    injection_bytes_per_s: float
    core_s_per_site: float = 0.0
    latency_s: float = 5e-6
    overlap: float = 0.0
    network_share: float = 1.0
    noise_s: float = 0.0

    @classmethod
    def of(
        cls, cluster: Cluster, device: Accelerator, *, memory_share: float = 0.8
    ) -> "StencilNode":
        """Make the node of a cluster, its memory filled with a D3Q19 lattice.

        Args:
            cluster: record with the network rate of a node.
            device: record of its accelerators.
            memory_share: share of the peak memory bandwidth that an update reaches; assumed.

        Returns:
            The node, nothing overlapped and without noise.

        Raises:
            CatalogError: the network rate is unknown.
        """
        if not cluster.injection_bytes_per_s:
            raise CatalogError(
                f"cluster {cluster.name}: injection_bytes_per_s is empty, but a stencil's halos "
                "cross the network",
                hint="give injection_bytes_per_s in a file of your own",
            )
        rate = cluster.scale_up_bytes_per_s or device.scale_up_bytes_per_s
        return cls(
            accelerators=cluster.accelerators_per_node,
            sites=_FILL * device.memory_bytes / D3Q19.held_bytes,
            memory_bytes_per_s=memory_share * device.memory_bytes_per_s,
            # Without links within the node its own network or host carries the halos.
            scale_up_bytes_per_s=rate or device.host_link_bytes_per_s or math.inf,
            injection_bytes_per_s=cluster.injection_bytes_per_s,
        )


def grid_of(count: int) -> tuple[int, int, int]:
    """Return the most cubic grid of that many blocks, largest axis first."""
    if count < 1:
        raise FitError(f"a grid of {count} blocks", hint="give at least 1")
    best = (count, 1, 1)
    for low in range(1, round(count ** (1 / 3)) + 1):
        if count % low:
            continue
        rest = count // low
        middle = next(size for size in range(math.isqrt(rest), 0, -1) if rest % size == 0)
        best = min(best, (rest // middle, middle, low), key=lambda axes: (max(axes), sum(axes)))
    first, second, third = sorted(best, reverse=True)
    return first, second, third


def halo_bytes(node: StencilNode, num_nodes: int, lattice: Lattice = D3Q19) -> tuple[float, float]:
    """Return what a node sends to others in a step, and one accelerator to its peers in the node.

    Accelerators stand in the most cubic grid within a node and nodes in the most cubic grid of
    all; the whole is periodic, so that an axis of one block has no traffic of its own between
    nodes.

    Args:
        node: accelerators and sites.
        num_nodes: nodes of the grid.
        lattice: what a site moves.

    Returns:
        Bytes out of a node, and bytes out of one accelerator within it.
    """
    # The larger axis of a node's own grid lies along the smaller of the nodes'.
    inner, outer = grid_of(node.accelerators)[::-1], grid_of(num_nodes)
    face = node.sites ** (2 / 3) * lattice.face_bytes
    out = sum(
        2.0 * face * node.accelerators / own
        for own, nodes in zip(inner, outer, strict=True)
        if nodes > 1
    )
    # Along an axis within the node each has two neighbors; at its ends one lies outside.
    peers = sum(
        2.0 * (1.0 if nodes == 1 else (own - 1) / own)
        for own, nodes in zip(inner, outer, strict=True)
        if own > 1
    )
    return out, peers * face


def step_s(
    node: StencilNode, num_nodes: ArrayLike, lattice: Lattice = D3Q19
) -> NDArray[np.float64]:
    """Return the seconds of a step on that many nodes.

    The sites' core and memory times, the halo that overlap leaves, a latency per axis and
    direction, and the largest of as many delays as there are accelerators, noise_s sqrt(2 ln
    accelerators).

    Args:
        node: one of equal nodes.
        num_nodes: nodes, any shape.
        lattice: what a site moves.

    Returns:
        Seconds, of the shape of `num_nodes`.

    Source: arXiv 2307.16885 (weak scaling of lattice Boltzmann); Gumbel 1958 (largest of many);
        Stengel et al. 2015 (core and memory times that follow each other).
    """
    counts = np.asarray(num_nodes, dtype=int)
    parts = np.array([_parts(node, int(count), lattice) for count in counts.ravel()])
    weights = np.array([1.0, (1 - node.overlap) / node.network_share, node.noise_s])
    return (parts @ weights).reshape(counts.shape)


def _parts(node: StencilNode, num_nodes: int, lattice: Lattice) -> tuple[float, float, float]:
    """Return what no calibration changes, seconds of the network at its rate, and noise's weight.

    Links within a node work beside the network; their time counts where it is longer.
    """
    out, within = halo_bytes(node, num_nodes, lattice)
    network = out / node.injection_bytes_per_s
    inside = max(within / node.scale_up_bytes_per_s - network, 0.0)
    latency = 6 * node.latency_s if num_nodes > 1 else 0.0
    site = node.core_s_per_site + lattice.moved_bytes / node.memory_bytes_per_s
    update = node.sites * site
    slowest = math.sqrt(2 * math.log(max(node.accelerators * num_nodes, 1)))
    return update + (1 - node.overlap) * inside + latency, network, slowest


def calibrated(
    node: StencilNode,
    num_nodes: Sequence[int],
    seconds: ArrayLike,
    lattice: Lattice = D3Q19,
) -> StencilNode:
    """Fit what the records do not say, the network's share and the noise, to measured steps.

    Args:
        node: node with everything else.
        num_nodes: nodes of each measurement; at least 2 different ones above 1.
        seconds: measured seconds of a step, [n].
        lattice: what a site moves.

    Returns:
        The node with its network share (at most 1) and noise.

    Raises:
        FitError: there are fewer than 2 measurements of several nodes, or they do not agree in
            number with the seconds.
    """
    counts, times = list(num_nodes), np.asarray(seconds, dtype=float)
    if len(counts) != len(times) or len({item for item in counts if item > 1}) < 2:
        raise FitError(
            f"{len(times)} steps of {len(counts)} node counts cannot calibrate a stencil",
            hint="measure at least 2 different numbers of nodes above 1",
        )
    parts = np.array([_parts(node, count, lattice) for count in counts])
    # Relative residuals: a step of few nodes weighs as much as one of many.
    slower, noise = nnls(parts[:, 1:] / times[:, None], (times - parts[:, 0]) / times)[0]
    share = (1 - node.overlap) / slower if slower > 0 else 1.0
    return replace(node, network_share=min(share, 1.0), noise_s=float(noise))
