"""How many switches and cables a network takes: fat trees, zones, planes and Dragonfly+."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from steelyard.errors import InfeasibleError, require

__all__ = ["FABRICS", "Fabric", "build_fabric"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fabric:
    """A network of equal switches.

    Attributes:
        kind: name in `FABRICS`.
        switches: switches by layer.
        ports: endpoints that could be connected.
        endpoints: endpoints that are.
        switch_cables: cables between switches.
        hops: most switches on a path.
    """

    kind: str
    switches: Mapping[str, int]
    ports: int
    endpoints: int
    switch_cables: int
    hops: int

    @property
    def num_switches(self) -> int:
        """Switches of all layers."""
        return sum(self.switches.values())

    @property
    def num_cables(self) -> int:
        """Cables between switches and to endpoints."""
        return self.switch_cables + self.endpoints


def build_fabric(
    kind: str,
    endpoints: int,
    radix: int,
    *,
    zones: int = 2,
    planes: int = 4,
    zone_switches: int = 2,
) -> Fabric:
    """Count the switches and cables of a network without oversubscription.

    Args:
        kind: name in `FABRICS`.
        endpoints: network ports of all nodes, in zones and planes together.
        radix: ports of a switch, even.
        zones: separate trees of kind "zones", joined by few links.
        planes: separate trees of kind "planes", each endpoint on one of them.
        zone_switches: least number of switches between zones.

    Returns:
        The network.

    Raises:
        ConfigError: a number is not positive, or the radix is odd.
        InfeasibleError: so many endpoints cannot be connected; the most that can are named.
    """
    asked = _Asked(kind, endpoints, radix, zones, planes, zone_switches)
    return _BUILDERS[asked.kind](asked)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What `build_fabric` was asked for."""

    kind: str
    endpoints: int
    radix: int
    zones: int
    planes: int
    zone_switches: int

    def __post_init__(self) -> None:
        """Refuse what no network has."""
        require(
            self,
            kind=(self.kind in FABRICS, f"one of {', '.join(FABRICS)}"),
            endpoints=(self.endpoints >= 1, "at least 1"),
            radix=(self.radix >= 4 and self.radix % 2 == 0, "even and at least 4"),
            zones=(self.zones >= 2, "at least 2"),
            planes=(self.planes >= 1, "at least 1"),
            zone_switches=(self.zone_switches >= 1, "at least 1"),
        )

    @property
    def half(self) -> int:
        """Ports of a switch that look down, as many as look up."""
        return self.radix // 2

    def limit(self, most: int) -> None:
        """Refuse more endpoints than a network holds."""
        if self.endpoints > most:
            raise InfeasibleError(
                f"{self.kind}: {self.endpoints:,} endpoints exceed the {most:,} that "
                f"{self.radix}-port switches connect",
                hint="choose switches with more ports, more zones or planes, or another fabric",
            )


def _two_layer(asked: _Asked) -> Fabric:
    """Build leaves and spines: half the ports of a leaf go down, half to the spines."""
    asked.limit(asked.radix * asked.half)
    if asked.endpoints <= asked.radix:
        return Fabric(
            kind=asked.kind,
            switches={"leaf": 1},
            ports=asked.radix,
            endpoints=asked.endpoints,
            switch_cables=0,
            hops=1,
        )
    leaves = math.ceil(asked.endpoints / asked.half)
    # Every leaf has equally many links to every spine, so their number divides a leaf's uplinks.
    spines = next(n for n in range(1, asked.half + 1) if asked.half % n == 0 and 2 * n >= leaves)
    return Fabric(
        kind=asked.kind,
        switches={"leaf": leaves, "spine": spines},
        ports=leaves * asked.half,
        endpoints=asked.endpoints,
        switch_cables=leaves * asked.half,
        hops=3,
    )


def _three_layer(asked: _Asked) -> Fabric:
    """Build pods of leaves and spines under groups of core switches."""
    per_pod = asked.half**2
    asked.limit(per_pod * asked.radix)
    leaves = math.ceil(asked.endpoints / asked.half)
    pods = math.ceil(leaves / asked.half)
    if pods == 1:
        return _two_layer(asked)
    # The n-th spine of every pod goes to the n-th group of core switches. As many as the pods fill
    # where a spine's uplinks split evenly over them, else a power of two, over which static routes
    # split evenly by the lowest bits of the destination. The published network of 10,000 endpoints
    # has 320 core switches, 16 in a group where 13 would do; the rule is inferred from it.
    needed = math.ceil(pods / 2)
    is_even = pods % 2 == 0 and asked.half % needed == 0
    per_group = needed if is_even else min(2 ** math.ceil(math.log2(needed)), asked.half)
    return Fabric(
        kind=asked.kind,
        switches={"leaf": leaves, "spine": leaves, "core": per_group * asked.half},
        ports=leaves * asked.half,
        endpoints=asked.endpoints,
        switch_cables=2 * leaves * asked.half,
        hops=5,
    )


def _zones(asked: _Asked) -> Fabric:
    """Build two-layer trees; a leaf's worth of each one's ports goes to switches between them."""
    links = asked.half
    asked.limit(asked.zones * (asked.radix * asked.half - links))
    zone = _two_layer(_inside(asked, math.ceil(asked.endpoints / asked.zones) + links))
    switches = {name: count * asked.zones for name, count in zone.switches.items()}
    between = max(asked.zone_switches, math.ceil(links * asked.zones / asked.radix))
    return Fabric(
        kind=asked.kind,
        switches=switches | {"between zones": between},
        ports=(zone.ports - links) * asked.zones,
        endpoints=asked.endpoints,
        switch_cables=(zone.switch_cables + links) * asked.zones,
        hops=7,
    )


def _planes(asked: _Asked) -> Fabric:
    """Build separate two-layer trees; the accelerators of a node spread over them."""
    asked.limit(asked.planes * asked.radix * asked.half)
    plane = _two_layer(_inside(asked, math.ceil(asked.endpoints / asked.planes)))
    return Fabric(
        kind=asked.kind,
        switches={name: count * asked.planes for name, count in plane.switches.items()},
        ports=plane.ports * asked.planes,
        endpoints=asked.endpoints,
        switch_cables=plane.switch_cables * asked.planes,
        hops=plane.hops,
    )


def _dragonfly_plus(asked: _Asked) -> Fabric:
    """Build groups of leaves and spines, every spine with a link to every other group.

    Source: Shpiner et al. 2017 (HiPINEB), as built in LEONARDO (arXiv 2307.16885).
    """
    per_group = asked.half**2
    asked.limit(per_group * (asked.half + 1))
    groups = math.ceil(asked.endpoints / per_group)
    # Half a spine's ports are global; they are shared evenly among the other groups.
    per_pair = asked.half * (asked.half // max(1, groups - 1)) if groups > 1 else 0
    return Fabric(
        kind=asked.kind,
        switches={"leaf": groups * asked.half, "spine": groups * asked.half},
        ports=groups * per_group,
        endpoints=asked.endpoints,
        switch_cables=groups * per_group + per_pair * groups * (groups - 1) // 2,
        hops=4,
    )


def _inside(asked: _Asked, endpoints: int) -> _Asked:
    """Return the question of one zone or plane."""
    return _Asked(
        asked.kind, endpoints, asked.radix, asked.zones, asked.planes, asked.zone_switches
    )


_BUILDERS = {
    "two-layer": _two_layer,
    "three-layer": _three_layer,
    "zones": _zones,
    "planes": _planes,
    "dragonfly+": _dragonfly_plus,
}
FABRICS = tuple(_BUILDERS)
"""Kinds of network."""
