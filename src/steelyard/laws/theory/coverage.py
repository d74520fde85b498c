"""How often intervals hold the truth: repeated tables of a known truth, fitted again and again."""

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
        low: repeats whose whole interval lay below the truth, by parameter.
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
        """Return the standard deviation of `fraction` if the claimed level is the true one."""
        return float(np.sqrt(self.level * (1 - self.level) / self.repeats))

    def interval(self, name: str, level: float = 0.95) -> tuple[float, float]:
        """Return the Wilson interval of the true probability that an interval holds.

        Args:
            name: name of the parameter.
            level: probability inside the Wilson interval, 0..1.

        Returns:
            Low and high, 0..1.
        """
        from scipy.special import ndtri

        # Wilson's, because the plain interval has no width when every repeat held the truth.
        z = float(ndtri(0.5 + level / 2))
        share = self.fraction(name)
        count = self.repeats
        center = (share + z**2 / (2 * count)) / (1 + z**2 / count)
        half = z * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2)) / (1 + z**2 / count)
        return max(center - float(half), 0.0), min(center + float(half), 1.0)

    def is_calibrated(self, name: str, level: float = 0.95) -> bool:
        """Say whether the claimed level lies inside `interval`, so that chance may explain it."""
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
        tables: function from a generator to a table; each repeat has a generator of its own.
        fit_function: function from a table to low and high by parameter, such as
            `lambda runs: {name: fit(law, runs, "loss").interval(name, 0.8) for name in truth}`; a
            FitError is counted as refused.
        truth: true value by parameter, in the units of the intervals.
        repeats: number of tables, at least 1.
        level: probability the intervals claim, 0..1; only compared with.
        seed: seed of the generators.

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
    found = []
    refusal = None
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
    with np.errstate(invalid="ignore"):  # inf - inf, of intervals without any end
        width = np.median(high - low, axis=0)
    held = ((low <= goal) & (goal <= high)).sum(axis=0)
    return Coverage(
        level=level,
        held=dict(zip(truth, held.tolist(), strict=True)),
        low=dict(zip(truth, (high < goal).sum(axis=0).tolist(), strict=True)),
        width=dict(zip(truth, width.tolist(), strict=True)),
        repeats=len(found),
        refused=repeats - len(found),
    )


def _ends(intervals: Intervals, truth: Mapping[str, float]) -> Array:
    """Return the ends of the truth's intervals, [parameters, 2]."""
    missing = [name for name in truth if name not in intervals]
    if missing:
        raise ConfigError(
            f"the fit function returns no interval for {', '.join(missing)}",
            hint=f"it returns {', '.join(intervals)}",
        )
    return np.array([intervals[name] for name in truth], dtype=np.float64)
