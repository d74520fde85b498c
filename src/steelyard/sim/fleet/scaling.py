"""A fleet whose replicas come and go: cold starts, scaling, draining, failures and retries."""

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from steelyard.errors import ConfigError, require
from steelyard.sim.autoscale.service import Service
from steelyard.sim.control.shapes import Command, Outcome
from steelyard.sim.fleet.fleet import FleetEvents
from steelyard.sim.fleet.jobs import FleetJob, FleetReplica, Route
from steelyard.sim.fleet.ordered import OrderedReplica
from steelyard.sim.loop import EventLoop

__all__ = ["FLEET_METERS", "ScaledFleet"]

FLEET_METERS = ("demand", "load", "utilization", "ready", "starting", "waiting")
"""Names that the fleet can be read by."""
_HOUR_S = 3600.0


@dataclass(slots=True, eq=False)
class _Member:
    """A replica of the fleet, its number among all that ever were, and what is asked of it."""

    number: int
    ordered: OrderedReplica[FleetReplica]
    state: Literal["starting", "ready", "draining", "gone"] = "starting"


class ScaledFleet:
    """The plant of `sim.control.simulate` whose setting is "replicas", request by request.

    A replica that starts is paid and takes nothing; requests that find none ready wait. One that is
    let go takes no more requests, and is paid until its last one ended; it comes back first when
    more are asked for. One that fails loses its requests, which begin again elsewhere, and another
    one is started in its place.

    Attributes:
        wanted: replicas that were asked for last.
        num_failures: replicas that failed.
        paid_s: seconds of all replicas that are gone.
    """

    def __init__(
        self,
        jobs: Sequence[FleetJob],
        make: Callable[[], FleetReplica],
        service: Service,
        *,
        route: Route,
        ttft_s: float = math.inf,
        tpot_s: float = math.inf,
        replicas: int = 1,
        window_s: float = 60.0,
        mean_life_s: float = math.inf,
        retries: int = 3,
        gone: Callable[[FleetReplica], None] = lambda _: None,
        seed: int = 0,
    ) -> None:
        """Begin with replicas that are ready.

        Args:
            jobs: requests by arrival; they learn when their tokens came.
            make: makes an idle replica that runs prompts and decodes.
            service: limits, start-up times and price; its capacity is in requests per second.
            route: chooses among the replicas that are ready.
            ttft_s: limit of the first token, from the arrival.
            tpot_s: limit per further token.
            replicas: replicas at first.
            window_s: seconds over which "demand" and "load" are means, above 0.
            mean_life_s: mean seconds from ready to failure, exponential; infinity for none.
            retries: how often a request may begin again.
            gone: told of each replica that is gone, with all that it held.
            seed: seed of start-up times and failures.

        Raises:
            ConfigError: an argument is out of range, or the requests are not in order.
        """
        self.window_s, self.mean_life_s, self.retries = window_s, mean_life_s, retries
        require(
            self,
            window_s=(0 < window_s < math.inf, "finite seconds above 0"),
            mean_life_s=(mean_life_s > 0, "above 0"),
            retries=(retries >= 0, "at least 0"),
        )
        self._arrivals = [job.arrival_s for job in jobs]
        if not jobs or self._arrivals != sorted(self._arrivals):
            raise ConfigError(
                "a fleet needs requests, by arrival", hint="sort them, and give at least one"
            )
        self.wanted = service.clipped(replicas)
        self.num_failures = 0
        self.paid_s = 0.0
        self._jobs, self._make, self._service = jobs, make, service
        self._gone = gone
        self._limits_s = ttft_s, tpot_s
        self._rng = np.random.default_rng(seed)
        self._members: dict[int, _Member] = {}
        self._now_s = 0.0
        self._events = FleetEvents(
            EventLoop(), _inside(route), retries=retries, settled=self._settled
        )

    @property
    def num_retries(self) -> int:
        """Requests that began again."""
        return self._events.num_retries

    @property
    def lost(self) -> list[FleetJob]:
        """Requests that failed too often."""
        return self._events.lost

    def start(self, loop: EventLoop) -> None:
        """Schedule the requests, with the first replicas ready."""
        self._events.loop = loop
        for _ in range(self.wanted):
            self._open(0.0)
        for job in self._jobs:
            loop.at(job.arrival_s, partial(self._events.arrive, job))

    def advance(self, now_s: float) -> None:
        """Note the time: what happens is on the loop."""
        self._now_s = now_s

    def read(self, meter: str) -> float:
        """Return what holds now.

        Args:
            meter: one of `FLEET_METERS`: requests per second of the last window (twice), the same
                over what the ready replicas carry, counts of replicas, and requests in the fleet.

        Returns:
            The value; the use is NaN without replicas.
        """
        now_s = self._events.loop.now_s
        begin_s = max(now_s - self.window_s, 0.0)
        came = bisect.bisect(self._arrivals, now_s) - bisect.bisect(self._arrivals, begin_s)
        demand = came / (now_s - begin_s) if now_s > begin_s else math.nan
        ready = len(self._in("ready"))
        shown = {
            "demand": demand,
            "load": demand,
            "utilization": demand / (ready * self._service.capacity) if ready else math.nan,
            "ready": float(ready),
            "starting": float(len(self._in("starting"))),
            "waiting": float(
                len(self._events.waiting)
                + sum(item.ordered.load for item in self._members.values())
            ),
        }
        return shown[meter]

    def apply(self, command: Command) -> None:
        """Start replicas or let some go, so that as many as asked for are ready or starting."""
        self.wanted = self._service.clipped(command.value)
        self._hold()

    def outcome(self) -> Outcome:
        """Return dollars, and how many requests that came missed a limit or did not end."""
        since_s = [item.ordered.since_s for item in self._members.values()]
        hours = (self.paid_s + sum(max(self._now_s - at, 0.0) for at in since_s)) / _HOUR_S
        came = self._jobs[: bisect.bisect(self._arrivals, self._now_s)]
        return Outcome(
            cost=hours * self._service.price_usd_per_hour,
            checked=float(len(came)),
            violated=float(sum(not self._kept(job) for job in came)),
            details={
                "instance_hours": hours,
                "failures": float(self.num_failures),
                "retries": float(self.num_retries),
                "lost": float(len(self.lost)),
            },
        )

    def _kept(self, job: FleetJob) -> bool:
        """Whether a request ended within both limits."""
        ttft_s, tpot_s = self._limits_s
        further_s = (job.last_token_s - job.first_token_s) / max(job.output_tokens - 1, 1)
        is_done = job.first >= 0 and not math.isnan(job.last_token_s)
        return is_done and job.first_token_s - job.arrival_s <= ttft_s and further_s <= tpot_s

    def _in(self, state: str) -> list[_Member]:
        """Return the members in a state, the oldest first."""
        return [item for item in self._members.values() if item.state == state]

    def _open(self, delay_s: float) -> None:
        """Order a replica."""
        now_s = self._events.loop.now_s
        ordered = OrderedReplica(self._make(), now_s, now_s + delay_s)
        number = self._events.add(ordered)
        self._members[number] = _Member(number, ordered)
        self._settled(number)

    def _settled(self, number: int) -> None:
        """Let a replica whose start is over take requests, and one that is drained go."""
        member = self._members[number]
        if member.state == "starting" and member.ordered.is_ready:
            self._take_requests(member)
            if self.mean_life_s < math.inf:
                life_s = float(self._rng.exponential(self.mean_life_s))
                self._events.loop.after(life_s, partial(self._fail, member))
        self._leave_if_empty(member)

    def _take_requests(self, member: _Member) -> None:
        """Let a replica take requests, those first that wait for one."""
        member.state = "ready"
        self._events.open(member.number)

    def _hold(self) -> None:
        """Bring the replicas that are ready or starting to the number that is wanted."""
        more = self.wanted - len(self._in("ready")) - len(self._in("starting"))
        for member in self._in("draining")[::-1][: max(more, 0)]:
            self._take_requests(member)
            more -= 1
        if more > 0:
            for delay_s in self._service.startup.draw_s(self._rng, more).tolist():
                self._open(delay_s)
        # Those that would be ready last have the least to lose, then those with few requests.
        given_up = sorted(self._in("starting"), key=lambda item: -item.ordered.ready_s)
        idlest = sorted(self._in("ready"), key=lambda item: item.ordered.load)
        for member in [*given_up, *idlest][: max(-more, 0)]:
            member.state = "draining"
            self._events.close(member.number)
            self._leave_if_empty(member)

    def _leave_if_empty(self, member: _Member) -> None:
        """Let a replica that is drained go."""
        if member.state == "draining" and not member.ordered.load:
            self._remove(member)

    def _remove(self, member: _Member) -> None:
        """Take a replica out of the fleet."""
        member.state = "gone"
        del self._members[member.number]
        self._events.remove(member.number)
        self.paid_s += self._events.loop.now_s - member.ordered.since_s
        self._gone(member.ordered.replica)

    def _fail(self, member: _Member) -> None:
        """Lose a replica and begin its requests again."""
        if member.state == "gone":
            return
        self._remove(member)
        self.num_failures += 1
        self._hold()
        for job in sorted(member.ordered.jobs, key=lambda item: item.arrival_s):
            self._events.settle(self._events.retry(job))


def _inside(route: Route) -> Route:
    """Let a route see the replicas themselves, whose caches and roles it may look at."""

    def choose(replicas: Sequence[FleetReplica], job: FleetJob) -> int:
        seen = [item.replica if isinstance(item, OrderedReplica) else item for item in replicas]
        return route(seen, job)

    return choose
