"""All benchmarks of a cluster at once; what its record does not allow is left out with reasons."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from steelyard import catalog
from steelyard.catalog.hardware import Cluster
from steelyard.cost.collectives import all_reduce_s
from steelyard.cost.hpc.lists import hpcg, hpl, memory_share, missing_rating
from steelyard.cost.hpc.stencil import StencilNode, step_s
from steelyard.cost.roofline import Machine
from steelyard.errors import CatalogError, FitError
from steelyard.quantity import Forecast

__all__ = ["FASTEST", "SLOWEST", "HpcAnswer", "benchmark_forecasts"]

_REDUCED_BYTES = 1e9
FASTEST, SLOWEST = 0.726, 5.72
"""Seconds of an all-reduce over those forecast, the least and the most that were measured on links
of known rates: NCCL on 8 H200 of a node, and over 1,024 A100 of Fire-Flyer-2 (arXiv 2408.14158,
figure 7a); benchmark `fire_flyer`. No list has all-reduces, and over a network those of one cluster
are known, which is no spread: the interval ends at these two."""
_HALO_RELATIVE = 0.05
"""Half-width of the efficiency's interval: more than simulated contention between cells adds
(benchmark `leonardo`). Lists have no stencils, and one cluster's efficiency is published, so that
no spread over clusters can be had."""


@dataclass(frozen=True, kw_only=True)
class HpcAnswer:
    """Forecasts of a cluster's benchmarks.

    Attributes:
        forecasts: forecasts of the benchmarks that the record allows, by name.
        left_out: for each benchmark that is left out, why there is none.
        listed: measured figures of the record by quantity, of the whole cluster.
        order: equations of HPL, N; 0 without it.
    """

    forecasts: dict[str, list[Forecast]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    listed: dict[str, float] = field(default_factory=dict)
    order: float = 0.0


def benchmark_forecasts(cluster: Cluster, *, num_nodes: int = 0) -> HpcAnswer:
    """Forecast HPL, HPCG, a lattice Boltzmann stencil and an all-reduce on a cluster.

    Args:
        cluster: record.
        num_nodes: nodes that run; all when 0.

    Returns:
        The forecasts with 80 % intervals. Figures that lists have for the whole cluster stand
        beside them, and none of them was used for it.

    Raises:
        CatalogError: there are more nodes than the cluster has.
    """
    part = _part(cluster, num_nodes)
    forecasts: dict[str, list[Forecast]] = {}
    problems: dict[str, CatalogError | FitError] = {}
    order = 0.0
    try:
        run = hpl(part)
        order = run.order
        found = (run.rate, run.duration, run.power, run.energy)
        forecasts["HPL"] = [item for item in found if item]
        if missing := missing_rating(catalog.accelerator(part.accelerator)):
            problems["power of HPL"] = missing
    except (CatalogError, FitError) as error:
        problems["HPL"] = error
    others: dict[str, Callable[[Cluster], list[Forecast]]] = {
        "HPCG": lambda item: [hpcg(item)],
        "lattice Boltzmann": _stencil,
        "all-reduce of 1 GB": _all_reduce,
    }
    for name, forecast in others.items():
        try:
            forecasts[name] = forecast(part)
        except (CatalogError, FitError) as error:
            problems[name] = error
    made = {item.quantity for items in forecasts.values() for item in items}
    listed = _listed(cluster) if part is cluster else {}
    return HpcAnswer(
        forecasts=forecasts,
        left_out={name: str(error) for name, error in problems.items()},
        listed={name: value for name, value in listed.items() if name in made},
        order=order,
    )


def _part(cluster: Cluster, num_nodes: int) -> Cluster:
    """Return the cluster with fewer nodes, its peak in proportion; itself for all of them."""
    if not num_nodes or num_nodes == cluster.num_nodes:
        return cluster
    if not 0 < num_nodes <= cluster.num_nodes:
        raise CatalogError(
            f"cluster {cluster.name} has {cluster.num_nodes:,} nodes, not {num_nodes:,}",
            hint=f"take 1 to {cluster.num_nodes} nodes",
        )
    share = num_nodes / cluster.num_nodes
    # Levels of links multiply to all accelerators; without them node and network are left.
    peak = cluster.rpeak_flops_per_s * share
    return replace(
        cluster, num_nodes=num_nodes, levels=(), rpeak_flops_per_s=peak, rmax_flops_per_s=0.0
    )


def _listed(cluster: Cluster) -> dict[str, float]:
    """Return what lists have of a cluster, by quantity."""
    known = {
        "hpl.rate": cluster.rmax_flops_per_s,
        "hpl.power": cluster.hpl_power_w,
        "hpcg.rate": cluster.hpcg_flops_per_s,
    }
    return {name: value for name, value in known.items() if value}


def _stencil(cluster: Cluster) -> list[Forecast]:
    """Forecast the weak scaling of lattice Boltzmann (D3Q19) that fills the memories."""
    node = StencilNode.of(cluster, catalog.accelerator(cluster.accelerator))
    count = cluster.num_nodes
    step = float(step_s(node, count))
    share = float(step_s(node, 1)) / step
    said = f"D3Q19, {node.sites / 1e6:.0f} M sites per accelerator, memory bandwidth and halos"
    # No more than all of a node's rate; the interval ends there.
    efficiency = Forecast(
        quantity="stencil.efficiency",
        value=share,
        low=share / (1 + _HALO_RELATIVE),
        high=max(min(share * (1 + _HALO_RELATIVE), 1.0), share),
        provenance="derived",
        source=said,
    )
    rate = count * node.accelerators * node.sites / step
    # How far codes that memory binds fall apart is known of another one of them.
    other = memory_share(without=cluster.name)
    wide = math.expm1(math.hypot(other.log_half_width, math.log1p(_HALO_RELATIVE)))
    assumed = Forecast.about(
        "stencil.rate",
        rate,
        relative=wide,
        provenance="assumed",
        source="8 of 10 parts of the memory bandwidth; interval of HPCG's share of it on "
        f"{other.num_machines} other clusters",
    )
    return [efficiency, assumed]


def _all_reduce(cluster: Cluster) -> list[Forecast]:
    """Forecast the fastest all-reduce over all accelerators."""
    device = catalog.accelerator(cluster.accelerator)
    machine = Machine.from_accelerator(
        device, cluster=cluster, dtype=next(iter(device.peak_flops_per_s))
    )
    seconds = float(all_reduce_s(machine, _REDUCED_BYTES, cluster.num_accelerators))
    said = f"the best algorithm, {machine.efficiencies.link:g} of the links' rates"
    return [
        Forecast(
            quantity="network.collective_time",
            value=seconds,
            low=FASTEST * seconds,
            high=SLOWEST * seconds,
            provenance="assumed",
            source=f"{said}; interval from the fastest to the slowest measured",
        )
    ]
