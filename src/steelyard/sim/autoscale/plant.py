"""A service under a recorded demand: replicas start, carry load, queue work and are let go."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import ConfigError, TraceError
from steelyard.sim.autoscale.service import Service
from steelyard.sim.control import Command, Outcome
from steelyard.sim.loop import EventLoop

__all__ = ["METERS", "ServicePlant", "checked_demand"]

METERS = ("demand", "load", "utilization", "ready", "starting")
"""Names that the plant can be read by."""

_HOUR_S = 3600.0


def checked_demand(demand: ArrayLike) -> NDArray[np.float64]:
    """Return a demand as an array.

    Args:
        demand: [n] mean load of each step, n of 1 or more.

    Returns:
        Float values.

    Raises:
        TraceError: it is empty, has another shape, or holds a value that is not finite or below 0.
    """
    load = np.asarray(demand, dtype=np.float64)
    if load.ndim != 1 or not len(load):
        raise TraceError("the demand must be a list of one value per step, with at least one step")
    bad = np.flatnonzero(~(np.isfinite(load) & (load >= 0)))
    if len(bad):
        raise TraceError(
            f"the demand of step {bad[0]} is {load[bad[0]]}, but must be finite and 0 or more",
            hint="fill gaps, such as with the last value, and difference counters first",
        )
    return load


class ServicePlant:
    """The plant of `sim.control.simulate` whose setting is "replicas".

    Load is constant within a step, as measured. A replica that starts is paid and carries nothing.
    Where fewer are asked for, those that start are given up first, then ready ones are drained.
    Loss is dollars, and as penalty the replicas that were missing at `Service.miss_ratio` times
    their price.

    Attributes:
        ready_by_step: [n] mean number of ready replicas in each step.
        missed_s_by_step: [n] seconds of each step in which the promise was missed.
        paid_s: instance-seconds that were paid.
    """

    def __init__(
        self,
        service: Service,
        demand: ArrayLike,
        *,
        step_s: float,
        replicas: int = 0,
        capacity_spread: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Begin with replicas that are ready.

        Args:
            service: the service.
            demand: [n] mean load of each step, 0 or more.
            step_s: seconds of a step, above 0.
            replicas: replicas at first; what the first step needs when 0.
            capacity_spread: standard deviation of a replica's true capacity from step to step, as
                a share of `Service.capacity`; at most a third.
            seed: seed of start-up times and capacities.

        Raises:
            TraceError: the demand is empty or holds a value that is not finite or below 0.
            ConfigError: the step or the spread is out of range.
        """
        if not 0 < step_s < math.inf or not 0 <= capacity_spread <= 1 / 3:
            raise ConfigError(
                f"a step of {step_s} s and a spread of {capacity_spread}, but the step must be "
                "finite and above 0, and the spread in [0, 1/3]"
            )
        self.service, self.step_s = service, step_s
        self.demand = checked_demand(demand)
        self._rng = np.random.default_rng(seed)
        spread = 1 + capacity_spread * np.clip(self._rng.standard_normal(len(self.demand)), -3, 3)
        self._capacity = service.capacity * np.maximum(spread, 0.05)
        self._ready = (
            service.clipped(replicas) if replicas else service.replicas_for(self.demand[0])
        )
        self._starting: list[float] = []
        self._draining: list[float] = []
        self._now_s = self._backlog = self._miss_replica_s = self.paid_s = 0.0
        self._seen_load = self._seen_use = float("nan")
        self.ready_by_step = np.zeros(len(self.demand))
        self.missed_s_by_step = np.zeros(len(self.demand))

    @property
    def duration_s(self) -> float:
        """Seconds of the whole demand."""
        return len(self.demand) * self.step_s

    def start(self, loop: EventLoop) -> None:
        """Schedule nothing: replicas become ready as time advances."""

    def read(self, meter: str) -> float:
        """Return what held just before now; NaN for load and use where there was nothing yet.

        Args:
            meter: one of `METERS`.

        Returns:
            The value; counts are those of now, and the use is NaN without replicas.
        """
        shown = {
            "demand": self._seen_load,
            "load": self._seen_load,
            "utilization": self._seen_use,
            "ready": float(self._ready),
            "starting": float(len(self._starting)),
        }
        return shown[meter]

    def apply(self, command: Command) -> None:
        """Start or let go replicas, so that as many as asked for are ready or starting."""
        wanted = self.service.clipped(command.value)
        more = wanted - self._ready - len(self._starting)
        if more > 0:
            delays_s = self.service.startup.draw_s(self._rng, more)
            self._starting = sorted([*self._starting, *(self._now_s + delays_s).tolist()])
        elif more < 0:
            # Those that would be ready last have the least to lose.
            given_up = min(-more, len(self._starting))
            self._starting = self._starting[: len(self._starting) - given_up]
            gone = -more - given_up
            self._ready -= gone
            if self.service.drain_s:
                self._draining += [self._now_s + self.service.drain_s] * gone
        self._become_ready()

    def advance(self, now_s: float) -> None:
        """Bring replicas, work and costs to a time."""
        end_s = min(now_s, self.duration_s)
        while self._now_s < end_s:
            # A time a hair below the end of a step, by rounding, belongs to the next one.
            step = min(int(self._now_s / self.step_s + 1e-9), len(self.demand) - 1)
            step_end_s = (step + 1) * self.step_s
            self._segment(step, min(end_s, step_end_s, *self._starting[:1], *self._draining[:1]))
            self._become_ready()

    def _become_ready(self) -> None:
        """Move replicas whose time has come."""
        while self._starting and self._starting[0] <= self._now_s:
            self._starting.pop(0)
            self._ready += 1
        while self._draining and self._draining[0] <= self._now_s:
            self._draining.pop(0)

    def _segment(self, step: int, until_s: float) -> None:
        """Account for a stretch in which nothing changes."""
        lasts_s = until_s - self._now_s
        load, ready = float(self.demand[step]), self._ready
        capacity = ready * float(self._capacity[step])
        self.paid_s += (ready + len(self._starting) + len(self._draining)) * lasts_s
        self.ready_by_step[step] += ready * lasts_s / self.step_s
        use = load / capacity if capacity else float("nan")
        needed = load / (float(self._capacity[step]) * self.service.target_utilization)
        self._miss_replica_s += max(needed - ready, 0.0) * lasts_s
        waiting_s = self._queue(load, capacity, lasts_s)
        if self.service.goal == "queue":
            self.missed_s_by_step[step] += waiting_s
        elif load > capacity * self.service.target_utilization * (1 + 1e-9):
            self.missed_s_by_step[step] += lasts_s
        self._seen_load, self._seen_use, self._now_s = load, use, until_s

    def _queue(self, load: float, capacity: float, lasts_s: float) -> float:
        """Let work queue up or drain; return the seconds in which it waits for too long."""
        before = self._backlog
        rate = load - capacity
        after = self._backlog = max(before + rate * lasts_s, 0.0)
        limit = capacity * self.service.max_wait_s
        if max(before, after) <= limit:
            return 0.0
        if min(before, after) >= limit and (limit or min(before, after) > 0):
            return lasts_s
        # The backlog crosses the limit once, on a straight line.
        crossing_s = (limit - before) / rate
        return lasts_s - crossing_s if rate > 0 else crossing_s

    def outcome(self) -> Outcome:
        """Return dollars, the promise missed in seconds, and instance-hours among the details."""
        usd = self.paid_s / _HOUR_S * self.service.price_usd_per_hour
        missing_hours = self._miss_replica_s / _HOUR_S
        return Outcome(
            cost=usd,
            checked=self._now_s,
            violated=float(self.missed_s_by_step.sum()),
            penalty=missing_hours * self.service.price_usd_per_hour * self.service.miss_ratio,
            details={
                "instance_hours": self.paid_s / _HOUR_S,
                "missing_instance_hours": missing_hours,
            },
        )
