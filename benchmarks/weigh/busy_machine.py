"""What is measured and forecast while other processes take the processors.

Calibrations are made on the machine as it is, beside two busy loops, and beside loops that end
after half a minute. Forecasts of ten quickstarts, every second one beside a loop that comes and
goes, are read from `busy_points.csv` (made by `_busy_quickstarts.py`, on seeds nobody tuned on).

Run it while nothing else runs: what is called quiet here is the machine as it is found.
"""

from statistics import median

import numpy as np
from benchmarks.common import Check
from benchmarks.weigh._busy_quickstarts import BusyCheck, busy_loops, read_checks

from steelyard.catalog import Calibration
from steelyard.catalog.calibrate import calibrate
from steelyard.errors import CalibrationError
from steelyard.runs.wording import machine_changed

PAPER: list[str] = []

_TRIES = {True: 1, False: 10}
_LATE_S = 30.0
_PATIENCE_S = 5.0
"""Patience beside loops that never end: any other only takes longer to be spent."""
_RATES = (
    "attention_flops_per_s",
    "elementwise_bytes_per_s",
    "stream_bytes_per_s",
    "cache_bytes_per_s",
    "gather_bytes_per_s",
)
_TIMES = (
    "train.step_time",
    "train.total_time",
    "serve.ttft",
    "serve.tpot",
    "serve.e2e_latency",
    "serve.throughput",
)


def run(quick: bool) -> list[Check]:
    """Calibrate beside other work, and score the stored quickstarts."""
    tries = _TRIES[quick]
    quiet = [found for found in (_calibrate() for _ in range(tries)) if found]
    checks = [Check("1 share of calibrations stored when quiet", len(quiet) / tries, 1.0, "higher")]
    if quiet:
        checks += _beside_loops(tries, quiet)
    if not quick:
        with busy_loops(2, seconds=_LATE_S):
            late = _calibrate()
        held = late is not None and bool(quiet) and _error(late, quiet) <= 0.25
        checks.append(
            Check("3 load that ends after 30 s is waited for", float(held), 1.0, "higher")
        )
    return checks + _score(read_checks())


def _calibrate(patience_s: float = 60.0) -> Calibration | None:
    """Calibrate; None when it refuses."""
    try:
        return calibrate(quick=True, patience_s=patience_s)
    except CalibrationError as error:
        print(f"refused: {error}")
        return None


def _figures(calibration: Calibration) -> np.ndarray:
    """Return the rates that plans rest on."""
    best = [calibration.best_flops_per_s(dtype) for dtype in ("fp32", "bf16")]
    return np.array([*best, *(getattr(calibration, name) for name in _RATES)])


def _error(found: Calibration, quiet: list[Calibration]) -> float:
    """Return the largest relative error of a calibration's rates against the quiet medians."""
    truth = np.median([_figures(item) for item in quiet], axis=0)
    return float(np.abs(_figures(found) / truth - 1).max())


def _beside_loops(tries: int, quiet: list[Calibration]) -> list[Check]:
    """Calibrate beside two loops that never end: refuse, or be right."""
    good = 0
    for _ in range(tries):
        with busy_loops(2):
            found = _calibrate(_PATIENCE_S)
        good += found is None or _error(found, quiet) <= 0.25
    spread = max(_error(item, quiet) for item in quiet)
    print(f"largest error of a quiet calibration against their median: {100 * spread:.0f} %")
    return [Check("2 share refused or right beside two loops", good / tries, 1.0, "higher")]


def _score(stored: list[BusyCheck]) -> list[Check]:
    """Score the forecasts of time of the stored quickstarts."""
    times = [item for item in stored if item.check.forecast.quantity in _TIMES]
    seeds = {item.seed for item in times}
    if not times:
        print("no quickstart is stored: python -m benchmarks.weigh._busy_quickstarts --out FOLDER")
        return []
    for busy in (False, True):
        _print(f"{'beside a loop' if busy else 'alone'}", [i for i in times if i.busy == busy])
    checks = [item.check for item in times]
    error = median(abs(item.relative_error) for item in checks)
    width = median(
        (item.forecast.high - item.forecast.low) / 2 / item.forecast.value for item in checks
    )
    silent = sum(not item.covered and not machine_changed(item) for item in checks)
    return [
        Check("4 stored quickstarts", len(seeds), 10, "higher"),
        Check(
            "4 share of times inside their intervals",
            sum(i.covered for i in checks) / len(checks),
            0.7,
            "higher",
        ),
        Check("4 median half-width over median error", width / error, 2.5, "lower"),
        Check("4 outside though the machine had not changed", silent, 0, "lower"),
    ]


def _print(title: str, items: list[BusyCheck]) -> None:
    """Show each quantity's errors, raw and at equal speed, and how many intervals held."""
    head = f"{'quantity':20s} {'error':>7s} {'at equal speed':>15s} {'half-width':>11s} held"
    print(f"\n{title}\n{head}")
    for name in _TIMES:
        checks = [item.check for item in items if item.check.forecast.quantity == name]
        if not checks:
            continue
        raw = median(abs(item.relative_error) for item in checks)
        equal = median(abs(item.error_at_equal_speed) for item in checks)
        width = median((i.forecast.high - i.forecast.low) / 2 / i.forecast.value for i in checks)
        held = sum(item.covered for item in checks)
        print(f"{name:20s} {raw:7.1%} {equal:15.1%} {width:11.1%} {held} of {len(checks)}")
