"""An instance of a fleet from its order on: it starts, and what came before then waits for it."""

from typing import Generic, TypeVar

from steelyard.sim.fleet.jobs import FleetJob, FleetReplica, Moved

__all__ = ["OrderedReplica"]

Kind = TypeVar("Kind", bound=FleetReplica)


class OrderedReplica(Generic[Kind]):
    """The one driver of starts: a replica that was ordered, and serves once it is ready.

    Attributes:
        replica: the replica itself, idle until it is ready.
        since_s: when it was ordered; it is paid from then on.
        ready_s: when it is ready.
        is_ready: whether it serves.
        jobs: what it was sent and has not finished with, in the order of coming.
        waiting: those of them that wait for its start.
    """

    def __init__(self, replica: Kind, since_s: float, ready_s: float) -> None:
        """Order a replica.

        Args:
            replica: idle; it begins with empty caches.
            since_s: the time.
            ready_s: when it is ready; it serves at once where that is no later than the order.
        """
        self.replica, self.since_s, self.ready_s = replica, since_s, ready_s
        self.is_ready = ready_s <= since_s
        self.jobs: dict[FleetJob, None] = {}
        self.waiting: list[FleetJob] = []

    @property
    def load(self) -> int:
        """Requests it was sent and has not finished with."""
        return len(self.jobs)

    @property
    def running(self) -> list[FleetJob]:
        """Requests that would be lost with it: those that do not wait for its start."""
        return [job for job in self.jobs if job not in self.waiting]

    def submit(self, job: FleetJob, now_s: float) -> None:
        """Take a request; it waits while the replica starts."""
        self.jobs[job] = None
        if self.is_ready:
            self.replica.submit(job, now_s)
        else:
            self.waiting.append(job)

    def release(self, job: FleetJob) -> None:
        """Free the keys and values of a prompt that ran here."""
        self.replica.release(job)

    def next_event_s(self) -> float:
        """Return when it is ready, or something happens in it; infinity for never."""
        return self.replica.next_event_s() if self.is_ready else self.ready_s

    def advance(self, now_s: float) -> Moved:
        """Let happen what is due: the end of its start, or work."""
        if not self.is_ready and self.ready_s <= now_s:
            self.is_ready = True
            waiting, self.waiting = self.waiting, []
            for job in waiting:
                self.replica.submit(job, now_s)
        if not self.is_ready:
            return Moved()
        moved = self.replica.advance(now_s)
        for job in (*moved.finished, *moved.prefilled):
            self.jobs.pop(job, None)
        return moved
