"""The control loop: what a policy sees, when its commands land, and what is written down first."""

import signal
import subprocess
import sys

import numpy as np
import pytest

from steelyard.errors import ConfigError, DataError
from steelyard.sim.control import (
    Actuator,
    Command,
    ControlReport,
    Journal,
    Landing,
    Latency,
    Meter,
    Observation,
    Outcome,
    drive,
    simulate,
    with_regret,
)


class Tank:
    """A level that rises by its setting each second; above 10 is a violation, checked each read."""

    def __init__(self):
        self.now_s, self.level, self.rate, self.over_s, self.log = 0.0, 0.0, 1.0, 0.0, []

    def start(self, loop):
        loop.at(2.5, lambda: self.log.append(loop.now_s))

    def advance(self, now_s):
        self.level += self.rate * (now_s - self.now_s)
        self.now_s = now_s

    def read(self, meter):
        return {"level": self.level}[meter]

    def apply(self, command):
        self.rate = command.value

    def outcome(self):
        return Outcome(self.level, 1, int(self.level > 10))


class Script:
    """Asks for given settings at given times, and keeps what it saw."""

    def __init__(self, asked):
        self.asked, self.seen = asked, []

    def decide(self, now_s, observation):
        self.seen.append((now_s, observation))
        return [Command("rate", value) for value in self.asked.get(now_s, ())]


def run(policy, *, meters=(), actuator=None, duration_s=10.0, plant=None, seed=0):
    plant = plant or Tank()
    actuator = actuator or Actuator(target="rate")
    return simulate(
        policy, plant, meters, [actuator], period_s=1.0, duration_s=duration_s, seed=seed
    )


def test_a_command_takes_effect_after_its_latency():
    plant = Tank()
    report = run(
        Script({2.0: [0.0]}),
        actuator=Actuator(target="rate", latency=Latency.always(3.0)),
        plant=plant,
    )
    assert plant.level == 5.0 and plant.log == [2.5]
    assert [(item.time_s, item.command.value, item.command.sequence) for item in report.landed] == [
        (5.0, 0.0, 0)
    ]
    assert report.outcome.cost == 5.0 and report.name == "Script" and report.duration_s == 10.0


def test_a_later_command_supersedes_and_a_repeated_one_does_not_start_again():
    slow = Actuator(target="rate", latency=Latency.always(3.0))
    report = run(Script({1.0: [0.0], 2.0: [5.0]}), actuator=slow)
    assert [item.time_s for item in report.landed] == [5.0] and report.num_superseded == 1
    report = run(Script({float(turn): [0.0] for turn in range(3)}), actuator=slow)
    assert [item.time_s for item in report.landed] == [3.0] and report.num_sent == 1


def test_a_failed_command_never_lands_and_can_be_sent_again():
    broken = Actuator(target="rate", latency=Latency.always(0.5), failure=1.0)
    report = run(Script({1.0: [0.0], 2.0: [0.0]}), actuator=broken)
    assert (report.num_sent, report.num_failed, report.landed) == (2, 2, ())
    shaky = Actuator(target="rate", failure=0.3)
    counts = [
        run(Script({float(turn): [turn] for turn in range(200)}), actuator=shaky, duration_s=200.0)
    ]
    assert 35 <= counts[0].num_failed <= 85


def test_a_meter_shows_the_past_and_only_what_arrived():
    policy = Script({})
    run(policy, meters=[Meter(name="level", period_s=2.0, lag_s=1.5)])
    seen = dict(policy.seen)
    assert seen[1.0].latest == {} and np.isnan(seen[1.0].value("level"))
    assert seen[4.0].value("level") == 2.0 and seen[4.0].age_s("level", 4.0) == 2.0
    assert seen[1.0].age_s("level", 1.0) == float("inf")
    # Each reading arrives at one decision only.
    assert [item.measured_s for _, it in policy.seen for item in it.arrived] == [0, 2, 4, 6]


def test_noise_and_losses_are_those_of_the_meter():
    policy = Script({})
    meter = Meter(name="level", period_s=1.0, noise=0.1, loss=0.25)
    run(policy, meters=[meter], duration_s=2000.0, seed=3)
    found = [item for _, it in policy.seen for item in it.arrived if item.measured_s > 0]
    error = np.array([item.value / item.measured_s - 1 for item in found])
    assert 0.7 < len(found) / 1999 < 0.8
    assert abs(error.mean()) < 0.01 and error.std() == pytest.approx(0.1, rel=0.1)


