"""Which recipe will be best at a size that none was trained at, and how sure is that?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.decisions.paired_draws import (
    PairedFit,
    difference_drift,
    fit_paired,
    pair_keys,
)
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.estimate import Estimate, band
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.points import check_inputs, named_column
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.chinchilla import chinchilla
from steelyard.laws.tables.table import RunTable

__all__ = ["RecipeComparison", "RecipeForecast", "compare_recipes"]

_FEWEST_DRAWS = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class RecipeForecast:
    """What one recipe will reach.

    Attributes:
        name: the recipe.
        num_runs: runs it was fitted to.
        value: target that its law predicts, the mean of many runs, with its interval.
        behind: relative distance from the best recipe, with its interval; 0 for the best one.
        chance_best: chance that it is the best of all.
        beats: chance that it is better than each other one, by name.
        shared: share of its runs that pair with runs of the best recipe, 0..1.
    """

    name: str
    num_runs: int
    value: Estimate
    behind: Estimate
    chance_best: float
    beats: dict[str, float]
    shared: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RecipeComparison:
    """Recipes at one size.

    Attributes:
        at: the size, natural units.
        law: the law that was fitted to each.
        target: what was compared; less is better.
        level: probability inside the intervals.
        recipes: forecasts, the best first.
        distance: how far the size lies beyond the runs of the recipe farthest from it, in factors
            of e.
    """

    at: dict[str, float]
    law: str
    target: str
    level: float
    recipes: tuple[RecipeForecast, ...]
    distance: float

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        best, second = self.recipes[:2]
        return (
            f"{best.name} beats {second.name} with {100 * best.beats[second.name]:.0f} %, by "
            f"{100 * second.behind.value:.2g} % ({100 * second.behind.low:.2g} to "
            f"{100 * second.behind.high:.2g} %)"
        )


def compare_recipes(
    points: Mapping[str, ArrayLike],
    target: str = "loss",
    *,
    by: str,
    at: Mapping[str, float],
    law: Law | None = None,
    level: float = 0.8,
    bootstrap: Bootstrap | None = None,
) -> RecipeComparison:
    """Compare recipes at a size that none need have been trained at.

    The same law is fitted to the runs of each. Draws are paired: runs of one size, and of one seed
    where a column says it, share their chances, so that what is common to the recipes cancels in
    their difference. Beyond the runs the difference strays as it did when the largest were left
    out. What is compared is the mean of many runs, not one run of each.

    Args:
        points: runs of all recipes, such as a `RunTable`.
        target: column to compare; less is better.
        by: column that names the recipe of each run.
        at: the size, one value per input of the law.
        law: law that is fitted to each recipe; `chinchilla(tied=True)` unless given.
        level: probability inside the intervals.
        bootstrap: number and seed of the draws, at least 50.

    Returns:
        The recipes, the best first, with the chance that each is better than each other one.

    Raises:
        FitError: fewer than two recipes, one with too few runs (it is named), too few draws, or a
            size the law cannot read.
    """
    form, draws = law or chinchilla(tied=True), bootstrap or Bootstrap()
    if draws.count < _FEWEST_DRAWS:
        raise FitError(
            f"{draws.count} draws say too little about chances", hint=f"{_FEWEST_DRAWS} or more"
        )
    goal = check_inputs(form, at)
    fits = _fits(form, _split(points, by, (*form.inputs, target)), target, draws)
    reach = max(float(item.fit.distance(goal)[0]) for item in fits.values())
    return RecipeComparison(
        at={name: float(column[0]) for name, column in goal.items()},
        law=form.name,
        target=target,
        level=level,
        recipes=tuple(_ranked(fits, goal, reach, draws, level)),
        distance=reach,
    )


def _fits(
    form: Law, tables: Mapping[str, Mapping[str, ArrayLike]], target: str, draws: Bootstrap
) -> dict[str, PairedFit]:
    """Fit the law to each recipe, with draws that pair."""
    fits = {}
    keys = pair_keys(list(tables.values()), form.axes)
    for (name, table), own in zip(tables.items(), keys, strict=True):
        try:
            fits[name] = fit_paired(form, table, target, own, draws)
        except FitError as error:
            raise FitError(f"recipe {name}: {error}", hint=error.hint) from error
    return fits


def _ranked(
    fits: Mapping[str, PairedFit],
    goal: Mapping[str, Array],
    reach: float,
    draws: Bootstrap,
    level: float,
) -> list[RecipeForecast]:
    """Forecast each recipe and how far it is behind the best, which comes first."""
    names, every = list(fits), list(fits.values())
    logs = np.stack([item.fit.law.predict(item.fit.thetas, goal)[:, 0] for item in every])
    drift = reach * _drifts(every)
    beats, chances = _beats(logs, drift), _chances_best(logs, drift, draws)
    order = np.argsort(logs[:, 0], kind="stable").tolist()
    best = order[0]
    return [
        RecipeForecast(
            name=names[row],
            num_runs=every[row].fit.num_points,
            value=band(logs[row][:, None], level, drift=every[row].fit.drift, distance=reach).first,
            behind=_behind(logs[row] - logs[best], float(drift[row, best]), level),
            chance_best=float(chances[row]),
            beats={names[other]: float(beats[row, other]) for other in order if other != row},
            shared=float(np.isin(every[row].keys, every[best].keys).mean()),
        )
        for row in order
    ]


def _split(
    points: Mapping[str, ArrayLike], by: str, needed: Sequence[str]
) -> dict[str, Mapping[str, ArrayLike]]:
    """Split the runs by recipe."""
    if isinstance(points, RunTable):
        tables: dict[str, Mapping[str, ArrayLike]] = dict(points.groups(by))
    else:
        labels = np.asarray(named_column(points, by, "to tell recipes apart")).astype(str)
        kept = [name for name in (*needed, "seed") if name in points]
        tables = {
            label: {name: np.asarray(points[name])[labels == label] for name in kept}
            for label in dict.fromkeys(labels.tolist())
        }
    if len(tables) < 2:
        raise FitError(
            f"column {by} names one recipe, {', '.join(tables)}", hint="give runs of two or more"
        )
    return tables


def _drifts(fits: Sequence[PairedFit]) -> Array:
    """Return how fast each pair's difference drifts, [R, R]; 0 on the diagonal."""
    found = np.zeros((len(fits), len(fits)))
    for row, first in enumerate(fits):
        for other in range(row):
            found[row, other] = found[other, row] = difference_drift(first, fits[other])
    return found


def _beats(logs: Array, drift: Array) -> Array:
    """Return the chance that each recipe is better than each other one, [R, R]."""
    from scipy.special import ndtr

    gap = logs[None, :, 1:] - logs[:, None, 1:]
    return ndtr(gap / np.maximum(drift[:, :, None], 1e-12)).mean(axis=2)


def _chances_best(logs: Array, drift: Array, draws: Bootstrap) -> Array:
    """Return the chance of each recipe to be the best of all, [R]."""
    # Half of a pair's variance is each one's own; the largest of its pairs is taken.
    own = drift.max(axis=1) / np.sqrt(2)
    noise = draws.generator().standard_normal(logs[:, 1:].shape)
    least = (logs[:, 1:] + own[:, None] * noise).argmin(axis=0)
    return np.bincount(least, minlength=len(logs)) / logs[:, 1:].shape[1]


def _behind(gap: Array, drift: float, level: float) -> Estimate:
    """Return the relative distance from the best recipe."""
    said = band(gap[:, None], level, drift=drift, distance=1.0).first
    return Estimate(said.value - 1, said.low - 1, said.high - 1)
