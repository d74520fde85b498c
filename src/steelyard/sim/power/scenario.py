"""A row as it is usually asked about: its servers, their load, the time, and the devices."""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from steelyard.cost.power import EnergyModel, measured_model
from steelyard.errors import require
from steelyard.sim.control import Actuator, Latency, Meter
from steelyard.sim.power.plant import BRAKE, CLOCKS, METER
from steelyard.sim.power.requests import RowRequests, daily_shape, draw_requests
from steelyard.sim.power.row import ServerRow

__all__ = ["RowScenario"]

_PROBE_S = 1e5


@dataclass(frozen=True, kw_only=True)
class RowScenario:
    """A row of servers, its requests, and what measures and sets its power.

    Args:
        model: model that is served, one of those whose power was measured.
        tensor_parallel: accelerators of a server.
        servers: servers that the budget was planned for.
        added: servers more than that.
        days: time to simulate, from a Monday.
        load: work at the busiest moment over what all servers can do.
        night: rate in the small hours over that of the afternoon.
        slots: requests that a server works on at once.
        hungrier: power of the accelerators over what was measured.
        meter_period_s: time between readings of the row's power.
        meter_lag_s: time until a reading is known.
        meter_noise: standard deviation of a reading's relative error.
        clock_latency_s: time until a clock has landed, out of band.
        brake_latency_s: time until the power brake has landed.
        failure: probability that a command never lands.
        seed: seed of requests, noise and failures.
    """

    model: str = "bloom-176b"
    tensor_parallel: int = 8
    servers: int = 40
    added: int = 0
    days: float = 7.0
    load: float = 0.7
    night: float = 0.3
    slots: int = 2
    hungrier: float = 1.0
    meter_period_s: float = 2.0
    meter_lag_s: float = 2.0
    meter_noise: float = 0.005
    clock_latency_s: float = 40.0
    brake_latency_s: float = 5.0
    failure: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse values that no row has."""
        require(
            self,
            servers=(self.servers >= 2, "2 or more, one for each priority"),
            added=(self.added >= 0, "0 or more"),
            days=(0 < self.days < math.inf, "above 0"),
            load=(0 < self.load <= 1.5, "in (0, 1.5]"),
            night=(0 < self.night <= 1, "in (0, 1]"),
            slots=(self.slots >= 1, "1 or more"),
            hungrier=(self.hungrier > 0, "above 0"),
            clock_latency_s=(
                self.clock_latency_s >= self.meter_period_s / 2,
                f"at least half of the meter's period, {self.meter_period_s / 2:g} s: a slower "
                "meter cannot see what a command did",
            ),
            failure=(0 <= self.failure <= 1, "in [0, 1]"),
        )

    @property
    def duration_s(self) -> float:
        """Seconds to simulate."""
        return self.days * 86_400

    def energy_model(self) -> EnergyModel:
        """Return the model of a server.

        Returns:
            The model.

        Raises:
            FitError: it was not measured.
        """
        return measured_model(self.model, self.tensor_parallel)

    def row(self) -> ServerRow:
        """Return the servers; priorities have them in the proportion of their work."""
        share, _ = _published_work(self.model, self.tensor_parallel)
        made = ServerRow.provisioned(
            self.energy_model(),
            self.servers,
            high_share=share,
            added=self.added,
            slots=self.slots,
        )
        return made if self.hungrier == 1 else made.hungrier(self.hungrier)

    def requests(self) -> RowRequests:
        """Draw the requests of the published mix; more servers get more of them."""
        row = self.row()
        _, work_s = _published_work(self.model, self.tensor_parallel)
        # Tokens of several requests are slower than those of one.
        rate = self.load * row.servers * self.slots / (work_s * float(row.slowdowns()[-1]))
        rng = np.random.default_rng([self.seed, row.servers])
        return draw_requests(rate * daily_shape(self.days, rng, night=self.night), rng)

    def meter(self) -> Meter:
        """Return the meter of the row's power."""
        return Meter(
            name=METER,
            period_s=self.meter_period_s,
            lag_s=self.meter_lag_s,
            noise=self.meter_noise,
        )

    def actuators(self) -> list[Actuator]:
        """Return what sets clocks, slowly, and the brake."""
        clocks, brake = map(Latency.always, (self.clock_latency_s, self.brake_latency_s))
        found = [Actuator(target=item, latency=clocks, failure=self.failure) for item in CLOCKS]
        return [*found, Actuator(target=BRAKE, latency=brake, failure=self.failure)]


@cache
def _published_work(name: str, width: int) -> tuple[float, float]:
    """Return the share of work of high priority and the mean work of the mix, by a large sample."""
    row = ServerRow.provisioned(measured_model(name, width), 2, high_share=0.5)
    probe = draw_requests([1.0], np.random.default_rng(0), step_s=_PROBE_S)
    prompts, tokens = row.work_s(probe)
    return row.high_work_share(probe), float(np.mean(prompts + tokens))
