"""`steelyard plan network`: the routing for a traffic on a network, with the reasons."""

from pathlib import Path

from steelyard import catalog
from steelyard.cli.output import Switch, forecast_table, print_json
from steelyard.config import to_plain
from steelyard.errors import ConfigError
from steelyard.plan.routing import plan_routing
from steelyard.plan.types import Plan
from steelyard.runs.report import Cell, Column, Report, Section, Table, Text
from steelyard.sim.network.graph import Network
from steelyard.sim.network.published import network_of, parse_shape
from steelyard.sim.network.traces import read_flows
from steelyard.sim.network.traffic import COLLECTIVES, CollectiveStep
from steelyard.units import parse, pretty

__all__ = ["network"]

_MOST_FLOWS = 1_200_000


def network(
    *,
    topology: str = "",
    cluster: str = "",
    nodes: int = 0,
    rate: str = "",
    oversubscription: float = 1.0,
    collective: str = "",
    size: str = "64 MB",
    hosts: int = 0,
    trace: str = "",
    max_queue_pairs: int = 0,
    allow_reordering: Switch = False,
    seeds: int = 3,
    json: Switch = False,
) -> None:
    """Say which routing a traffic needs on a network, and what the others would take.

    Example: steelyard plan network --topology leaf-spine:16x16x16 --collective halving-doubling

    Args:
        topology: shape and sizes, such as leaf-spine:16x16x16 (leaves, spines, hosts per leaf),
            fat-tree:4x8x8x16x16, zones:2x40x20x20x2, dragonfly+:23x18x18x40 or torus:8x8x8.
        cluster: catalog name of a cluster, in place of a topology.
        nodes: nodes of the cluster to connect, 0 for all.
        rate: rate of a host's link; 400 Gbit/s for a topology when empty.
        oversubscription: rate into a layer of a fat tree over that out of it; 1 for none.
        collective: all-to-all, all-to-all-rounds, ring, halving-doubling or double-tree.
        size: bytes that each host holds.
        hosts: hosts that take part in the collective, the first ones; all when 0.
        trace: CSV file of flows (source, target, bytes, start_s), in place of a collective.
        max_queue_pairs: most connections a host may hold at a time, 0 for any number.
        allow_reordering: receivers put packets in order, so that spraying is allowed.
        seeds: draws of routings by hash or by load.
        json: print the plan as JSON.
    """
    _check_asked(topology, cluster, collective, trace)
    _check_counts(nodes=nodes, hosts=hosts, max_queue_pairs=max_queue_pairs, seeds=seeds)
    graph, note = _network(topology, cluster, nodes, rate, oversubscription)
    if trace:
        steps, what = [CollectiveStep(read_flows(Path(trace)))], f"flows of {trace}"
    else:
        amount = parse(size, "byte", where="--size")
        steps = _steps(graph, collective, amount, hosts)
        what = f"{collective} of {pretty(amount, 'byte')}"
    made = plan_routing(
        graph,
        steps,
        max_queue_pairs=max_queue_pairs,
        allows_reordering=allow_reordering,
        num_seeds=seeds,
    )
    if json:
        print_json(to_plain(made) | {"assumptions": [note] if note else []})
    else:
        _print(made, what, note)


def _check_asked(topology: str, cluster: str, collective: str, trace: str) -> None:
    """Refuse both or none of what stands in place of each other."""
    # Equal truth is both or none: with both, one of them would be ignored in silence.
    if bool(topology) == bool(cluster):
        raise ConfigError(
            "give either --topology or --cluster",
            hint="such as --topology leaf-spine:16x16x16, or --cluster LEONARDO-Booster",
        )
    if bool(collective) == bool(trace):
        raise ConfigError(
            "give either --collective or --trace", hint=f"collectives: {', '.join(COLLECTIVES)}"
        )


def _check_counts(**counts: int) -> None:
    """Refuse counts out of range, in the words of the flags."""
    for name, value in counts.items():
        least = 1 if name == "seeds" else 0
        if value < least:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} is {value}, but must be at least {least}")


def _network(
    topology: str, cluster: str, nodes: int, rate: str, oversubscription: float
) -> tuple[Network, str]:
    """Return the network that is asked about, and where its wiring comes from."""
    if topology:
        if nodes:
            raise ConfigError("--nodes goes with --cluster", hint="--topology has its own sizes")
        speed = parse(rate or "400 Gbit/s", "byte/s", where="--rate")
        return parse_shape(topology, bytes_per_s=speed, oversubscription=oversubscription), ""
    # The catalog states the rate; another one would no longer be that cluster.
    if rate or oversubscription != 1.0:
        raise ConfigError(
            "--rate and --oversubscription go with --topology",
            hint="the catalog has the rate of a cluster's nodes",
        )
    return network_of(catalog.cluster(cluster), num_nodes=nodes)


def _steps(graph: Network, collective: str, size: float, hosts: int) -> list[CollectiveStep]:
    """Return the steps of a collective among the first hosts of a network."""
    if collective not in COLLECTIVES:
        raise ConfigError(
            f"--collective is {collective!r}, but must be one of {', '.join(COLLECTIVES)}"
        )
    count = hosts or graph.num_hosts
    if not 2 <= count <= graph.num_hosts:
        raise ConfigError(
            f"--hosts is {count}, but {graph.name} has {graph.num_hosts} hosts",
            hint="take at least 2, or a larger network",
        )
    # Flows grow with the square of the hosts here, and with the hosts in all other collectives.
    if collective.startswith("all-to-all") and count * (count - 1) > _MOST_FLOWS:
        raise ConfigError(
            f"an all-to-all of {count} hosts has {count * (count - 1):,} flows, but at most "
            f"{_MOST_FLOWS:,} are simulated",
            hint="take part of the hosts, such as --hosts 1024",
        )
    return COLLECTIVES[collective](count, size)


def _print(made: Plan, what: str, note: str) -> None:
    """Print the plan as tables: all routings, the chosen one first."""
    heads = [
        Column("routing"),
        Column("time", align="right"),
        Column("over fastest", align="right", rank=1),
        Column("queue pairs", align="right"),
        Column("splits", align="right", rank=2),
        Column("why not"),
    ]
    rows = [_row(made.choice, "")] + [_row(item.choice, item.reason) for item in made.rejected]
    notes = [Text(f"{line}.") for line in (*made.notes, note) if line]
    sections = [
        Section(
            "", [Table(columns=heads, rows=rows), Text(f"Bound by {made.binding_constraint}.")]
        ),
        Section("Forecast", [forecast_table(made.forecasts), *notes]),
    ]
    Report(f"Routing for {what}", f"on {made.choice['network']}", sections).print()


def _row(choice: dict, reason: str) -> list[Cell]:
    """Return a routing's figures as people write them; empty where it was not simulated."""
    if "time_s" not in choice:
        return [choice["routing"], "", "", "", "", reason]
    return [
        choice["routing"],
        pretty(choice["time_s"], "s"),
        f"{choice['over_fastest']:.3f}",
        f"{choice['queue_pairs_per_host']:,}",
        f"{choice['splits']:,}",
        reason,
    ]
