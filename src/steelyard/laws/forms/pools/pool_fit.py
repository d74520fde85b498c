"""Pools fitted together from curves measured on each alone, to predict their mixtures."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.estimate import Estimate, band
from steelyard.laws.fitting.fit import fit as fit_points
from steelyard.laws.fitting.fitted import Fit, Prediction
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.pools.pool_utility import Stretch, log_mixture_excess, pool_utility

__all__ = ["PoolFit", "fit_pools"]

Mixture = Mapping[str, float] | Sequence[str]
_RISE = 1.02
_FEWEST_CHECKPOINTS = 3
_ALIKE = 2.0
"""Pools whose sizes differ by more than this factor need weights."""


@dataclass(frozen=True, kw_only=True)
class PoolFit:
    """Utilities and half-lives of pools of data, fitted together.

    Attributes:
        fit: fit of the grouped law.
        pools: names of the pools, in the order of their first points.
        sizes: unique samples per pool, [P].
        stretch: how half-lives stretch in a mixture.
    """

    fit: Fit
    pools: tuple[str, ...]
    sizes: Array
    stretch: Stretch = "share"

    @property
    def memory(self) -> str:
        """Name of the parameter of repetition: "tau", or "R" of the effective-data baseline."""
        return "tau" if f"tau[{self.pools[0]}]" in self.fit.law.names else "R"

    def utilities(self, level: float = 0.8) -> dict[str, Estimate]:
        """Return each pool's utility b, negative; more negative is better."""
        return {pool: self._estimate(f"b[{pool}]", level) for pool in self.pools}

    def half_lives(self, level: float = 0.8) -> dict[str, Estimate]:
        """Return each pool's half-life tau in passes; ends 500 times apart leave it open."""
        return {pool: self._estimate(f"{self.memory}[{pool}]", level) for pool in self.pools}

    def predict(
        self,
        mixture: Mixture,
        samples: ArrayLike,
        level: float = 0.8,
        *,
        pool_sizes: Mapping[str, float] | None = None,
    ) -> Prediction:
        """Predict the error of training on a mixture.

        The interval adds the bootstrap spread of the parameters, the residual noise of one run and,
        beyond the measured samples, the drift of the fit.

        Args:
            mixture: weights by pool, which are scaled to sum 1, or names of pools of similar size
                to be drawn in proportion to it.
            samples: number of samples seen in all, at least one pass of the smallest pool in the
                mixture, [n] or a single number.
            level: probability that a new run falls inside, 0..1.
            pool_sizes: unique samples by pool where they differ from the measured pools.

        Returns:
            Errors with low and high, [n].

        Raises:
            FitError: an unknown pool, weights that are negative or all zero, names of pools of very
                different size, or samples below one pass of the smallest pool.
        """
        sizes = self.sizes_of(pool_sizes)
        shares = self.shares(mixture, sizes)
        seen = np.atleast_1d(np.asarray(samples, dtype=np.float64))
        smallest = float(sizes[shares > 0].min())
        if not (np.isfinite(seen) & (seen >= smallest)).all():
            raise FitError(
                f"samples {seen.min():.4g} are fewer than one pass of the smallest pool, "
                f"{smallest:.4g}",
                hint="the half-lives say nothing below one pass; ask for more samples or for "
                "smaller pools",
            )
        errors = self.errors(np.tile(shares, (len(seen), 1)), sizes, seen)
        return self._prediction(np.log(errors), seen, level)

    def shares(self, mixture: Mixture, sizes: Array) -> Array:
        """Turn a mixture into the share of each pool, [P], sum 1.

        Args:
            mixture: weights by pool, or names of pools of similar size.
            sizes: unique samples per pool, [P].

        Returns:
            The shares.

        Raises:
            FitError: an unknown pool, no pool, bad weights, or names of pools of very different
                size.
        """
        names = list(mixture)
        unknown = [name for name in names if name not in self.pools]
        if unknown or not names:
            raise FitError(
                f"unknown pools {', '.join(map(str, unknown)) or '(none given)'}",
                hint=f"fitted: {', '.join(self.pools)}",
            )
        rows = [self.pools.index(name) for name in names]
        if isinstance(mixture, Mapping):
            weights = np.array([float(mixture[name]) for name in names])
        else:
            weights = sizes[rows]
            if weights.max() > _ALIKE * weights.min():
                raise FitError(
                    f"pools of very different size ({weights.min():.3g} to {weights.max():.3g} "
                    f"samples) need weights",
                    hint="give the share of samples drawn from each, such as {'clean': 0.7, "
                    "'web': 0.3}",
                )
        if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.sum() > 0:
            raise FitError(
                f"weights {dict(zip(names, weights.tolist(), strict=True))} must be 0 or more and "
                f"not all 0"
            )
        shares = np.zeros(len(self.pools))
        shares[rows] = weights / weights.sum()
        return shares

    def sizes_of(self, pool_sizes: Mapping[str, float] | None) -> Array:
        """Return the unique samples per pool, with some replaced, [P].

        Args:
            pool_sizes: unique samples by pool, or None for the measured ones.

        Returns:
            The sizes.

        Raises:
            FitError: an unknown pool, or a size that is not positive and finite.
        """
        sizes = self.sizes.copy()
        for name, size in (pool_sizes or {}).items():
            if name not in self.pools or not (np.isfinite(size) and size > 0):
                raise FitError(
                    f"pool {name!r} with {size} samples",
                    hint=f"sizes are positive; fitted: {', '.join(self.pools)}",
                )
            sizes[self.pools.index(name)] = size
        return sizes

    def errors(self, shares: Array, sizes: Array, samples: Array) -> Array:
        """Return the errors of mixtures at the optimum, first, and over the bootstrap.

        Args:
            shares: shares of the pools per mixture, [C, P].
            sizes: unique samples per pool, [P] or [C, P].
            samples: number of samples seen in all, [C].

        Returns:
            Errors, [1 + B, C].
        """
        numbers = self.numbers()
        excess = log_mixture_excess(
            numbers, shares, np.broadcast_to(sizes, shares.shape), samples, self.stretch
        )
        return numbers["d"][:, None] + np.exp(excess)

    def numbers(self) -> dict[str, Array]:
        """Return the optimum and bootstraps: "a", "n0", "d" [1 + B], "b", "tau" [1 + B, P]."""
        named = self.fit.draws()
        own = {
            name: np.stack([named[f"{name}[{pool}]"] for pool in self.pools], axis=1)
            for name in ("b", self.memory)
        }
        return {name: named[name] for name in ("a", "n0", "d")} | own

    def _estimate(self, name: str, level: float) -> Estimate:
        return Estimate(self.fit.params[name], *self.fit.interval(name, level))

    def _prediction(self, logs: Array, samples: Array, level: float) -> Prediction:
        """Add noise and drift to the bootstrap spread of log errors [1 + B, n]."""
        distance = np.maximum(np.log(samples / self.fit.inputs["samples"].max()), 0.0)
        return band(
            logs,
            level,
            noise=self.fit.noise,
            freedom=self.fit.freedom,
            drift=self.fit.drift,
            distance=distance,
        )


