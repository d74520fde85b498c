"""What a scaler controls in earnest: processes, Ray Serve, and a trigger that reads JSON."""

import json
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from types import SimpleNamespace

import numpy as np
import pytest

from steelyard.errors import BackendError, ConfigError, DataError
from steelyard.operate.autoscale import FixedReplicas, QuantileScaler
from steelyard.operate.autoscale.book import ForecastBook, checked_steps
from steelyard.operate.autoscale.config import AutoscaleConfig
from steelyard.operate.autoscale.demand import Demand
from steelyard.operate.autoscale.endpoint import Recommender, make_server
from steelyard.operate.autoscale.ray_policy import RayServePolicy
from steelyard.operate.autoscale.replicas import ServeReplicas, is_healthy
from steelyard.operate.forecast import SampleForecast
from steelyard.operate.forecast.bookkeeping import SaidSteps
from steelyard.runs import Ledger, RunStore
from steelyard.sim.autoscale import Service
from steelyard.sim.control import Command

_SLEEPS = [sys.executable, "-S", "-c", "import time; time.sleep(60)", "{port}"]


@pytest.fixture
def replicas():
    made = ServeReplicas(
        _SLEEPS, first_port=50_000, most=4, drain_s=5.0, is_ready=lambda port: port != 50_002
    )
    yield made
    made.close()


def test_processes_are_started_let_go_and_started_again(replicas):
    replicas(Command("replicas", 3, sequence=0))
    assert (replicas.ready(), replicas.starting()) == (2, 1)
    replicas(Command("replicas", 2, sequence=1))
    # The one that is not ready goes first.
    assert replicas.ports == [50_000, 50_001] and replicas.starting() == 0
    replicas._held[0].process.kill()
    replicas._held[0].process.wait()
    assert replicas.ready() + replicas.starting() == 2


def test_an_old_command_is_ignored(replicas):
    replicas(Command("replicas", 1, sequence=5))
    replicas(Command("replicas", 4, sequence=5))
    replicas(Command("replicas", 4, sequence=4))
    assert replicas.ready() == 1


def test_replicas_end_when_told_to(replicas):
    replicas(Command("replicas", 2, sequence=0))
    processes = [item.process for item in replicas._held]
    replicas.close()
    assert all(process.poll() is not None for process in processes)


def test_one_that_drains_for_too_long_is_killed():
    stubborn = "import signal,time; signal.signal(15, lambda *_: None); print(1,flush=True);"
    words = [sys.executable, "-S", "-c", stubborn + "time.sleep(60);time.sleep(60)", "{port}"]
    made = ServeReplicas(words, first_port=50_100, most=1, drain_s=0.2, is_ready=lambda port: True)
    made(Command("replicas", 1, sequence=0))
    process = made._held[0].process
    begin = time.monotonic()
    made.close()
    assert process.poll() is not None and time.monotonic() - begin < 20


def test_a_controller_goes_on_with_the_processes_of_the_one_before(tmp_path):
    file = tmp_path / "replicas.json"
    known = {"first_port": 50_300, "most": 4, "drain_s": 5.0, "is_ready": lambda port: True}
    killed = ServeReplicas(_SLEEPS, **known, file=file)
    killed(Command("replicas", 3, sequence=0))
    pids = [item.process.pid for item in killed._held]
    killed._held[1].process.kill()
    killed._held[1].process.wait()
    # It ends here without a word; what it had started still runs.
    made = ServeReplicas(_SLEEPS, **known, file=file)
    assert made.ready() == 2 and [item.process.pid for item in made._held] == pids[::2]
    made(Command("replicas", 3, sequence=1))
    assert sorted(made.ports) == [50_300, 50_301, 50_302]
    made.close()
    assert all(item.process.poll() is not None for item in killed._held)
    assert json.loads(file.read_text()) == []


def test_a_port_that_somebody_else_holds_is_left_out():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 50_400))
        other.listen()
        made = ServeReplicas(_SLEEPS, first_port=50_400, most=1, is_ready=lambda port: True)
        made(Command("replicas", 1, sequence=0))
        assert made.ports == [50_401]
        made.close()


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: ServeReplicas(["run"], first_port=8000, most=1), ConfigError),
        (lambda: ServeReplicas(["run", "{port}"], first_port=65_535, most=4), ConfigError),
    ],
)
def test_a_command_that_cannot_be_is_refused(make, kind):
    with pytest.raises(kind):
        make()


def test_what_cannot_be_started_is_named():
    made = ServeReplicas(["/nowhere/server", "{port}"], first_port=50_200, most=1)
    with pytest.raises(BackendError, match="/nowhere/server"):
        made(Command("replicas", 1, sequence=0))
    with pytest.raises(ConfigError, match="at most 1"):
        made(Command("replicas", 2, sequence=1))
    assert not is_healthy(9)


def context(requests, current=2, target=2):
    return SimpleNamespace(
        current_num_replicas=current,
        target_num_replicas=target,
        total_num_requests=requests,
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=6,
    )


