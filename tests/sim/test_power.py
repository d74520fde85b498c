"""A row against a plain loop, and skipped readings against the loop of `sim.control`."""

import math

import numpy as np
import pytest

from steelyard.cost.power import measured_model
from steelyard.errors import ConfigError, TraceError
from steelyard.operate.power import CapLadder, CapStep, polca
from steelyard.sim.control import Actuator, Command, Latency, Meter, simulate
from steelyard.sim.power import (
    BRAKE,
    CLOCKS,
    HIGH,
    LOW,
    METER,
    RowPlant,
    RowRequests,
    RowScenario,
    ServerRow,
    daily_shape,
    draw_requests,
    replay_row,
)

BLOOM = measured_model("bloom-176b", 8)


def small_row(slots=1, servers=4, budget_share=0.8):
    row = ServerRow.provisioned(BLOOM, servers, high_share=0.5, slots=slots)
    return ServerRow(
        model=BLOOM,
        high_servers=row.high_servers,
        low_servers=row.low_servers,
        budget_w=row.budget_w * budget_share,
        slots=slots,
        host_w=row.host_w,
    )


def drawn(seed=0, hours=1.0, rate=0.06):
    rng = np.random.default_rng(seed)
    return draw_requests(np.full(round(hours * 12), rate), rng)


class PlainServer:
    """A server that counts each request's own remaining work, nothing shared or skipped."""

    def __init__(self, priority):
        self.priority, self.prompt, self.left, self.tokens = priority, None, 0.0, {}


class PlainRow:
    """The same row in plain steps: every server is brought forward at every event."""

    def __init__(self, row, requests):
        self.tables, self.row, self.clock = row.tables(requests), row, [1.0, 1.0]
        self.requests = requests
        self.servers = [PlainServer(HIGH) for _ in range(row.high_servers)]
        self.servers += [PlainServer(LOW) for _ in range(row.low_servers)]
        self.waiting = {HIGH: [], LOW: []}
        self.next = 0
        self.now_s, self.energy_j = 0.0, 0.0
        self.first, self.finish = {}, {}

    def speed(self, server):
        slower = 1 / self.clock[server.priority] - 1
        if server.prompt is not None:
            return 1 / (1 + self.tables.prompt_clocked[server.prompt] * slower)
        longer = 1 + self.tables.token_clocked * slower
        return 1 / (self.tables.slow[len(server.tokens)] * longer)

    def watts(self, server):
        curve = BLOOM.curve
        full = self.tables.token_w[len(server.tokens)]
        if server.prompt is not None:
            full = self.tables.prompt_w[server.prompt]
        one = curve.clocked_w(full / 8, self.clock[server.priority]) * 8
        return float(one) + self.row.host_w

    @property
    def power_w(self):
        return sum(map(self.watts, self.servers))

    def due_s(self, server):
        if server.prompt is not None:
            return server.left / self.speed(server)
        return min(server.tokens.values()) / self.speed(server) if server.tokens else math.inf

    def advance(self, until_s):
        while True:
            arrivals = self.requests.arrival_s
            arrival = arrivals[self.next] - self.now_s if self.next < len(arrivals) else math.inf
            step = min(arrival, *map(self.due_s, self.servers))
            if self.now_s + step > until_s:
                self.spend(until_s - self.now_s)
                return
            ending = [item for item in self.servers if self.due_s(item) <= step]
            self.spend(step)
            if arrival <= step:
                self.waiting[int(self.requests.priority[self.next])].append(self.next)
                self.next += 1
            for server in ending:
                self.end(server)
            for server in sorted(self.servers, key=lambda item: len(item.tokens)):
                self.take(server)

    def spend(self, seconds):
        self.energy_j += seconds * self.power_w
        for server in self.servers:
            done = seconds * self.speed(server)
            if server.prompt is not None:
                server.left -= done
            else:
                server.tokens = {key: left - done for key, left in server.tokens.items()}
        self.now_s += seconds

    def end(self, server):
        if server.prompt is not None:
            self.first[server.prompt] = self.now_s
            server.tokens[server.prompt] = self.tables.work_s[server.prompt]
            server.prompt = None
        for key in [key for key, left in server.tokens.items() if left <= 1e-9]:
            del server.tokens[key]
            self.finish[key] = self.now_s

    def take(self, server):
        queue = self.waiting[server.priority]
        if queue and server.prompt is None and len(server.tokens) < self.row.slots:
            server.prompt = queue.pop(0)
            server.left = self.tables.prompt_s[server.prompt]


@pytest.mark.parametrize("slots", [1, 3])
def test_the_compiled_row_equals_a_plain_loop(slots):
    row, requests = small_row(slots), drawn(slots, rate=0.06 * slots)
    plant, plain = RowPlant(row, requests), PlainRow(row, requests)
    settings = {900: ("low.clock", 0.787), 1700: ("high.clock", 0.93), 2500: ("low.clock", 1.0)}
    for time_s in range(0, 6000, 50):
        plant.advance(time_s)
        plain.advance(time_s)
        assert plant.read(METER) == pytest.approx(plain.power_w, rel=1e-9)
        if time_s in settings:
            target, value = settings[time_s]
            plant.apply(Command(target, value))
            plain.clock[CLOCKS.index(target)] = value
    assert len(plain.finish) == len(requests.arrival_s) > 100
    for request, time_s in plain.finish.items():
        assert plant.state.finish_s[request] == pytest.approx(time_s, abs=1e-6)
        assert plant.state.first_s[request] == pytest.approx(plain.first[request], abs=1e-6)
    assert plant.outcome().cost == pytest.approx(plain.energy_j, rel=1e-9)


