"""How often intervals hold the truth.

Repeated tables of a known truth, fitted by whatever is on trial.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from steelyard.errors import ConfigError, FitError
from steelyard.laws.fitting.terms import Array

__all__ = ["Coverage", "coverage"]

Table = TypeVar("Table")
Intervals = Mapping[str, tuple[float, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """How often the intervals of each parameter held its truth.

    Attributes:
        level: probability the intervals claim, 0..1.
        held: repeats whose interval held the truth, by parameter.
        low: by parameter, repeats whose whole interval lay below the truth.
        width: median width of the intervals, by parameter; inf where more than half did not end.
        repeats: tables that were fitted.
        refused: tables the fit function refused with a FitError; they count in nothing else.
    """

    level: float
    held: Mapping[str, int]
    low: Mapping[str, int]
    width: Mapping[str, float]
    repeats: int
    refused: int

    def fraction(self, name: str) -> float:
        """Return the share of intervals that held the truth, 0..1."""
        return self.held[name] / self.repeats

    def binomial_error(self) -> float:
        """Return the standard deviation of `fraction` if the intervals held as often as they claim."""
        return float(np.sqrt(self.level * (1 - self.level) / self.repeats))

    def interval(self, name: str, level: float = 0.95) -> tuple[float, float]:
        """Return the Wilson interval of the true probability that an interval holds.

        Args:
            name: of the parameter.
            level: probability inside the Wilson interval, 0..1.

        Returns:
            Low and high, 0..1.
        """
        from scipy.special import ndtri

        z = float(ndtri(0.5 + level / 2))
        share, count = self.fraction(name), self.repeats
        center = (share + z**2 / (2 * count)) / (1 + z**2 / count)
        half = z * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2)) / (1 + z**2 / count)
        return max(center - float(half), 0.0), min(center + float(half), 1.0)

    def is_calibrated(self, name: str, level: float = 0.95) -> bool:
        """Say whether the claimed level lies inside `interval`: chance alone explains the difference."""
        low, high = self.interval(name, level)
        return low <= self.level <= high


def coverage(
    tables: Callable[[np.random.Generator], Table],
    fit_function: Callable[[Table], Intervals],
    truth: Mapping[str, float],
    repeats: int,
    level: float,
    *,
    seed: int = 0,
) -> Coverage:
    """Measure how often intervals hold the truth.

    Args:
        tables: makes one table from a generator; each repeat gets a generator of its own.
        fit_function: gives low and high by parameter from a table, such as
            `lambda runs: {name: fit(law, runs, "loss").interval(name, 0.8) for name in truth}`; a
            FitError is counted as refused.
        truth: by parameter, in the units of the intervals.
        repeats: tables, at least 1.
        level: probability the intervals claim, 0..1; only compared with.
        seed: of the generators.

    Returns:
        Counts by parameter of `truth`.

    Raises:
        ConfigError: no repeats, a level outside 0..1, no truth, or a fit function that leaves out a
            parameter of the truth.
        FitError: every table was refused.
    """
    if repeats < 1 or not 0 < level < 1 or not truth:
        raise ConfigError(
            f"coverage needs at least 1 repeat, a level in 0..1 and a truth; given {repeats}, "
            f"{level:g} and {dict(truth)}"
        )
    found, refusal = [], None
    for child in np.random.SeedSequence(seed).spawn(repeats):
        table = tables(np.random.default_rng(child))
        try:
            found.append(_ends(fit_function(table), truth))
        except FitError as error:
            refusal = error
    if not found:
        raise FitError(
            f"all {repeats} tables were refused, the last one with: {refusal}",
            hint="test the fit on one table first",
        )
    low, high = np.moveaxis(np.array(found), 2, 0)
    goal = np.array(list(truth.values()))
    with np.errstate(invalid="ignore"):
        width = np.median(high - low, axis=0)
    counts = {
        "held": ((low <= goal) & (goal <= high)).sum(axis=0),
        "low": (high < goal).sum(axis=0),
    }
    by_name = {
        key: {name: int(count) for name, count in zip(truth, values, strict=True)}
        for key, values in counts.items()
    }
    return Coverage(
        level=level,
        held=by_name["held"],
        low=by_name["low"],
        width={name: float(value) for name, value in zip(truth, width, strict=True)},
        repeats=len(found),
        refused=repeats - len(found),
    )


def _ends(intervals: Intervals, truth: Mapping[str, float]) -> Array:
    """Return the ends of the truth's intervals, [parameters, 2]."""
    missing = [name for name in truth if name not in intervals]
    if missing:
        raise ConfigError(
            f"the fit function gives no interval for {', '.join(missing)}",
            hint=f"it gives {', '.join(intervals)}",
        )
    return np.array([intervals[name] for name in truth], dtype=np.float64)
