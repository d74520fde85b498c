"""What `steelyard plan machine` is asked to build."""

from dataclasses import dataclass

import cyclopts

from steelyard import catalog
from steelyard.catalog.hardware import Site
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan.fabric import FABRICS
from steelyard.plan.machine import MachineDesign, NodeDesign, node_of
from steelyard.plan.machine_designs import BuildLimits, machine_designs
from steelyard.units import parse

__all__ = ["Hardware", "amount"]


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What is built.

    Args:
        accelerator: catalog name of the accelerator.
        count: accelerators; whole nodes are built.
        per_node: accelerators of a node.
        nics: network ports of a node; one per accelerator when 0.
        nic: rate of a port, such as "400 Gbit/s".
        radix: ports of a switch.
        fabric: network, one of two-layer, three-layer, zones, planes and dragonfly+; each when
            empty.
        storage_nodes: storage servers with two ports each.
        node_price: price of a node, such as "$270,000"; the published one when empty.
        power: most power of the facility, such as "5 MW"; a cluster that draws more is refused.
        budget: most that the cluster may cost, such as "$50,000,000".
    """

    accelerator: str = "H100-SXM5-80GB"
    count: int = 1024
    per_node: int = 8
    nics: int = 0
    nic: str = "400 Gbit/s"
    radix: int = 64
    fabric: str = ""
    storage_nodes: int = 0
    node_price: str = ""
    power: str = ""
    budget: str = ""

    def designs(self, site: Site) -> tuple[list[MachineDesign], dict[str, str]]:
        """Design the cluster with every network that is asked for.

        Args:
            site: place with its overhead over the IT power.

        Returns:
            Designs, the cheapest network first, and why others cannot be built.

        Raises:
            ConfigError: a number or a name is wrong; all are named.
            InfeasibleError: no network does.
        """
        self._check()
        node = self.node(self.accelerator, self.node_price)
        limits = BuildLimits(
            usd=amount(self.budget, "USD", "--budget", float("inf")),
            watts=amount(self.power, "W", "--power", float("inf")),
            pue=site.pue,
        )
        found, impossible = machine_designs(
            node,
            self.count,
            radix=self.radix,
            storage_nodes=self.storage_nodes,
            kinds=(self.fabric,) if self.fabric else FABRICS,
            limits=limits,
        )
        if not found:
            reasons = "; ".join(f"{kind}: {why}" for kind, why in impossible.items())
            raise InfeasibleError(
                f"no network gives {self.count:,} accelerators: {reasons}",
                hint="give --radix more ports or nodes fewer --nics, or take fewer accelerators",
            )
        return found, impossible

    def node(self, accelerator: str, price: str, flag: str = "--node-price") -> NodeDesign:
        """Return a node at a flag's price, the published one where it is empty."""
        return node_of(
            catalog.accelerator(accelerator),
            count=self.per_node,
            nics=self.nics or self.per_node,
            nic_gbit_per_s=parse(self.nic, "byte/s", where="--nic") * 8e-9,
            usd=amount(price, "USD", flag, 0.0),
        )

    def _check(self) -> None:
        """Refuse what no cluster has, all at once, in the words of the flags."""
        least = {"count": 1, "per_node": 1, "nics": 0, "radix": 4, "storage_nodes": 0}
        wrong = [
            f"--{name.replace('_', '-')} is {getattr(self, name)}, but must be at least {low}"
            for name, low in least.items()
            if getattr(self, name) < low
        ]
        # Trees give one half of a switch's ports to each side.
        if self.radix % 2:
            wrong.append(f"--radix is {self.radix}, but must be even")
        if self.fabric and self.fabric not in FABRICS:
            wrong.append(f"--fabric {self.fabric!r} is none of {', '.join(FABRICS)}")
        if wrong:
            raise ConfigError("; ".join(wrong))


def amount(text: str, unit: str, flag: str, otherwise: float) -> float:
    """Read an amount of a flag that may be empty.

    Args:
        text: what was given.
        unit: base unit of the amount.
        flag: name of the flag.
        otherwise: amount when it is empty.

    Returns:
        The amount in its base unit.

    Raises:
        ConfigError: it is no amount, or is negative.
    """
    value = parse(text, unit, where=flag) if text else otherwise
    if value < 0:
        raise ConfigError(f"{flag} is {text}, but must not be negative")
    return value
