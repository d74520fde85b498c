"""A fleet of replicas on one virtual clock: arrivals, routing, hand-over of prompts that ran."""

import bisect
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from steelyard.errors import CapacityError
from steelyard.sim.fleet.jobs import FleetJob, FleetReplica, Route
from steelyard.sim.loop import EventLoop

__all__ = ["FleetEvents", "run_fleet"]


@dataclass(slots=True)
class _Group:
    """Replicas of one kind that take requests now, by rising number, and who chooses among them."""

    route: Route
    numbers: list[int] = field(default_factory=list)
    replicas: list[FleetReplica] = field(default_factory=list)


class FleetEvents:
    """Requests on their way through replicas that may come and go, on one event loop.

    Attributes:
        loop: the clock.
        replicas: replicas by number, those too that take no more requests.
        waiting: requests that found no replica, and go to the one that opens next.
        num_finished: requests that have all their tokens.
        num_retries: requests that began again because their replica was lost.
        lost: requests that would have begun again too often.
    """

    def __init__(
        self,
        loop: EventLoop,
        *routes: Route,
        retries: float = math.inf,
        settled: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Begin without replicas.

        Args:
            loop: the clock.
            *routes: who chooses in each group: those that take arrivals, and where these only run
                prompts, those that decode.
            retries: how often a request may begin again.
            settled: told the number of each replica that was just advanced.
        """
        self.loop = loop
        self.replicas: dict[int, FleetReplica] = {}
        self.waiting: deque[FleetJob] = deque()
        self.num_finished = self.num_retries = 0
        self.lost: list[FleetJob] = []
        self._groups = [_Group(route) for route in routes]
        self._retries, self._settled = retries, settled
        self._count = 0

    def add(self, replica: FleetReplica) -> int:
        """Let a replica live on the clock; return its number. It takes requests once it is open."""
        number, self._count = self._count, self._count + 1
        self.replicas[number] = replica
        # Most replicas wait for requests; one that starts, or is to die, does so without any.
        self._expect(number)
        return number

    def open(self, number: int, group: int = 0) -> None:
        """Let a replica take the requests of a group; arrivals that waited go to it."""
        chosen = self._groups[group]
        place = bisect.bisect(chosen.numbers, number)
        chosen.numbers.insert(place, number)
        chosen.replicas.insert(place, self.replicas[number])
        while self.waiting and group == 0:
            self.arrive(self.waiting.popleft())

    def close(self, number: int) -> None:
        """Let a replica take no more requests; it goes on with those that it has."""
        for group in self._groups:
            if number in group.numbers:
                place = group.numbers.index(number)
                del group.numbers[place], group.replicas[place]

    def remove(self, number: int) -> None:
        """Let a replica be gone; what it had must be gone before, or begin again."""
        self.close(number)
        del self.replicas[number]

    def arrive(self, job: FleetJob) -> None:
        """Take a request from outside."""
        self.settle(self._offer(job))

    def retry(self, job: FleetJob) -> list[int]:
        """Send a lost request as if it came now; return which replica got it, if any."""
        if job.second >= 0:
            # Its prompt's replica may still keep what was never pulled.
            self.replicas[job.first].release(job)
        job.first_token_s = job.last_token_s = math.nan
        job.first = job.second = -1
        if job.retries >= self._retries:
            self.lost.append(job)
            return []
        job.retries += 1
        self.num_retries += 1
        return self._offer(job)

    def settle(self, touched: list[int]) -> None:
        """Advance replicas until nothing more happens now, and schedule what comes next."""
        while touched:
            number = touched.pop(0)
            moved = self.replicas[number].advance(self.loop.now_s)
            self.num_finished += len(moved.finished)
            for job in moved.pulled:
                self.replicas[job.first].release(job)
            # All prompts of a step are handed over before any is pulled.
            reached = [job.first for job in moved.pulled]
            reached += [self._send(1, job) for job in moved.prefilled]
            reached += [job.first for job in moved.lost if job.second >= 0]
            for job in moved.lost:
                reached += self.retry(job)
            touched += [item for item in dict.fromkeys(reached) if item not in touched]
            self._expect(number)
            self._settled(number)

    def _offer(self, job: FleetJob) -> list[int]:
        """Send a request, or keep it while no replica takes any; return which one got it."""
        if self._groups[0].numbers:
            return [self._send(0, job)]
        self.waiting.append(job)
        return []

    def _send(self, group: int, job: FleetJob) -> int:
        """Route a request to a replica of a group; return its number."""
        chosen = self._groups[group]
        number = chosen.numbers[chosen.route(chosen.replicas, job)]
        if group == 0:
            job.first = number
        else:
            job.second = number
        self.replicas[number].submit(job, self.loop.now_s)
        return number

    def _expect(self, number: int) -> None:
        """Schedule the next event of a replica."""
        next_s = self.replicas[number].next_event_s()
        if next_s < math.inf:
            self.loop.at(next_s, partial(self._wake, number), priority=1)

    def _wake(self, number: int) -> None:
        """Advance a replica whose event is due; an event that was overtaken does nothing."""
        replica = self.replicas.get(number)
        if replica is not None and replica.next_event_s() <= self.loop.now_s:
            self.settle([number])


def run_fleet(
    jobs: Sequence[FleetJob],
    first: Sequence[FleetReplica],
    second: Sequence[FleetReplica] = (),
    *,
    route: Route,
    route_second: Route | None = None,
) -> None:
    """Serve requests with replicas in virtual time; the jobs learn when their tokens came.

    Without a second group every replica runs prompts and decodes. With one, the first group runs
    prompts only, and a replica of the second pulls their keys and values when it has room for them:
    until then they stay, and hold room, where the prompt ran.

    Args:
        jobs: requests by arrival.
        first: replicas that take arrivals.
        second: replicas that decode what the first group ran.
        route: chooses among the first group.
        route_second: chooses among the second group; as `route` when not given.

    Raises:
        CapacityError: some request never finished.

    Source: Zhong et al. 2024 (arXiv 2401.09670), section 4.3 (pull, first come first served).
    """
    run = FleetEvents(EventLoop(), route, route_second or route)
    for job in jobs:
        run.loop.at(job.arrival_s, partial(run.arrive, job))
    for group, replicas in enumerate((first, second)):
        for replica in replicas:
            run.open(run.add(replica), group)
    run.loop.run()
    if run.num_finished < len(jobs):
        raise CapacityError(
            f"{len(jobs) - run.num_finished} of {len(jobs)} requests never finished",
            hint="give the replicas more room for keys and values",
        )
