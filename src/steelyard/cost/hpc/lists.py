"""Forecasts of what the TOP500, Green500 and HPCG lists rank: rate, power and time of a cluster.

Each is a share of what the cluster's record promises, fitted on the clusters whose figure is known
without the one that is asked about.
"""

import math
from dataclasses import dataclass

from steelyard import catalog
from steelyard.catalog.hardware import Accelerator, Cluster
from steelyard.cost.hpc.shares import ShareFit, fit_shares
from steelyard.errors import CatalogError
from steelyard.quantity import Forecast, Provenance

__all__ = [
    "HplRun",
    "hpcg",
    "hpl",
    "listed_clusters",
    "memory_share",
    "missing_rating",
    "network_features",
]

_FILL = 0.8
"""Share of the accelerators' memory that a benchmark's problem fills (arXiv 2307.16885)."""

_WHERE = {
    "rpeak_flops_per_s": "the HPL rate is a share of it",
    "injection_bytes_per_s": "the HPL rate depends on the network",
    "tdp_w": "the power of HPL is a share of it",
}
"""Fields that a forecast needs, and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HplRun:
    """High-performance Linpack on a whole cluster.

    Attributes:
        order: equations, N.
        rate: forecast of Rmax.
        duration: time to solution.
        power: mean power of the nodes, None where the accelerators' rating is unknown.
        energy: energy to solution with the facility's overhead, None with `power`.
        fit: share of Rpeak, with what it was fitted on.
    """

    order: float
    rate: Forecast
    duration: Forecast
    power: Forecast | None
    energy: Forecast | None
    fit: ShareFit


def listed_clusters(field: str, *, without: str = "") -> list[Cluster]:
    """Return the clusters of accelerators whose measured figure the catalog knows.

    Args:
        field: "rmax_flops_per_s", "hpl_power_w" or "hpcg_flops_per_s".
        without: name of a cluster that is left out.

    Returns:
        Records of the package and of the user, clusters of processors alone left out.
    """
    records = [catalog.cluster(name) for name in catalog.names("clusters")]
    return [
        item
        for item in records
        if getattr(item, field)
        and item.name != without
        and catalog.accelerator(item.accelerator).kind != "cpu"
    ]


def network_features(cluster: Cluster) -> list[float]:
    """Return what the share of Rpeak may depend on: log2 of nodes, log of network bytes per FLOP.

    Args:
        cluster: record with Rpeak and the network rate of its nodes.

    Returns:
        The two features.

    Raises:
        CatalogError: a field is empty.

    Source: arXiv 2307.16885 (nodes, injection and peak of the machine).
    """
    peak = _need(cluster, "rpeak_flops_per_s") / cluster.num_nodes
    injection = _need(cluster, "injection_bytes_per_s")
    return [math.log2(cluster.num_nodes), math.log(injection / peak)]


def hpl(cluster: Cluster) -> HplRun:
    """Forecast high-performance Linpack on all nodes of a cluster.

    Rate and power are shares, of Rpeak and of the rated power of accelerators and processors, that
    other listed clusters reach. The problem fills 8 of 10 parts of the accelerators' memory with
    doubles: N^2 x 8 bytes, and 2/3 N^3 operations.

    Args:
        cluster: record with Rpeak and network rate.

    Returns:
        The run; 80 % intervals are as wide as leaving each of the others out demands.

    Raises:
        CatalogError: a field is empty, or the cluster has no accelerators.
        FitError: fewer than 3 other clusters are listed.

    Source: Petitet et al. 2018 (HPL); arXiv 2307.16885.
    """
    device = _device(cluster)
    features = network_features(cluster)
    others = listed_clusters("rmax_flops_per_s", without=cluster.name)
    # A share needs what it is a share of, and the features.
    others = [item for item in others if item.rpeak_flops_per_s and item.injection_bytes_per_s]
    fit = fit_shares(
        [item.rmax_flops_per_s / item.rpeak_flops_per_s for item in others],
        [network_features(item) for item in others],
    )
    rate = fit.share(features) * cluster.rpeak_flops_per_s
    order = math.sqrt(_FILL * device.memory_bytes * cluster.num_accelerators / 8)
    time_s = 2 / 3 * order**3 / rate
    power = None if missing_rating(device) else _hpl_power(cluster, device)
    energy = None
    if power:
        pue = cluster.pue or catalog.site_of(cluster).pue
        both = math.expm1(math.hypot(fit.log_half_width, math.log(power.high / power.value)))
        energy = _fitted("run.energy", power.value * time_s * pue, both, f"PUE {pue:g}")
    said = f"Rmax over Rpeak of {fit.num_machines} other clusters of the catalog (TOP500)"
    return HplRun(
        order=order,
        rate=_fitted("hpl.rate", rate, fit.relative, said),
        duration=_fitted("hpl.duration", time_s, fit.relative, "2/3 N^3 over the rate"),
        power=power,
        energy=energy,
        fit=fit,
    )


def _rated_power_w(cluster: Cluster, device: Accelerator) -> float:
    """Return the rated power of all accelerators and processors of a cluster, W.

    Args:
        cluster: record; `host_tdp_w` counts as it stands.
        device: record of its accelerators.

    Returns:
        Watts.

    Raises:
        CatalogError: the accelerators' rating is unknown.
    """
    if problem := missing_rating(device):
        raise problem
    each = device.tdp_w * cluster.accelerators_per_node + cluster.host_tdp_w
    return cluster.num_nodes * each


def missing_rating(device: Accelerator) -> CatalogError | None:
    """Return why HPL's power cannot be forecast on an accelerator; None where it can."""
    return None if device.tdp_w else _empty(f"accelerator {device.name}", "tdp_w")


