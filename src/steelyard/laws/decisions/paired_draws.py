"""Fits of several columns or recipes whose bootstraps are drawn together, so that they compare."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import FitError
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.fit import beliefs, fit
from steelyard.laws.fitting.fitted import Fit, outside
from steelyard.laws.fitting.holdout import ASSUMED_DRIFT, can_fit
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.minimizer import minimize
from steelyard.laws.fitting.points import Points
from steelyard.laws.fitting.study import Study
from steelyard.laws.fitting.terms import Array

__all__ = ["PairedFit", "difference_drift", "fit_paired", "pair_keys"]

_SAME = 0.01
_SHARES = (0.25, 0.4, 0.55)
"""Parts of the rows, the largest, that are left out to see how differences drift."""


@dataclass(frozen=True, kw_only=True)
class PairedFit:
    """A fit with bootstraps that share their chances with those of other fits.

    Attributes:
        fit: the law at its optimum; its samples are the shared draws.
        keys: number of what each point shares with points of other fits, [n].
        held: held-out log errors by part that was left out, [C, n]; NaN where a point took part.
        distance: how far each held point lay beyond those that took part, factors of e, [C, n].
    """

    fit: Fit
    keys: NDArray[np.int64]
    held: Array
    distance: Array


def pair_keys(tables: Sequence[Mapping[str, ArrayLike]], axes: Sequence[str]) -> list[NDArray]:
    """Number what rows of several tables share: sizes and, where there is one, the seed.

    The second run of a size pairs with the second one of another table.

    Args:
        tables: columns of each, [n] each.
        axes: columns that are sizes.

    Returns:
        A number per row of each table, equal for rows that pair.
    """
    seen: dict[tuple, int] = {}
    found = []
    for table in tables:
        columns = [np.round(np.log(np.asarray(table[name], float)) / _SAME) for name in axes]
        columns += [np.asarray(table["seed"], float)] if "seed" in table else []
        times: dict[tuple, int] = {}
        keys = []
        for row in zip(*(column.tolist() for column in columns), strict=True):
            times[row] = times.get(row, -1) + 1
            keys.append(seen.setdefault((*row, times[row]), len(seen)))
        found.append(np.array(keys, dtype=np.int64))
    return found


def fit_paired(
    law: Law,
    points: Mapping[str, ArrayLike],
    target: ArrayLike | str,
    keys: NDArray[np.int64],
    bootstrap: Bootstrap,
) -> PairedFit:
    """Fit a law with draws that another fit with the same bootstrap record and keys shares.

    Each draw turns the residuals of half the keys around, adds them to the law and fits again. What
    two fits have in common at a key then moves both; what they have not moves them independently,
    whatever the signs share. Signs, unlike normal numbers, keep the residuals' density at zero, on
    which the spread of a fit by nearly absolute errors depends.

    Args:
        law: what to fit.
        points: values by input in natural units, [n].
        target: positive, [n], or the name of a column of `points`.
        keys: keys from `pair_keys`, [n].
        bootstrap: number and seed of the draws.

    Returns:
        The fit with its draws and held-out errors.

    Raises:
        FitError: points that do not allow the fit.

    Source: wild bootstrap with signs, Feng, He and Hu 2011 (Biometrika 98), for absolute errors;
        common signs as for clusters in Cameron, Gelbach and Miller 2008 (Rev. Econ. Stat. 90).
    """
    bootstrap.only_way("residuals with signs that fits share")
    plain = fit(law, points, target, bootstrap=replace(bootstrap, count=0))
    data = Points.checked(law, points, target, None)
    study = Study(law, data, plain.delta, beliefs(law, "auto", plain.num_points))
    study.scale = plain.prior_scale
    problem = study.problem()
    # The sign of a key must not depend on which other keys a table has, so each has its own
    # generator's word.
    signs = np.stack([_signs(bootstrap, int(key)) for key in range(int(keys.max()) + 1)], axis=1)[
        :, keys
    ]
    wider = np.sqrt(len(keys) / study.freedom)
    said = law.predict(plain.theta[None], data.inputs)[0]
    drawn = replace(problem, target=said + wider * plain.residuals * signs)
    starts = np.tile(plain.theta, (bootstrap.count, 1))
    samples = minimize(drawn, starts, far=False).theta if bootstrap.count else starts
    held, distance = _held_out(study, plain)
    fitted = replace(plain, samples=samples, seed=bootstrap.seed)
    return PairedFit(fit=fitted, keys=keys, held=held, distance=distance)


def _signs(bootstrap: Bootstrap, key: int) -> Array:
    """Return a key's signs over the draws, [B]."""
    words = np.random.default_rng((bootstrap.seed, key)).integers(0, 2, bootstrap.count)
    return np.where(words > 0, 1.0, -1.0)


def _held_out(study: Study, plain: Fit) -> tuple[Array, Array]:
    """Fit without the largest points, at several parts, and return their errors and distances."""
    problem = study.problem()
    size = np.sum([np.log(plain.inputs[name]) for name in plain.law.axes], axis=0)
    errors, distances = [], []
    for share in _SHARES:
        is_held = size > np.quantile(size, 1 - share) + 1e-9
        error = distance = np.full(len(size), np.nan)
        if is_held.any() and can_fit(plain.law, plain.inputs, ~is_held):
            reduced = replace(problem, weights=np.where(is_held, 0.0, problem.weights))
            theta = minimize(reduced, plain.theta[None], far=False).theta
            missed = problem.target - plain.law.predict(theta, plain.inputs)[0]
            known = {name: plain.inputs[name][~is_held] for name in plain.law.axes}
            beyond = outside(known, {name: plain.inputs[name] for name in plain.law.axes})
            error = np.where(is_held, missed, np.nan)
            distance = np.where(is_held, beyond, np.nan)
        errors.append(error)
        distances.append(distance)
    return np.stack(errors), np.stack(distances)


def difference_drift(first: PairedFit, second: PairedFit) -> float:
    """Return how fast the difference of two forecasts strays beyond the points.

    Held-out errors that both share, because the form misfits both alike, cancel.

    Args:
        first: one fit.
        second: the other one.

    Returns:
        Standard deviation of the log of the ratio, per factor e of distance.

    Raises:
        FitError: the fits are of different laws.
    """
    if first.fit.law.name != second.fit.law.name:
        raise FitError(
            f"laws {first.fit.law.name} and {second.fit.law.name} were fitted to what is compared",
            hint="fit the same law to both",
        )
    shared, mine, others = np.intersect1d(first.keys, second.keys, return_indices=True)
    noise = first.fit.noise**2 + second.fit.noise**2
    squares = distances = 0.0
    for cut in range(len(_SHARES) if len(shared) else 0):
        gap = first.held[cut, mine] - second.held[cut, others]
        reach = np.maximum(first.distance[cut, mine], second.distance[cut, others])
        used = np.isfinite(gap) & (reach > 0)
        squares += float((gap[used] ** 2 - noise).sum())
        distances += float((reach[used] ** 2).sum())
    if distances <= 0:
        return float(
            np.hypot(max(first.fit.drift, ASSUMED_DRIFT), max(second.fit.drift, ASSUMED_DRIFT))
        )
    # As for one fit, an assumed drift counts like one held point a factor e away.
    return float(np.sqrt((max(squares, 0.0) + ASSUMED_DRIFT**2) / (distances + 1.0)))