def test_the_same_seed_gives_the_same_run():
    shaky = Actuator(target="rate", latency=Latency.lognormal(2.0, 1.0), failure=0.2)
    asked = {float(turn): [turn % 3] for turn in range(0, 50, 4)}
    one, other, third = (
        run(Script(asked), actuator=shaky, duration_s=60.0, seed=seed) for seed in (1, 1, 2)
    )
    assert one == other and one != third


def test_a_latency_follows_its_quantiles():
    latency = Latency((0.0, 0.5, 1.0), (1.0, 2.0, 10.0))
    drawn = latency.draw_s(np.random.default_rng(0), 20_000)
    assert np.median(drawn) == pytest.approx(2.0, rel=0.05) and drawn.min() >= 1
    assert latency.quantile_s(0.75) == 6.0
    law = Latency.lognormal(3.0, 0.5)
    assert law.quantile_s(0.5) == pytest.approx(3.0)
    assert law.quantile_s(0.9) == pytest.approx(3.0 * np.exp(0.5 * 1.2816), rel=1e-3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Latency((0.0, 1.0), (2.0, 1.0)),
        lambda: Latency((0.1, 1.0), (1.0, 2.0)),
        lambda: Meter(name="x", period_s=0.0),
        lambda: Meter(name="x", period_s=1.0, loss=1.5),
        lambda: Actuator(target="x", failure=-0.1),
        lambda: simulate(Script({}), Tank(), [], [], period_s=0.0, duration_s=1.0),
        lambda: run(Script({0.0: [1.0]}), actuator=Actuator(target="other")),
        lambda: simulate(
            Script({}), Tank(), [], [Actuator(target="x")] * 2, period_s=1.0, duration_s=1.0
        ),
    ],
)
def test_what_cannot_be_is_refused(make):
    with pytest.raises(ConfigError):
        make()


def report_of(values, cost=0.0, penalty=0.0, name="", step_s=60.0):
    landed = [Landing(turn * step_s, Command("n", value)) for turn, value in enumerate(values)]
    return ControlReport(
        name=name, outcome=Outcome(cost, 10, 1, penalty), landed=tuple(landed), num_sent=len(values)
    )


def test_thrash_counts_changes_that_were_taken_back_soon():
    assert report_of([1, 2, 3, 4]).thrash == 0
    assert report_of([1, 2, 1, 1, 2]).thrash == 2
    assert report_of([1, 2, 1, 2], step_s=3600.0).thrash == 0


def test_regret_is_loss_above_the_oracle_and_the_best_fixed_choice():
    fixed = [report_of([], 10, 5, "5"), report_of([], 12, 0, "6")]
    (ours,) = with_regret([report_of([], 9, 2)], oracle=report_of([], 8, 0), fixed=fixed)
    assert (ours.oracle_regret, ours.fixed_regret, ours.fixed_name) == (3, -1, "6")
    assert ours.row()["violation_rate"] == 0.1
    (alone,) = with_regret([report_of([], 9, 2)])
    assert alone.oracle_regret is None and alone.fixed_regret is None
    assert Outcome(1.0, 0, 0).violation_rate == 0.0


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self, now_s=1000.0):
        self.now_s = now_s

    def sleep(self, seconds):
        self.now_s += seconds


class Follow:
    """Asks for the level that it sees."""

    def __init__(self):
        self.seen = []

    def decide(self, now_s, observation):
        self.seen.append((now_s, observation))
        return [Command("out", observation.value("level", 0.0))]


def drive_turns(policy, journal, out, *, turns=3, clock=None, read=lambda: 7.0):
    clock, left = clock or Clock(), iter(range(turns))
    return drive(
        policy,
        {"level": read},
        {"out": out},
        period_s=10.0,
        journal=journal,
        is_over=lambda: next(left, None) is None,
        clock=lambda: clock.now_s,
        sleep=clock.sleep,
    )


def test_the_real_clock_drives_the_same_policy(tmp_path):
    sent, policy = [], Follow()
    report = drive_turns(policy, Journal(tmp_path / "journal.json"), sent.append)
    assert [now_s for now_s, _ in policy.seen] == [1000, 1010, 1020]
    assert [item.sequence for item in sent] == [0, 1, 2] and sent[0].value == 7.0
    assert report.num_sent == 3 and len(report.landed) == 3 and report.name == "Follow"