def _hpl_power(cluster: Cluster, device: Accelerator) -> Forecast:
    """Forecast the power of the nodes under HPL."""
    fit = fit_shares(
        [
            item.hpl_power_w / _rated_power_w(item, catalog.accelerator(item.accelerator))
            for item in listed_clusters("hpl_power_w", without=cluster.name)
        ]
    )
    said = f"power over rated power of {fit.num_machines} other clusters of the catalog (Green500)"
    value = fit.share() * _rated_power_w(cluster, device)
    return _fitted("hpl.power", value, fit.relative, said)


def hpcg(cluster: Cluster) -> Forecast:
    """Forecast HPCG, which memory bounds: operations per byte that the memories could move.

    Args:
        cluster: record.

    Returns:
        The rate with its 80 % interval.

    Raises:
        CatalogError: the cluster has no accelerators.
        FitError: fewer than 3 other clusters are listed.

    Source: Dongarra, Heroux and Luszczek 2016 (HPCG); arXiv 2307.16885.
    """
    _device(cluster)
    fit = memory_share(without=cluster.name)
    said = (
        f"{1 / fit.mean:.1f} bytes of memory traffic per operation, from {fit.num_machines} other "
        "clusters of the catalog (HPCG lists)"
    )
    return _fitted("hpcg.rate", fit.share() * _memory_bytes_per_s(cluster), fit.relative, said)


def memory_share(*, without: str = "") -> ShareFit:
    """Fit the operations of HPCG per byte that a cluster's memories could move.

    Args:
        without: name of a cluster that is left out.

    Returns:
        The fit; its interval is what code that memory binds differs by from cluster to cluster.

    Raises:
        FitError: fewer than 3 clusters are listed.
    """
    others = listed_clusters("hpcg_flops_per_s", without=without)
    return fit_shares([item.hpcg_flops_per_s / _memory_bytes_per_s(item) for item in others])


def _device(cluster: Cluster) -> Accelerator:
    """Return the accelerators of a cluster; processors alone are like none that is listed."""
    found = catalog.accelerator(cluster.accelerator)
    if found.kind == "cpu":
        raise CatalogError(
            f"cluster {cluster.name}: accelerator is the processor {found.name}, but the clusters "
            "whose figures are known have accelerators",
            hint="ask about a cluster of accelerators",
        )
    return found


def _memory_bytes_per_s(cluster: Cluster) -> float:
    """Return what all accelerators' memories move per second at their peak."""
    device = catalog.accelerator(cluster.accelerator)
    return device.memory_bytes_per_s * cluster.num_accelerators


def _fitted(name: str, value: float, relative: float, source: str) -> Forecast:
    """Make a forecast that rests on other clusters."""
    kind: Provenance = "fitted"
    return Forecast.about(name, value, relative=relative, provenance=kind, source=source)


def _need(cluster: Cluster, field: str) -> float:
    """Return a field of a cluster, and refuse an empty one."""
    value = float(getattr(cluster, field))
    if not value:
        raise _empty(f"cluster {cluster.name}", field)
    return value


def _empty(whose: str, field: str) -> CatalogError:
    """Make the error of an empty field."""
    error = CatalogError(
        f"{whose}: {field} is empty, but {_WHERE[field]}",
        hint=f"give {field} in a file of your own, as docs/rooms/catalog.md shows",
    )
    error.field = field
    return error
