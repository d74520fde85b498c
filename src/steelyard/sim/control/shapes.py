"""What a control loop speaks: readings that are observed, commands that are sent, who does both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from steelyard.sim.loop import EventLoop

__all__ = ["Command", "ControlledPlant", "Observation", "Outcome", "Policy", "Reading"]


@dataclass(frozen=True, slots=True)
class Command:
    """A setting that a policy asks for.

    Attributes:
        target: name of the actuator, such as "replicas" or "row.low_priority_clock".
        value: the whole new setting, never a change of it, so that a command that is lost or comes
            twice does no harm.
        reason: why, in words for people.
        sequence: number of the command, from 0; `simulate` and `drive` set it. An actuator ignores
            a number that is not above the last one it took.
    """

    target: str
    value: float
    reason: str = ""
    sequence: int = -1


@dataclass(frozen=True, slots=True)
class Reading:
    """One value of a meter.

    Attributes:
        meter: name of the meter.
        value: what it showed.
        measured_s: time at which it was true; it is known only later.
    """

    meter: str
    value: float
    measured_s: float


@dataclass(frozen=True, slots=True)
class Observation:
    """What a policy knows at a decision.

    Attributes:
        latest: last reading that arrived, by meter; a meter that never spoke is missing.
        arrived: readings that arrived since the last decision, oldest first.
    """

    latest: Mapping[str, Reading] = field(default_factory=dict)
    arrived: Sequence[Reading] = ()

    def value(self, meter: str, default: float = float("nan")) -> float:
        """Return the last value of a meter, or the default where there is none."""
        return self.latest[meter].value if meter in self.latest else default

    def age_s(self, meter: str, now_s: float) -> float:
        """Return how old the last reading of a meter is, infinity where there is none."""
        return now_s - self.latest[meter].measured_s if meter in self.latest else float("inf")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a plant's time has cost.

    Attributes:
        cost: what was spent, in the plant's unit.
        checked: how much was checked against the goal: seconds, requests or readings.
        violated: how much of it missed the goal, in the same unit.
        penalty: what the misses cost, in the unit of `cost`.
        details: further totals by name, units in the names.
    """

    cost: float
    checked: float
    violated: float
    penalty: float = 0.0
    details: Mapping[str, float] = field(default_factory=dict)

    @property
    def violation_rate(self) -> float:
        """Share of what was checked that missed the goal, 0 where nothing was."""
        return self.violated / self.checked if self.checked else 0.0

    @property
    def loss(self) -> float:
        """Cost and penalty together: what a controller should make small."""
        return self.cost + self.penalty


class Policy(Protocol):
    """Decides; plain Python without a clock of its own, and the same for both clocks."""

    def decide(self, now_s: float, observation: Observation) -> list[Command]:
        """Return the settings to change, none to leave all as they are."""
        ...


class ControlledPlant(Protocol):
    """What is controlled, on virtual time."""

    def start(self, loop: EventLoop) -> None:
        """Schedule the plant's own events, if it has any."""
        ...

    def advance(self, now_s: float) -> None:
        """Bring the state to a time, with the settings as they were since the last call."""
        ...

    def read(self, meter: str) -> float:
        """Return the true value of a meter now."""
        ...

    def apply(self, command: Command) -> None:
        """Let a setting take effect now."""
        ...

    def outcome(self) -> Outcome:
        """Return what the time up to the last `advance` has cost."""
        ...
