"""One controller for many hosts, simulated: break-even, dispatch, gangs and shares of Pathways.

The controller's work per program and per host is fitted to the two published break-even times (16
hosts: 2.3 ms, 512 hosts: 35 ms; arXiv:2203.12533, section 5.1). Latency of messages and the work of
hosts are assumed. The pipelines of 3 billion parameters are timed with equal stages. All figures
are simulated but those called published.
"""

from dataclasses import replace

import numpy as np
from benchmarks.common import Check

from steelyard.sim.dispatch import (
    Computation,
    ControlCosts,
    Tenant,
    fit_control_costs,
    simulate_dispatch,
)
from steelyard.sim.step import StageTimes
from steelyard.sim.step.longest_path import longest_path
from steelyard.sim.taskgraph import gpipe, pipeline_graph

PAPER = ["37-pathways"]

_MESSAGE_S, _PREPARE_S = 2e-4, 1e-3
_PIPELINES = {(4, 16): 133.7e3, (8, 32): 132.7e3, (16, 64): 131.4e3}
"""Published tokens/s of 128 cores by stages and micro-batches."""


def run(quick: bool) -> list[Check]:
    """Simulate the paper's comparisons."""
    fitted = fit_control_costs([16, 512], [2.3e-3, 35e-3])
    print(f"controller: {fitted.schedule_s:.3g} s per program, {fitted.fan_out_s:.3g} s per host")
    costs = replace(fitted, message_s=_MESSAGE_S, prepare_s=_PREPARE_S)
    return [
        *_break_even(costs, quick),
        *_parallel(costs),
        *_modes(costs),
        *_gangs(costs, quick),
        *_shares(costs),
        *_pipelines(),
    ]


def _rate(tenant: Tenant, costs: ControlCosts, **how: object) -> float:
    """Return the programs per second of one client."""
    found = simulate_dispatch([tenant], costs, **how)  # pyright: ignore[reportArgumentType]
    return tenant.num_programs / found.time_s


def _break_even(costs: ControlCosts, quick: bool) -> list[Check]:
    """Find the shortest computation that runs at 95 % of the ideal, and compare it with theory."""
    errors, shares = [], []
    for num_hosts in (16, 64) if quick else (16, 64, 128, 256, 512):

        def share(device_s: float, num_hosts: int = num_hosts) -> float:
            program = (Computation(tuple(range(num_hosts)), device_s),)
            tenant = Tenant(program=program, num_programs=200, in_flight=16)
            return _rate(tenant, costs) * device_s

        predicted = costs.break_even_s(num_hosts)
        low, high = 0.2 * predicted, 3 * predicted
        for _ in range(8):
            middle = (low + high) / 2
            low, high = (low, middle) if share(middle) >= 0.95 else (middle, high)
        errors.append(abs(predicted / high - 1))
        shares.append(share(1.1 * predicted))
        print(f"{num_hosts} hosts: break-even {predicted:.3g} s, simulated {high:.3g} s")
    return [
        Check("1 break-even predicted against simulated, worst", max(errors), 0.25, "lower"),
        Check("1 of the ideal, 10 % above break-even, worst", min(shares), 0.95, "higher"),
    ]


def _parallel(costs: ControlCosts) -> list[Check]:
    """Compare parallel with sequential dispatch of 16 stages of 1 ms."""
    program = tuple(Computation((host,), 1e-3) for host in range(16))
    tenant = Tenant(program=program, num_programs=100)
    ratio = _rate(tenant, costs) / _rate(tenant, costs, dispatch="sequential")
    closed = [costs.program_s(program, in_parallel=item) for item in (False, True)]
    print(
        f"16 stages: parallel {ratio:.2f} times sequential, {closed[0] / closed[1]:.2f} predicted"
    )
    return [Check("1 parallel over sequential dispatch, 16 stages of 1 ms", ratio, 2.0, "higher")]


