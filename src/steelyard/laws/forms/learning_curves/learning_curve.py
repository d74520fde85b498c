"""Learning curves: a plateau near guessing, a power law over samples, an irreducible floor."""

import math
import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fit import fit
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.inversion import input_for
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.learning_curves.power_law_floor import fit_floor, model_size_law
from steelyard.laws.forms.learning_curves.regions import (
    FEWEST,
    Regions,
    count_plateau,
    regions_of,
)

__all__ = ["CurveFit", "fit_learning_curve"]

_DECADES = 2.0
_RISE = 1.3
_FAR_HINT = "allow it with extrapolate=True"


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
                hint=_FAR_HINT,
            )
        before = self.largest_samples

        def share(params: dict[str, Array]) -> Array:
            powers = [
                params["alpha"] * (before * factor) ** -params["beta"]
                for factor in (1.0, 2.0**doublings)
            ]
            return (powers[0] - powers[1]) / (powers[0] + params.get("gamma", 0.0))

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
    bootstraps: int = 300,
    seed: int = 0,
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
        bootstraps: resampled fits for the intervals.
        seed: seed of the resampling.
        source: where the points come from.

    Returns:
        The curve; `fit.profile("gamma")` says how well the floor is known.

    Raises:
        FitError: too few shards, too narrow a range, shards given twice, errors that rise with
            data, or a plateau only.

    Source: Hestness et al. 2017 (arXiv 1712.00409), sections 3 and 5.
    """
    amount, value = (
        np.atleast_1d(np.asarray(column, dtype=np.float64)) for column in (samples, error)
    )
    _check(amount, value)
    order = np.argsort(amount, kind="stable")
    amount, value = amount[order], value[order]
    _check_validation(value, num_validation)
    skipped = (
        count_plateau(amount, value, best_guess) if plateau_shards == "auto" else plateau_shards
    )
    if not 0 <= skipped <= len(amount) - FEWEST:
        raise FitError(
            f"{len(amount) - skipped} shards beyond a plateau of {skipped} cannot be fitted; "
            f"{FEWEST} are needed",
            hint="add larger shards: on a plateau nothing has been learned yet",
        )
    inner = slice(skipped, None)
    settings = {"delta": delta, "bootstraps": bootstraps, "seed": seed, "source": source}
    curve = fit_floor(amount[inner], value[inner], **settings)
    plateau = None
    if skipped:
        measured = float(np.exp(np.log(value[:skipped]).mean()))
        plateau = best_guess if best_guess is not None else measured
    size_fit = None
    if size is not None:
        column = np.atleast_1d(np.asarray(size, dtype=np.float64))[order]
        size_fit = fit(
            model_size_law(), {"samples": amount[inner]}, column[inner], prior=None, **settings
        )
    return CurveFit(
        fit=curve,
        regions=regions_of(amount, skipped, plateau, curve),
        size_fit=size_fit,
    )


def _check(samples: Array, error: Array) -> None:
    """Refuse curves that cannot be fitted, by row."""
    if samples.shape != error.shape or samples.ndim != 1:
        raise FitError(
            f"samples of shape {samples.shape} and errors of shape {error.shape} do not match",
            hint="give one error per shard",
        )
    bad = np.flatnonzero(~(np.isfinite(error) & (error > 0) & np.isfinite(samples) & (samples > 0)))
    if len(bad):
        row = int(bad[0])
        raise FitError(
            f"row {row + 1}: {samples[row]:g} samples with error {error[row]:g}; both must be "
            f"positive and finite",
            hint="an error of 0 is below what the validation set resolves; use a larger one, or "
            "the loss",
        )
    amounts, counts = np.unique(samples, return_counts=True)
    if (counts > 1).any():
        raise FitError(
            f"{amounts[counts > 1][0]:g} samples are given more than once",
            hint="reduce sizes and seeds with best_over_sizes first",
        )
    if len(samples) < FEWEST or amounts[-1] < 10 * amounts[0]:
        raise FitError(
            f"{len(samples)} shards from {amounts[0]:g} to {amounts[-1]:g} samples do not show a "
            f"curve",
            hint=f"train on at least {FEWEST} nested shards over a decade, better seven over two",
        )
    _check_falling(samples, error)


def _check_falling(samples: Array, error: Array) -> None:
    """Refuse metrics that grow with data, and curves without any fall."""
    value = error[np.argsort(samples)]
    # Noise lets an error rise a little; 30 % from one shard to the next is a run that failed, and a
    # last error above the first is a metric that grows.
    jumps = np.flatnonzero(value[1:] > _RISE * value[:-1])
    if value[-1] > value[0] or len(jumps):
        where = int(jumps[0]) + 1 if len(jumps) else len(value) - 1
        raise FitError(
            f"the error rises to {value[where]:g} at {np.sort(samples)[where]:g} samples",
            hint="give an error or a loss, not an accuracy; a single rise is a run that failed: "
            "repeat it or leave it out",
        )
    if value.max() < 1.1 * value.min():
        raise FitError(
            f"every error lies between {value.min():g} and {value.max():g}: all shards are on a "
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
