"""A row under requests, as a plant that a policy controls."""

import math

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.sim.control import Command, Latency, Outcome
from steelyard.sim.loop import EventLoop
from steelyard.sim.power.kernel import advance, set_clock, set_servers, settle
from steelyard.sim.power.requests import HIGH, LOW, RowRequests
from steelyard.sim.power.row import ServerRow
from steelyard.sim.power.state import BIN_S, DRAINING, IDLE, OFF, ON, STARTING, RowState, RowTables

__all__ = ["BRAKE", "CLOCKS", "METER", "PRIORITIES", "SERVERS", "RowPlant"]

PRIORITIES = ("high", "low")
METER, BRAKE = "row.power_w", "row.brake"
CLOCKS = ("high.clock", "low.clock")
"""Targets of commands by priority; values are clocks over the highest. `BRAKE` is 1 or 0."""
SERVERS = ("high.servers", "low.servers")
"""Targets of commands by priority; values are servers to be on or starting."""
_PERCENTILES = (50, 99)
_HOUR_S = 3600.0
_AT_ONCE = Latency.always(0.0)
Array = NDArray[np.float64]
_BY_PRIORITY = ("load", "demand", "ready", "starting", "utilization")


class RowPlant:
    """A row under requests: a `sim.control.ControlledPlant`.

    A first token ends a prompt; requests of a priority wait in the order of their arrival. A server
    that is off draws nothing, and one that starts as much as an idle one. `METER` reads the row's
    power; for each priority there are "high.ready" (servers that are on), "high.starting",
    "high.load" (requests that have arrived and not ended), "high.demand" (their mean since this
    meter was read last) and "high.utilization" (share of the slots of servers that are on).

    Attributes:
        row: the servers.
        requests: what arrives.
        tables: what the compiled loop reads.
        state: what changes.
        num_brakes: times the power brake took effect.
    """

    def __init__(
        self,
        row: ServerRow,
        requests: RowRequests,
        *,
        duration_s: float = 0.0,
        startup: Latency = _AT_ONCE,
        seed: int = 0,
    ) -> None:
        """Start idle at the full clock, all servers on.

        Args:
            row: the servers.
            requests: what arrives.
            duration_s: time for which energy is kept by bin; up to the last arrival when shorter.
            startup: seconds from asking for a server until it works.
            seed: seed of start-ups.

        Raises:
            ConfigError: requests of a priority without servers.
        """
        for priority, count in ((HIGH, row.high_servers), (LOW, row.low_servers)):
            if not count and (requests.priority == priority).any():
                raise ConfigError(
                    f"requests of {PRIORITIES[priority]} priority, but no server for them",
                    hint="give each priority a server",
                )
        self.row, self.requests = row, requests
        self.tables = row.tables(requests)
        self.state = _start(row, self.tables, max(duration_s, float(requests.arrival_s[-1])))
        self.startup, self._rng = startup, np.random.default_rng(seed)
        self._read: dict[str, tuple[float, float]] = {}
        self.num_brakes = self.num_starts = 0
        self._wanted = [1.0, 1.0]
        self._is_braked = False
        for priority in (HIGH, LOW):
            set_clock(self.tables, self.state, priority, 1.0)

    def start(self, loop: EventLoop) -> None:
        """Schedule nothing: requests are events of the compiled loop."""

    def advance(self, now_s: float) -> None:
        """Serve requests up to a time."""
        advance(self.tables, self.state, now_s)

    def read(self, meter: str) -> float:
        """Return the power of the row, or what a priority's servers and requests do.

        Args:
            meter: `METER`, or a priority and one of its names, such as "high.load".

        Returns:
            Watts, servers, requests or a share; NaN for the use of no servers.

        Raises:
            ConfigError: another meter.
        """
        if meter == METER:
            return float(self.state.totals[1])
        name, _, what = meter.partition(".")
        if name not in PRIORITIES or what not in _BY_PRIORITY:
            raise ConfigError(
                f"a row has no meter {meter!r}",
                hint=f"it has {METER!r}, and for each priority {', '.join(_BY_PRIORITY)}",
            )
        return self._of_priority(name, what)

    def _of_priority(self, name: str, what: str) -> float:
        """Return one of `_BY_PRIORITY` of a priority."""
        state, priority = self.state, PRIORITIES.index(name)
        of = self.tables.priority == priority
        load = float(state.present[priority])
        if what == "load":
            return load
        if what == "demand":
            return self._demand(name)
        if what == "starting":
            return float((state.mode[of] == STARTING).sum())
        ready = float((state.mode[of] == ON).sum())
        if what == "ready":
            return ready
        # What waits for a server counts: it says that there are too few.
        return load / (ready * self.row.slots) if ready else math.nan

    def _demand(self, name: str) -> float:
        """Return the mean load since it was asked for last, NaN at the very start."""
        since_s, before = self._read.get(name, (0.0, 0.0))
        now_s, total = float(self.state.totals[0]), self.state.present_s[PRIORITIES.index(name)]
        self._read[name] = (now_s, float(total))
        return (total - before) / (now_s - since_s) if now_s > since_s else math.nan

    def apply(self, command: Command) -> None:
        """Set the clock of a priority or the number of its servers, or the brake."""
        if command.target in SERVERS:
            self._set_servers(SERVERS.index(command.target), command.value)
            return
        if command.target == BRAKE:
            is_on = command.value > 0
            self.num_brakes += is_on and not self._is_braked
            self._is_braked = is_on
        elif command.target in CLOCKS:
            self._wanted[CLOCKS.index(command.target)] = command.value
        else:
            raise ConfigError(
                f"a command for {command.target!r}, but a row takes "
                f"{', '.join((*CLOCKS, *SERVERS, BRAKE))}"
            )
        for priority, wanted in enumerate(self._wanted):
            clock = min(wanted, self.row.brake_clock) if self._is_braked else wanted
            set_clock(self.tables, self.state, priority, clock)

    def _set_servers(self, priority: int, value: float) -> None:
        """Let a number of servers be on or starting; at least one, at most all of the priority."""
        state, of = self.state, self.tables.priority == priority
        count = int(min(max(round(value), 1), of.sum()))
        before = int((state.mode[of] == STARTING).sum())
        delays_s = self.startup.draw_s(self._rng, len(of))
        set_servers(self.tables, state, priority, count, delays_s)
        self.num_starts += max(int((state.mode[of] == STARTING).sum()) - before, 0)

    def set_clock(self, clock: float) -> None:
        """Lock the clock of all servers from now on, over the highest."""
        for target in CLOCKS:
            self.apply(Command(target, clock))

    def latency_s(self, priority: int) -> Array:
        """Return the seconds from arrival to last token of a priority's finished requests."""
        of = self.requests.priority == priority
        seconds = self.state.finish_s[of] - self.requests.arrival_s[of]
        return seconds[np.isfinite(seconds)]

    def outcome(self) -> Outcome:
        """Return energy, time above the budget, and what requests of each priority took."""
        _, _, meter_j, _, over_s, longest_s = self.state.totals.tolist()
        details = {
            "brakes": float(self.num_brakes),
            "longest_over_s": longest_s,
            **self.energy_j(),
            **self._server_hours(),
        }
        for priority, name in enumerate(PRIORITIES):
            seconds = self.latency_s(priority)
            details[f"{name}_requests"] = float(len(seconds))
            for level in _PERCENTILES:
                value = float(np.percentile(seconds, level)) if len(seconds) else math.nan
                details[f"{name}_p{level}_s"] = value
        return Outcome(meter_j, float(self.state.totals[0]), over_s, details=details)

    def _server_hours(self) -> dict[str, float]:
        """Return the hours of servers that were on, draining counted, and of starting ones."""
        hours = self.state.mode_s.sum(axis=0) / _HOUR_S
        return {
            "server_hours": float(hours[ON] + hours[DRAINING]),
            "starting_hours": float(hours[STARTING]),
            "starts": float(self.num_starts),
        }

    def energy_j(self) -> dict[str, float]:
        """Return the energy of requests by priority, and of servers without any; their sum is all.

        Servers that start count as idle.
        """
        settle(self.tables, self.state)
        spent, priority = self.state.request_j, self.requests.priority
        found = {
            f"{name}_j": float(spent[priority == place].sum())
            for place, name in enumerate(PRIORITIES)
        }
        return found | {"idle_j": float(self.state.spent_j[:, IDLE:].sum())}


