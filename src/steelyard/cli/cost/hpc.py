"""`steelyard cost hpc`: what a cluster reaches in HPL, HPCG, a stencil and an all-reduce."""

from steelyard import catalog
from steelyard.cli.following import say_next
from steelyard.cli.output import Switch, forecast_table, print_report
from steelyard.config import to_plain
from steelyard.errors import ConfigError
from steelyard.quantity import QUANTITIES, Forecast
from steelyard.runs.report import Block, Cell, Column, Report, Section, Table, Text
from steelyard.units import pretty

__all__ = ["hpc"]


def hpc(*, cluster: str, nodes: int = 0, json: Switch = False) -> None:
    """Forecast a cluster's benchmarks: HPL with power and energy, HPCG, a stencil, an all-reduce.

    Args:
        cluster: catalog name of a cluster, or a TOML file with one of one's own.
        nodes: nodes that run; all when 0.
        json: print JSON.
    """
    if nodes < 0:
        raise ConfigError(f"--nodes is {nodes}, but must be at least 1, or 0 for all")
    from steelyard.cost.hpc.answer import benchmark_forecasts

    record = catalog.cluster(cluster)
    found = benchmark_forecasts(record, num_nodes=nodes)
    made = [item for items in found.forecasts.values() for item in items]
    blocks: list[Block] = [forecast_table(made)]
    blocks += [Text(f"{name} is left out: {why}.") for name, why in found.left_out.items()]
    if found.order:
        blocks.append(Text(f"HPL solves {found.order:,.0f} equations."))
    sections = [Section("Forecast", blocks)]
    if found.listed:
        sections.append(Section("Lists", [_listed_table(found.listed, made)]))
    count = nodes or record.num_nodes
    print_report(
        Report(
            f"Benchmarks of {record.name}",
            f"{count:,} nodes of {record.accelerators_per_node} {record.accelerator}",
            sections,
        ),
        json=json,
        values={"cluster": record.name, "nodes": count} | to_plain(found),
    )
    if not json:
        say_next("catalog", "show", record.name)


def _listed_table(listed: dict[str, float], made: list[Forecast]) -> Table:
    """Make the table of measured figures beside the forecasts that did not use them."""
    rows: list[list[Cell]] = []
    for item in made:
        if item.quantity not in listed:
            continue
        value = listed[item.quantity]
        inside = "yes" if item.low <= value <= item.high else "no"
        off = f"{item.value / value - 1:+.0%}"
        rows.append([item.quantity, pretty(value, QUANTITIES[item.quantity].unit), off, inside])
    heads = [
        Column("quantity"),
        Column("listed", align="right"),
        Column("forecast off", align="right"),
        Column("in interval"),
    ]
    return Table(heads, rows, caption="the forecasts rest on the other clusters")
