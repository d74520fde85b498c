"""Learning curves: a plateau near guessing, a power law over samples, an irreducible floor."""

import math
import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fit import fit
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.inversion import input_for
from steelyard.laws.fitting.points import positive_column
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.learning_curves.curve_laws import NO_FLOOR, fit_floor, model_size_law

__all__ = ["CurveFit", "Regions", "fit_learning_curve"]

Region = Literal["plateau", "power", "floor"]

_DECADES = 2.0
_RISE = 1.3
_FEWEST = 4
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


@dataclass(frozen=True, kw_only=True, slots=True)
class CurveFit:
    """A learning curve with its regions and the model-size curve.

    Attributes:
        fit: fit of `power_law_floor` to the shards beyond the plateau.
        regions: found or given.
        size_fit: fit of `model_size_law` to the same shards; None when no sizes were given.
    """

    fit: Fit
    regions: Regions
    size_fit: Fit | None

    @property
    def largest_samples(self) -> float:
        """Samples of the largest shard."""
        return float(self.fit.inputs["samples"].max())

    def samples_for(
        self, error: float, level: float = 0.8, *, extrapolate: bool = False
    ) -> Estimate:
        """Return the samples that reach an error.

        Args:
            error: wanted error, in the unit of the points.
            level: probability inside the interval, 0..1.
            extrapolate: whether an answer more than two decades beyond the shards is allowed.

        Returns:
            Samples; high is infinite when the interval of the floor holds the error.

        Raises:
            FitError: the error is below the floor or needs more samples than allowed.
        """
        return input_for(self.fit, error, level, extrapolate=extrapolate)

    def gain(self, doublings: float, level: float = 0.8, *, extrapolate: bool = False) -> Estimate:
        """Return the fraction of the error that more data takes away, from the largest shard on.

        Args:
            doublings: number of doublings of the data, positive.
            level: probability inside the interval, 0..1.
            extrapolate: whether more than two decades of data are allowed.

        Returns:
            1 - error after / error before, 0..1; the interval is that of the parameters, without
            the noise of two runs.

        Raises:
            FitError: the doublings are not positive or lead too far.
        """
        if not 0 < doublings <= (math.inf if extrapolate else _DECADES / math.log10(2)):
            raise FitError(
                f"{doublings:g} doublings are not positive or lead more than two decades beyond "
                f"the shards",
                hint="allow it with extrapolate=True",
            )
        before = self.largest_samples

        def share(params: dict[str, Array]) -> Array:
            power = params["alpha"] * before ** -params["beta"]
            gained = power * (1 - 2.0 ** (-doublings * params["beta"]))
            return gained / (power + params.get("gamma", 0.0))

        return self.fit.derive(share, level)

    def model_size(
        self, samples: float, level: float = 0.8, *, extrapolate: bool = False
    ) -> Estimate:
        """Return the smallest model that reaches the best error on a number of samples.

        Args:
            samples: size of the training set.
            level: probability inside the interval, 0..1.
            extrapolate: whether more than two decades beyond the shards are allowed.

        Returns:
            Parameters with the interval of one more study.

        Raises:
            FitError: no sizes were given, or the samples lie too far away.
        """
        if self.size_fit is None:
            raise FitError(
                "this curve was fitted without model sizes",
                hint="give size= to fit_learning_curve, one per shard",
            )
        said = self.size_fit.predict({"samples": float(samples)}, level, extrapolate=extrapolate)
        return said.first


def fit_learning_curve(
    samples: ArrayLike,
    error: ArrayLike,
    size: ArrayLike | None = None,
    *,
    plateau_shards: int | Literal["auto"] = "auto",
    best_guess: float | None = None,
    num_validation: int | None = None,
    delta: float = math.inf,
    bootstrap: Bootstrap = Bootstrap(),
    source: str = "",
) -> CurveFit:
    """Fit the error over nested shards of the training set, and the model size that reaches it.

    The plateau is found from the large end: shards join the power law until one lies significantly
    below the law of the larger ones, or within 10 % of the best guess. Where the rest still gets
    steeper, which no power law above a floor does, its smallest shards are on the bend and leave as
    well. With four shards beyond the plateau no floor is fitted.

    Args:
        samples: number of samples of each shard, [n], at least four over a decade, each once; see
            `best_over_sizes` for a grid of sizes.
        error: best validation error or loss of each, [n], positive, falling.
        size: parameters of the smallest model that reaches it, [n].
        plateau_shards: smallest shards to leave out of the law; "auto" finds them.
        best_guess: error of guessing (chance, unigram entropy), where known.
        num_validation: examples behind each error; a small set makes a floor of its own.
        delta: where the Huber loss turns linear, log units; infinite for least squares.
        bootstrap: resampled fits for the intervals, and their seed.
        source: where the points come from.

    Returns:
        The curve; `fit.profile("gamma")` says how well the floor is known.

    Raises:
        FitError: too few shards, too narrow a range, shards given twice, errors that rise with
            data, or a plateau only.

    Source: Hestness et al. 2017 (arXiv 1712.00409), sections 3 and 5.
    """
    amount = positive_column("samples", samples, np.size(samples))
    order = np.argsort(amount, kind="stable")
    value = positive_column("error", error, len(amount))[order]
    amount = amount[order]
    _check(amount, value)
    _check_validation(value, num_validation)
    skipped = (
        _count_plateau(amount, value, best_guess) if plateau_shards == "auto" else plateau_shards
    )
    if not 0 <= skipped <= len(amount) - _FEWEST:
        raise FitError(
            f"{len(amount) - skipped} shards beyond a plateau of {skipped} cannot be fitted; "
            f"{_FEWEST} are needed",
            hint="add larger shards: on a plateau nothing has been learned yet",
        )
    inner = slice(skipped, None)
    settings = {"delta": delta, "bootstrap": bootstrap, "source": source}
    curve = fit_floor(amount[inner], value[inner], **settings)
    plateau = best_guess if skipped else None
    if skipped and best_guess is None:
        plateau = float(np.exp(np.log(value[:skipped]).mean()))
    size_fit = None
    if size is not None:
        column = np.atleast_1d(np.asarray(size, dtype=np.float64))[order]
        size_fit = fit(
            model_size_law(), {"samples": amount[inner]}, column[inner], prior=None, **settings
        )
    return CurveFit(
        fit=curve,
        regions=_regions(amount, skipped, plateau, curve),
        size_fit=size_fit,
    )


