"""Planned splitting of flows against ideal spraying and hashing: completion, splits, connections.

Leaf-spine of 16 x 16 with 256 hosts at 400 Gbit/s, as in arXiv:2407.00550. Flows start together and
share links max-min fairly; nothing is measured on a real network.
"""

import itertools
import math
import time

import numpy as np
from benchmarks.common import Check

from steelyard.plan.routing import simulate_routing
from steelyard.sim.network import Flows, leaf_spine, traffic
from steelyard.sim.network.balance import divide, num_pieces
from steelyard.sim.network.colouring import edge_colouring
from steelyard.sim.network.graph import Network
from steelyard.sim.network.maxmin import simulate_flows
from steelyard.sim.network.routing import ecmp, ethereal, spray

PAPER = ["15-packet-spraying-ethereal"]

_LINK = 50e9
_SIZE = 64e6
_BOUND_S = 60.0


def run(quick: bool) -> list[Check]:
    """Count splits, complete collectives, and simulate a large all-to-all."""
    hosts = 64 if quick else 256
    side = math.isqrt(hosts)
    graph = leaf_spine(side, side, side, bytes_per_s=_LINK)
    return [
        *_splits(40 if quick else 400),
        *_collectives(graph, hosts, 4 if quick else 20),
        _large(256 if quick else 1024),
        *_coloured(10 if quick else 60),
    ]


def _splits(cases: int) -> list[Check]:
    """Compare pieces with the closed forms, and the load of paths with even shares."""
    rng = np.random.default_rng(0)
    wrong, uneven = 0, 0.0
    for _ in range(cases):
        flows, ways = int(rng.integers(1, 60)), int(rng.integers(1, 17))
        rest, common = flows % ways, math.gcd(flows % ways, ways)
        for split in ("equal", "minimal"):
            _, path, size = divide(flows, ways, split)
            # Sizes are in shares of a path: each path carries as many as there are flows.
            load = np.bincount(path, size, minlength=ways)
            uneven = max(uneven, float(np.abs(load - flows).max()))
            extra = 0 if not rest else rest * (ways // common)
            least = 0 if not rest else rest + ways - common
            wanted = extra if split == "equal" else least
            wrong += int(len(path) != flows - rest + wanted)
            wrong += int(num_pieces(flows, ways, split) != wanted)
    return [
        Check("1 counts of pieces that differ from the formula", float(wrong), 0.0, "lower"),
        Check("1 load of a path off an even share, in flows", uneven, 1e-9, "lower"),
    ]


def _collectives(graph: Network, hosts: int, seeds: int) -> list[Check]:
    """Complete collectives under each routing."""
    checks = []
    times = {}
    for name, steps in (
        ("all-to-all", traffic.all_to_all(hosts, _SIZE)),
        ("halving-doubling", traffic.halving_doubling(hosts, _SIZE)),
        ("ring", traffic.ring_all_reduce(hosts, _SIZE)),
    ):
        found = {
            routing: simulate_routing(graph, steps, routing, num_seeds=seeds)
            for routing in ("spray", "ethereal", "ecmp", "ecmp-split-8")
        }
        times[name] = found
        ideal = found["spray"].time_s
        words = ", ".join(f"{routing} {item.time_s / ideal:.3f}" for routing, item in found.items())
        print(f"{name} of {hosts} hosts, over ideal spraying: {words}")
    ideal = {name: found["spray"].time_s for name, found in times.items()}
    for name, found in times.items():
        over = found["ethereal"].time_s / ideal[name]
        checks.append(Check(f"2 planned over spraying, {name}", over, 1.02, "lower"))
    worst = max(times["all-to-all"]["ecmp"].times_s) / ideal["all-to-all"]
    halving = times["halving-doubling"]
    doubled = halving["ecmp"].time_s / ideal["halving-doubling"]
    split = halving["ecmp-split-8"].time_s / ideal["halving-doubling"]
    pairs = times["all-to-all"]
    fewer = pairs["ecmp-split-8"].queue_pairs / pairs["ethereal"].queue_pairs
    return [
        *checks,
        Check("2 hashing over spraying, all-to-all, worst seed", worst, 1.5, "higher"),
        Check("2 hashing over spraying, halving-doubling", doubled, 1.5, "higher"),
        Check("2 hashing eighths over spraying, halving-doubling", split, 1.15, "higher"),
        Check("3 queue pairs of hashed eighths over planned", fewer, 10.0, "higher"),
        Check(
            "3 queue pairs per host, halving-doubling",
            float(halving["ethereal"].queue_pairs),
            64.0,
            "lower",
        ),
    ]


def _large(hosts: int) -> Check:
    """Simulate an all-to-all of about a million flows."""
    side = math.isqrt(hosts)
    graph = leaf_spine(side, side, side, bytes_per_s=_LINK)
    flows = traffic.all_to_all(hosts, _SIZE)[0].flows
    simulate_flows(graph, spray(graph, Flows(flows.source[:9], flows.target[:9], np.ones(9))))
    rng, took = np.random.default_rng(0), {}
    for name, routed in (("planned", ethereal(graph, flows)), ("hashed", ecmp(graph, flows, rng))):
        start = time.perf_counter()
        done = simulate_flows(graph, routed, tolerance=0.01)
        took[name] = time.perf_counter() - start
        print(
            f"{len(flows):,} flows, {name}: {took[name]:.1f} s and {done.num_events:,} events, "
            f"done at {done.makespan_s * 1e3:.2f} ms"
        )
    slowest = max(took.values()) / _BOUND_S
    return Check(f"4 seconds for {len(flows):,} flows over 60", slowest, 1.0, "lower")


def _coloured(cases: int) -> list[Check]:
    """Compare splits of the joint colouring with those pair by pair."""
    rng = np.random.default_rng(1)
    graph = leaf_spine(6, 4, 8, bytes_per_s=_LINK)
    more, divisible = 0, 0
    for _ in range(cases):
        source = rng.integers(48, size=120)
        target = (source + rng.integers(1, 48, size=120)) % 48
        flows = Flows(source, target, np.full(120, 1e6))
        by_pair = ethereal(graph, flows, split="minimal").splits()
        more += int(edge_colouring(graph, flows).splits() > by_pair)
        # Each leaf sends to four others' hosts in turn: all degrees are multiples of four paths.
        turns = itertools.product(range(6), range(1, 5))
        ends = np.array([(8 * leaf, 8 * ((leaf + step) % 6)) for leaf, step in turns])
        size = np.full(len(ends), 1e6)
        divisible += edge_colouring(graph, Flows(ends[:, 0], ends[:, 1], size)).splits()
    return [
        Check("5 cases with more splits than pair by pair", float(more), 0.0, "lower"),
        Check("5 splits where degrees divide", float(divisible), 0.0, "lower"),
    ]
