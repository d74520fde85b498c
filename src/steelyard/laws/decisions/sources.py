"""Compare training distributions: slopes over compute, and where their lines cross."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.decisions.envelope import Envelope, envelope_runs, fit_envelope
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.estimate import Estimate, tails
from steelyard.laws.fitting.points import named_column
from steelyard.laws.fitting.terms import Array

__all__ = ["SourceComparison", "SourcePair", "compare_sources"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SourcePair:
    """Two sources against each other.

    Attributes:
        first: name of the first source.
        second: name of the second source.
        difference: exponent of the first minus that of the second; negative when the first gains
            more from compute.
        crossing_gmacs: total GMAC at which their lines meet; from 0 to infinity when the slopes are
            not told apart.
        scale: the one to scale up, with the steeper slope; empty when the slopes are not told
            apart.
    """

    first: str
    second: str
    difference: Estimate
    crossing_gmacs: Estimate
    scale: str

    @property
    def do_differ(self) -> bool:
        """Whether the interval of the difference leaves 0 out."""
        return self.difference.low > 0 or self.difference.high < 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceComparison:
    """Sources with their envelopes.

    Attributes:
        envelopes: envelope by source.
        pairs: every two sources, in the order of `envelopes`.
        level: probability inside the intervals.
    """

    envelopes: dict[str, Envelope]
    pairs: tuple[SourcePair, ...]
    level: float


def compare_sources(
    points: Mapping[str, ArrayLike],
    target: str | ArrayLike = "error",
    *,
    by: str | ArrayLike = "source",
    bins: int = 5,
    level: float = 0.9,
    bootstrap: Bootstrap = Bootstrap(count=1000),
) -> SourceComparison:
    """Fit each source's envelope and say whether the slopes differ.

    A source with fewer than two runs per bin gets a line through all its runs.

    Args:
        points: runs as `fit_envelope` takes them.
        target: errors strictly between 0 and 1, [n], or the name of their column.
        by: labels of the sources, [n], or the name of their column.
        bins: number of bins of an envelope.
        level: probability inside the intervals, 0..1.
        bootstrap: resamplings of the runs of each source, at least 1; each source draws its own.

    Returns:
        Envelopes and every pair.

    Raises:
        FitError: fewer than two sources, or runs that cannot be fitted.

    Source: Cherti et al. 2023 (arXiv 2212.07143), section 4, where LAION's and OpenAI's models have
        different exponents per task.
    """
    compute, error = envelope_runs(points, target)
    labels = np.asarray(named_column(points, by, "of sources")).astype(str)
    names = list(dict.fromkeys(labels.tolist()))
    if labels.shape != error.shape or len(names) < 2 or bootstrap.count < 1:
        raise FitError(
            f"{len(names)} sources in {len(labels)} labels cannot be compared",
            hint="label every run, with at least two sources",
        )
    envelopes = {}
    for index, name in enumerate(names):
        mine = labels == name
        # A bin with one run has no lower envelope.
        stat = "min" if mine.sum() >= 2 * bins else "line"
        runs = {"total_gmacs": compute[mine]}
        envelopes[name] = fit_envelope(
            runs,
            error[mine],
            bins=bins,
            stat=stat,
            bootstrap=replace(bootstrap, seed=bootstrap.seed + index),
            source=name,
        )
    pairs = tuple(
        _pair(one, other, envelopes, level) for one, other in itertools.combinations(names, 2)
    )
    return SourceComparison(envelopes=envelopes, pairs=pairs, level=level)


def _pair(first: str, second: str, envelopes: Mapping[str, Envelope], level: float) -> SourcePair:
    """Compare two sources."""
    one, other = envelopes[first].fit, envelopes[second].fit
    count = min(len(one.samples), len(other.samples))
    value = one.theta - other.theta
    drawn = one.samples[:count] - other.samples[:count]
    difference = Estimate.of(-value[1], -drawn[:, 1], level)
    is_told_apart = difference.low > 0 or difference.high < 0
    return SourcePair(
        first=first,
        second=second,
        difference=difference,
        crossing_gmacs=_crossing(value, drawn, level, is_told_apart),
        scale=(first if difference.value < 0 else second) if is_told_apart else "",
    )


def _crossing(value: Array, drawn: Array, level: float, is_told_apart: bool) -> Estimate:
    """Find where ln A - alpha ln C of both are equal."""
    point = _exp(value[0] / value[1]) if value[1] else math.inf
    # Lines that may be parallel meet anywhere.
    if not is_told_apart:
        return Estimate(point, 0.0, math.inf)
    logs = drawn[:, 0] / np.where(drawn[:, 1] == 0, np.nan, drawn[:, 1])
    low, high = np.nanquantile(logs, tails(level))
    return Estimate(point, min(_exp(low), point), max(_exp(high), point))


def _exp(log: float) -> float:
    """Return e to a power, infinite when it overflows."""
    return math.exp(log) if log < 700 else math.inf