def test_meters_and_actuators_that_fail_do_not_end_the_loop(tmp_path):
    def fail(*_):
        raise DataError("gone")

    policy = Follow()
    report = drive_turns(policy, Journal(tmp_path / "journal.json"), fail, read=fail)
    assert report.num_failed == 3 and not report.landed
    assert policy.seen[-1][1] == Observation({}, ())
    drive_turns(policy, Journal(tmp_path / "other.json"), fail, read=lambda: None)
    assert policy.seen[-1][1].latest == {}


class Killed(BaseException):
    """Ends a controller at once, as a signal does."""


@pytest.mark.parametrize("moment", ["deciding", "before sending", "after sending"])
def test_a_controller_that_was_killed_does_not_repeat_a_command(tmp_path, moment):
    clock, sent, policy = Clock(), [], Follow()

    class Dies(Follow):
        def decide(self, now_s, observation):
            if moment == "deciding" and now_s == 1010:
                raise Killed
            return super().decide(now_s, observation)

    def send(command):
        if command.sequence == 1 and moment == "before sending":
            raise Killed
        sent.append(command)
        if command.sequence == 1 and moment == "after sending":
            raise Killed

    path = tmp_path / "journal.json"
    with pytest.raises(Killed):
        drive_turns(Dies(), Journal(path), send, clock=clock)
    clock.now_s += 1.0
    drive_turns(policy, Journal(path), sent.append, turns=1, clock=clock)
    numbers = [item.sequence for item in sent]
    assert len(numbers) == len(set(numbers)) and numbers == sorted(numbers)
    # A decision that was written down counts for its whole period.
    assert policy.seen[0][0] == (1011 if moment == "deciding" else 1020)


_KILLED = """
import os, signal, sys
from pathlib import Path
from steelyard.sim.control import Command, Journal, drive

folder, moment = Path(sys.argv[1]), sys.argv[2]
left = iter(range(2))

def die(at):
    if at == moment:
        os.kill(os.getpid(), signal.SIGKILL)

class Asks:
    turns = 0

    def decide(self, now_s, observation):
        self.turns += 1
        if self.turns == 2:
            die("deciding")
        return [Command("out", 7.0)]

def send(command):
    if command.sequence == 1:
        die("before sending")
    with (folder / "sent").open("a") as file:
        file.write(f"{command.sequence}\\n")
    if command.sequence == 1:
        die("after sending")

drive(Asks(), {}, {"out": send}, period_s=0.05, journal=Journal(folder / "journal.json"),
      is_over=lambda: next(left, None) is None)
"""


@pytest.mark.parametrize(
    ("moment", "numbers"),
    [("deciding", [0, 1, 2]), ("before sending", [0, 2, 3]), ("after sending", [0, 1, 2, 3])],
)
def test_a_controller_that_gets_kill_9_does_not_repeat_a_command(tmp_path, moment, numbers):
    words = [sys.executable, "-c", _KILLED, str(tmp_path)]
    killed = subprocess.run([*words, moment], check=False)
    assert killed.returncode == -signal.SIGKILL
    subprocess.run([*words, "never"], check=True)
    assert [int(word) for word in (tmp_path / "sent").read_text().split()] == numbers


def test_nothing_is_sent_that_could_not_be_written_down(tmp_path):
    sent = []
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises((OSError, DataError)):
        drive_turns(Follow(), Journal(blocked / "journal.json"), sent.append)
    assert sent == []


def test_what_a_drive_cannot_do_is_refused(tmp_path):
    (tmp_path / "bad.json").write_text('{"next": 1}')
    with pytest.raises(ConfigError, match="unknown field"):
        Journal(tmp_path / "bad.json")
    with pytest.raises(ConfigError, match="actuators are there for"):
        drive(
            Follow(),
            {},
            {},
            period_s=1.0,
            journal=Journal(tmp_path / "a.json"),
            is_over=lambda: False,
        )
    with pytest.raises(ConfigError, match="above 0"):
        drive(
            Follow(),
            {},
            {},
            period_s=0.0,
            journal=Journal(tmp_path / "a.json"),
            is_over=lambda: True,
        )
