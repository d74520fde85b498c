"""Planned splitting against hashing and ideal spraying of collectives on fat trees.

Times are of flows that share links max-min fairly; a network of packets stands beside them. The
all-to-all stands twice: all flows at once, where every uplink has hundreds of hashed flows and the
hosts' own links bind, and in rounds, where it has sixteen.
"""

import math
import time

import numpy as np
from benchmarks.common import Check
from benchmarks.sim._packets import PacketNetwork

from steelyard.sim.network import (
    Flows,
    Network,
    RoutedFlows,
    ecmp,
    ethereal,
    leaf_spine,
    link_bytes,
    simulate_flows,
    spray,
    traffic,
)
from steelyard.sim.network.balance import Split, divide, num_pieces
from steelyard.sim.network.colouring import edge_colouring

PAPER: list[str] = ["15-packet-spraying-ethereal"]

_RATE = 50e9
_SIZE = 64e6


def run(quick: bool) -> list[Check]:
    """Check the theorem, completion times, connections, packets, speed, and colouring."""
    return [
        *_theorem(quick),
        *_completion(quick),
        *_packets(quick),
        *_speed(quick),
        *_colouring(quick),
    ]


def _theorem(quick: bool) -> list[Check]:
    """Compare loads and pieces with the formulas in whole numbers, and with brute force."""
    rng = np.random.default_rng(0)
    wrong = unequal = more = 0
    for _ in range(100 if quick else 1000):
        flows, paths = int(rng.integers(1, 200)), int(rng.integers(1, 65))
        left = flows % paths
        common = math.gcd(left, paths)
        expected: dict[Split, int] = {
            "equal": left * paths // common,
            "minimal": left + paths - common,
        }
        for split, count in expected.items():
            flow, path, size = divide(flows, paths, split)  # sizes are whole: a flow has `paths`
            load = np.bincount(path, weights=size, minlength=paths)
            sent = np.bincount(flow, weights=size, minlength=flows)
            unequal += bool((load != flows).any() or (sent != paths).any())
            wrong += (len(flow) - (flows - left)) != (count if left else 0)
        more += num_pieces(flows, paths, "minimal") > num_pieces(flows, paths, "equal")
    smaller = sum(
        _fewest(left, paths) < num_pieces(left, paths, "minimal")
        for paths in range(2, 6)
        for left in range(1, paths)
    )
    return [
        Check("1 divisions whose loads differ from spraying's", unequal, 0, "lower"),
        Check("1 piece counts that differ from the formulas", wrong, 0, "lower"),
        Check("1 cases in which brute force needs fewer pieces", smaller, 0, "lower"),
        Check("1 cases in which equal pieces are fewer", more, 0, "lower"),
    ]


def _fewest(flows: int, paths: int) -> int:
    """Return the fewest pieces by trying all whole divisions (corners of a polytope are whole)."""
    best = flows * paths

    def place(flow: int, path: int, left: int, rooms: tuple[int, ...], used: int) -> None:
        nonlocal best
        if used >= best:
            return
        if flow == flows:
            best = used
            return
        if path == paths:
            if left == 0:
                place(flow + 1, 0, paths, rooms, used)
            return
        for size in range(min(left, rooms[path]) + 1):
            rest = (*rooms[:path], rooms[path] - size, *rooms[path + 1 :])
            place(flow, path + 1, left - size, rest, used + (size > 0))

    place(0, 0, paths, (flows,) * paths, 0)
    return best


def _completion(quick: bool) -> list[Check]:
    """Compare completion times on 256 hosts, and the connections of the routings."""
    net = leaf_spine(16, 16, 16, bytes_per_s=_RATE)
    seeds = 4 if quick else 20

    def total(steps, route) -> float:
        return sum(
            step.repeat * simulate_flows(net, route(step.flows), tolerance=0.002).makespan_s
            for step in steps
        )

    def hashed(steps, split: int) -> list[float]:
        draws = [np.random.default_rng(seed) for seed in range(seeds)]
        return [total(steps, lambda f, d=draw: ecmp(net, f, d, split=split)) for draw in draws]

    def pairs(steps, route) -> int:
        return max(int(route(step.flows).queue_pairs().max()) for step in steps)

    def planned(flows):
        return ethereal(net, flows, split="equal")

    at_once, rounds = traffic.all_to_all(256, _SIZE), traffic.rounds_all_to_all(256, _SIZE)
    # Sixteen hosts per leaf: rounds 17 to 32 are every pattern of hosts and leaves there is.
    rounds = rounds[16:32]
    halving, ring = traffic.halving_doubling(256, _SIZE), traffic.ring_all_reduce(256, _SIZE)
    ideal = {
        name: total(steps, lambda f: spray(net, f))
        for name, steps in (("once", at_once), ("rounds", rounds), ("hd", halving), ("ring", ring))
    }
    worst = max(
        total(steps, planned) / ideal[name]
        for name, steps in (("once", at_once), ("rounds", rounds), ("hd", halving))
    )
    ring_times = [total(ring, planned), *hashed(ring, 1), *hashed(ring, 8)]
    eight = traffic.all_to_all(256, _SIZE)[0].flows
    split8 = ecmp(net, eight, np.random.default_rng(0), split=8)
    own = planned(eight)
    added = int(own.queue_pairs().max()) - 255
    ratio = (int(split8.queue_pairs().max()) - 255) / max(added, 1)
    return [
        Check("2 planned over ideal spraying, slowest collective", worst, 1.01, "lower"),
        Check(
            "2 hash over planned, all-to-all at once, worst seed",
            max(hashed(at_once, 1)) / total(at_once, planned),
            1.5,
            "higher",
        ),
        Check(
            "2 hash over planned, all-to-all in rounds, worst seed",
            max(hashed(rounds, 1)) / total(rounds, planned),
            1.5,
            "higher",
        ),
        Check(
            "2 hash over planned, halving-doubling, mean",
            float(np.mean(hashed(halving, 1))) / total(halving, planned),
            1.5,
            "higher",
        ),
        Check(
            "2 hash in 8 over planned, halving-doubling, mean",
            float(np.mean(hashed(halving, 8))) / total(halving, planned),
            1.15,
            "higher",
        ),
        Check("2 ring, slowest over spraying", max(ring_times) / ideal["ring"], 1.02, "lower"),
        Check(
            "3 queue pairs of a host at a time, planned, in steps",
            max(pairs(steps, planned) for steps in (rounds, halving, ring)),
            64,
            "lower",
        ),
        Check("3 queue pairs beyond one per peer, all-to-all at once", added, 64, "lower"),
        Check("3 the same, hash in 8 over planned (or over 1)", ratio, 10, "higher"),
        Check(
            "3 queue pairs of a host, peers counted, all-to-all at once",
            int(own.queue_pairs().max()),
            64,
            "lower",
        ),
    ]


