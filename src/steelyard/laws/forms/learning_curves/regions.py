"""The regions of a learning curve: the plateau near guessing, the power law, and the floor."""

import math
import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np

from steelyard.errors import SteelyardWarning
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.learning_curves.power_law_floor import (
    NO_FLOOR,
    fit_floor,
    power_law_floor,
)

__all__ = ["FEWEST", "Regions", "count_plateau", "regions_of"]

Region = Literal["plateau", "power", "floor"]

FEWEST = 4
"""Shards beyond the plateau that a curve needs."""
_NEAR_GUESS = 0.1
"""A shard within 10 % of the best guess has learned nothing yet."""
_OFF_LINE = 0.05
"""One-sided probability at which a small shard is taken off the power law."""
_STEEPER = 0.02
"""One-sided probability at which a curve is taken to steepen."""
_LEAST_NOISE = 1e-4
"""Log units; curves without noise would fail every test of significance."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Regions:
    """Where a learning curve changes its kind.

    Attributes:
        labels: "plateau", "power" or "floor" of each shard, in the order of rising samples.
        plateau: error near guessing; None when no shard shows it.
        power_from: samples at which the power law leaves the plateau; None without one.
        floor_from: samples at which the floor is half of the error; may lie beyond the shards;
            infinite without a floor.
    """

    labels: tuple[Region, ...]
    plateau: float | None
    power_from: float | None
    floor_from: float


def count_plateau(samples: Array, error: Array, best_guess: float | None) -> int:
    """Count the smallest shards that are off the power law of the larger ones."""
    # From the large end: what lies below the law of the larger shards did not yet follow it.
    count = 0
    for index in range(len(samples) - len(power_law_floor().parameters) - 3, -1, -1):
        is_guess = best_guess is not None and error[index] > (1 - _NEAR_GUESS) * best_guess
        if is_guess or _lies_below(samples[index:], error[index:]):
            count = index + 1
            break
    # A power law above a floor only flattens, so what still gets steeper is the bend towards it.
    while len(samples) - count > FEWEST and _steepens(samples[count:], error[count:]):
        count += 1
    return count


def _steepens(samples: Array, error: Array) -> bool:
    """Test whether the curve still gets steeper in log-log space."""
    from scipy.special import stdtrit

    # A parabola in log-log space; its leading coefficient is tested against 0.
    log_size = np.log(samples) - np.log(samples).mean()
    terms = np.stack([log_size**2, log_size, np.ones_like(log_size)], axis=1)
    found = np.linalg.lstsq(terms, np.log(error), rcond=None)[0]
    freedom = len(samples) - terms.shape[1]
    variance = float(((np.log(error) - terms @ found) ** 2).sum()) / freedom
    spread = math.sqrt(max(variance, _LEAST_NOISE**2) * float(np.linalg.inv(terms.T @ terms)[0, 0]))
    return bool(found[0] < float(stdtrit(freedom, _STEEPER)) * spread)


def _lies_below(samples: Array, error: Array) -> bool:
    """Test whether the first point lies below the law of the others (one-sided t test)."""
    from scipy.special import stdtrit

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SteelyardWarning)
        others = fit_floor(samples[1:], error[1:], delta=math.inf, bootstraps=0, seed=0, source="")
    # The law itself is uncertain where it is extended to: the spread of a new point there is the
    # noise times sqrt(1 + leverage).
    said, slopes = others.law.evaluate(others.theta[None], {"samples": samples})
    inner, first = slopes[0][:, 1:], slopes[0][:, 0]
    leverage = first @ np.linalg.pinv(inner @ inner.T) @ first
    freedom = max(len(samples) - 1 - len(others.law.parameters), 1)
    spread = max(others.noise, _LEAST_NOISE) * math.sqrt(1 + max(float(leverage), 0.0))
    return float(said[0, 0] - np.log(error[0])) > float(stdtrit(freedom, 1 - _OFF_LINE)) * spread


def regions_of(samples: Array, skipped: int, plateau: float | None, curve: Fit) -> Regions:
    """Place the breakpoints of a fitted curve."""
    params = {"gamma": NO_FLOOR} | curve.params
    power_from = None
    if plateau is not None and plateau > params["gamma"]:
        power_from = (params["alpha"] / (plateau - params["gamma"])) ** (1 / params["beta"])
    # A floor at its bound is none: the error then is a power law as far as the shards reach.
    has_floor = "gamma" in curve.params and "gamma" not in curve.at_bounds
    log_floor_from = (
        math.log(params["alpha"] / params["gamma"]) / params["beta"] if has_floor else math.inf
    )
    floor_from = math.exp(log_floor_from) if log_floor_from < 700 else math.inf
    labels: list[Region] = [
        "plateau" if row < skipped else "floor" if amount > floor_from else "power"
        for row, amount in enumerate(samples)
    ]
    return Regions(
        labels=tuple(labels), plateau=plateau, power_from=power_from, floor_from=floor_from
    )
