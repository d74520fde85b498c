"""`steelyard operate shards`: a store of nodes here or on a cluster, and its policy at scale."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cyclopts

from steelyard.cli.output import Switch, print_json, print_report
from steelyard.errors import ConfigError
from steelyard.runs.report import Column, Report, Section, Table, Text

if TYPE_CHECKING:
    from steelyard.operate.shards.cluster import ShardCluster
    from steelyard.operate.shards.gossip_run import GossipRun

__all__ = ["shards"]

shards = cyclopts.App(name="shards")


@shards.command
def up(
    *,
    nodes: int = 4,
    store: Path = Path("shards"),
    rows: int = 20_000,
    kill: str = "",
    cluster: str = "",
    chart: Path | None = None,
    json: Switch = False,
) -> None:
    """Start a store, fill it, and keep it whole until interrupted, or show how it heals.

    Example: steelyard operate shards up --nodes 4 --kill n1 --chart shards.png

    Args:
        nodes: Processes to start; those that the folder has already are started again.
        store: Folder of the map and of the nodes; on a cluster the same path on every machine.
        rows: Rows of 128 bytes to write where the store has none.
        kill: Node to kill once; the command ends when every shard has its copies again.
        cluster: Address of a Ray cluster, one actor of which is a node; auto for that of this
            machine, empty for processes of this host (extra [ray]).
        chart: Picture of the map before and after; .png, .svg or .html.
        json: Print the status as JSON.
    """
    from steelyard.operate.shards.cluster import ShardCluster, StoreOptions
    from steelyard.operate.shards.ray_nodes import RayNodes

    # Many more shards than nodes: what a dead node held is then spread evenly over the others.
    options = StoreOptions(shards=16 * nodes, keys=max(rows, 16 * nodes))
    launcher = RayNodes(cluster, nodes=nodes) if cluster else None
    with ShardCluster(nodes=nodes, store=store, options=options, launcher=launcher) as held:
        _fill(held, rows)
        if not kill:
            _show(held.status(), json=json)
            _wait_for_interrupt()
            return
        moments = [("before", held.map)]
        begin_s = time.monotonic()
        held.kill(kill)
        # Until it is known to be dead nothing is missing, and the store counts as whole.
        held.wait_dead(kill)
        moments.append((f"{kill} is dead", held.map))
        held.wait_whole()
        moments.append(("every shard has its copies", held.map))
        status = held.status() | {"healed_s": time.monotonic() - begin_s}
    if chart is not None:
        from steelyard.operate.shards.picture import draw_maps
        from steelyard.runs.save import save_chart

        save_chart(draw_maps(moments, f"Shards before and after {kill} is killed"), chart)
    _show(status, json=json)


def _fill(cluster: "ShardCluster", rows: int) -> None:
    """Write rows where the store has none."""
    import numpy as np

    if rows < 1:
        raise ConfigError(f"--rows is {rows}, but must be at least 1", hint="raise --rows")
    keys = np.arange(rows, dtype=np.uint64)
    # One row tells: a folder that was filled before is left as it is.
    if int(cluster.get(keys[:1])[0][0]) >= 0:
        return
    values = np.random.default_rng(0).integers(0, 256, (rows, 128)).astype(np.uint8)
    for start in range(0, rows, 2048):
        cluster.put(keys[start : start + 2048], values[start : start + 2048])


def _wait_for_interrupt() -> None:
    """Wait for Ctrl-C."""
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return


def _show(status: dict[str, Any], *, json: bool) -> None:
    """Print what a store's status says."""
    if json:
        print_json(status)
        return
    heads = ("node", "state", "writes", "replicas", "fragments", "rows", "memory, MiB", "up, %")
    table = Table(
        columns=[Column(head, align="right" if head != "node" else "left") for head in heads],
        rows=[
            [
                name,
                node["state"],
                str(node["leads"]),
                str(node["replicas"]),
                str(node["fragments"]),
                str(node["rows"]),
                f"{node['memory_bytes'] / 2**20:.1f}",
                f"{100 * node['availability']:.2f}",
            ]
            for name, node in status["nodes"].items()
        ],
    )
    words = (
        f"{status['shards']} shards, {status['cold']} cold, {len(status['lost'])} lost, "
        f"{status['lacking']} without all copies; {status['moved_bytes'] / 2**20:.1f} MiB copied"
    )
    if status["degraded"]:
        words += f"; degraded: {status['degraded']}"
    doubted = [
        f"{', '.join(node['suspected_by'])} do not reach {name}"
        for name, node in status["nodes"].items()
        if node["state"] == "up" and node["suspected_by"]
    ]
    if doubted:  # the controller does: links between them are bad
        words += "; " + ", ".join(doubted)
    if status["lost"]:
        words += "; lost shards come back with a node that had them"
    elif "healed_s" in status:
        words += f"; whole again {status['healed_s']:.1f} s after the kill"
    report = Report("Shards", "", [Section("", [table, Text(words + ".")])])
    print_report(report, json=False)


@shards.command
def simulate(
    *,
    nodes: int = 1000,
    windows: int = 120,
    grains: int = 8192,
    kills: int = 1,
    seed: int = 0,
    json: Switch = False,
) -> None:
    """Run the policy's parts, one after the other, over a drifting load in virtual time.

    Example: steelyard operate shards simulate --nodes 1000

    Args:
        nodes: Nodes.
        windows: Seconds of the load.
        grains: Smallest ranges of keys, 1 MB each.
        kills: Nodes that die halfway.
        seed: Seed of the load.
        json: Print the table as JSON.
    """
    import numpy as np

    from steelyard.operate.shards.ablation import ablate
    from steelyard.operate.shards.gossip_run import simulate_gossip
    from steelyard.operate.shards.simulate import LoadTrace, drifting_load
    from steelyard.train.chaos import ChaosFault

    if not 0 <= kills < nodes:
        raise ConfigError(f"--kills is {kills}, but must be in [0, {nodes - 1}]", hint="lower it")
    generator = np.random.default_rng(seed)
    rates = drifting_load(generator, windows=windows, grains=grains, total_rate=1e3 * nodes)
    faults = [ChaosFault(windows / 2, f"n{number}", "kill") for number in range(kills)]
    rows = ablate(LoadTrace(rates=rates, faults=faults), nodes=nodes)
    gossip = simulate_gossip(nodes, seed=seed) if nodes > 1 else None
    if json:
        print_json(rows | ({"gossip": asdict(gossip)} if gossip else {}))
        return
    heads = list(next(iter(rows.values())))
    table = Table(
        columns=[Column("parts"), *(Column(head, align="right") for head in heads)],
        rows=[[name, *(f"{row[head]:.4g}" for head in heads)] for name, row in rows.items()],
        caption=f"simulated: {nodes} nodes, {windows} s, seed {seed}",
    )
    told = Section("", [table, Text(_told(gossip))] if gossip else [table])
    print_report(Report("Parts of the policy", "", [told]), json=False)


def _told(run: "GossipRun") -> str:
    """Say how soon nodes that ping each other twice a second know of a death."""
    return (
        f"By gossip the first of {run.nodes} nodes suspects a dead one after "
        f"{run.first_suspected_s:.1f} s and holds it for dead after {run.first_dead_s:.1f} s; all "
        f"do after {run.all_dead_s:.1f} s, with {run.messages_per_node_s:.1f} messages of a node a "
        f"second, and {run.wronged} living ones were taken for dead."
    )
