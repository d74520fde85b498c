"""Shards that heal: nodes killed under load, declustered rebuilds, balance, faults, cold tiers."""

import math
from functools import partial

import numpy as np
from benchmarks.common import Check
from benchmarks.operate._fault_sequences import World
from benchmarks.operate._rising_load import over_capacity_s
from benchmarks.operate._shard_cells import kept
from benchmarks.operate._shard_kills import KILLS, MEGABYTES, PARTS, batch_rates, kill_under_load

from steelyard.cost.survival import Coded, Copies, sample_survival, survival
from steelyard.data.erasure import ErasureCode
from steelyard.data.shardstore.rows import Rows
from steelyard.operate.shards.ablation import ablate
from steelyard.operate.shards.placement import distribute, rank
from steelyard.operate.shards.policy import Adaptive
from steelyard.operate.shards.simulate import LoadTrace, drifting_load, simulate

PAPER = ["18-self-healing-sharding"]

_SEED = 7


def run(quick: bool) -> list[Check]:
    """Kill, rebuild, balance, place, survive."""
    checks = [*_kills(quick), *_rebuilds(quick), *_balance(quick), _rise(quick), *_placement()]
    checks += [*_faults(quick), *_cold(), *_batches(quick)]
    return checks


def _kills(quick: bool) -> list[Check]:
    found = kill_under_load(2) if quick else kept("kills", PARTS["kills"])
    print(
        f"{2 if quick else KILLS} kills of 1 of 4: {found['reads']:.0f} rows read, "
        f"{found['writes']:.0f} written, whole again after {found['whole_s']:.2f} s (median)"
    )
    return [
        Check("1 acknowledged rows lost or read older", found["lost"], 0, "lower"),
        Check("1 reads answered within 1 s", found["available"], 0.995, "higher"),
    ]


def _rebuilds(quick: bool) -> list[Check]:
    if quick:  # starting and filling eight shaped nodes twice takes a minute
        print("rebuilds over shaped links are measured in full runs alone")
        return []
    found = kept("rebuilds", PARTS["rebuilds"])
    print(
        f"{MEGABYTES:.0f} MB a node at 20 MB/s: {found['shared_s']:.2f} s by all survivors "
        f"({found['shared_known_s']:.2f} s once known), {found['spare_s']:.2f} s by one spare "
        f"({found['spare_known_s']:.2f} s)"
    )
    ratio = found["shared_s"] / found["spare_s"]
    return [Check("1 rebuild by all over by one spare", ratio, 0.5, "lower")]


