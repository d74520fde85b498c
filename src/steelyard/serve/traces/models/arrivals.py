"""Arrivals as a renewal process in the time of a rate that may change: fit, judge and draw."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.serve.traces.statistics.rounding import spread_ties

__all__ = ["ArrivalModel", "fit_arrivals"]

_DAY_S = 86_400.0
_BINS = 48
_COUNT = 30.0
"""Arrivals of a step of the rate: fewer say little of the next step, more react late."""
_LOWEST = 0.02
_LEAST_GAP = 1e-12


@dataclass(frozen=True, kw_only=True)
class ArrivalModel:
    """A renewal process with Gamma gaps, in the time of its rate.

    The rate of a step is `rate_per_s` times that of its time of day times what the steps before
    say: `1 - follow - keep + follow * seen + keep * before`, with the arrivals seen in the step
    before over those expected, and the factor of that step.

    Attributes:
        rate_per_s: mean arrivals per second.
        shape: Gamma shape of the gaps in the time of the rate, 1 / cv**2; 1 is Poisson.
        daily: rate of each half-hour of the day over the mean, empty where it stays.
        step_s: length of a step.
        follow: weight of the arrivals of the step before.
        keep: weight of the factor of the step before.

    Source: Brown et al. 2002 (time rescaling); Ferland et al. 2006 (rates that follow counts);
        ServeGen (arXiv 2505.09999), section 3 (Gamma gaps).
    """

    rate_per_s: float
    shape: float = 1.0
    daily: tuple[float, ...] = ()
    step_s: float = 60.0
    follow: float = 0.0
    keep: float = 0.0

    @property
    def words(self) -> str:
        """Such as "Gamma gaps, rate by time of day"."""
        gaps = "Poisson" if self.shape == 1.0 else f"Gamma gaps (cv {self.shape**-0.5:.2f})"
        day = ", rate by time of day" if self.daily else ""
        return f"{gaps}{day}{', rate that follows itself' if self.follow else ''}"

    def rates(self, times: NDArray[np.float64], first_s: float, steps: int) -> NDArray[np.float64]:
        """Return the rate of each step, arrivals before it known.

        Args:
            times: rising, from 0.
            first_s: time of day at 0.
            steps: steps to return.

        Returns:
            Arrivals per second, [steps].
        """
        base = self._base(first_s, steps)
        if not self.follow:
            return base
        counts = np.bincount((times // self.step_s).astype(np.int64), minlength=steps)[:steps]
        factor, found = 1.0, np.empty(steps)
        # One step after the other: each needs the one before.
        for step, seen in enumerate((counts / (base * self.step_s)).tolist()):
            found[step] = factor
            factor = self._next(factor, seen)
        return base * found

    def rescaled(
        self, times: NDArray[np.float64], first_s: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return arrivals in the time of the rate, and the rate at each.

        Args:
            times: rising, from 0.
            first_s: time of day at 0.

        Returns:
            Expected arrivals until each, [R]; arrivals per second at each, [R].
        """
        places = (times // self.step_s).astype(np.int64)
        rates = self.rates(times, first_s, int(places[-1]) + 1)
        before = np.concatenate([[0.0], np.cumsum(rates * self.step_s)])
        return before[places] + rates[places] * (times - places * self.step_s), rates[places]

    def log_likelihoods(self, times: NDArray[np.float64], first_s: float) -> NDArray[np.float64]:
        """Return the logarithm of the density of each gap, [R - 1]."""
        own, rates = self.rescaled(times, first_s)
        gaps = np.maximum(np.diff(own), _LEAST_GAP)
        k = self.shape
        constant = k * math.log(k) - math.lgamma(k)
        return constant + (k - 1) * np.log(gaps) - k * gaps + np.log(rates[1:])

    def draw(
        self, generator: np.random.Generator, duration_s: float, *, first_s: float = 0.0
    ) -> NDArray[np.float64]:
        """Draw arrivals.

        Args:
            generator: source of randomness.
            duration_s: length of the trace.
            first_s: time of day at its beginning.

        Returns:
            Rising times in [0, duration_s).
        """
        steps = math.ceil(duration_s / self.step_s)
        base = (self._base(first_s, steps) * self.step_s).tolist()
        gaps = _Gaps(generator, self.shape)
        times: list[NDArray[np.float64]] = []
        factor = 1.0
        for step, expected in enumerate(base):
            inside = gaps.until(expected * factor)
            times.append((step + inside / (expected * factor)) * self.step_s)
            if self.follow:
                factor = self._next(factor, len(inside) / expected)
        joined = np.concatenate(times) if times else np.zeros(0)
        return joined[joined < duration_s]

    def _next(self, factor: float, seen: float) -> float:
        """Return the factor of the next step."""
        rest = 1.0 - self.follow - self.keep
        return max(rest + self.follow * seen + self.keep * factor, _LOWEST)

    def _base(self, first_s: float, steps: int) -> NDArray[np.float64]:
        """Return the rates that the time of day gives."""
        if not self.daily:
            return np.full(steps, self.rate_per_s)
        middle = (first_s + (np.arange(steps) + 0.5) * self.step_s) % _DAY_S
        places = (middle / _DAY_S * len(self.daily)).astype(np.int64)
        return np.maximum(np.asarray(self.daily)[places], _LOWEST) * self.rate_per_s


class _Gaps:
    """Gamma gaps of mean 1, taken as far as the rate's time goes."""

    def __init__(self, generator: np.random.Generator, shape: float) -> None:
        """Begin at a random moment between two arrivals."""
        self._generator, self._shape = generator, shape
        # A random moment lies in a long gap more often than in a short one.
        self._next = generator.gamma(shape + 1.0) / shape * generator.random()

    def until(self, expected: float) -> NDArray[np.float64]:
        """Return the arrivals before a time of the rate, from which the next call counts."""
        found = [np.array([self._next])]
        while found[-1][-1] < expected:
            count = int((expected - found[-1][-1]) * 1.1) + 16
            gaps = self._generator.gamma(self._shape, 1 / self._shape, count)
            found.append(found[-1][-1] + np.cumsum(gaps))
        joined = np.concatenate(found)
        inside = joined[joined < expected]
        # Gaps beyond are independent of what was taken: the first is kept, the rest drawn again.
        self._next = float(joined[len(inside)]) - expected
        return inside


def fit_arrivals(
    times: NDArray[np.float64], first_s: float, *, held: float = 0.3
) -> tuple[ArrivalModel, list[dict[str, Any]]]:
    """Fit all models to the first part of a trace, and the best on the rest to all of it.

    Args:
        times: rising, from 0; at least two apart.
        first_s: time of day at 0.
        held: share of the time that is held out.

    Returns:
        The model; and of each that was tried its words, the mean log-likelihood of an arrival of
        the held-out time, its gain over Poisson with the standard error, and Kolmogorov's distance.
    """
    times = spread_ties(times, np.random.default_rng(0))
    cut_s = _cut_s(float(times[-1]), held)
    place = int(np.searchsorted(times, cut_s))
    # Few arrivals on either side tell nothing: everything is Poisson then.
    if min(place, len(times) - place) < 2 * _COUNT:
        return _poisson(times), []
    tried, gaps = [], slice(max(place - 1, 0), None)
    plain = _poisson(times[:place]).log_likelihoods(times, first_s)[gaps]
    for make in _candidates(cut_s):
        model = make(times[:place], first_s)
        each = model.log_likelihoods(times, first_s)[gaps]
        gain = each - plain
        tried.append(
            {
                "make": make,
                "model": model.words,
                "log_likelihood": float(each.mean()),
                "gain": float(gain.mean()),
                "error": float(gain.std() / math.sqrt(len(gain))),
                "distance": _held_distance(model, times, first_s, gaps),
            }
        )
    best = max(tried, key=lambda item: item["log_likelihood"])
    make = best["make"]
    shown = [{key: item[key] for key in item if key != "make"} for item in tried]
    return make(times, first_s), shown


def _held_distance(
    model: ArrivalModel, times: NDArray[np.float64], first_s: float, gaps: slice
) -> float:
    """Return Kolmogorov's distance of the gaps of the held-out time."""
    from scipy.stats import gamma, kstest

    own = np.diff(model.rescaled(times, first_s)[0])[gaps]
    return float(kstest(own, gamma(model.shape, scale=1 / model.shape).cdf).statistic)


def _cut_s(span_s: float, held: float) -> float:
    """Return where the held-out time begins: at a whole day where there are at least three."""
    days = int(span_s // _DAY_S)
    if days < 3:
        return span_s * (1 - held)
    return max(round(days * (1 - held)), 2) * _DAY_S


def _candidates(span_s: float) -> list[Any]:
    """Return the functions that fit each kind of model to a span."""
    found = [_plain_poisson, _gamma, _following]
    return found if span_s < 2 * _DAY_S else [*found, _daily, _daily_following]


def _poisson(times: NDArray[np.float64]) -> ArrivalModel:
    """Fit a constant rate."""
    rate = (len(times) - 1) / float(times[-1] - times[0])
    return ArrivalModel(rate_per_s=rate, step_s=max(_COUNT / rate, 1.0))


def _plain_poisson(times: NDArray[np.float64], first_s: float) -> ArrivalModel:
    """Fit a constant rate; the time of day does not count."""
    del first_s
    return _poisson(times)


def _gamma(times: NDArray[np.float64], first_s: float) -> ArrivalModel:
    """Fit a constant rate with gaps of any shape."""
    return _shaped(_poisson(times), times, first_s)


def _daily(times: NDArray[np.float64], first_s: float) -> ArrivalModel:
    """Fit a rate by time of day."""
    return _shaped(_with_day(times, first_s), times, first_s)


def _following(times: NDArray[np.float64], first_s: float) -> ArrivalModel:
    """Fit a rate that follows the arrivals before."""
    return _shaped(_follow(_poisson(times), times, first_s), times, first_s)


def _daily_following(times: NDArray[np.float64], first_s: float) -> ArrivalModel:
    """Fit a rate by time of day that follows the arrivals before."""
    return _shaped(_follow(_with_day(times, first_s), times, first_s), times, first_s)


def _with_day(times: NDArray[np.float64], first_s: float) -> ArrivalModel:
    """Return the rate of each half-hour of the day."""
    plain = _poisson(times)
    width = _DAY_S / _BINS
    places = ((times + first_s) % _DAY_S // width).astype(np.int64)
    # How long the trace was in each half-hour, on a grid of minutes.
    grid = np.arange(0.0, float(times[-1]), 60.0)
    spent = np.bincount(((grid + first_s) % _DAY_S // width).astype(np.int64), minlength=_BINS)
    counts = np.bincount(places, minlength=_BINS)
    daily = (counts + 1.0) / (spent * 60.0 * plain.rate_per_s + 1.0)
    return replace(plain, daily=tuple(daily.tolist()), step_s=min(plain.step_s, width))


def _follow(model: ArrivalModel, times: NDArray[np.float64], first_s: float) -> ArrivalModel:
    """Fit how the rate follows the arrivals before, by the Poisson likelihood of counts."""
    from scipy.optimize import minimize

    steps = int(times[-1] // model.step_s)
    counts = np.bincount((times // model.step_s).astype(np.int64), minlength=steps)[:steps]

    def weights(point: NDArray[np.float64]) -> ArrivalModel:
        total = 0.999 / (1 + math.exp(-point[0]))
        return replace(
            model, follow=total / (1 + math.exp(-point[1])), keep=total / (1 + math.exp(point[1]))
        )

    def loss(point: NDArray[np.float64]) -> float:
        expected = weights(point).rates(times, first_s, steps) * model.step_s
        return float((expected - counts * np.log(expected)).sum())

    options = {"maxiter": 60, "xatol": 0.02, "fatol": 0.1}
    found = minimize(loss, np.array([2.0, -0.5]), method="Nelder-Mead", options=options)
    return weights(np.clip(found.x, -20.0, 20.0))


def _shaped(model: ArrivalModel, times: NDArray[np.float64], first_s: float) -> ArrivalModel:
    """Fit the Gamma shape of the gaps in the time of the rate, by maximum likelihood."""
    from scipy.optimize import brentq
    from scipy.special import digamma

    gaps = np.maximum(np.diff(model.rescaled(times, first_s)[0]), _LEAST_GAP)
    wanted = math.log(gaps.mean()) - float(np.log(gaps).mean())
    if wanted < 1e-6:
        return replace(model, shape=1e4)
    log_shape: Any = brentq(lambda log_k: log_k - digamma(math.exp(log_k)) - wanted, -6.0, 14.0)
    return replace(model, shape=math.exp(log_shape))