def fit_pools(
    points: Mapping[str, ArrayLike],
    error: ArrayLike | str = "error",
    pool: ArrayLike | str = "pool",
    *,
    law: Law | None = None,
    weights: ArrayLike | None = None,
    bootstrap: Bootstrap = Bootstrap(),
    delta: float = 1e-3,
    stretch: Stretch = "share",
    source: str = "",
) -> PoolFit:
    """Fit all pools at once: shared start and floor, a utility and a half-life per pool.

    Args:
        points: "samples" seen and "pool_size" in unique samples, [n]; each pool trained on alone.
        error: measured error, such as 1 - accuracy, positive, [n], or the name of a column of
            `points`.
        pool: name of each point's pool, [n], or the name of a column.
        law: law with parameters b and tau (or R); `pool_utility()` when None, `effective_pool()`
            for the baseline.
        weights: not negative, [n], such as `binomial_weights(error, tests)`.
        bootstrap: resampled fits for the intervals, and their seed.
        delta: where the Huber loss of the log errors turns linear; infinite for least squares.
        stretch: how half-lives stretch in a mixture.
        source: where the points come from.

    Returns:
        The fit of all pools.

    Raises:
        FitError: a column is missing, a pool has fewer than 3 checkpoints or several sizes, or its
            error does not fall.

    Source: Goyal, Maini et al. 2024 (arXiv 2404.07177), section 3; all pools share a and d, or
        their products would not combine.
    """
    columns = {name: _column(points, name) for name in ("samples", "pool_size")}
    goal = np.asarray(_column(points, error) if isinstance(error, str) else error, dtype=np.float64)
    labels = np.asarray(points[pool] if isinstance(pool, str) and pool in points else pool).astype(
        str
    )
    if labels.shape != goal.shape:
        raise FitError(
            f"pool has shape {labels.shape}, error {goal.shape}",
            hint="give the name of each point's pool, or of its column",
        )
    pools = tuple(dict.fromkeys(labels.tolist()))
    sizes = np.array([_check_pool(name, labels == name, columns, goal) for name in pools])
    base = law or pool_utility()
    vary = ("b", "tau" if "tau" in base.names else "R")
    grouped = base.grouped(vary, pools)
    starts = _starts(grouped, pools, columns["samples"], goal, labels)
    inputs = columns | {"group": np.array([pools.index(label) + 1.0 for label in labels])}
    found = fit_points(
        grouped,
        inputs,
        goal,
        starts=starts,
        weights=weights,
        bootstrap=bootstrap,
        delta=delta,
        source=source or str(getattr(points, "source", "")),
    )
    return PoolFit(fit=found, pools=pools, sizes=sizes, stretch=stretch)