def _balance(quick: bool) -> list[Check]:
    """Compare with static placement and with one modulo change, on 64 nodes."""
    nodes, grains, windows = 64, 4096, 120 if quick else 360
    rates = drifting_load(
        np.random.default_rng(_SEED),
        windows=windows,
        grains=grains,
        total_rate=1e3 * nodes,
        drift=0.0005,
    )
    trace = LoadTrace(rates=rates, grain_bytes=1e5)
    rows = ablate(trace, nodes=nodes)
    for name, row in rows.items():
        print(f"{name:14s} " + "  ".join(f"{head} {value:.4g}" for head, value in row.items()))
    policy = Adaptive(ping_s=1.0, lease_s=4.0, temporal=False, cold_after_s=1e9)
    ours = simulate(trace, nodes=nodes, policy=policy)
    tail = slice(windows // 6, None)  # after the first classes and moves
    static = _static_imbalance(rates, nodes)[tail]
    ranges = _range_imbalance(rates, nodes)[tail]
    worst = [float(np.quantile(item, 0.99)) for item in (ours.imbalance[tail], static, ranges)]
    print(f"p99 imbalance {worst[0]:.2f}, static hashing {worst[1]:.2f}, ranges {worst[2]:.2f}")
    # Modulo moves N / (N + 1) of all copies when the number of nodes changes once.
    modulo = 2 * grains * trace.grain_bytes * nodes / (nodes + 1)
    moved = ours.moved_bytes / modulo
    return [
        Check("2 p99 imbalance over static hashing", worst[0] / worst[1], 0.5, "lower"),
        Check("2 p99 imbalance over static ranges", worst[0] / worst[2], 1 / 3, "lower"),
        Check("2 bytes moved over one change of modulo", moved, 0.1, "lower"),
    ]


def _rise(quick: bool) -> Check:
    """Compare with and without forecast where loads rise as long as copies take."""
    seeds = range(20, 22 if quick else 30)  # on which nothing was chosen
    found = np.array(
        [[over_capacity_s(seed, predict=on) for on in (False, True)] for seed in seeds]
    )
    for seed, (off, on) in zip(seeds, found[:, :, 0], strict=True):
        print(f"rises of seed {seed}: {off:.0f} s above capacity, {on:.0f} s with the forecast")
    total, moved = found[:, :, 0].sum(axis=0), found[:, :, 1].sum(axis=0)
    print(f"bytes copied, with the forecast over without: {moved[1] / moved[0]:.2f}")
    words = "2 seconds above capacity at rises, with the forecast over without"
    return Check(words, float(total[1] / total[0]), 0.5, "lower")


def _static_imbalance(rates: np.ndarray, nodes: int) -> np.ndarray:
    """Return the highest load over the mean when every grain has two nodes by its hash for good."""
    names = {f"n{number}": 1.0 for number in range(nodes)}
    columns = {name: column for column, name in enumerate(names)}
    spread = np.zeros((rates.shape[1], nodes))
    for grain in range(rates.shape[1]):
        for name in rank(grain, names)[:2]:
            spread[grain, columns[name]] = 0.5
    loads = rates @ spread
    return loads.max(axis=1) / loads.mean(axis=1)


def _range_imbalance(rates: np.ndarray, nodes: int) -> np.ndarray:
    """Return the highest load over the mean when each node and the next hold a range for good."""
    owned = rates.reshape(len(rates), nodes, -1).sum(axis=2)
    loads = (owned + np.roll(owned, 1, axis=1)) / 2
    return loads.max(axis=1) / loads.mean(axis=1)


def _placement() -> list[Check]:
    """Add and remove nodes, and see how many copies move and how full any node is."""
    worst, fullest = 0.0, 0.0
    for nodes in (4, 8, 16, 64):
        names = {f"n{number}": 1.0 for number in range(nodes)}
        weights, copies = dict.fromkeys(range(1024), 1.0), dict.fromkeys(range(1024), 2)
        before = distribute(weights, copies, names, eps=0.25)
        more = distribute(weights, copies, {**names, "new": 1.0}, eps=0.25, current=before)
        less = distribute(
            weights,
            copies,
            {n: 1.0 for n in names if n != "n1"},
            eps=0.25,
            current=before,
        )
        for after, ideal in ((more, 1 / (nodes + 1)), (less, 1 / nodes)):
            moved = sum(len(set(after[i]) - set(before[i])) for i in after) / 2048
            worst = max(worst, moved / ideal)
            counts = np.bincount(
                [
                    int(name[1:]) if name != "new" else nodes
                    for pair in after.values()
                    for name in pair
                ]
            )
            fullest = max(
                fullest, counts.max() / (2048 / (nodes + 1 if after is more else nodes - 1))
            )
    return [
        Check("3 moved over the ideal 1/n", worst, 1.15, "lower"),
        Check("3 fullest node over the mean", fullest, 1.25, "lower"),
    ]


def _faults(quick: bool) -> list[Check]:
    """Run sequences of faults that were not run while the store was made, with 2 and 3 copies."""
    checks = []
    for replicas, first, count in ((2, 300_000, 10_000), (3, 400_000, 1000)):
        total: dict[str, float] = {}
        step = 100 if quick else 1000
        for seed in range(first, first + (step if quick else count), step):
            run = partial(_sequences, replicas, seed, step)
            found = run() if quick else kept(f"faults of seeds from {seed}", run)
            total = {name: total.get(name, 0) + number for name, number in found.items()}
        print(
            f"{total['run']:.0f} sequences of faults with {replicas} copies: "
            f"{total['acknowledged']:.0f} writes, {total['read']:.0f} reads"
        )
        words = f"4 sequences with {replicas} copies that lost a write or had two writers"
        checks.append(Check(words, total["broken"], 0, "lower"))
    return checks


def _sequences(replicas: int, first_seed: int, count: int) -> dict[str, float]:
    """Run some sequences, and count those that broke a promise and the work that was done."""
    worlds = (
        World(seed, replicas=replicas).run() for seed in range(first_seed, first_seed + count)
    )
    found = {"run": 0.0, "broken": 0.0, "acknowledged": 0.0, "read": 0.0}
    for world in worlds:
        found["run"] += 1
        found["broken"] += bool(world.violations)
        found["acknowledged"] += world.counts["acknowledged"]
        found["read"] += world.counts["read"]
    return found


def _cold() -> list[Check]:
    """Weigh a coded shard against three copies of it, and compare how likely each survives."""
    count, width = 20_000, 128
    keys = np.arange(count, dtype=np.uint64)
    values = np.random.default_rng(0).integers(0, 256, (count, width)).astype(np.uint8)
    content = Rows(keys, keys, np.full(count, width, np.int32), values).to_bytes()
    code = ErasureCode(data=8, parity=3)
    blocks = code.split(content)
    coded = blocks.nbytes + code.encode(blocks).nbytes
    rate, repair = 1 / (30 * 86_400.0), 600.0
    wide, three = Coded(data=8, parity=3), Copies(replicas=3)
    worse = survival(wide, rate, repair).loss / survival(three, rate, repair).loss
    small = (
        survival(Coded(data=4, parity=2), rate, repair).loss / survival(three, rate, repair).loss
    )
    print(f"RS(4, 2) loses {small:.1f} times as likely as three copies, RS(8, 3) {worse:.2g} times")
    off = 0.0
    for scheme in (three, Copies(replicas=2, groups=8), Coded(data=4, parity=2)):
        args = (scheme, 0.02, 4.0)
        seen = sample_survival(
            *args, horizon_s=60.0, trials=20_000, generator=np.random.default_rng(1)
        )
        said = survival(*args, horizon_s=60.0).probability
        off = max(off, abs(said - seen) / math.sqrt(said * (1 - said) / 20_000))
    return [
        Check(
            "5 bytes of RS(8, 3) over three bare copies", coded / (3 * len(content)), 0.5, "lower"
        ),
        Check("5 loss of RS(8, 3) over three copies'", worse, 1.0, "lower"),
        Check("5 survival, formula against simulation, standard errors", off, 4.0, "lower"),
    ]


def _batches(quick: bool) -> list[Check]:
    """Compare batches of reads with redis-server, where there is one."""
    found = batch_rates(1) if quick else kept("batches", PARTS["batches"])
    for rows in (1, 16, 256):
        words = f"batches of {rows}: {found[str(rows)]:,.0f} rows/s from one node"
        if f"{rows} redis" in found:
            words += (
                f", {found[f'{rows} redis']:,.0f} by MGET; ratio {found[f'{rows} ratio']:.2f} "
                f"({found[f'{rows} least']:.2f} to {found[f'{rows} most']:.2f})"
            )
        print(words)
    if "256 ratio" not in found:
        print("no redis-server: python -m benchmarks peers install redis-server")
        return []
    words = "6 rows/s in batches of 256 over redis-server's MGET"
    return [Check(words, found["256 ratio"], 1.0, "higher")]
