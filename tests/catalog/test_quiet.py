"""Waiting for a quiet machine: a made-up load on a made-up clock."""

import pytest

from steelyard.catalog.quiet import MOST_LOST, Patience
from steelyard.contention import Contention
from steelyard.errors import CalibrationError


class Machine:
    """A machine whose other work follows a script: (until second, processors, share lost)."""

    def __init__(self, monkeypatch, *script: tuple[float, float, float]) -> None:
        self.now_s = 0.0
        self.script = script
        self.told: list[str] = []
        module = "steelyard.catalog.quiet."
        monkeypatch.setattr(module + "other_work", self.watch)
        monkeypatch.setattr(module + "time.monotonic", lambda: self.now_s)
        monkeypatch.setattr(module + "LoadMeter", lambda: self)

    def at(self) -> tuple[float, float, float]:
        return next(item for item in self.script if self.now_s < item[0])

    def watch(self) -> float:
        others = self.at()[1]
        self.now_s += 0.25
        return others

    def read(self) -> Contention:
        return Contention(self.lost, 0.0, 5.0)

    def work(self) -> float:
        """Work for 5 seconds; what is lost is what was lost when it began."""
        self.lost = self.at()[2]
        self.now_s += 5.0
        return self.lost

    def patience(self, seconds: float, **options) -> Patience:
        return Patience(seconds, processors=2, tell=self.told.append, **options)


def test_load_that_ends_is_waited_for(monkeypatch):
    machine = Machine(monkeypatch, (30, 2.0, 0.5), (1e9, 0.0, 0.01))
    patience = machine.patience(60)
    assert patience.measure(machine.work) == 0.01
    assert patience.lost == 0.01 and 30 <= machine.now_s <= 36
    assert "2.0 of 2 processors busy" in machine.told[0]


def test_load_that_stays_is_refused(monkeypatch):
    machine = Machine(monkeypatch, (1e9, 2.0, 0.5))
    with pytest.raises(CalibrationError, match="took 50 %") as caught:
        machine.patience(60).measure(machine.work)
    assert "--force" in caught.value.hint
    assert machine.now_s < 70


def test_force_takes_what_comes_at_once_and_remembers_it(monkeypatch):
    machine = Machine(monkeypatch, (1e9, 2.0, 0.5))
    patience = machine.patience(0, refuses=False)
    assert patience.measure(machine.work) == 0.5
    assert patience.lost == 0.5 and machine.now_s == 5.0


def test_a_burst_within_the_measurement_makes_it_again(monkeypatch):
    machine = Machine(monkeypatch, (1, 0.0, 0.3), (1e9, 0.0, 0.0))
    patience = machine.patience(60)
    assert patience.measure(machine.work) == 0.0
    assert patience.lost == 0.0 and machine.told == [
        "other work took part of the processors: measuring again"
    ]


def test_a_little_that_stays_is_kept_once_the_patience_is_spent(monkeypatch):
    machine = Machine(monkeypatch, (1e9, 0.1, MOST_LOST))
    patience = machine.patience(12)
    assert patience.measure(machine.work) == MOST_LOST
    assert patience.lost == MOST_LOST
    assert patience.measure(machine.work) == MOST_LOST


def test_a_quiet_machine_is_measured_once(monkeypatch):
    machine = Machine(monkeypatch, (1e9, 0.1, 0.04))
    patience = machine.patience(60)
    assert patience.measure(machine.work) == 0.04
    assert machine.now_s == 5.25 and not machine.told