def _packets(quick: bool) -> list[Check]:
    """Compare completion times of flows with those of packets, on 32 hosts."""
    net = leaf_spine(4, 8, 8, bytes_per_s=_RATE)
    rng = np.random.default_rng(1)
    cases = {
        "all-to-all": traffic.all_to_all(32, 32 * 131072.0)[0].flows,
        "halving": traffic.halving_doubling(32, 4 * 2097152.0)[0].flows,
        "permutation": traffic.permutation(32, 2097152.0, rng)[0].flows,
    }
    errors = []
    for name, flows in list(cases.items())[: 2 if quick else 3]:
        for how, routed in (
            ("hash", ecmp(net, flows, np.random.default_rng(2))),
            ("planned", ethereal(net, flows, split="equal")),
        ):
            errors.append(_packet_error(net, routed, f"{name}, {how}"))
    draws = [_drawn_error(net, seed) for seed in range(10, 12 if quick else 30)]
    more = np.ravel(draws)
    usual, largest = float(np.quantile(more, 0.8)), float(more.max())
    return [
        Check("4 completion, flows against packets, largest error", max(errors), 0.05, "lower"),
        Check("4 more draws of hashing, 80th percentile of the error", usual, 0.05, "lower"),
        Check("4 more draws of hashing, largest error", largest, 0.05, "lower"),
    ]


def _drawn_error(net: Network, seed: int) -> list[float]:
    """Compare flows and packets of two hashed traffics, both drawn from a seed."""
    rng = np.random.default_rng(seed)
    drawn = traffic.permutation(32, 2097152.0, rng), traffic.halving_doubling(32, 4 * 2097152.0)
    return [_packet_error(net, ecmp(net, steps[0].flows, rng)) for steps in drawn]


def _packet_error(net: Network, routed: RoutedFlows, name: str = "") -> float:
    """Return the error of the completion time of flows against packets."""
    whole = simulate_flows(net, routed).makespan_s
    packets = float(PacketNetwork(net).run(routed).max())
    if name:
        print(f"{name}: flows {whole * 1e6:.1f} us, packets {packets * 1e6:.1f} us")
    return abs(whole / packets - 1)


def _speed(quick: bool) -> list[Check]:
    """Time an all-to-all of a thousand hosts against the minute it may take."""
    hosts = 256 if quick else 1024
    net = leaf_spine(hosts // 32, 32, 32, bytes_per_s=_RATE)
    step = traffic.all_to_all(hosts, _SIZE)[0]
    warm = Flows([0, 1], [2, 3], 1.0)
    simulate_flows(net, ecmp(net, warm, np.random.default_rng(0)))
    start = time.perf_counter()
    done = simulate_flows(net, ecmp(net, step.flows, np.random.default_rng(0)), tolerance=0.01)
    took = time.perf_counter() - start
    print(f"{len(step.flows):,} hashed flows: {took:.1f} s, {done.num_events} events")
    pace = took / len(step.flows) * 1023 * 1024
    return [Check("4 million flows, hashed, on one core, in minutes", pace / 60, 1, "lower")]


def _colouring(quick: bool) -> list[Check]:
    """Compare splits of colouring with those pair by pair, on random and on dividing traffic."""
    rng = np.random.default_rng(3)
    more, unbalanced, saved = 0, 0.0, []
    for _ in range(5 if quick else 40):
        leaves, spines, hosts = (int(rng.integers(2, high)) for high in (9, 7, 6))
        net = leaf_spine(leaves, spines, hosts, bytes_per_s=1.0)
        ends = rng.integers(leaves * hosts, size=(int(rng.integers(2, 300)), 2))
        ends = ends[ends[:, 0] != ends[:, 1]]
        flows = Flows(ends[:, 0], ends[:, 1], 1.0)
        joint, single = edge_colouring(net, flows), ethereal(net, flows, split="minimal")
        more += joint.splits() > single.splits()
        saved.append(1 - joint.splits() / max(single.splits(), 1))
        gap = np.abs(link_bytes(net, joint) - link_bytes(net, spray(net, flows))).max()
        unbalanced = max(unbalanced, float(gap))
    print(f"splits saved by colouring: {np.mean(saved):.0%}")
    net = leaf_spine(8, 4, 4, bytes_per_s=1.0)
    even = sum(
        edge_colouring(net, step.flows).splits()
        for step in traffic.rounds_all_to_all(32, 32.0)[3:28]  # no flow stays under its leaf
    )
    return [
        Check("5 cases with more splits than pair by pair", more, 0, "lower"),
        Check("5 splits where degrees divide", even, 0, "lower"),
        Check("5 load of links, gap to spraying (flows)", unbalanced, 1e-9, "lower"),
    ]
