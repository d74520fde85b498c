"""All-reduces that were measured, against the ends of the interval of `steelyard cost hpc`."""

import csv
import gzip
import io

import numpy as np
from benchmarks.common import Check
from benchmarks.laws._shared import shared
from benchmarks.plan._fire_flyer_links import SIZE_BYTES, published_gb_per_s

from steelyard import catalog
from steelyard.catalog.hardware import Cluster
from steelyard.cost.collectives import all_reduce_s
from steelyard.cost.hpc.answer import FASTEST, SLOWEST
from steelyard.cost.roofline import Machine

__all__ = ["interval_check"]

_NODES = {"a100": "A100-SXM4-80GB", "h100": "H100-SXM5-80GB", "h200": "H200-SXM5-141GB"}
_LARGE_BYTES = 2**28
"""All-reduces as large are bound by rates, not by latencies."""


def interval_check() -> Check:
    """Compare both ends with the fastest and the slowest that was measured on known links."""
    inside = {name: _in_node(name) for name in _NODES}
    cluster = catalog.cluster("Fire-Flyer-2")
    machine = Machine.from_accelerator(catalog.accelerator(cluster.accelerator), cluster=cluster)
    across = [
        SIZE_BYTES / (1e9 * rate) / float(all_reduce_s(machine, SIZE_BYTES, count))
        for count, rate in published_gb_per_s()["nccl"].items()
    ]
    told = {name: f"{min(found):.2f} to {max(found):.2f}" for name, found in inside.items()}
    print(f"all-reduces, measured over forecast: in a node {told}; Fire-Flyer-2 {across}")
    every = [value for found in inside.values() for value in found] + across
    off = np.abs(np.array([min(every), max(every)]) / [FASTEST, SLOWEST] - 1)
    return Check(
        "5 ends of the all-reduce's interval less those measured", off.max(), 0.01, "lower"
    )


def _in_node(name: str) -> list[float]:
    """Return seconds measured over forecast of large all-reduces in a node of eight."""
    device = catalog.accelerator(_NODES[name])
    node = Cluster(
        name=name,
        site="",
        year=device.year,
        num_nodes=1,
        accelerator=device.name,
        accelerators_per_node=8,
        scale_up_bytes_per_s=device.scale_up_bytes_per_s,
    )
    machine = Machine.from_accelerator(device, cluster=node)
    packed = gzip.decompress(
        (shared("gpu-kernel-timings") / f"{name}_sxm_nccl.csv.gz").read_bytes()
    )
    found = []
    for row in csv.DictReader(io.StringIO(packed.decode())):
        size = 2 * int(row["elements"])
        if row["collective"] == "all_reduce" and size >= _LARGE_BYTES:
            forecast = float(all_reduce_s(machine, size, int(row["num_gpus"])))
            found.append(1e-3 * float(row["latency_ms"]) / forecast)
    return found
