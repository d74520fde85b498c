"""A supercomputer's benchmarks from its description: HPL, power, network and a stencil's scaling.

Every cluster is forecast from the others. Steps of a stencil on 2 to 64 nodes are not published;
they are simulated as flows over the published wiring, and what is calibrated on them is compared
with the efficiency that was published for 2,475 nodes. An own lattice Boltzmann program runs on
one process and on two.
"""

import statistics

import numpy as np
from benchmarks.common import Check
from benchmarks.sim._lattice_boltzmann import core_s_per_site, run_box, triad_bytes_per_s
from scipy.optimize import linprog

from steelyard import catalog
from steelyard.catalog.probes.link import link_rates
from steelyard.cost.hpc.lists import hpcg, hpl, listed_clusters
from steelyard.cost.hpc.stencil import D3Q19, StencilNode, calibrated, grid_of, step_s
from steelyard.sim.network import (
    Flows,
    Network,
    dragonfly_plus,
    ecmp,
    fair_rates,
    simulate_flows,
    traffic,
)
from steelyard.sim.network.adaptive import least_loaded
from steelyard.sim.network.published import leonardo

PAPER: list[str] = ["33-leonardo"]

_NAME = "LEONARDO-Booster"
_MEASURED_ON = (2, 4, 8, 16, 32, 64)
_PUBLISHED_NODES = 2475


def run(quick: bool) -> list[Check]:
    """Check forecasts of the lists, the network's arithmetic, and stencils."""
    wired = leonardo()
    return [
        *_lists(),
        *_wiring(wired),
        *_filling(wired, 20 if quick else 200),
        *_scaling(wired, quick),
        *_own_box(quick),
    ]


def _lists() -> list[Check]:
    """Forecast each listed cluster from the others: rate and power of HPL."""
    listed = listed_clusters("rmax_flops_per_s")
    runs = {item.name: hpl(item) for item in listed}
    rate = {item.name: _error(runs[item.name].rate.value, item.rmax_flops_per_s) for item in listed}
    plain = [_plain_error(item.name) for item in listed]
    power, held = [], []
    for item in listed:
        made = runs[item.name]
        pairs = [(made.rate, item.rmax_flops_per_s)]
        if item.hpl_power_w and made.power:
            power.append(_error(made.power.value, item.hpl_power_w))
            pairs.append((made.power, item.hpl_power_w))
        held += [one.low <= value <= one.high for one, value in pairs]
        print(f"{item.name}: Rmax off by {rate[item.name]:.1%}, slopes {made.fit.slopes}")
    for item in listed_clusters("hpcg_flops_per_s"):
        print(f"{item.name}: HPCG off by {_error(hpcg(item).value, item.hpcg_flops_per_s):.1%}")
    usual = statistics.median(rate.values())
    return [
        Check("1 clusters forecast from the others", len(listed), 9, "higher"),
        Check("1 Rmax, median error", usual, 0.1, "lower"),
        Check(
            "1 the same over that of one mean share", usual / statistics.median(plain), 1, "lower"
        ),
        Check("1 Rmax of LEONARDO, error", rate[_NAME], 0.12, "lower"),
        Check("1 power of HPL, largest error", max(power), 0.25, "lower"),
        Check(
            "1 rates and powers within their 80 % intervals", float(np.mean(held)), 0.7, "higher"
        ),
    ]


def _error(forecast: float, measured: float) -> float:
    """Return the error as a fraction of what was measured."""
    return abs(forecast / measured - 1)


def _plain_error(name: str) -> float:
    """Return the error of the mean share of Rpeak of all others."""
    own = catalog.cluster(name)
    others = listed_clusters("rmax_flops_per_s", without=name)
    share = statistics.mean(item.rmax_flops_per_s / item.rpeak_flops_per_s for item in others)
    return _error(share * own.rpeak_flops_per_s, own.rmax_flops_per_s)


def _wiring(wired: Network) -> list[Check]:
    """Compare the built network with what the wiring's description gives by hand."""
    tera = 8e-12
    cells = [(one, other) for one in range(23) for other in range(one)]
    cables = [len(wired.links_between(one, other)) for one, other in cells]
    pair = float(wired.bytes_per_s[wired.links_between(0, 1)].sum()) * tera
    hosts = np.flatnonzero(wired.group[: wired.num_hosts] == 0)
    far = wired.hops(hosts[:1], np.arange(wired.num_hosts))
    near = wired.hops(hosts[:1], hosts)
    inject = float(wired.bytes_per_s[np.isin(wired.source, hosts)].sum()) * tera
    figures = {
        "cables of every cell pair": (max(cables), 18),
        "fewest cables of a cell pair": (min(cables), 18),
        "Tb/s of a cell pair": (pair, 3.6),
        "Tb/s out of a cell": (wired.bisection_bytes_per_s([0]) * tera, 79.2),
        "Tb/s injected in a cell": (inject, 72.0),
        "Tb/s across the worst bisection": (wired.bisection_bytes_per_s(range(11)) * tera, 475.2),
        # A way crosses one switch less than links, two of which are those of the hosts.
        "switches on the longest way in a cell": (int(near.max()) - 1, 3),
        "switches on the longest way of all": (int(far.max()) - 1, 4),
    }
    return [
        Check(f"2 {name}, off by", abs(found - right) / right, 1e-12, "lower")
        for name, (found, right) in figures.items()
    ]


