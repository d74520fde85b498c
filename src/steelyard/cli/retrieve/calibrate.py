"""`steelyard retrieve calibrate`: how fast this machine searches and builds indexes."""

from dataclasses import asdict

from steelyard.catalog.search_rates import SearchRates, store_search_rates
from steelyard.cli.output import Switch, print_report
from steelyard.cost.vector_search import IndexShape, predict
from steelyard.cost.vector_search.tenant_work import SEARCHES
from steelyard.retrieve.calibration import measure_search_rates
from steelyard.runs.progress import progress
from steelyard.runs.report import Block, Cell, Column, Facts, Report, Section, Table
from steelyard.units import pretty

__all__ = ["calibrate"]

_EXAMPLES = (
    (IndexShape(kind="flat", num_vectors=10_000, dim=128), 1),
    (IndexShape(kind="ivf", num_vectors=1_000_000, dim=128, nlist=4096), 16),
    (IndexShape(kind="ivfpq", num_vectors=1_000_000, dim=128, nlist=4096, rerank=8), 16),
    (IndexShape(kind="fastscan", num_vectors=1_000_000, dim=128, nlist=4096, rerank=8), 16),
)


def calibrate(*, json: Switch = False) -> None:
    """Measure how fast this machine searches and builds indexes of vectors, in about a minute.

    Example: steelyard retrieve calibrate

    Args:
        json: print JSON instead of tables.
    """
    with progress("calibrate", quiet=json) as advance:
        rates = measure_search_rates(advance=advance)
    path = store_search_rates(rates)
    facts = Facts(
        [
            ("kept in", str(path), ""),
            ("searches run in", "native code" if rates.native else "code of numba", ""),
            ("threads of a build", str(rates.threads), ""),
            ("time", pretty(rates.duration_s, "s"), "measured"),
        ]
    )
    sections = [Section("Calibration", [facts]), Section("Seconds per unit", [_rate_table(rates)])]
    sections.append(Section("Seconds per unit, for one tenant of many", _tenant_tables(rates)))
    sections.append(Section("What they forecast", [_example_table(rates)]))
    page = Report("Searches of vectors on this machine", "", sections)
    print_report(page, json=json, values={"path": str(path), **asdict(rates)})


def _rate_table(rates: SearchRates) -> Table:
    """List what each unit of work takes."""
    kinds = [kind for kind in rates.query_s if kind not in SEARCHES]
    parts = list(rates.query_s[kinds[0]])
    rows: list[list[Cell]] = [
        [part, *(f"{rates.query_s[kind][part] * 1e9:.4g}" for kind in kinds)] for part in parts
    ]
    relative = [f"±{rates.query_relative[kind]:.0%}" for kind in kinds]
    rows.append(["80 % of other indexes within", *relative])
    return Table([Column("nanoseconds per unit of"), *(Column(kind) for kind in kinds)], rows)


def _tenant_tables(rates: SearchRates) -> list[Block]:
    """List the same of searches for one tenant, each of which has units of its own."""
    tables: list[Block] = []
    for kind in SEARCHES:
        own = rates.query_s[kind]
        rows: list[list[Cell]] = [[part, f"{value * 1e9:.4g}"] for part, value in own.items()]
        rows.append(["80 % of other tenants within", f"±{rates.query_relative[kind]:.0%}"])
        tables.append(Table([Column("nanoseconds per unit of"), Column(kind)], rows))
    return tables


def _example_table(rates: SearchRates) -> Table:
    """Forecast a few indexes."""
    rows: list[list[Cell]] = []
    for shape, nprobe in _EXAMPLES:
        found = predict(shape, nprobe, rates)
        told = f"{shape.kind}, {shape.num_vectors:,} of {shape.dim} numbers"
        where = f"{nprobe:,} of {shape.nlist:,}"
        query = f"{pretty(found.query.value, 's')} ({pretty(found.query.low, 's')} to "
        rows.append(
            [
                told,
                where,
                pretty(found.memory.value, "byte"),
                pretty(found.build.value, "s"),
                query + f"{pretty(found.query.high, 's')})",
            ]
        )
    names = ("index", "cells of a query", "memory", "build", "query (80 %)")
    return Table([Column(name) for name in names], rows, "fitted")
