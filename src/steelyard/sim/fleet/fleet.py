"""A fleet of replicas on one virtual clock: arrivals, routing, hand-over of prompts that ran."""

import math
from collections.abc import Sequence
from functools import partial

from steelyard.errors import CapacityError
from steelyard.sim.fleet.jobs import FleetJob, FleetReplica, Route
from steelyard.sim.loop import EventLoop

__all__ = ["run_fleet"]


class _FleetEvents:
    """The state of one run."""

    def __init__(
        self,
        first: Sequence[FleetReplica],
        second: Sequence[FleetReplica],
        route: Route,
        route_second: Route,
    ) -> None:
        self.loop = EventLoop()
        self.groups = (first, second)
        self.routes = (route, route_second)
        self.replicas = [*first, *second]
        self.num_finished = 0

    def arrive(self, job: FleetJob) -> None:
        """Take a request from outside."""
        self.settle([self.send(0, job)])

    def send(self, group: int, job: FleetJob) -> int:
        """Route a request to a replica of a group; return it."""
        chosen = self.routes[group](self.groups[group], job)
        index = chosen + group * len(self.groups[0])
        if group == 0:
            job.first = index
        else:
            job.second = index
        self.replicas[index].submit(job, self.loop.now_s)
        return index

    def retry(self, job: FleetJob) -> int:
        """Send a lost request as if it came now; return where to."""
        if job.second >= 0:
            # Its prompt's replica may still keep what was never pulled.
            self.replicas[job.first].release(job)
        job.first_token_s = job.last_token_s = math.nan
        job.second = -1
        job.retries += 1
        return self.send(0, job)

    def settle(self, touched: list[int]) -> None:
        """Advance replicas until nothing more happens now, and schedule what comes next."""
        while touched:
            index = touched.pop(0)
            moved = self.replicas[index].advance(self.loop.now_s)
            self.num_finished += len(moved.finished)
            for job in moved.pulled:
                self.replicas[job.first].release(job)
            # All prompts of a step are handed over before any is pulled.
            reached = [job.first for job in moved.pulled]
            reached += [self.send(1, job) for job in moved.prefilled]
            reached += [job.first for job in moved.lost if job.second >= 0]
            reached += [self.retry(job) for job in moved.lost]
            touched += [item for item in dict.fromkeys(reached) if item not in touched]
            next_s = self.replicas[index].next_event_s()
            if next_s < math.inf:
                self.loop.at(next_s, partial(self.wake, index), priority=1)

    def wake(self, index: int) -> None:
        """Advance a replica whose event is due; an event that was overtaken does nothing."""
        if self.replicas[index].next_event_s() <= self.loop.now_s:
            self.settle([index])


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
    run = _FleetEvents(first, second, route, route_second or route)
    for job in jobs:
        run.loop.at(job.arrival_s, partial(run.arrive, job))
    # Most replicas wait for requests; one that is to die does so without any.
    for index, replica in enumerate(run.replicas):
        if replica.next_event_s() < math.inf:
            run.loop.at(replica.next_event_s(), partial(run.wake, index), priority=1)
    run.loop.run()
    if run.num_finished < len(jobs):
        raise CapacityError(
            f"{len(jobs) - run.num_finished} of {len(jobs)} requests never finished",
            hint="give the replicas more room for keys and values",
        )