def _filling(wired: Network, cases: int) -> list[Check]:
    """Compare fair rates with a chain of linear programs, and loads with capacities."""
    small = dragonfly_plus(3, 2, 2, 2, host_bytes_per_s=4.0, link_bytes_per_s=6.0)
    rng = np.random.default_rng(0)
    worst = 0.0
    for _ in range(cases):
        ends = rng.integers(small.num_hosts, size=(8, 2))
        ends = ends[ends[:, 0] != ends[:, 1]]
        routed = ecmp(small, Flows(ends[:, 0], ends[:, 1], 1.0), rng)
        uses = np.zeros((small.num_links, len(routed)))
        for row, hops in enumerate(routed.hops):
            uses[hops[hops >= 0], row] = 1
        fair = _max_min(uses, small.bytes_per_s)
        worst = max(worst, float(np.abs(fair_rates(small, routed) - fair).max()))
    flows = traffic.permutation(wired.num_hosts, 1e6, rng)[0].flows
    routed = ecmp(wired, flows, rng)
    rates = np.repeat(fair_rates(wired, routed)[:, None], routed.hops.shape[1], axis=1)
    kept = routed.hops >= 0
    load = np.bincount(routed.hops[kept], weights=rates[kept], minlength=wired.num_links)
    return [
        Check("2 fair rates, gap to linear programs", worst, 1e-6, "lower"),
        Check(
            "2 fullest link over its capacity",
            float((load / wired.bytes_per_s).max()),
            1 + 1e-9,
            "lower",
        ),
    ]