def _start(row: ServerRow, tables: RowTables, duration_s: float) -> RowState:
    """Return the state of an idle row."""
    servers, slots = row.servers, row.slots
    requests = len(tables.arrival_s)
    bins = max(math.ceil(duration_s / BIN_S), 1)
    return RowState(
        totals=np.array([0.0, 0.0, 0.0, np.inf, 0.0, 0.0]),
        clock=np.ones(2),
        arrived=tables.bounds[:-1].copy(),
        taken=tables.bounds[:-1].copy(),
        since_s=np.zeros(servers),
        next_s=np.full(servers, np.inf),
        watts=np.zeros(servers),
        speed=np.ones(servers),
        mode=np.full(servers, ON),
        mode_s=np.zeros((servers, OFF + 1)),
        ready_s=np.zeros(servers),
        prompt=np.full(servers, -1),
        left_s=np.zeros(servers),
        done_s=np.zeros((servers, slots)),
        work_s=np.zeros(servers),
        request=np.full((servers, slots), -1),
        active=np.zeros(servers, np.int64),
        first_s=np.full(requests, np.nan),
        finish_s=np.full(requests, np.nan),
        request_j=np.zeros(requests),
        spent_j=np.zeros((bins, int(tables.kind.max()) + 3)),
        present=np.zeros(2, np.int64),
        present_s=np.zeros(2),
    )
