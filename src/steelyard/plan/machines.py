"""The machines of a plan: a named cluster, a number of accelerators, or this machine."""

from dataclasses import dataclass, replace

from steelyard import catalog
from steelyard.catalog.hardware import Accelerator, Cluster, Site
from steelyard.catalog.records import WORLD_AVERAGE
from steelyard.catalog.stored import THIS_MACHINE
from steelyard.cost.roofline import Machine
from steelyard.errors import CalibrationError, ConfigError

__all__ = ["Machines", "machines_of", "measured_machines", "nodes_of"]

_PER_NODE = 8
_INJECTION_BYTES_PER_S = 50e9
"""One-way network rate of a rented node of eight, 400 Gbit/s as cloud providers state it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machines:
    """Where a training run is planned.

    Attributes:
        cluster: nodes and their network.
        accelerator: record of the cluster's accelerator.
        site: place with its electricity.
        dtype: number format of the matrix products on published accelerators.
        calibrated: measured rooflines of this machine, one per number format; none for published
            peaks.
        notes: assumptions a reader should know.
    """

    cluster: Cluster
    accelerator: Accelerator
    site: Site
    dtype: str = "bf16"
    calibrated: tuple[Machine, ...] = ()
    notes: tuple[str, ...] = ()


def machines_of(
    *,
    cluster: str = "",
    accelerator: str = "",
    count: int = 0,
    nodes: int = 0,
    site: str = "",
    dtype: str = "",
) -> Machines:
    """Look the machines of a plan up.

    Args:
        cluster: catalog name of a cluster, or "this-machine".
        accelerator: catalog name of an accelerator, or "this-machine", in place of a cluster.
        count: accelerators to use at most; 0 takes all of a cluster, and 8 of an accelerator.
        nodes: nodes of a cluster to use at most, 0 for all.
        site: catalog name of the place; the cluster's own when empty, and the world's average where
            that is unknown.
        dtype: number format of the matrix products; when empty, bf16 on published accelerators and
            every one that was measured on this machine.

    Returns:
        The machines.

    Raises:
        CalibrationError: this machine was not calibrated.
        CatalogError: a name is unknown.
        ConfigError: both a cluster and an accelerator are named, or none, or the count is negative.
    """
    if bool(cluster) == bool(accelerator):
        raise ConfigError(
            "name either a cluster or an accelerator",
            hint="such as the cluster Frontier, or the accelerator H100-SXM5-80GB",
        )
    if accelerator and nodes:
        raise ConfigError("nodes are of a cluster", hint="count accelerators instead")
    if count < 0:
        raise ConfigError(f"count is {count}, but must be at least 0")
    if THIS_MACHINE in (cluster, accelerator):
        # What would be ignored in silence is refused: its user believes that it counts.
        if count > 1 or nodes > 1:
            raise ConfigError("this-machine is one: there are no more to count")
        return _this_machine(site, dtype)
    if cluster:
        chosen = catalog.cluster(cluster)
        notes: tuple[str, ...] = ()
        if nodes > 0:
            chosen = replace(chosen, num_nodes=min(nodes, chosen.num_nodes))
        if count:
            chosen = _part(chosen, count)
    else:
        record = catalog.accelerator(accelerator)
        chosen = nodes_of(record, count or _PER_NODE)
        notes = (f"cluster: {chosen.source}",)
    place = catalog.site(site) if site else catalog.site_of(chosen)
    return Machines(
        cluster=chosen,
        accelerator=catalog.accelerator(chosen.accelerator),
        site=place,
        dtype=dtype or "bf16",
        notes=(*notes, *_world_note(place, site)),
    )


def _world_note(place: Site, asked: str) -> tuple[str, ...]:
    """Return a note where the place is unknown and the world's average stands for it."""
    if asked or place.name != WORLD_AVERAGE:
        return ()
    return ("site: not named, so the world's average price and carbon of electricity is assumed",)


def _part(cluster: Cluster, count: int) -> Cluster:
    """Return a part of a cluster: whole nodes, or some accelerators of one."""
    per_node = cluster.accelerators_per_node
    if count <= per_node:
        return replace(cluster, num_nodes=1, accelerators_per_node=count)
    return replace(cluster, num_nodes=min(count // per_node, cluster.num_nodes))


def nodes_of(record: Accelerator, count: int) -> Cluster:
    """Return nodes of at most eight accelerators with the usual network between them.

    Args:
        record: accelerator of the nodes.
        count: accelerators in all nodes, at least 1.

    Returns:
        A cluster of exactly that many.
    """
    # The largest node size that divides the count, so that no accelerator is left over.
    per_node = next(size for size in range(min(_PER_NODE, count), 0, -1) if count % size == 0)
    return Cluster(
        name=f"{count} x {record.name}",
        site=WORLD_AVERAGE,
        year=record.year,
        num_nodes=count // per_node,
        accelerator=record.name,
        accelerators_per_node=per_node,
        injection_bytes_per_s=_INJECTION_BYTES_PER_S * per_node / _PER_NODE,
        confidence="medium",
        source=f"{count // per_node} nodes of {per_node} {record.name}, 400 Gbit/s per eight "
        f"accelerators between nodes, assumed",
    )


def _this_machine(site: str, dtype: str) -> Machines:
    """Return this machine with the rates of its calibration."""
    cluster = catalog.cluster(THIS_MACHINE)
    place = catalog.site(site or WORLD_AVERAGE)
    return Machines(
        cluster=cluster,
        accelerator=catalog.accelerator(THIS_MACHINE),
        site=place,
        calibrated=tuple(measured_machines(dtype).values()),
        notes=_world_note(place, site),
    )


def measured_machines(dtype: str = "") -> dict[str, Machine]:
    """Return the rooflines that were measured on this machine.

    Args:
        dtype: the only number format; every one that was measured when empty.

    Returns:
        Rooflines by number format.

    Raises:
        CalibrationError: this machine was not calibrated.
        CatalogError: the number format was not measured.
    """
    calibration = catalog.load_calibration()
    if calibration is None:
        raise CalibrationError(
            "this-machine is not calibrated yet", hint="run `steelyard calibrate`"
        )
    names = [dtype] if dtype else dict.fromkeys(point.dtype for point in calibration.matmul)
    return {name: Machine.from_calibration(calibration, name) for name in names}
