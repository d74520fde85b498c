"""Networks of published machines, and a fat tree for those whose wiring is not known."""

import difflib
import math
from collections.abc import Callable

from steelyard.catalog.hardware import Cluster
from steelyard.errors import ConfigError
from steelyard.sim.network.graph import Network
from steelyard.sim.network.topologies import (
    dragonfly_plus,
    fat_tree,
    leaf_spine,
    torus,
    zoned_fat_tree,
)

__all__ = ["SHAPES", "ethereal_fat_tree", "fire_flyer_2", "leonardo", "network_of", "parse_shape"]

_RADIX = 64
"""Ports of the switches that are assumed where the wiring is not published."""


def leonardo() -> Network:
    """Return LEONARDO's Dragonfly+ of 23 cells; a host is one 100 Gb/s port, one per accelerator.

    Source: arXiv 2307.16885, section 2.3: per cell 18 switches with 40 ports of 100 Gb/s down and
    18 of 200 Gb/s up, and 18 above them with one 200 Gb/s cable to each other cell.
    """
    return dragonfly_plus(23, 18, 18, 40, host_bytes_per_s=12.5e9, link_bytes_per_s=25e9)


def fire_flyer_2() -> Network:
    """Return Fire-Flyer 2's two zones of 800 ports; a host is the one 200 Gb/s port of a node.

    Source: arXiv 2408.14158, section III-C: per zone 40 leaves and 20 spines of 40 ports, two
    switches between the zones; 122 in all.
    """
    return zoned_fat_tree(2, 40, 20, 20, 2, bytes_per_s=25e9)


def ethereal_fat_tree() -> Network:
    """Return the fat tree of 512 hosts in which planned splitting was published.

    Source: arXiv 2407.00550, section 4: 32 leaves, 32 aggregation switches, 16 cores, 400 Gb/s.
    """
    return fat_tree(4, 8, 8, 16, 16, bytes_per_s=50e9)


_PUBLISHED: dict[str, Callable[[], Network]] = {
    "LEONARDO-Booster": leonardo,
    "Fire-Flyer-2": fire_flyer_2,
}


def network_of(cluster: Cluster, *, num_nodes: int = 0) -> tuple[Network, str]:
    """Return a cluster's network and a note that says where its wiring comes from.

    Args:
        cluster: record of the catalog.
        num_nodes: nodes to connect where the wiring is assumed; all when 0.

    Returns:
        The published wiring; otherwise a fat tree of switches with 64 ports without
        oversubscription, in two layers as long as they have enough ports, whose hosts are nodes
        with all their network cards as one.

    Raises:
        ConfigError: the record has no network bandwidth, or too many nodes for three layers.
    """
    # Part of a machine is placed somewhere on it, and nobody published where.
    if cluster.name in _PUBLISHED and not num_nodes:
        return _PUBLISHED[cluster.name](), f"{cluster.name}: wiring as published"
    rate = cluster.injection_bytes_per_s
    if not rate:
        raise ConfigError(
            f"cluster {cluster.name} has no network bandwidth per node",
            hint="give injection_bytes_per_s, or a --topology with --rate",
        )
    wanted = num_nodes or cluster.num_nodes
    half = _RADIX // 2
    note = f"{cluster.name}: wiring assumed, a fat tree of {_RADIX}-port switches, none too narrow"
    leaves = max(2, math.ceil(wanted / half))
    # Two layers end where a spine has no port left for another leaf.
    if leaves <= _RADIX:
        return leaf_spine(leaves, half, math.ceil(wanted / leaves), bytes_per_s=rate), note
    pods = math.ceil(leaves / half)
    if pods > _RADIX:
        raise ConfigError(
            f"{wanted} nodes do not fit a fat tree of three layers of {_RADIX}-port switches: "
            f"it has {_RADIX**3 // 4} ports",
            hint="take fewer nodes",
        )
    return fat_tree(pods, half, half, half * half, half, bytes_per_s=rate), note


SHAPES: dict[str, tuple[str, int, Callable[..., Network]]] = {
    "leaf-spine": ("LEAVESxSPINESxHOSTS", 3, leaf_spine),
    "fat-tree": ("PODSxLEAVESxAGGREGATIONSxCORESxHOSTS", 5, fat_tree),
    "zones": ("ZONESxLEAVESxSPINESxHOSTSxJOINTS", 5, zoned_fat_tree),
    "dragonfly+": ("CELLSxLEAVESxSPINESxHOSTS", 4, dragonfly_plus),
    "torus": ("AxBx...", 0, torus),
}
"""Shapes by name: what their sizes are, how many there are (0 for any), and what makes them."""


def parse_shape(text: str, *, bytes_per_s: float, oversubscription: float = 1.0) -> Network:
    """Return the network of a shape in words, such as "leaf-spine:16x16x16".

    Args:
        text: name of the shape, a colon, and its sizes (see `SHAPES`; hosts are per leaf).
        bytes_per_s: rate of a host, and of all links of zones, Dragonfly+ and torus.
        oversubscription: oversubscription of fat trees; 1 elsewhere.

    Returns:
        The network.

    Raises:
        ConfigError: the shape or its sizes are wrong.
    """
    name, _, rest = text.partition(":")
    if name not in SHAPES:
        near = difflib.get_close_matches(name, SHAPES, n=1, cutoff=0.4)
        known = ", ".join(f"{shape}:{sizes}" for shape, (sizes, _, _) in SHAPES.items())
        raise ConfigError(
            f"no network shape named {name!r}",
            hint=(f"did you mean {near[0]}? " if near else "") + f"shapes: {known}",
        )
    sizes, count, make = SHAPES[name]
    words = rest.split("x")
    is_whole = all(word.isdigit() and len(word) <= 6 for word in words)
    if not is_whole or (count and len(words) != count):
        raise ConfigError(
            f"{name} has sizes {rest!r}, but needs {sizes}", hint=f"such as {_example(name)}"
        )
    numbers = [int(word) for word in words]
    _check_size(text, numbers)
    if name in ("leaf-spine", "fat-tree"):
        return make(*numbers, bytes_per_s=bytes_per_s, oversubscription=oversubscription)
    if oversubscription != 1.0:
        raise ConfigError(
            f"oversubscription is for leaf-spine and fat-tree, but the shape is {name}",
            hint="leave it out; the sizes say how wide each layer is",
        )
    if name == "dragonfly+":
        return make(*numbers, host_bytes_per_s=bytes_per_s, link_bytes_per_s=bytes_per_s)
    return (
        make(tuple(numbers), bytes_per_s=bytes_per_s)
        if name == "torus"
        else make(*numbers, bytes_per_s=bytes_per_s)
    )


def _example(name: str) -> str:
    """Return a small network of a shape in words."""
    sizes = {"leaf-spine": "16x16x16", "fat-tree": "4x8x8x16x16", "zones": "2x40x20x20x2"}
    return f"{name}:{sizes.get(name, '4x4x4x4')}"


def _check_size(text: str, numbers: list[int]) -> None:
    """Refuse networks that would not fit memory."""
    most = 2_000_000
    if math.prod(numbers) > most:
        raise ConfigError(
            f"{text} has sizes whose product is {math.prod(numbers):,}, but at most {most:,} is "
            "simulated",
            hint="take a smaller network; equal parts behave alike",
        )