def devices(failure=0.0):
    slow, fast = Latency.lognormal(40.0, 0.2), Latency.always(5.0)
    found = [Actuator(target=item, latency=slow, failure=failure) for item in CLOCKS]
    return [*found, Actuator(target=BRAKE, latency=fast, failure=failure)]


@pytest.mark.parametrize(
    ("meter", "failure", "repeat_s"),
    [
        (Meter(name=METER, period_s=2.0), 0.0, math.inf),
        (Meter(name=METER, period_s=2.0, lag_s=3.0, noise=0.02, loss=0.1), 0.3, 120.0),
        (Meter(name=METER, period_s=5.0, lag_s=5.0, noise=0.01), 0.0, 300.0),
    ],
)
def test_skipping_what_changes_nothing_equals_deciding_at_each_reading(meter, failure, repeat_s):
    row, requests = small_row(budget_share=0.72), drawn(7, hours=3.0)
    watched = [polca(row.budget_w, repeat_s=repeat_s) for _ in range(2)]
    fast = replay_row(
        watched[0], row, requests, meter, devices(failure), duration_s=10_801.0, seed=5
    )
    plant = RowPlant(row, requests)
    whole = simulate(
        watched[1],
        plant,
        [meter],
        devices(failure),
        period_s=meter.period_s,
        duration_s=10_801.0,
        seed=5,
    )
    assert fast.report.landed == whole.landed
    assert len(whole.landed) > 5
    assert fast.report.outcome == whole.outcome
    assert (fast.report.num_sent, fast.report.num_failed) == (whole.num_sent, whole.num_failed)
    np.testing.assert_array_equal(fast.plant.state.finish_s, plant.state.finish_s)


def test_energy_by_priority_adds_up_to_the_meter():
    row, requests = small_row(2), drawn(3, hours=2.0, rate=0.1)
    replay = replay_row(
        polca(row.budget_w),
        row,
        requests,
        Meter(name=METER, period_s=2.0),
        devices(),
        duration_s=7200.0,
    )
    outcome = replay.report.outcome
    parts = [outcome.details[name] for name in ("high_j", "low_j", "idle_j")]
    assert min(parts) > 0
    assert sum(parts) == pytest.approx(outcome.cost, rel=1e-9)


def test_power_above_the_budget_brakes_and_is_counted():
    row, requests = small_row(budget_share=0.6), drawn(1)
    replay = replay_row(
        CapLadder(row.budget_w),
        row,
        requests,
        Meter(name=METER, period_s=2.0),
        devices(),
        duration_s=3600.0,
    )
    details = replay.report.outcome.details
    assert details["brakes"] >= 1
    # Read within 2 s, landed 5 s later: a battery of 10 s would have carried it.
    assert 5.0 < details["longest_over_s"] <= 7.0 + 1e-9


def test_a_rise_is_the_largest_within_the_time():
    row, requests = small_row(), drawn(2)
    meter = Meter(name=METER, period_s=2.0)
    replay = replay_row(CapLadder(row.budget_w), row, requests, meter, devices(), duration_s=3600.0)
    power = replay.power_w / row.budget_w
    rises = [power[i] - power[j] for i in range(320, len(power)) for j in range(i - 20, i + 1)]
    assert replay.rise(40.0) == pytest.approx(max(rises))


def test_a_day_has_a_night_and_a_weekend():
    shape = daily_shape(14, np.random.default_rng(0), drift=0.0).reshape(14, -1)
    assert shape.max() == 1
    assert np.argmax(shape[0]) == 15 * 12
    assert shape[0].min() == pytest.approx(0.5, abs=0.01)
    assert shape[5].max() == pytest.approx(0.85)


def test_requests_of_the_published_mix_have_its_lengths_and_priorities():
    requests = draw_requests([100.0], np.random.default_rng(0))
    assert requests.priority.mean() == pytest.approx(0.5, abs=0.01)
    assert requests.prompt_tokens.min() >= 512
    assert requests.output_tokens.max() <= 2048
    assert (np.diff(requests.arrival_s) >= 0).all()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (([], [], [], []), "columns of 0"),
        (([0.0, 1.0], [1, 1], [1, 0], [0, 1]), "request 1"),
        (([math.nan], [1], [1], [0]), "request 0"),
        (([0.0], [5], [5], [2]), "priorities"),
    ],
)
def test_requests_that_cannot_be_are_refused_by_row(columns, words):
    with pytest.raises(TraceError, match=words):
        RowRequests.of(*columns)


def test_rows_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="high priority"):
        RowPlant(ServerRow(model=BLOOM, high_servers=0, low_servers=1, budget_w=1.0), drawn())
    with pytest.raises(ConfigError, match="meter's period"):
        RowScenario(meter_period_s=120.0)


def test_thresholds_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigError, match=r"0.05 < 0.9 < 0.8 < 1"):
        polca(1.0, t1=0.9, t2=0.8)
    with pytest.raises(ConfigError, match="must hold"):
        CapLadder(1.0, (CapStep(1.2, 1.0, {}),))