def _check(samples: Array, error: Array) -> None:
    """Refuse curves that show no fall; samples rise."""
    repeated = samples[1:][np.diff(samples) == 0]
    if len(repeated):
        raise FitError(
            f"{repeated[0]:g} samples are given more than once",
            hint="reduce sizes and seeds with best_over_sizes first",
        )
    if len(samples) < _FEWEST or samples[-1] < 10 * samples[0]:
        raise FitError(
            f"{len(samples)} shards from {samples[0]:g} to {samples[-1]:g} samples do not show a "
            f"curve",
            hint=f"train on at least {_FEWEST} nested shards over a decade, better seven over two",
        )
    # Noise lets an error rise a little; 30 % from one shard to the next is a run that failed, and a
    # last error above the first is a metric that grows.
    jumps = np.flatnonzero(error[1:] > _RISE * error[:-1])
    if error[-1] > error[0] or len(jumps):
        where = int(jumps[0]) + 1 if len(jumps) else len(error) - 1
        raise FitError(
            f"the error rises to {error[where]:g} at {samples[where]:g} samples",
            hint="give an error or a loss, not an accuracy; a single rise is a run that failed: "
            "repeat it or leave it out",
        )
    if error.max() < 1.1 * error.min():
        raise FitError(
            f"every error lies between {error.min():g} and {error.max():g}: all shards are on a "
            f"plateau",
            hint="with more data the fall may begin; if it never does, look for a bug in the "
            "model or the labels",
        )


def _check_validation(error: Array, count: int | None) -> None:
    """Warn where the validation set may fake a floor."""
    if count is None or error.min() < 10 / count:
        known = "num_validation is not given" if count is None else f"{count} validation examples"
        message = (
            f"{known}: errors near 1 / sqrt(validation examples) are noise and can look "
            f"like a floor"
        )
        warnings.warn(message, SteelyardWarning, stacklevel=4)


def _count_plateau(samples: Array, error: Array, best_guess: float | None) -> int:
    """Count the smallest shards that are off the power law of the larger ones."""
    guessing = math.inf if best_guess is None else (1 - _NEAR_GUESS) * best_guess
    # From the large end: what lies below the law of the larger shards did not yet follow it.
    count = next(
        (
            index + 1
            for index in range(len(samples) - _FEWEST - 2, -1, -1)
            if error[index] > guessing or _lies_below(samples[index:], error[index:])
        ),
        0,
    )
    # A power law above a floor only flattens, so what still gets steeper is the bend towards it.
    while len(samples) - count > _FEWEST and _steepens(samples[count:], error[count:]):
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

    others = fit_floor(samples[1:], error[1:], delta=math.inf, bootstrap=Bootstrap(count=0))
    # The law itself is uncertain where it is extended to: the spread of a new point there is the
    # noise times sqrt(1 + leverage).
    said, slopes = others.law.evaluate(others.theta[None], {"samples": samples})
    inner, first = slopes[0][:, 1:], slopes[0][:, 0]
    leverage = first @ np.linalg.pinv(inner @ inner.T) @ first
    freedom = max(len(samples) - 1 - len(others.law.parameters), 1)
    spread = max(others.noise, _LEAST_NOISE) * math.sqrt(1 + max(float(leverage), 0.0))
    return float(said[0, 0] - np.log(error[0])) > float(stdtrit(freedom, 1 - _OFF_LINE)) * spread


def _regions(samples: Array, skipped: int, plateau: float | None, curve: Fit) -> Regions:
    """Place the breakpoints of a fitted curve."""
    params = {"gamma": NO_FLOOR} | curve.params
    power_from = None
    if plateau is not None and plateau > params["gamma"]:
        power_from = (params["alpha"] / (plateau - params["gamma"])) ** (1 / params["beta"])
    # A floor at its bound is none: the error then is a power law as far as the shards reach.
    floor_from = math.inf
    if "gamma" in curve.params and "gamma" not in curve.at_bounds:
        with np.errstate(over="ignore"):
            floor_from = float(
                np.float64(params["alpha"] / params["gamma"]) ** (1 / params["beta"])
            )
    labels: list[Region] = [
        "plateau" if row < skipped else "floor" if amount > floor_from else "power"
        for row, amount in enumerate(samples)
    ]
    return Regions(
        labels=tuple(labels), plateau=plateau, power_from=power_from, floor_from=floor_from
    )
