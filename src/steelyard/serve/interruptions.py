"""Instances of a simulated fleet that die and start again, and routes that pass them by."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from steelyard.errors import ConfigError, require
from steelyard.serve.replica import ReplicaStep, SchedulerReplica
from steelyard.sim.fleet.instance import ReplicaRole
from steelyard.sim.fleet.jobs import FleetJob, FleetReplica, Moved, Route

__all__ = ["AvailableRoute", "InterruptedReplica", "Interruption"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Interruption:
    """One death of an instance.

    Attributes:
        at_s: when it dies, at least 0.
        start_s: seconds until another is ready in its place, at least 0.
    """

    at_s: float
    start_s: float

    def __post_init__(self) -> None:
        require(
            self,
            at_s=(0 <= self.at_s < math.inf, "finite and at least 0"),
            start_s=(0 <= self.start_s < math.inf, "finite and at least 0"),
        )


class InterruptedReplica:
    """A replica that dies once, with all it holds, and is started again empty.

    What it had not finished is lost here and reported, so that the fleet sends it elsewhere from
    its beginning. What is sent to it while it is gone waits for its start.

    Attributes:
        lost: requests that it held when it died.
    """

    def __init__(
        self, make: Callable[[], SchedulerReplica], interruption: Interruption | None = None
    ) -> None:
        """Start with an instance that runs.

        Args:
            make: makes an idle instance; called again at the start in place of the dead one.
            interruption: its death; it never dies without.

        Raises:
            ConfigError: it only runs prompts: what others have yet to pull from it would be lost to
                them without their knowledge.
        """
        self.lost: list[FleetJob] = []
        self._make, self._interruption = make, interruption
        self._inner = make()
        if interruption is not None and self._inner.role == "prefill":
            raise ConfigError(
                "an instance for prompts alone cannot be interrupted",
                hint="interrupt one that runs both phases, or one that decodes",
            )
        self._jobs: dict[FleetJob, None] = {}
        self._waiting: list[FleetJob] = []
        self._steps: list[ReplicaStep] = []
        self._ready_s = 0.0

    @property
    def replica(self) -> SchedulerReplica:
        """The instance that runs, or starts, now."""
        return self._inner

    @property
    def is_up(self) -> bool:
        """Whether it serves."""
        return self._ready_s == 0.0

    @property
    def load(self) -> int:
        """Requests it was sent and has not finished with."""
        return len(self._jobs)

    @property
    def role(self) -> ReplicaRole:
        """Whether it runs prompts, decodes, or does both."""
        return self._inner.role

    @property
    def steps(self) -> list[ReplicaStep]:
        """Steps of all instances in this place; one that death cut short ends with it."""
        return [*self._steps, *self._inner.steps]

    def submit(self, job: FleetJob, now_s: float) -> None:
        """Take a request; while no instance runs it waits."""
        self._jobs[job] = None
        if self.is_up:
            self._inner.submit(job, now_s)
        else:
            self._waiting.append(job)

    def release(self, job: FleetJob) -> None:
        """Free the keys and values of a prompt that ran here."""
        self._inner.release(job)

    def next_event_s(self) -> float:
        """Return when something happens here by itself, infinity for never."""
        death_s = self._interruption.at_s if self._interruption else math.inf
        return min(death_s, self._inner.next_event_s() if self.is_up else self._ready_s)

    def advance(self, now_s: float) -> Moved:
        """Let happen what is due: work, its death, or its start."""
        moved = Moved()
        if self.is_up:
            moved = self._inner.advance(now_s)
            for job in (*moved.finished, *moved.prefilled):
                self._jobs.pop(job, None)
        if self._interruption and self._interruption.at_s <= now_s:
            self._die(self._interruption, now_s, moved)
        elif not self.is_up and self._ready_s <= now_s:
            self._ready_s = 0.0
            waiting, self._waiting = self._waiting, []
            for job in waiting:
                self._inner.submit(job, now_s)
            moved = self._inner.advance(now_s)
        return moved

    def _die(self, interruption: Interruption, now_s: float, moved: Moved) -> None:
        """Drop the instance and report what it held."""
        self.lost = list(self._jobs)
        moved.lost = list(self._jobs)
        self._jobs.clear()
        for step in self._inner.steps:
            if step.start_s <= now_s:
                end_s = min(step.end_s, now_s)
                cut = ReplicaStep(
                    step.lane, step.start_s, end_s, step.prompt_tokens, step.decodes
                )
                self._steps.append(cut)
        self._inner, self._interruption = self._make(), None
        # A start of no time is over at the next look, and not before others had theirs.
        self._ready_s = math.nextafter(now_s + interruption.start_s, math.inf)


class AvailableRoute:
    """Routes among the instances that run; without any, to the one with the fewest requests.

    The route inside sees the instances themselves, so that what a dead one held counts no more.
    """

    def __init__(self, route: Route) -> None:
        """Keep the route.

        Args:
            route: chooses among instances that run.
        """
        self._route = route

    def __call__(self, replicas: Sequence[FleetReplica], job: FleetJob) -> int:
        """Return the index of the replica that the request goes to."""
        found = [
            (place, item.replica if isinstance(item, InterruptedReplica) else item)
            for place, item in enumerate(replicas)
            if not (isinstance(item, InterruptedReplica) and not item.is_up)
        ]
        if not found:
            return min(range(len(replicas)), key=lambda place: replicas[place].load)
        return found[self._route([item for _, item in found], job)][0]
