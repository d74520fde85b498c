"""Dispatch by one controller: break-even, gangs, shares and messages."""

import numpy as np
import pytest

from steelyard.errors import ConfigError, FitError
from steelyard.sim.dispatch import (
    Computation,
    ControlCosts,
    Tenant,
    fit_control_costs,
    simulate_dispatch,
)

PUBLISHED = fit_control_costs([16, 512], [2.3e-3, 35e-3])
"""Break-even times of arXiv 2203.12533, section 5.1."""
COSTS = ControlCosts(schedule_s=4e-4, fan_out_s=5e-5, message_s=2e-4, prepare_s=1e-3)


def stages(count, device_s):
    return tuple(Computation((host,), device_s) for host in range(count))


def rate(tenant, costs, **how):
    found = simulate_dispatch([tenant], costs, **how)
    assert not found.is_deadlocked
    return tenant.num_programs / found.time_s


@pytest.mark.parametrize("in_parallel", [True, False])
@pytest.mark.parametrize("count", [1, 4, 16])
def test_one_program_lasts_what_the_closed_form_says(in_parallel, count):
    program = stages(count, 2e-3)
    found = simulate_dispatch(
        [Tenant(program=program, num_programs=1)],
        COSTS,
        dispatch="parallel" if in_parallel else "sequential",
    )
    assert found.time_s == pytest.approx(COSTS.program_s(program, in_parallel=in_parallel))


def test_parallel_dispatch_of_16_stages_is_twice_as_fast_at_1_ms():
    tenant = Tenant(program=stages(16, 1e-3), num_programs=50)
    ratio = rate(tenant, COSTS) / rate(tenant, COSTS, dispatch="sequential")
    assert ratio > 2.0


@pytest.mark.parametrize("num_hosts", [16, 64, 256, 512])
def test_the_break_even_is_where_the_simulation_reaches_the_ideal(num_hosts):
    def share(device_s):
        program = (Computation(tuple(range(num_hosts)), device_s),)
        tenant = Tenant(program=program, num_programs=40, in_flight=8)
        return rate(tenant, PUBLISHED) * device_s

    predicted = PUBLISHED.break_even_s(num_hosts)
    assert share(0.75 * predicted) < 0.8 and share(1.1 * predicted) > 0.95
    times = predicted * np.linspace(0.7, 1.3, 7)
    reached = next(item for item in times if share(item) > 0.95)
    assert reached == pytest.approx(predicted, rel=0.25)


def test_fused_beats_chained_and_chained_beats_one_call_per_operation():
    hosts = tuple(range(32))
    operation = Computation(hosts, 2e-5)
    costs = ControlCosts(schedule_s=4e-4, fan_out_s=5e-5, message_s=2e-4, prepare_s=5e-5)
    fused = Tenant(program=(Computation(hosts, 128 * 2e-5),), num_programs=10)
    chained = Tenant(program=(operation,) * 128, num_programs=10)
    alone = Tenant(program=(operation,), num_programs=1280)
    rates = [rate(fused, costs), rate(chained, costs), rate(alone, costs) / 128]
    assert rates[0] > rates[1] > 5 * rates[2]
    # Messages go to hosts, however many computations and devices there are.
    assert simulate_dispatch([chained], costs).num_messages == 10 * 32


def crossing(count, num_programs):
    pairs = [(0, 1), (1, 2), (2, 3), (0, 3)]
    return [
        Tenant(
            program=tuple(Computation(pairs[(place + step) % 4], 1e-4) for step in range(3)),
            num_programs=num_programs,
            in_flight=4,
        )
        for place in range(count)
    ]


def test_gangs_never_deadlock_and_messages_that_overtake_do():
    gang = simulate_dispatch(crossing(4, 2500), COSTS)
    assert not gang.is_deadlocked and sum(gang.num_finished) == 10_000
    loose = simulate_dispatch(crossing(4, 2500), COSTS, is_gang=False)
    assert loose.is_deadlocked and sum(loose.num_finished) < 10_000


@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (1, 2, 4, 8)])
def test_shares_are_those_of_the_weights(weights):
    program = (Computation((0, 1), 3e-3),)
    tenants = [
        Tenant(program=program, num_programs=400 * weight, in_flight=24, weight=weight)
        for weight in weights
    ]
    found = simulate_dispatch(tenants, COSTS, policy="share", most_ahead=4)
    shares = np.array(found.device_s) / sum(found.device_s)
    np.testing.assert_allclose(shares, np.array(weights) / sum(weights), rtol=0.05)
    # Together they keep the devices busy.
    assert sum(found.num_finished) * 3e-3 / found.time_s > 0.98


def test_impossible_costs_and_tenants_are_refused():
    with pytest.raises(ConfigError, match=r"schedule_s.*\n.*message_s"):
        ControlCosts(schedule_s=-1, message_s=np.inf)
    with pytest.raises(ConfigError, match=r"program.*\n.*weight"):
        Tenant(program=(), num_programs=1, weight=0)
    with pytest.raises(ConfigError, match="num_hosts is 0"):
        PUBLISHED.break_even_s(0)
    for hosts, seconds in (([4], [1.0]), ([4, 8], [2.0, 1.0]), ([4, 4], [1.0, 2.0])):
        with pytest.raises(FitError):
            fit_control_costs(hosts, seconds)
