"""Run quickstarts with and without another process beside them, and keep what they forecast.

`python -m benchmarks.weigh._busy_quickstarts --out FOLDER` runs what the table lacks, one after
another, and may be stopped and called again. Every second quickstart has a loop beside it that
keeps one processor busy for some seconds and rests for some. `busy_machine` scores the table.
"""

import csv
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import cyclopts
import msgspec

from steelyard.files import atomic_path
from steelyard.quantity import Check, Forecast, Measurement

__all__ = ["BusyCheck", "busy_loops", "read_checks"]

POINTS = Path(__file__).with_name("busy_points.csv")
_COLUMNS = (
    "seed",
    "busy",
    "quantity",
    "value",
    "low",
    "high",
    "measured",
    "forecast_pace_s",
    "measured_pace_s",
)
_MINUTES = 1.0
_MEAN_S = 10.0
_FIRST_SEED = 200
"""Seeds below were used, or looked at, while the quickstart was built."""


@dataclass(frozen=True, slots=True)
class BusyCheck:
    """One forecast of a quickstart beside what came.

    Attributes:
        seed: seed of the quickstart.
        busy: whether another process came and went meanwhile.
        check: the forecast and the measurement.
    """

    seed: int
    busy: bool
    check: Check


@contextmanager
def busy_loops(count: int, *, seconds: float = 3600.0) -> Iterator[None]:
    """Keep processors busy while the block runs, for some seconds at most."""
    code = f"import time\nend = time.time() + {seconds}\nwhile time.time() < end: pass"
    loops = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextmanager
def _coming_and_going(seed: int) -> Iterator[None]:
    """Keep one processor busy and idle in turn, some seconds each, while the block runs."""
    code = (
        "import random, sys, time\n"
        f"draw = random.Random({seed})\n"
        "while True:\n"
        f"    end = time.time() + draw.expovariate(1 / {_MEAN_S})\n"
        "    while time.time() < end: pass\n"
        f"    time.sleep(draw.expovariate(1 / {_MEAN_S}))\n"
    )
    loop = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


def read_checks(path: Path = POINTS) -> list[BusyCheck]:
    """Read the stored checks in the order in which they were made; none for a missing table."""
    if not path.exists():
        return []
    with path.open(newline="") as lines:
        return [_check(row) for row in csv.DictReader(lines)]


def _check(row: dict[str, str]) -> BusyCheck:
    """Read one row."""
    said = {name: float(row[name]) for name in ("value", "low", "high")}
    forecast = Forecast(
        quantity=row["quantity"],
        provenance="fitted",
        source="quickstart",
        pace_s=float(row["forecast_pace_s"]),
        **said,
    )
    measurement = Measurement(
        quantity=row["quantity"],
        value=float(row["measured"]),
        pace_s=float(row["measured_pace_s"]),
    )
    return BusyCheck(int(row["seed"]), row["busy"] == "1", Check(forecast, measurement))


def _write(checks: list[BusyCheck]) -> None:
    """Replace the table."""
    with atomic_path(POINTS) as path, path.open("w", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for item in checks:
            said, came = item.check.forecast, item.check.measurement
            head = (item.seed, int(item.busy), said.quantity)
            values = (said.value, said.low, said.high, came.value, said.pace_s, came.pace_s)
            writer.writerow((*head, *(f"{value:.6g}" for value in values)))


def _quickstart(folder: Path, seed: int, minutes: float) -> list[Check]:
    """Run one quickstart in a home of its own and return its checks."""
    command = [sys.executable, "-m", "steelyard", "quickstart", "--json"]
    options = ["--minutes", str(minutes), "--seed", str(seed), "--out", str(folder / "out")]
    environment = os.environ | {"STEELYARD_HOME": str(folder / "home")}
    said = subprocess.run(
        [*command, *options], env=environment, check=True, stdout=subprocess.PIPE
    ).stdout
    checks = [
        entry
        for section in msgspec.json.decode(said)["sections"]
        for block in section["blocks"]
        if block["type"] == "checks"
        for entry in block["checks"]
    ]
    return [
        Check(
            msgspec.convert(entry["forecast"], Forecast),
            msgspec.convert(entry["measurement"], Measurement),
        )
        for entry in checks
    ]


def run_quickstarts(
    *, out: Path, count: int = 10, minutes: float = _MINUTES, first_seed: int = _FIRST_SEED
) -> None:
    """Run every quickstart that the table lacks.

    Args:
        out: Folder for texts and checkpoints; a quickstart's part is removed when it is stored.
        count: Quickstarts in all.
        minutes: Wall time each aims at.
        first_seed: Seed of the first one; those after it count up.
    """
    stored = read_checks()
    done = {item.seed for item in stored}
    for index in range(count):
        seed = first_seed + index
        if seed in done:
            continue
        folder = out / f"quickstart-{seed}"
        shutil.rmtree(folder, ignore_errors=True)
        busy = index % 2 == 1
        begin_s = time.monotonic()
        if busy:
            with _coming_and_going(seed):
                checks = _quickstart(folder, seed, minutes)
        else:
            checks = _quickstart(folder, seed, minutes)
        stored += [BusyCheck(seed, busy, check) for check in checks]
        _write(stored)
        shutil.rmtree(folder)
        print(
            f"{index + 1} of {count}: seed {seed}, busy {busy}, {time.monotonic() - begin_s:.0f} s"
        )


if __name__ == "__main__":
    cyclopts.run(run_quickstarts)
