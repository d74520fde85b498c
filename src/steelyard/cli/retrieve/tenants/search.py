"""`steelyard retrieve tenants search`: the nearest vectors of those that a tenant sees."""

import time
from pathlib import Path

import numpy as np

from steelyard.cli.numbers import require_range
from steelyard.cli.output import Switch, print_report
from steelyard.cli.retrieve.search import hit_table, hit_values
from steelyard.errors import ConfigError
from steelyard.files import atomic_path
from steelyard.retrieve.reading import read_vectors
from steelyard.retrieve.tenants import open_tenant_index
from steelyard.runs.report import Facts, Report, Section
from steelyard.units import pretty

__all__ = ["search"]


def search(
    folder: Path,
    queries: Path,
    *,
    tenant: str = "",
    where: str = "",
    k: int = 10,
    nprobe: int = 0,
    out: Path | None = None,
    json: Switch = False,
) -> None:
    """Find the nearest vectors of those that a tenant sees, or that a condition admits.

    Example: steelyard retrieve tenants search shared queries.npy --where "acme AND NOT legal"

    Args:
        folder: folder that `steelyard retrieve tenants build` wrote.
        queries: .npy, .fvecs or .bvecs file.
        tenant: name of the tenant.
        where: condition on tenants in its place: names joined by AND, OR and NOT.
        k: neighbours of each query.
        nprobe: vectors to compare a query with; as many as the index was told to when 0.
        out: .npz file for the arrays ids and distances, one row per query.
        json: print JSON instead of tables: all hits of up to 1,000 queries.
    """
    if bool(tenant) == bool(where):
        raise ConfigError("give either --tenant or --where")
    require_range(0, nprobe=nprobe)
    index = open_tenant_index(folder)
    asked = np.asarray(read_vectors(queries))
    began_s = time.perf_counter()
    hits = index.search(asked, k, tenant=tenant, where=where, nprobe=nprobe or None, strict=True)
    took_s = time.perf_counter() - began_s
    if out is not None:
        with atomic_path(out) as beside, beside.open("wb") as file:
            np.savez(file, ids=hits.ids, distances=hits.distances)
    facts = Facts(
        [
            ("queries", f"{len(asked):,}", ""),
            ("time", pretty(took_s, "s"), "measured"),
            ("compared per query", f"{hits.stats.scanned / len(asked):,.0f} of {len(index):,}", ""),
            ("nodes entered per query", f"{hits.stats.probed / len(asked):,.1f}", ""),
        ]
    )
    sections = [Section("Search", [facts]), Section("Hits", [hit_table(hits)])]
    page = Report(f"Nearest vectors for {tenant or where}", str(folder), sections)
    print_report(page, json=json, values=hit_values(hits, took_s))
