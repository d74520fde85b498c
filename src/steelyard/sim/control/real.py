"""The same control loop on the real clock, and the journal that keeps it from repeating itself."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from steelyard.config import dump, load
from steelyard.errors import ConfigError, SteelyardError
from steelyard.sim.control.report import ControlReport, Landing
from steelyard.sim.control.shapes import Command, Observation, Outcome, Policy, Reading

__all__ = ["Journal", "drive"]


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a journal's file holds: the next number, and the last decision."""

    next_sequence: int = 0
    decided_s: float = 0.0
    commands: tuple[Command, ...] = ()


class Journal:
    """Numbers commands and writes them down before they are sent.

    A controller that is killed after it wrote and before it sent has lost its commands: the next
    one sends nothing of them again, as nobody can know how far they came. It waits for the next
    decision and decides on what it then sees; commands are whole settings, so nothing is lost for
    longer than a period.
    """

    def __init__(self, path: Path) -> None:
        """Open a journal.

        Args:
            path: its file, ending in .json; made with the first commands.

        Raises:
            ConfigError: the file is not a journal.
        """
        self.path = path
        self._entry = load(path, _Entry) if path.exists() else _Entry()

    @property
    def decided_s(self) -> float:
        """Time of the last decision, 0 before the first."""
        return self._entry.decided_s

    def record(self, now_s: float, commands: list[Command]) -> list[Command]:
        """Number the commands of a decision and write them down, also where there are none.

        Args:
            now_s: time of the decision.
            commands: what the policy asks for.

        Returns:
            The commands with their numbers; they may be sent now.

        Raises:
            CapacityError: the disk is full; nothing may be sent.
        """
        first = self._entry.next_sequence
        numbered = [replace(item, sequence=first + place) for place, item in enumerate(commands)]
        entry = _Entry(first + len(numbered), now_s, tuple(numbered))
        dump(entry, self.path)
        self._entry = entry
        return numbered


def drive(
    policy: Policy,
    meters: Mapping[str, Callable[[], float | None]],
    actuators: Mapping[str, Callable[[Command], None]],
    *,
    period_s: float,
    journal: Journal,
    is_over: Callable[[], bool],
    account: Callable[[], Outcome] | None = None,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
    name: str = "",
) -> ControlReport:
    """Let a policy control the real thing.

    A meter that fails is a reading that is missing; an actuator that fails is counted, and the
    policy decides anew on what it sees next.

    Args:
        policy: decides every `period_s`.
        meters: functions that read a value, None where there is none; by name.
        actuators: functions that carry a command out or hand it on; by target.
        period_s: seconds between decisions, above 0.
        journal: numbers commands; that of a controller before this one lets it go on.
        is_over: asked before each decision; True ends the loop.
        account: returns what the plant's time has cost; zeros when None.
        clock: seconds that go on over restarts, such as since 1970.
        sleep: waits for seconds.
        name: name of the controller in the report; that of its class when empty.

    Returns:
        What was sent and taken.

    Raises:
        ConfigError: the period is not above 0, or a command has no actuator.
    """
    if not 0 < period_s < float("inf"):
        raise ConfigError(f"decisions every {period_s} s, but it must be finite and above 0")
    start_s = clock()
    run = _Real(policy, meters, actuators, journal)
    run.turns(period_s, is_over, clock, sleep)
    return ControlReport(
        name=name or type(policy).__name__,
        outcome=account() if account else Outcome(0.0, 0, 0),
        landed=tuple(run.landed),
        num_sent=run.num_sent,
        num_failed=run.num_failed,
        duration_s=clock() - start_s,
    )


class _Real:
    """State of one drive."""

    def __init__(
        self,
        policy: Policy,
        meters: Mapping[str, Callable[[], float | None]],
        actuators: Mapping[str, Callable[[Command], None]],
        journal: Journal,
    ) -> None:
        self.policy, self.meters, self.actuators = policy, meters, actuators
        self.journal = journal
        self.latest: dict[str, Reading] = {}
        self.landed: list[Landing] = []
        self.num_sent = self.num_failed = 0

    def turns(
        self,
        period_s: float,
        is_over: Callable[[], bool],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """Take turns until it is over."""
        start_s = clock()
        # The controller before may have been killed a moment ago: its decision counts for its
        # period.
        next_s = max(start_s, min(self.journal.decided_s, start_s) + period_s)
        while not is_over():
            if next_s > clock():
                sleep(next_s - clock())
            self.turn(clock())
            # Turns that were missed are left out: what they would have decided on has passed.
            next_s = max(next_s + period_s, clock())

    def turn(self, now_s: float) -> None:
        """Observe, decide, write down and send."""
        arrived = self._observe(now_s)
        self.latest |= {item.meter: item for item in arrived}
        commands = self.policy.decide(now_s, Observation(dict(self.latest), tuple(arrived)))
        for command in commands:
            if command.target not in self.actuators:
                raise ConfigError(
                    f"a command for {command.target!r}, but actuators are there for "
                    f"{', '.join(self.actuators) or 'nothing'}"
                )
        for command in self.journal.record(now_s, commands):
            self._send(now_s, command)

    def _observe(self, now_s: float) -> list[Reading]:
        """Read all meters; one that fails is missing."""
        found: list[Reading] = []
        for name, read in self.meters.items():
            try:
                value = read()
            except (OSError, SteelyardError):
                continue
            if value is not None:
                found.append(Reading(name, value, now_s))
        return found

    def _send(self, now_s: float, command: Command) -> None:
        """Hand a command to its actuator."""
        self.num_sent += 1
        try:
            self.actuators[command.target](command)
        except (OSError, SteelyardError):
            self.num_failed += 1
        else:
            self.landed.append(Landing(now_s, command))