def test_ray_is_answered_with_a_number_within_its_limits():
    now = SimpleNamespace(s=0.0)
    service = Service(capacity=10.0, target_utilization=1.0)
    policy = RayServePolicy(
        QuantileScaler(service, step_s=60.0),
        forecaster=lambda seen: SampleForecast(seen[-3:, None]),
        history=[20.0, 20.0],
        clock=lambda: now.s,
    )
    assert policy(context(20.0)) == (2, {})
    for now.s, requests in ((20.0, 30.0), (40.0, 50.0)):
        assert policy(context(requests)) == (2, {})
    now.s = 60.0
    # The mean of what was seen in the step: (30 + 50 + 40) / 3.
    assert policy(context(40.0))[0] == 4
    now.s = 120.0
    assert policy(context(4000.0))[0] == 6
    assert RayServePolicy(FixedReplicas(0), clock=lambda: 0.0)(context(1.0))[0] == 1


@pytest.fixture
def served(tmp_path):
    """A recommender with a clock and a demand that a test moves, behind a server."""
    world = SimpleNamespace(now_s=0.0, demand=np.full(100, 80.0), fails=False)

    def read():
        if world.fails:
            raise DataError("no answer from prometheus")
        return Demand(load=world.demand, step_s=300.0, source="test")

    world.store = RunStore(tmp_path)
    config = AutoscaleConfig(capacity=10.0, startup_s=1.0)
    world.made = Recommender(
        read,
        config,
        period_s=60.0,
        clock=lambda: world.now_s,
        book=ForecastBook(world.store, "test"),
    )
    server = make_server(world.made, 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    world.address = f"http://127.0.0.1:{server.server_address[1]}"
    yield world
    server.shutdown()
    server.server_close()
    thread.join()


def asked(address):
    with urllib.request.urlopen(address, timeout=10) as answer:
        return json.loads(answer.read())


def test_a_trigger_reads_the_number_of_replicas(served):
    found = asked(served.address)
    assert found["replicas"] == found["recommended"] and 10 <= found["replicas"] <= 12
    assert found["demand"] == 80.0 and found["problem"] == "" and not found["is_shadow"]
    served.demand, served.now_s = np.full(101, 160.0), 60.0
    assert asked(served.address)["replicas"] >= 20
    with pytest.raises(urllib.error.HTTPError, match="404"):
        asked(served.address + "/other")


def test_a_source_that_fails_keeps_the_last_answer_and_says_so(served):
    before = asked(served.address)["replicas"]
    served.fails, served.now_s = True, 500.0
    found = asked(served.address)
    assert found["replicas"] == before and found["age_s"] == 500.0
    assert "no answer" in found["problem"]
    served.fails = False
    assert asked(served.address)["problem"] == ""


def test_what_a_trigger_was_told_is_checked_later(served):
    served.demand, served.now_s = np.append(np.full(100, 80.0), 81.0), 60.0
    asked(served.address)
    served.now_s = 120.0
    asked(served.address)
    (pair,) = Ledger(served.store).checks()
    assert pair[0].startswith("operate.") and pair[1].measurement.value == 81.0
    assert pair[1].forecast.value == 80.0 and not pair[1].covered


def test_a_forecaster_that_fails_is_replaced_and_the_answer_says_so(served, monkeypatch):
    def fails(demand):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(served.made._forecast, "_forecaster", fails)
    served.demand, served.now_s = np.full(101, 80.0), 60.0
    found = asked(served.address)
    assert (
        found["replicas"] >= 10 and "which failed: RuntimeError: no kernel" in found["forecaster"]
    )


def test_the_next_controller_checks_what_a_killed_one_forecast(tmp_path):
    store = RunStore(tmp_path)
    said = SaidSteps.of(
        SampleForecast(np.arange(11.0)[:, None].repeat(2, 1), source="Rule for X, which failed"),
        series="load",
        first_s=1000.0,
        step_s=10.0,
    )
    ForecastBook(store, "load").keep(said)
    book = ForecastBook(store, "load")
    demand = np.full(100, 5.0)
    assert book.settle(demand, start_s=0.0) == []
    assert len(book.settle(np.append(demand, 5.0), start_s=0.0)) == 1
    assert len(book.settle(np.append(demand, [5.0, 99.0]), start_s=0.0)) == 2
    # Each step counts once, under the name of the rule that stood in.
    (row,) = Ledger(store).summary()
    assert (row.forecaster, row.count, row.coverage) == ("operate.Rule", 2, 0.5)
    assert book.settle(np.append(demand, [5.0, 99.0]), start_s=0.0) == []


def test_quantiles_that_round_below_lower_ones_are_put_in_order():
    class Rounds:
        source = "Rounds"

        def quantile(self, level):
            return np.array([6553.6 + (level < 0.5) * 1e-9])

    said = SaidSteps.of(Rounds(), series="load", first_s=0.0, step_s=1.0)
    (step,) = checked_steps([said], np.array([6553.6]), start_s=0.0, source="load")
    assert step[1].covered


def test_in_shadow_mode_the_number_stays():
    config = AutoscaleConfig(capacity=10.0, startup_s=1.0)
    made = Recommender(
        lambda: Demand(load=np.full(100, 80.0), step_s=300.0, source="test"),
        config,
        period_s=60.0,
        clock=lambda: 0.0,
        held=3,
    )
    found = made.answer()
    assert found["replicas"] == 3 and found["recommended"] >= 10 and found["is_shadow"]
