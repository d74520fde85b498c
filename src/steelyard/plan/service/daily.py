"""As many instances all day, or as many as each hour needs: machine hours at one attainment."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InfeasibleError, TraceError
from steelyard.operate.autoscale import ReactiveHPA, replay
from steelyard.plan.service.search import FleetInstance
from steelyard.plan.service.shared import SharedPrompts
from steelyard.serve.client.summary import Slo
from steelyard.serve.traces import TraceRow
from steelyard.sim.autoscale import Service
from steelyard.sim.control import Latency
from steelyard.sim.fleet.instance import FleetRun, simulate_fleet

__all__ = ["DailyChoice", "DailyService"]

_STEP_S = 60.0
_TARGETS = (1.3, 1.2, 1.1, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
"""Shares of an instance's goodput that it is given; the first that keeps enough is best. Above 1
too: the share of the requests that may be late gathers in the peaks."""
_MOST_INSTANCES = 4096
_HOUR_S = 3600.0

Windows = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class DailyChoice:
    """One way to serve a trace.

    Attributes:
        name: "static" or "autoscaled".
        most: most instances at once.
        instance_hours: hours of all instances, from when they are asked for until their last
            request ends.
        attainment: share of the requests that kept both limits.
        target: share of its goodput up to which an instance is filled; 1 for a static fleet.
    """

    name: str
    most: int
    instance_hours: float
    attainment: float
    target: float = 1.0


@dataclass(frozen=True, kw_only=True)
class DailyService:
    """A trace with its own arrivals, and the instance that is to serve it.

    Instances are added and let go by the rule of Kubernetes' autoscaler, which sees the rate over
    the goodput of those that are ready; its target is the largest of a few that keeps the limits.
    Both are chosen on the trace that they are judged on. Requests are then simulated one by one,
    with instances that take none before they have started.

    Attributes:
        instance: what is repeated.
        goodput_per_s: requests per second that an instance carries.
        arrival_s: float64 [R] seconds from the trace's start, not falling.
        input_tokens: int64 [R] prompt lengths.
        output_tokens: int64 [R] output lengths.
        slo: limits.
        share: share of the requests that has to keep both.
        start_up_s: seconds from asking for an instance until it is ready.
        shared: what prompts share; each new instance begins with an empty cache.
    """

    instance: FleetInstance
    goodput_per_s: float
    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    slo: Slo
    share: float
    start_up_s: float
    shared: SharedPrompts = field(default_factory=SharedPrompts)

    @classmethod
    def of_rows(
        cls,
        rows: Sequence[TraceRow],
        instance: FleetInstance,
        goodput_per_s: float,
        *,
        rate_per_s: float,
        slo: Slo,
        share: float,
        start_up_s: float,
    ) -> "DailyService":
        """Take the arrivals of a trace, stretched to a mean rate.

        Args:
            rows: rows by arrival.
            instance: what is repeated.
            goodput_per_s: requests per second that an instance carries.
            rate_per_s: mean rate of the requests.
            slo: limits.
            share: share of the requests that has to keep both.
            start_up_s: seconds from asking for an instance until it is ready.

        Returns:
            The service.

        Raises:
            TraceError: the trace spans less than two steps of the rate that a scaler sees.
        """
        times = np.array([row.arrival_s for row in rows]) - rows[0].arrival_s
        span_s = len(rows) / rate_per_s
        if times[-1] <= 0 or span_s < 2 * _STEP_S:
            raise TraceError(
                f"a trace of {span_s:.0f} s is too short to scale by its load",
                hint=f"give at least {2 * _STEP_S:.0f} s with arrivals, or leave --start-up out",
            )
        return cls(
            instance=instance,
            goodput_per_s=goodput_per_s,
            arrival_s=times * (span_s / times[-1]),
            input_tokens=np.array([row.input_tokens for row in rows]),
            output_tokens=np.array([row.output_tokens for row in rows]),
            slo=slo,
            share=share,
            start_up_s=start_up_s,
            shared=SharedPrompts.of_rows(rows),
        )

    def fixed(self, count: int) -> DailyChoice:
        """Return what becomes of the requests with so many instances all day."""
        return self._judged(_always(count), "static")

    def static(self) -> DailyChoice:
        """Find the fewest instances that keep the limits all day.

        Returns:
            The choice.

        Raises:
            InfeasibleError: not even very many do.
        """
        mean = len(self.arrival_s) / float(self.arrival_s[-1])
        low, high = 0, max(math.ceil(mean / self.goodput_per_s), 1)
        while (found := self.fixed(high)).attainment < self.share:
            low, high = high, 2 * high
            if high > _MOST_INSTANCES:
                raise InfeasibleError(
                    f"{low} instances keep the limits for {found.attainment:.1%} of the requests",
                    hint="raise a limit, or ask for a lower share",
                )
        while high - low > 1:
            middle = (low + high) // 2
            tried = self.fixed(middle)
            if tried.attainment >= self.share:
                high, found = middle, tried
            else:
                low = middle
        return found

    def scaled(self) -> DailyChoice | None:
        """Return the autoscaled fleet with the highest target that keeps the limits.

        Returns:
            The choice; None where no target keeps them, as when starting takes too long.
        """
        for target in _TARGETS:
            found = self.following(target)
            if found.attainment >= self.share:
                return found
        return None

    def following(self, target: float = _TARGETS[-1]) -> DailyChoice:
        """Return the autoscaled fleet at a target.

        Args:
            target: share of its goodput up to which an instance is filled; the most generous by
                default.

        Returns:
            The choice, whether it keeps the limits or not.
        """
        return replace(self._judged(self._windows(target), "autoscaled"), target=target)

    def _windows(self, target: float) -> Windows:
        """Return when each instance is asked for, is ready and is let go, seconds [n, 3]."""
        steps = math.ceil(float(self.arrival_s[-1]) / _STEP_S + 1e-9)
        demand = np.bincount((self.arrival_s / _STEP_S).astype(int), minlength=steps)[:steps]
        service = Service(
            capacity=self.goodput_per_s * target,
            target_utilization=1.0,
            max_replicas=_MOST_INSTANCES,
            startup=Latency.always(self.start_up_s),
        )
        first = service.replicas_for(demand[0] / _STEP_S)
        run = replay(
            service, demand / _STEP_S, ReactiveHPA(service), step_s=_STEP_S, replicas=first
        )
        rows = [[0.0, 0.0, math.inf] for _ in range(first)]
        living = list(range(first))
        for item in run.report.landed:
            wanted = service.clipped(item.command.value)
            while len(living) > wanted:
                # The youngest goes first; one that has not started yet never takes a request.
                row = rows[living.pop()]
                row[2] = max(item.time_s, row[1])
            while len(living) < wanted:
                living.append(len(rows))
                rows.append([item.time_s, item.time_s + self.start_up_s, math.inf])
        return np.array(rows)

    def _judged(self, windows: Windows, name: str) -> DailyChoice:
        """Simulate instances that come and go."""
        count = len(windows)
        groups = [replace(group, count=group.count * count) for group in self.instance.groups]
        longest = int((self.input_tokens + self.output_tokens).max())
        run = simulate_fleet(
            self.shared.groups(groups, longest),
            self.arrival_s,
            self.input_tokens,
            self.output_tokens,
            block_ids=self.shared.block_ids,
            windows=[
                np.repeat(windows[:, 1:], group.count, axis=0) for group in self.instance.groups
            ],
        )
        kept = run.timeline.within(self.slo.ttft_s, self.slo.tpot_s)
        return DailyChoice(
            name=name,
            most=_most_at_once(windows),
            instance_hours=self._paid_s(windows, run) / _HOUR_S,
            attainment=float(kept.mean()),
        )

    def _paid_s(self, windows: Windows, run: FleetRun) -> float:
        """Return the seconds of all instances: those let go end what they have."""
        end_s = float(run.timeline.last_token_s.max())
        until_s = np.minimum(windows[:, 2], end_s)
        served, times = run.first, run.timeline.last_token_s
        last = self.instance.groups[-1]
        if len(self.instance.groups) > 1:
            # Prompts are over with the first token; an instance waits for those that it decodes.
            np.maximum.at(
                until_s, served // self.instance.groups[0].count, run.timeline.first_token_s
            )
            decoded = run.second >= 0
            start = self.instance.groups[0].count * len(windows)
            served, times = run.second[decoded] - start, times[decoded]
        np.maximum.at(until_s, served // last.count, times)
        return float(np.maximum(until_s - windows[:, 0], 0.0).sum())


def _always(count: int) -> Windows:
    """Return windows of instances that stay."""
    return np.tile([0.0, 0.0, math.inf], (count, 1))


def _most_at_once(windows: Windows) -> int:
    """Return how many instances there are at most."""
    times = np.concatenate([windows[:, 0], windows[:, 2]])
    change = np.repeat([1, -1], len(windows))
    # One that goes makes room for one that comes at the same time.
    order = np.lexsort((change, times))
    return int(change[order].cumsum().max())
