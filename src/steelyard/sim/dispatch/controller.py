"""Clients, a controller, hosts and devices, event by event."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from steelyard.sim.dispatch.programs import ControlCosts, Tenant
from steelyard.sim.loop import EventLoop

__all__ = ["DispatchOutcome", "simulate_dispatch"]


@dataclass(frozen=True, slots=True)
class DispatchOutcome:
    """What became of clients' programs.

    Attributes:
        time_s: seconds until the last one ended.
        num_finished: runs that each client saw end.
        device_s: seconds of devices that each client had, up to the first client's last run.
        num_messages: messages from the controller to hosts.
        is_deadlocked: devices wait for each other for ever.
    """

    time_s: float
    num_finished: tuple[int, ...]
    device_s: tuple[float, ...]
    num_messages: int
    is_deadlocked: bool


def simulate_dispatch(
    tenants: Sequence[Tenant],
    costs: ControlCosts,
    *,
    dispatch: Literal["parallel", "sequential"] = "parallel",
    policy: Literal["fifo", "share"] = "fifo",
    is_gang: bool = True,
    most_ahead: int = 16,
    seed: int = 0,
) -> DispatchOutcome:
    """Run the programs of all clients on virtual time.

    Devices take computations in the order in which their host got them and cannot be interrupted;
    one that spans several hosts begins when it is the next of all of them.

    Args:
        tenants: clients.
        costs: times of control.
        dispatch: "parallel" tells hosts of all of a program at once; "sequential" of each
            computation after the one before has ended, as where shapes depend on data.
        policy: whose program is next: the one that came first, or that of the client who has had
            the least of its share.
        is_gang: whether one controller orders all hosts alike; else messages overtake each other.
        most_ahead: programs that the controller lets hosts have before they end.
        seed: seed of the messages' delays without gang scheduling.

    Returns:
        What was run, and when.

    Source: Barham et al. 2022, arXiv 2203.12533, sections 4.4 and 4.5.
    """
    run = _Controller(
        tenants,
        costs,
        in_parallel=dispatch == "parallel",
        by_share=policy == "share",
        rng=None if is_gang else np.random.default_rng(seed),
        most_ahead=most_ahead,
    )
    for place, tenant in enumerate(tenants):
        for _ in range(min(tenant.in_flight, tenant.num_programs)):
            run.submit(place)
    run.loop.run()
    wanted = tuple(tenant.num_programs for tenant in tenants)
    return DispatchOutcome(
        run.loop.now_s,
        tuple(run.num_finished),
        tuple(run.shares_s or run.device_s),
        run.num_messages,
        tuple(run.num_finished) != wanted,
    )


@dataclass(eq=False)
class _Running:
    """A run of a program: whose it is, what has ended, and which hosts know each computation."""

    owner: int
    num_ended: int = 0
    ready: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))


class _Controller:
    """State of clients, controller, hosts and devices."""

    def __init__(
        self,
        tenants: Sequence[Tenant],
        costs: ControlCosts,
        *,
        in_parallel: bool,
        by_share: bool,
        rng: np.random.Generator | None,
        most_ahead: int,
    ) -> None:
        self.loop = EventLoop()
        self.tenants, self.costs, self.rng = tenants, costs, rng
        self.in_parallel, self.by_share = in_parallel, by_share
        self.most_ahead = most_ahead
        self.num_ahead = self.num_messages = 0
        self.num_submitted, self.num_finished = ([0] * len(tenants) for _ in range(2))
        self.device_s, self.granted_s = ([0.0] * len(tenants) for _ in range(2))
        self.shares_s: list[float] = []
        self.waiting: list[_Running] = []
        self.busy_until_s = 0.0
        self.host_until_s: defaultdict[int, float] = defaultdict(float)
        self.queues: defaultdict[int, deque[tuple[_Running, int]]] = defaultdict(deque)

    def submit(self, owner: int) -> None:
        """Send a program to the controller."""
        self.num_submitted[owner] += 1
        self.loop.after(self.costs.message_s, lambda: self.arrive(_Running(owner)))

    def arrive(self, run: _Running) -> None:
        self.waiting.append(run)
        self.grant()

    def grant(self) -> None:
        """Dispatch programs while hosts may have more."""
        while self.waiting and self.num_ahead < self.most_ahead:
            run = min(self.waiting, key=self.had) if self.by_share else self.waiting[0]
            self.waiting.remove(run)
            self.num_ahead += 1
            program = self.tenants[run.owner].program
            self.granted_s[run.owner] += sum(len(item.hosts) * item.device_s for item in program)
            self.send(run, range(len(program)) if self.in_parallel else range(1))

    def had(self, run: _Running) -> float:
        """Return what a run's client has been granted over its weight."""
        return self.granted_s[run.owner] / self.tenants[run.owner].weight

    def send(self, run: _Running, places: range) -> None:
        """Tell hosts of computations: one message to each host, whatever it is to run."""
        program = self.tenants[run.owner].program
        work: defaultdict[int, list[int]] = defaultdict(list)
        for place in places:
            for host in program[place].hosts:
                work[host].append(place)
        self.num_messages += len(work)
        begin_s = max(self.busy_until_s, self.loop.now_s)
        self.busy_until_s = begin_s + self.costs.schedule_s + self.costs.fan_out_s * len(work)
        for host, items in work.items():
            late_s = self.rng.exponential(self.costs.message_s) if self.rng else 0.0
            self.loop.at(
                self.busy_until_s + self.costs.message_s + late_s,
                lambda host=host, items=items: self.receive(run, host, items),
            )

    def receive(self, run: _Running, host: int, places: list[int]) -> None:
        """Queue computations on a host's devices, and prepare them one after the other."""
        for place in places:
            self.queues[host].append((run, place))
            begin_s = max(self.host_until_s[host], self.loop.now_s)
            self.host_until_s[host] = begin_s + self.costs.prepare_s
            self.loop.at(
                self.host_until_s[host],
                lambda place=place: self.prepared(run, place, host),
            )

    def prepared(self, run: _Running, place: int, host: int) -> None:
        run.ready[place].add(host)
        # Only the last host can make it start: hosts are many.
        if len(run.ready[place]) == len(self.tenants[run.owner].program[place].hosts):
            self.try_start(run, place)

    def try_start(self, run: _Running, place: int) -> None:
        """Start a computation that is prepared and next on all its hosts, after the one before."""
        item = self.tenants[run.owner].program[place]
        if place != run.num_ended or len(run.ready[place]) < len(item.hosts):
            return
        if all(self.queues[host][0] == (run, place) for host in item.hosts):
            # It is started once: nothing is ready any more.
            run.ready[place].clear()
            self.loop.after(item.device_s, lambda: self.end(run, place))

    def end(self, run: _Running, place: int) -> None:
        """Free the devices, and start what waited for them or for the result."""
        program = self.tenants[run.owner].program
        item = program[place]
        self.device_s[run.owner] += len(item.hosts) * item.device_s
        run.num_ended += 1
        for host in item.hosts:
            self.queues[host].popleft()
        if run.num_ended == len(program):
            self.finish(run.owner)
        elif not self.in_parallel:
            self.send(run, range(place + 1, place + 2))
        else:
            self.try_start(run, place + 1)
        following = dict.fromkeys(self.queues[host][0] for host in item.hosts if self.queues[host])
        for waiting in following:
            self.try_start(*waiting)

    def finish(self, owner: int) -> None:
        """Count a program, and let its client and the controller go on."""
        self.num_finished[owner] += 1
        self.num_ahead -= 1
        if self.num_submitted[owner] < self.tenants[owner].num_programs:
            self.submit(owner)
        elif self.num_finished[owner] == self.tenants[owner].num_programs and not self.shares_s:
            self.shares_s = list(self.device_s)
        self.grant()
