"""A control loop on virtual time."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from steelyard.errors import ConfigError
from steelyard.sim.control.devices import Actuator, Meter
from steelyard.sim.control.report import ControlReport, Landing
from steelyard.sim.control.shapes import Command, ControlledPlant, Observation, Policy, Reading
from steelyard.sim.loop import EventLoop

__all__ = ["VirtualControl", "simulate"]

# At one moment: settings take effect, then meters are read, then the policy decides on both.
_LAND, _SAMPLE, _ARRIVE, _DECIDE = range(4)


def simulate(
    policy: Policy,
    plant: ControlledPlant,
    meters: Sequence[Meter],
    actuators: Sequence[Actuator],
    *,
    period_s: float,
    duration_s: float,
    seed: int = 0,
    name: str = "",
) -> ControlReport:
    """Let a policy control a plant on virtual time.

    Args:
        policy: decides at 0 and every `period_s` after.
        plant: what is controlled; it is brought to the end of the time.
        meters: what the policy sees; each is first read at 0.
        actuators: one for each target that the policy commands.
        period_s: seconds between decisions, above 0.
        duration_s: seconds to simulate; there is no decision at its very end.
        seed: seed of noise, losses, latencies and failures.
        name: name of the controller in the report; that of its class when empty.

    Returns:
        What was sent and landed, and the plant's outcome.

    Raises:
        ConfigError: times out of range, two actuators of one target, or a command without actuator.
    """
    if not 0 < period_s <= duration_s < float("inf"):
        raise ConfigError(
            f"decisions every {period_s} s during {duration_s} s, but both must be finite and "
            "above 0, and the period no longer than the time"
        )
    run = VirtualControl(policy, plant, actuators, np.random.default_rng(seed))
    plant.start(run.loop)
    run.read(meters, duration_s)
    run.every(period_s, duration_s, run.decide, _DECIDE)
    return run.end(duration_s, name)


class VirtualControl:
    """State of one simulation: commands under way, readings seen, and what landed.

    `simulate` drives it tick by tick; a plant that can read its own meter over many ticks, such as
    `sim.power`, drives it only where the policy would act.
    """

    def __init__(
        self,
        policy: Policy,
        plant: ControlledPlant,
        actuators: Sequence[Actuator],
        rng: np.random.Generator,
    ) -> None:
        """Start at time 0 with nothing seen or sent.

        Args:
            policy: decides.
            plant: what is controlled.
            actuators: one for each target that the policy commands.
            rng: draws noise, losses, latencies and failures.

        Raises:
            ConfigError: two actuators have one target.
        """
        self.loop = EventLoop()
        self.policy, self.plant, self.rng = policy, plant, rng
        self.actuators = {item.target: item for item in actuators}
        if len(self.actuators) < len(actuators):
            raise ConfigError("two actuators have one target", hint="name each target once")
        self.latest: dict[str, Reading] = {}
        self.arrived: list[Reading] = []
        self.under_way: dict[str, Command] = {}
        self.landed: list[Landing] = []
        self.num_sent = self.num_superseded = self.num_failed = 0

    def end(self, duration_s: float, name: str = "") -> ControlReport:
        """Let all that is under way happen up to the end, and report."""
        self.loop.run(until_s=duration_s)
        self.plant.advance(duration_s)
        return ControlReport(
            name=name or type(self.policy).__name__,
            outcome=self.plant.outcome(),
            landed=tuple(self.landed),
            num_sent=self.num_sent,
            num_superseded=self.num_superseded,
            num_failed=self.num_failed,
            duration_s=duration_s,
        )

    def read(self, meters: Sequence[Meter], duration_s: float) -> None:
        """Read each meter at 0 and each of its periods."""
        # Those of one period are read in one event, in their order: there may be a million of them.
        for every_s in dict.fromkeys(meter.period_s for meter in meters):
            alike = [meter for meter in meters if meter.period_s == every_s]
            self.every(every_s, duration_s, partial(self.sample, alike), _SAMPLE)

    def every(
        self,
        period_s: float,
        duration_s: float,
        action: Callable[[], None],
        priority: int,
        turn: int = 0,
    ) -> None:
        """Run an action at 0 and each period, up to but not at the end."""
        # The n-th time is n periods: sums of periods would drift from other meters' times.
        time_s = turn * period_s
        if time_s >= duration_s:
            return

        def act() -> None:
            self.plant.advance(self.loop.now_s)
            action()
            self.every(period_s, duration_s, action, priority, turn + 1)

        self.loop.at(time_s, act, priority=priority)

    def sample(self, meters: Sequence[Meter]) -> None:
        """Read meters; what they show arrives after their lag."""
        for meter in meters:
            shown = meter.shown(self.plant.read(meter.name), self.rng)
            if shown is None:
                continue
            reading = Reading(meter.name, shown, self.loop.now_s)
            if meter.lag_s:
                arrive = partial(self.arrive, reading)
                self.loop.after(meter.lag_s, arrive, priority=_ARRIVE)
            else:
                self.arrive(reading)

    def arrive(self, reading: Reading) -> None:
        """Let the policy see a reading from now on."""
        self.latest[reading.meter] = reading
        self.arrived.append(reading)

    def decide(self) -> None:
        """Ask the policy and send its commands."""
        seen = Observation(dict(self.latest), tuple(self.arrived))
        self.arrived = []
        for command in self.policy.decide(self.loop.now_s, seen):
            self.send(command)

    def send(self, command: Command) -> None:
        """Send a command, unless the same one is under way."""
        if command.target not in self.actuators:
            raise ConfigError(
                f"a command for {command.target!r}, but actuators are there for "
                f"{', '.join(self.actuators) or 'nothing'}"
            )
        before = self.under_way.get(command.target)
        if before is not None and before.value == command.value:
            return
        sent = Command(command.target, command.value, command.reason, self.num_sent)
        self.num_sent += 1
        self.num_superseded += before is not None
        self.under_way[sent.target] = sent
        actuator = self.actuators[sent.target]
        delay_s = float(actuator.latency.draw_s(self.rng, 1)[0])
        is_lost = bool(actuator.failure) and self.rng.random() < actuator.failure
        self.loop.after(delay_s, lambda: self.land(sent, is_lost), priority=_LAND)

    def land(self, command: Command, is_lost: bool) -> None:
        """Let a command take effect, unless a later one has taken its place."""
        if self.under_way.get(command.target) is not command:
            return
        del self.under_way[command.target]
        if is_lost:
            self.num_failed += 1
            return
        self.plant.advance(self.loop.now_s)
        self.plant.apply(command)
        self.landed.append(Landing(self.loop.now_s, command))