def _max_min(uses: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """Return max-min fair rates: raise the least rate, fix who cannot have more, and go on.

    Whether a flow can have more than the least is asked by a linear program of its own.
    """
    count = uses.shape[1]
    fixed = np.full(count, np.nan)
    while np.isnan(fixed).any():
        open_ = np.flatnonzero(np.isnan(fixed))
        least = -_best(uses, capacity, fixed, open_, 0.0, None)
        for flow in open_:
            most = -_best(uses, capacity, fixed, open_, least, int(flow))
            if most <= least + 1e-9:
                fixed[flow] = least
    return fixed


def _best(
    uses: np.ndarray,
    capacity: np.ndarray,
    fixed: np.ndarray,
    open_: np.ndarray,
    least: float,
    flow: int | None,
) -> float:
    """Return minus the largest rate of a flow, or of the least one; others have `least`."""
    count = uses.shape[1]
    goal = np.zeros(count + 1)
    goal[count if flow is None else flow] = -1.0
    bounds = [(value, value) if np.isfinite(value) else (least, None) for value in fixed]
    rows, rooms = [np.append(row, 0.0) for row in uses], list(capacity)
    for one in open_ if flow is None else ():
        below = np.zeros(count + 1)
        below[one], below[count] = -1.0, 1.0  # the least is no more than any open rate
        rows.append(below)
        rooms.append(0.0)
    found = linprog(goal, A_ub=np.array(rows), b_ub=rooms, bounds=[*bounds, (0, None)])
    return float(found.fun)


def _scaling(wired: Network, quick: bool) -> list[Check]:
    """Calibrate the stencil on few nodes, and forecast the published number of them."""
    record = catalog.cluster(_NAME)
    node = StencilNode.of(record, catalog.accelerator(record.accelerator))
    alone = float(step_s(node, 1))
    counts = _MEASURED_ON[:: 2 if quick else 1]
    steps = [_simulated_step(wired, node, count) for count in counts]
    fitted = calibrated(node, counts, steps)
    forecast = alone / float(step_s(fitted, _PUBLISHED_NODES))
    simulated = alone / _simulated_step(wired, node, _PUBLISHED_NODES)
    rate = (
        _PUBLISHED_NODES * node.accelerators * node.sites / float(step_s(fitted, _PUBLISHED_NODES))
    )
    for count, seconds in zip(counts, steps, strict=True):
        print(f"{count} nodes: simulated efficiency {alone / seconds:.3f}")
    print(
        f"{_PUBLISHED_NODES} nodes: forecast {forecast:.3f}, simulated {simulated:.3f}, "
        f"{rate / 1e12:.1f} T sites/s; network share {fitted.network_share:.2f}"
    )
    name = f"3 stencil's efficiency on {_PUBLISHED_NODES:,} nodes, calibrated on 2 to 64"
    return [
        Check(f"{name}: at least", forecast, 0.83, "higher"),
        Check(f"{name}: at most", forecast, 0.93, "lower"),
        Check("3 the same against simulated flows", _error(forecast, simulated), 0.05, "lower"),
    ]


def _simulated_step(wired: Network, node: StencilNode, num_nodes: int) -> float:
    """Return the seconds of a step whose halos are flows on the network, one port per accelerator.

    Nodes lie along the network in the order of their places in the grid. Routing looks at loads, as
    the adaptive routing of these switches does.
    """
    inner, outer = grid_of(node.accelerators)[::-1], grid_of(num_nodes)
    shape = tuple(own * nodes for own, nodes in zip(inner, outer, strict=True))
    places = np.stack(np.unravel_index(np.arange(int(np.prod(shape))), shape))
    mine = _port(places, inner, outer)
    pairs = []
    for axis, size in enumerate(shape):
        for side in (-1, 1):
            there = places.copy()
            there[axis] = (there[axis] + side) % size
            other = _port(there, inner, outer)
            away = mine // node.accelerators != other // node.accelerators
            pairs.append(np.stack([mine[away], other[away]]))
    source, target = np.concatenate(pairs, axis=1)
    face = node.sites ** (2 / 3) * D3Q19.face_bytes
    routed = least_loaded(wired, Flows(source, target, face), np.random.default_rng(0), detours=2)
    update = node.sites * D3Q19.moved_bytes / node.memory_bytes_per_s
    return update + simulate_flows(wired, routed, tolerance=0.01).makespan_s


def _port(places: np.ndarray, inner: tuple[int, ...], outer: tuple[int, ...]) -> np.ndarray:
    """Return the host of each accelerator: its node's number, then its own within the node."""
    inside = [place % own for place, own in zip(places, inner, strict=True)]
    nodes = [place // own for place, own in zip(places, inner, strict=True)]
    own = np.ravel_multi_index(inside, inner)
    return np.asarray(np.ravel_multi_index(nodes, outer)) * int(np.prod(inner)) + own


def _own_box(quick: bool) -> list[Check]:
    """Measure the own program on one and two processes, and forecast that from the machine."""
    decay, apart = _shear_wave()
    side, steps, rounds = (64, 12, 1) if quick else (96, 30, 4)
    size = (side, side, side)
    sites = float(side**3)
    found = [_round(size, steps) for _ in range(rounds)]  # in turn: other work meets all alike
    one, two, noise, alone, together = np.median(found, axis=0)
    efficiency = statistics.median(row[0] / row[1] for row in found)
    links = link_rates(quick=True)
    samples, moved = links["shared_bytes_per_s"]
    latency, _ = links["shared_latency_s"]
    # In company a process has no more bandwidth than alone, whatever the two measurements say.
    kept = min(together / alone, 1.0)
    core = core_s_per_site()
    # What the core does not need is memory's: that part alone waits for the other process.
    moving = one / sites - core
    pair = StencilNode(
        accelerators=1,
        sites=sites,
        memory_bytes_per_s=kept * D3Q19.moved_bytes / moving,
        core_s_per_site=core,
        scale_up_bytes_per_s=np.inf,
        injection_bytes_per_s=moved / samples.median_s,
        latency_s=latency.median_s,
        noise_s=noise,
    )
    forecast = one / float(step_s(pair, 2))
    print(
        f"own box: {sites / one / 1e6:.1f} M sites/s alone, efficiency {efficiency:.3f}, forecast "
        f"{forecast:.3f}; triad {alone / 1e9:.1f} and {together / 1e9:.1f} GB/s per process, core "
        f"{core * sites / one:.0%} and noise {noise / one:.1%} of a step"
    )
    return [
        Check("3 own box, decay of a shear wave, error", decay, 0.01, "lower"),
        Check("3 own box, two processes against one, largest gap", apart, 1e-12, "lower"),
        Check(
            "3 own box, efficiency on two processes, error",
            _error(forecast, one / two),
            0.1,
            "lower",
        ),
    ]


def _round(size: tuple[int, int, int], steps: int) -> tuple[float, ...]:
    """Measure a step on one process and on two, its noise on one, and the triad on one and two."""
    alone, both = (run_box(size, steps, count)[0] for count in (1, 2))
    low, high = np.quantile(alone, [0.25, 0.75])
    # Quartiles of a normal distribution lie 1.35 deviations apart; one outlier does not count.
    noise = (high - low) / 1.349
    return (
        float(np.median(alone)),
        float(np.median(both)),
        float(noise),
        triad_bytes_per_s(1),
        triad_bytes_per_s(2),
    )


def _shear_wave() -> tuple[float, float]:
    """Return the decay's error against viscosity, and the gap between one process and two."""
    length, steps, tau = 24, 200, 0.8
    _, _, whole = run_box((length, 16, 16), steps, 1)
    _, _, halves = run_box((length // 2, 16, 16), steps, 2)
    wave = 2 * np.pi / length
    exact = np.exp(-(tau - 0.5) / 3 * wave**2 * steps)
    # The amplitude of the wave itself; the largest of its points lies beside its crest.
    found = 2 * np.mean(whole * np.sin(wave * np.arange(length))) / 0.05
    return abs(found / exact - 1), float(np.abs(whole - halves).max())
