"""Instances of a simulated fleet that come and go, and routes that pass by absent ones."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError, require
from steelyard.serve.replica import ReplicaStep, SchedulerReplica
from steelyard.sim.fleet.instance import ReplicaRole
from steelyard.sim.fleet.jobs import FleetJob, FleetReplica, Moved, Route
from steelyard.sim.fleet.ordered import OrderedReplica

__all__ = ["AvailableRoute", "ElasticReplica", "Lifetime"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lifetime:
    """When an instance goes and how it comes back.

    Attributes:
        start_s: draws the seconds from an order until the instance is ready.
        dies_at_s: when it dies with all it holds; another is ordered at once.
        keep_alive_s: it is given back when it was idle for so long.
        is_asleep: whether it is not there at the beginning.
    """

    start_s: Callable[[], float] = lambda: 0.0
    dies_at_s: float = math.inf
    keep_alive_s: float = math.inf
    is_asleep: bool = False

    def __post_init__(self) -> None:
        require(
            self,
            dies_at_s=(self.dies_at_s >= 0, "at least 0"),
            keep_alive_s=(self.keep_alive_s > 0, "above 0"),
        )


class ElasticReplica:
    """A place of a fleet whose instance may die, or be given back while nobody needs it.

    What a dead instance had not finished is reported, so that the fleet sends it elsewhere from its
    beginning. What is sent to a place without an instance orders one, and waits for its start. Each
    new instance begins with empty caches.

    Attributes:
        num_starts: instances that were ordered after the beginning.
        stays: begin and end of each stay of an instance, from its order on, that is over.
    """

    def __init__(self, make: Callable[[], SchedulerReplica], life: Lifetime | None = None) -> None:
        """Begin with an idle instance, or with none.

        Args:
            make: makes an idle instance.
            life: when it goes; it stays for good without.

        Raises:
            ConfigError: an instance for prompts alone is to go: what others have yet to pull from
                it would be gone without their knowledge.
        """
        self.num_starts = 0
        self.stays: list[tuple[float, float]] = []
        self._make, self._life = make, life or Lifetime()
        # An instance that nobody ordered is never ready.
        self._ordered = OrderedReplica(make(), 0.0, math.inf if self._life.is_asleep else 0.0)
        mortal = min(self._life.dies_at_s, self._life.keep_alive_s) < math.inf
        if mortal and self.role == "prefill":
            raise ConfigError(
                "an instance for prompts alone can neither die nor be given back",
                hint="take one that runs both phases, or one that decodes",
            )
        self._dies_s = self._life.dies_at_s
        self._steps: list[ReplicaStep] = []
        self._idle_s = 0.0

    @property
    def replica(self) -> SchedulerReplica:
        """The instance that runs, or comes next."""
        return self._ordered.replica

    @property
    def is_up(self) -> bool:
        """Whether it serves."""
        return self._ordered.is_ready

    @property
    def is_asleep(self) -> bool:
        """Whether there is no instance and none was ordered."""
        return self._ordered.ready_s == math.inf

    @property
    def load(self) -> int:
        """Requests it was sent and has not finished with."""
        return self._ordered.load

    @property
    def role(self) -> ReplicaRole:
        """Whether it runs prompts, decodes, or does both."""
        return self.replica.role

    @property
    def steps(self) -> list[ReplicaStep]:
        """Steps of all instances in this place; one that death cut short ends with it."""
        return [*self._steps, *self.replica.steps]

    def asked_until(self, end_s: float) -> float:
        """Return the seconds up to a time in which an instance was there or ordered."""
        open_s = 0.0 if self.is_asleep else max(end_s - self._ordered.since_s, 0.0)
        return sum(min(end, end_s) - begin for begin, end in self.stays if begin < end_s) + open_s

    def asked_at(self, times_s: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return 1 for each time at which an instance was there or ordered, else 0."""
        stays = [*self.stays, *([] if self.is_asleep else [(self._ordered.since_s, math.inf)])]
        found = np.zeros(np.shape(times_s), dtype=np.int64)
        for begin, end in stays:
            found += (times_s >= begin) & (times_s < end)
        return found

    def submit(self, job: FleetJob, now_s: float) -> None:
        """Take a request; without an instance it waits for the one that is ordered."""
        if self.is_asleep:
            self._order(self.replica, now_s, now_s)
        self._ordered.submit(job, now_s)

    def release(self, job: FleetJob) -> None:
        """Free the keys and values of a prompt that ran here."""
        self._ordered.release(job)

    def next_event_s(self) -> float:
        """Return when something happens here by itself, infinity for never."""
        may_sleep = self.is_up and not self._ordered.jobs
        sleeps_s = self._idle_s + self._life.keep_alive_s if may_sleep else math.inf
        return min(self._dies_s, sleeps_s, self._ordered.next_event_s())

    def advance(self, now_s: float) -> Moved:
        """Let happen what is due: work, the end of an instance, or a start."""
        was_idle = self.is_up and not self._ordered.jobs
        moved = self._ordered.advance(now_s)
        # One that was ordered after a death is idle from its start on, not since the dead one was.
        if self.is_up and not was_idle:
            self._idle_s = now_s
        if self._dies_s <= now_s:
            self._die(now_s, moved)
        elif self.is_up and not self.load and self._idle_s + self._life.keep_alive_s <= now_s:
            self.stays.append((self._ordered.since_s, now_s))
            self._ordered = OrderedReplica(self._next(now_s), now_s, math.inf)
        return moved

    def _die(self, now_s: float, moved: Moved) -> None:
        """Drop the instance, report what it held, and order another."""
        self._dies_s = math.inf
        if self.is_asleep:
            return
        dead = self._ordered
        moved.lost = dead.running
        # The place is paid through from one instance to the next.
        self._order(self._next(now_s), now_s, dead.since_s)
        for job in dead.waiting:
            self._ordered.submit(job, now_s)

    def _next(self, now_s: float) -> SchedulerReplica:
        """Keep the steps of the instance that goes, and make the next one."""
        for step in self.replica.steps:
            end_s = min(step.end_s, now_s)
            cut = ReplicaStep(step.lane, step.start_s, end_s, step.prompt_tokens, step.decodes)
            self._steps.append(cut)
        return self._make()

    def _order(self, replica: SchedulerReplica, now_s: float, since_s: float) -> None:
        """Order an instance, which is paid since a time."""
        self.num_starts += 1
        # A start of no time is over at the next look, and not before others had theirs.
        ready_s = math.nextafter(now_s + self._life.start_s(), math.inf)
        self._ordered = OrderedReplica(replica, since_s, ready_s)


class AvailableRoute:
    """Routes among the instances that serve, and wakes others when all of these are full.

    The route inside sees the instances themselves, so that what a dead one held counts no more.
    """

    def __init__(self, route: Route, *, most_requests: int = 0) -> None:
        """Keep the route.

        Args:
            route: chooses among instances that serve.
            most_requests: requests from which on an instance counts as full and another one is
                woken; 0 wakes one only where none serves.
        """
        self._route = route
        self._most = most_requests or math.inf

    def __call__(self, replicas: Sequence[FleetReplica], job: FleetJob) -> int:
        """Return the index of the replica that the request goes to."""
        up: list[tuple[int, FleetReplica]] = []
        away: list[tuple[bool, int, int]] = []
        for place, item in enumerate(replicas):
            if not isinstance(item, ElasticReplica):
                up.append((place, item))
            elif item.is_up:
                up.append((place, item.replica))
            elif item.load < self._most:
                # Those that start already come before those that would have to.
                away.append((item.is_asleep, item.load, place))
        if away and all(item.load >= self._most for _, item in up):
            return min(away)[2]
        if not up:
            return min(range(len(replicas)), key=lambda place: replicas[place].load)
        return up[self._route([item for _, item in up], job)][0]
