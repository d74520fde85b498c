"""Runs measured on several sets or samples: noise of the set apart from that of the run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.decisions.paired_draws import fit_paired
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.estimate import Estimate, band, tails
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.points import check_inputs
from steelyard.laws.fitting.terms import Array

__all__ = ["NoiseParts", "SetFits", "fit_sets", "split_noise"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NoiseParts:
    """Where the scatter of losses comes from, standard deviations in log units.

    Attributes:
        run: what all sets or samples of a run share; training it again would change that.
        by_set: what is each set's own, by name; a larger set would make it smaller.
        num_runs: runs it was measured on.
    """

    run: float
    by_set: dict[str, float]
    num_runs: int

    def __str__(self) -> str:
        """Return both in words."""
        sets = ", ".join(f"{name} {100 * noise:.2g} %" for name, noise in self.by_set.items())
        return f"noise of the run {100 * self.run:.2g} %; of the sets: {sets}"


@dataclass(frozen=True, kw_only=True)
class SetFits:
    """One law fitted to several columns of the same runs.

    Attributes:
        fits: fit of each column; draw b of one belongs to draw b of the others.
        noise: noise of the run and of each set.
    """

    fits: dict[str, Fit]
    noise: NoiseParts

    def mean(
        self,
        at: Mapping[str, ArrayLike],
        level: float = 0.8,
        *,
        weights: Mapping[str, float] | None = None,
    ) -> Estimate:
        """Predict the mean over the sets of one further run.

        Parameters that err together in all sets, and the noise of the run, do not average out; the
        noise of the sets does.

        Args:
            at: the run, one value per input of the law.
            level: probability inside the interval.
            weights: weight of each set, not negative; equal unless given.

        Returns:
            Weighted mean of the predictions with its interval.

        Raises:
            FitError: weights of other sets, or an input is missing.
        """
        share = self._shares(weights)
        first = next(iter(self.fits.values()))
        goal = check_inputs(first.law, at)
        logs = np.stack([fit.law.predict(fit.thetas, goal)[:, 0] for fit in self.fits.values()])
        parts = share[:, None] * np.exp(logs)
        relative = parts[:, 0] / parts[:, 0].sum()
        own = np.array(list(self.noise.by_set.values()))
        noise = float(np.hypot(self.noise.run, np.sqrt(((relative * own) ** 2).sum())))
        # Drift is the form's misfit, which the sets share.
        drift = float(relative @ np.array([fit.drift for fit in self.fits.values()]))
        total = np.log(parts.sum(axis=0))[:, None]
        return band(
            total,
            level,
            noise=noise,
            freedom=max(self.noise.num_runs - len(first.theta), 1),
            drift=drift,
            distance=float(first.distance(goal)[0]),
        ).first

    def _shares(self, weights: Mapping[str, float] | None) -> Array:
        """Return the weights of the sets, sum 1."""
        if weights is None:
            return np.full(len(self.fits), 1 / len(self.fits))
        if set(weights) != set(self.fits) or min(weights.values()) < 0 or not sum(weights.values()):
            raise FitError(
                f"weights of {', '.join(weights)}, not negative and not all 0, were given",
                hint=f"one for each of {', '.join(self.fits)}",
            )
        found = np.array([weights[name] for name in self.fits], dtype=np.float64)
        return found / found.sum()


def fit_sets(
    law: Law,
    points: Mapping[str, ArrayLike],
    targets: Sequence[str],
    *,
    bootstrap: Bootstrap | None = None,
) -> SetFits:
    """Fit a law to several loss columns of the same runs at once.

    Args:
        law: what to fit to each.
        points: runs, one per row.
        targets: two columns or more, such as the losses on several evaluation sets.
        bootstrap: number and seed of the draws, which the fits share.

    Returns:
        The fits with the noise of the run, from what their residuals share, and of each set.

    Raises:
        FitError: fewer than two columns, or one that cannot be fitted; it is named.
    """
    if len(set(targets)) < 2 or len(set(targets)) != len(targets):
        raise FitError(
            f"{', '.join(targets) or 'no columns'}: several sets are two or more different columns"
        )
    keys = np.arange(np.size(np.asarray(points[law.inputs[0]])))
    draws, fits = bootstrap or Bootstrap(), {}
    for name in targets:
        try:
            fits[name] = fit_paired(law, points, name, keys, draws).fit
        except FitError as error:
            raise FitError(f"{name}: {error}", hint=error.hint) from error
    residuals = np.stack([fit.residuals for fit in fits.values()])
    return SetFits(fits=fits, noise=_parts(residuals, list(fits), len(law.parameters)))


def _parts(residuals: Array, names: Sequence[str], spent: int) -> NoiseParts:
    """Split covariances into what all columns share and what is each one's own."""
    freedom = max(residuals.shape[1] - spent, 1)
    covariance = residuals @ residuals.T / freedom
    count = len(names)
    shared = float((covariance.sum() - np.trace(covariance)) / (count * (count - 1)))
    run = max(shared, 0.0)
    own = np.sqrt(np.maximum(np.diag(covariance) - run, 0.0))
    by_set = dict(zip(names, own.tolist(), strict=True))
    return NoiseParts(run=float(np.sqrt(run)), by_set=by_set, num_runs=residuals.shape[1])


def split_noise(fit: Fit, runs: ArrayLike, level: float = 0.8) -> tuple[NoiseParts, Estimate]:
    """Split the noise of a fit whose runs were measured several times each, one row per sample.

    Args:
        fit: fit with its points.
        runs: label of the run of each point, [n]; some occur twice or more.
        level: probability inside the interval.

    Returns:
        Noise of the run and of one sample (under the name "sample"), and the share of the variance
        that is the run's, 0..1, with its interval.

    Raises:
        FitError: labels of another number than points, or no run with two samples.

    Source: analysis of variance of one random factor, Searle, Casella and McCulloch 1992, section
        3.6.
    """
    labels, place, counts = np.unique(np.asarray(runs), return_inverse=True, return_counts=True)
    residuals = fit.residuals
    if len(place) != len(residuals) or counts.max() < 2 or len(labels) < 3:
        raise FitError(
            f"{len(place)} labels of {len(labels)} runs for {len(residuals)} points",
            hint="give one label per point, at least three runs, and some with two samples or more",
        )
    means = np.bincount(place, residuals) / counts
    inside = float(((residuals - means[place]) ** 2).sum()) / max(len(residuals) - len(labels), 1)
    # Samples per run, the mean that unequal numbers call for.
    size = (counts.sum() - (counts**2).sum() / counts.sum()) / (len(labels) - 1)
    freedom = max(len(labels) - len(fit.theta), 1)
    between = float((counts * means**2).sum()) / freedom
    run = max((between - inside) / size, 0.0)
    parts = NoiseParts(
        run=float(np.sqrt(run)), by_set={"sample": float(np.sqrt(inside))}, num_runs=len(labels)
    )
    share = run / max(run + inside, 1e-300)
    within = max(len(residuals) - len(labels), 1)
    ratio = between / max(inside, 1e-300)
    return parts, _share_interval(share, ratio, size, (freedom, within), level)


def _share_interval(
    share: float, ratio: float, size: float, freedom: tuple[int, int], level: float
) -> Estimate:
    """Return the share of the run's variance with the interval that the F distribution gives."""
    from scipy.special import fdtri

    low, high = tails(level)
    ends = [(ratio / float(fdtri(*freedom, tail)) - 1) / size for tail in (high, low)]
    found = [max(end, 0.0) / (1 + max(end, 0.0)) for end in ends]
    return Estimate(share, min(found[0], share), max(found[1], share))
