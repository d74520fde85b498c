"""Distributions fitted to times by maximum likelihood, with how well each fits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from steelyard.errors import FitError

__all__ = ["TimeFit", "fit_times", "ks_distance", "lognormal_of_moments"]

_LEAST = 20


@dataclass(frozen=True)
class TimeFit:
    """A fitted distribution of times above 0.

    Attributes:
        name: lognormal, weibull, gamma or exponential.
        values: its parameters by name; times in seconds.
        mean_s: its mean.
        ks: largest distance of its distribution function from the sample's.
        aic: Akaike's criterion; the smallest of several fits is preferred.
    """

    name: str
    values: dict[str, float]
    mean_s: float
    ks: float
    aic: float


def fit_times(times_s: ArrayLike) -> list[TimeFit]:
    """Fit four distributions, the best by Akaike's criterion first.

    Args:
        times_s: the sample; times of 0 are left out, as no density reaches them.

    Returns:
        LogNormal and Weibull as in arXiv 2410.06145, section 4.1, beside gamma and exponential.

    Raises:
        FitError: fewer than 20 times, or all equal.
    """
    sample = np.asarray(times_s, dtype=np.float64)
    sample = sample[np.isfinite(sample) & (sample > 0)]
    if len(sample) < _LEAST or np.ptp(sample) == 0:
        raise FitError(
            f"{len(sample)} times above 0 cannot be fitted; at least {_LEAST} unequal ones are "
            "needed",
            hint="give a longer trace",
        )
    # A free location would move to the smallest time, where these densities have no bound.
    shape, _, scale = stats.weibull_min.fit(sample, floc=0)
    gamma_shape, _, gamma_scale = stats.gamma.fit(sample, floc=0)
    logs = np.log(sample)
    mu, sigma, mean_s = float(logs.mean()), float(logs.std()), float(sample.mean())
    made = [
        ("lognormal", {"mu": mu, "sigma": sigma}, stats.lognorm(sigma, scale=np.exp(mu))),
        ("weibull", {"shape": shape, "scale_s": scale}, stats.weibull_min(shape, scale=scale)),
        (
            "gamma",
            {"shape": gamma_shape, "scale_s": gamma_scale},
            stats.gamma(gamma_shape, scale=gamma_scale),
        ),
        ("exponential", {"mean_s": mean_s}, stats.expon(scale=mean_s)),
    ]
    ordered = np.sort(sample)
    found = [_scored(name, values, law, ordered) for name, values, law in made]
    return sorted(found, key=lambda item: item.aic)


def _scored(name: str, values: dict[str, float], law, ordered: NDArray[np.float64]) -> TimeFit:
    """Return a fit with its distance and criterion."""
    plain = {key: float(value) for key, value in values.items()}
    aic = 2 * len(plain) - 2 * float(np.sum(law.logpdf(ordered)))
    return TimeFit(name, plain, float(law.mean()), ks_distance(ordered, law.cdf(ordered)), aic)


def ks_distance(ordered: Sequence[float] | NDArray, levels: Sequence[float] | NDArray) -> float:
    """Return the largest distance between a sample's distribution function and given levels.

    Args:
        ordered: the sample, rising.
        levels: the distribution function at each of its values.

    Returns:
        Kolmogorov's distance, taken on both sides of each step.
    """
    count = len(ordered)
    upper = np.arange(1, count + 1) / count - np.asarray(levels)
    return float(max(upper.max(), (1 / count - upper).max()))


def lognormal_of_moments(mean_s: float, std_s: float) -> tuple[float, float]:
    """Return mu and sigma of the lognormal with this mean and standard deviation, seconds."""
    sigma_squared = float(np.log1p((std_s / mean_s) ** 2))
    return float(np.log(mean_s)) - sigma_squared / 2, sigma_squared**0.5