def _modes(costs: ControlCosts) -> list[Check]:
    """Compare 128 small operations as one function, one program, and a call each."""
    hosts, small_s = tuple(range(32)), 2e-5
    light = replace(costs, prepare_s=5e-5)
    small = Computation(hosts, small_s)
    fused = _rate(Tenant(program=(Computation(hosts, 128 * small_s),), num_programs=20), light)
    chained_tenant = Tenant(program=(small,) * 128, num_programs=20)
    chained = _rate(chained_tenant, light)
    single = _rate(Tenant(program=(small,), num_programs=2560), light) / 128
    print(f"operations/s: fused {128 * fused:.0f}, chained {128 * chained:.0f}, {128 * single:.0f}")
    many = Tenant(program=(Computation(tuple(range(128)), small_s),) * 128, num_programs=20)
    messages = [simulate_dispatch([item], light).num_messages for item in (chained_tenant, many)]
    return [
        Check("2 fused over chained", fused / chained, 1.0, "higher"),
        Check("2 chained over one call per operation", chained / single, 5.0, "higher"),
        Check("5 messages of four times the hosts", messages[1] / messages[0], 4.0, "lower"),
    ]


def _gangs(costs: ControlCosts, quick: bool) -> list[Check]:
    """Count deadlocks in 10,000 random collective programs of four clients, again and again."""
    rng = np.random.default_rng(0)
    rounds = 1 if quick else 5
    stuck, loose = 0, 0
    for seed in range(rounds):
        tenants = [
            Tenant(
                program=tuple(
                    Computation(tuple(rng.choice(8, size=3, replace=False).tolist()), 1e-4)
                    for _ in range(4)
                ),
                num_programs=2500,
                in_flight=4,
            )
            for _ in range(4)
        ]
        stuck += simulate_dispatch(tenants, costs).is_deadlocked
        loose += simulate_dispatch(tenants, costs, is_gang=False, seed=seed).is_deadlocked
    return [
        Check("3 deadlocks with gang scheduling", float(stuck), 0.0, "lower"),
        Check("3 share of runs that deadlock without", loose / rounds, 0.9, "higher"),
    ]


def _shares(costs: ControlCosts) -> list[Check]:
    """Compare the devices' time with the clients' weights, and all with one client alone."""
    program = (Computation(tuple(range(16)), 5e-3),)
    worst, together = 0.0, 0.0
    for weights in ((1, 1, 1, 1), (1, 2, 4, 8)):
        tenants = [
            Tenant(program=program, num_programs=300 * weight, in_flight=24, weight=weight)
            for weight in weights
        ]
        found = simulate_dispatch(tenants, costs, policy="share", most_ahead=4)
        got = np.array(found.device_s) / sum(found.device_s)
        worst = max(worst, float(np.abs(got * sum(weights) / np.array(weights) - 1).max()))
        together = sum(found.num_finished) / found.time_s
    alone = _rate(Tenant(program=program, num_programs=4500, in_flight=24), costs, most_ahead=4)
    return [
        Check("3 shares of 1:1:1:1 and 1:2:4:8, worst error", worst, 0.05, "lower"),
        Check(
            "3 programs/s of four clients over the most of one", together / alone, 0.99, "higher"
        ),
    ]


def _pipelines() -> list[Check]:
    """Compare how throughput falls with more stages with the published figures."""
    rates = {}
    for stages, micro_batches in _PIPELINES:
        # A step has the same tokens: more stages and micro-batches make each pass shorter.
        pass_s = 1.0 / stages / micro_batches
        times = StageTimes.equal(stages, forward_s=pass_s, backward_s=2 * pass_s)
        graph = pipeline_graph(gpipe(stages, micro_batches))
        # The same cores in all: with more stages, fewer of them hold each one.
        step_s = longest_path(graph, times.durations_s(graph)).time_s * stages
        rates[stages, micro_batches] = 1 / step_s
    first = next(iter(_PIPELINES))
    errors = []
    for key, published in _PIPELINES.items():
        ratios = rates[key] / rates[first], published / _PIPELINES[first]
        print(
            f"{key[0]} stages, {key[1]} micro-batches: {ratios[0]:.3f} of 4 stages' rate, "
            f"{ratios[1]:.3f} published"
        )
        errors.append(abs(ratios[0] / ratios[1] - 1))
    return [Check("pipelines against published ratios, worst error", max(errors), 0.05, "lower")]