def _column(points: Mapping[str, ArrayLike], name: str) -> Array:
    """Take a column of numbers by name."""
    if name not in points:
        raise FitError(
            f"no column {name!r}",
            hint=f"given: {', '.join(points)}; needed are samples, pool_size, error and pool",
        )
    return np.asarray(points[name], dtype=np.float64)


def _check_pool(
    name: str, rows: NDArray[np.bool_], columns: Mapping[str, Array], error: Array
) -> float:
    """Refuse a pool whose curve cannot be fitted; return its size."""
    samples, sizes, curve = columns["samples"][rows], columns["pool_size"][rows], error[rows]
    if len(np.unique(samples)) < _FEWEST_CHECKPOINTS:
        raise FitError(
            f"pool {name} has {len(np.unique(samples))} checkpoints; a utility and a half-life "
            f"need at least {_FEWEST_CHECKPOINTS}",
            hint="measure the error at 2, 4, 6, 8 and 10 passes",
        )
    if np.ptp(sizes) > 0:
        raise FitError(
            f"pool {name} has sizes {sizes.min():g} to {sizes.max():g}",
            hint="give pools of different size different names",
        )
    order = np.argsort(samples)
    first, last, least = curve[order[0]], curve[order[-1]], curve.min()
    if not last < first:
        raise FitError(
            f"the error of pool {name} rises from {first:.4g} at {samples[order[0]]:.3g} samples "
            f"to {last:.4g} at {samples[order[-1]]:.3g}",
            hint="that is overfitting, which a utility cannot describe; leave out the late "
            "checkpoints or the pool",
        )
    if last > _RISE * least:
        warnings.warn(
            f"the error of pool {name} rises again from {least:.4g} to {last:.4g}; its fit levels "
            f"off",
            SteelyardWarning,
            stacklevel=3,
        )
    return float(sizes[0])


def _starts(
    law: Law, pools: tuple[str, ...], samples: Array, error: Array, labels: NDArray[np.str_]
) -> Array:
    """Start from straight lines of log excess over log samples, one per pool, [S, P]."""
    starts = []
    for floor in (
        [law.fixed["d"]] if "d" in law.fixed else error.min() * np.array([0.02, 0.3, 0.6, 0.9])
    ):
        excess = np.log(np.maximum(error - floor, 1e-3 * error))
        lines = np.array(
            [
                np.polyfit(np.log(samples[labels == name]), excess[labels == name], 1)
                for name in pools
            ]
        )
        # The power weakens with every pass, so the line through a curve is flatter than its start:
        # utilities begin at 1.3 times its slope. A line that does not fall begins just below 0.
        slopes, heights = np.minimum(lines[:, 0], -0.01), lines[:, 1]
        meets = {"d": float(np.log(floor)), "a": 0.0, "n0": 0.0}
        # Where all curves meet at an excess of 1, n0 is where the lines come nearest to it.
        if "a" in law.fixed:
            meets["n0"] = float(-(heights @ slopes) / (slopes @ slopes))
        else:
            meets["a"] = float(heights.mean())
        for memory in (0.7, 1.5, 2.5):
            own = {f"b[{name}]": 1.3 * slope for name, slope in zip(pools, slopes, strict=True)}
            values = (
                meets
                | own
                | {item: memory for item in law.names if item.startswith(("tau[", "R["))}
            )
            starts.append([values[item] for item in law.names])
    return np.clip(np.array(starts), *law.bounds)
