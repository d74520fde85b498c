"""The runs of a study that a forecast could have done without."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.decisions.cost_law import SIX_N_D
from steelyard.laws.decisions.forecasting.entrants import SAME_LOG
from steelyard.laws.decisions.forecasting.forecast import Ensemble, EnsembleForecast, ensemble
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.points import named_column, positive_column
from steelyard.laws.fitting.terms import Array

__all__ = ["ShrunkStudy", "shrink"]

_Mask = NDArray[np.bool_]

_FITS = 25
"""Smaller studies that are tried at most; a trial takes about a second."""
_FEWEST = 8
"""Runs that are left at least: fewer leave no record of larger runs foreseen from smaller ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShrunkStudy:
    """A study and the part of it that would have been enough.

    Attributes:
        kept: rows that are needed, rising, from 0.
        left_out: rows that could have been left out, the dearest first.
        runs: label of the run of each row, [n].
        cost: compute of each row, FLOP where it is known, [n].
        total_cost: compute of the whole study.
        saved_fraction: share of the study's compute that the rows left out took, 0..1.
        whole: forecast from all runs.
        shrunk: forecast from the kept runs.
        num_tried: smaller studies that were tried.
    """

    kept: NDArray[np.int64]
    left_out: NDArray[np.int64]
    runs: NDArray[np.generic]
    cost: Array
    total_cost: float
    saved_fraction: float
    whole: EnsembleForecast
    shrunk: EnsembleForecast
    num_tried: int


def shrink(
    points: Mapping[str, ArrayLike],
    target: ArrayLike | str,
    laws: Sequence[Law] | None = None,
    *,
    at: Mapping[str, float],
    runs: ArrayLike | None = None,
    level: float = 0.8,
    along: str = "",
    wider: float = 1.5,
) -> ShrunkStudy:
    """Find runs that a forecast could have done without.

    A part of the study is enough where its forecast lies inside the interval of the whole study
    and its own interval is not much wider. The dearest runs are left out first, as many as can
    be; then what remains is tried in portions of like compute, the dearest first. At most 25
    parts are tried, so more could perhaps go.

    Args:
        points: columns by name in natural units, [n], such as a `RunTable`.
        target: positive, [n], or the name of a column.
        laws: forms to weigh; None for those of the literature that read the table's axes.
        at: the run that is forecast, value by input.
        runs: label of the run of each row, [n], where rows are checkpoints: they go together and
            cost what the last one does; None where every row is a run.
        level: probability inside the interval, 0..1.
        along: input that measures size; empty for the product of all.
        wider: how many times as wide in log units the interval may become, 1 or more.

    Returns:
        What is kept and left out, with both forecasts. Compute is the column "flops", else 6 N D,
        else the product of the inputs.

    Raises:
        FitError: no form reads these axes, too few runs, several runs to forecast, or an allowance
            below 1.

    Example:
        >>> found = shrink(table, "loss", at={"parameters": 7e9, "tokens": 1.4e11})
        ... # doctest: +SKIP
        >>> found.saved_fraction, len(found.left_out)  # doctest: +SKIP
        (0.47, 9)
    """
    if not 1 <= wider < np.inf:
        raise FitError(f"an interval {wider:g} times as wide is not allowed", hint="give 1 or more")
    goal = np.asarray(named_column(points, target), dtype=np.float64)
    found = ensemble(points, goal, laws, along=along)
    whole = found.predict(at, level)
    if len(whole.value) != 1:
        raise FitError(f"a study is shrunk for one run, given {len(whole.value)}")
    names = [*found.rolling.inputs, *found.constant]
    columns = {name: positive_column(name, points[name], len(goal)) for name in names}
    cost = _cost(points, columns, len(goal))
    labels = np.arange(len(goal)) if runs is None else np.asarray(runs)
    if len(labels) != len(goal):
        raise FitError(f"{len(labels)} labels of runs for {len(goal)} rows")
    unit = np.unique(labels, return_inverse=True)[1]
    spent = np.zeros(unit.max() + 1)
    np.maximum.at(spent, unit, cost)
    trials = _Trials(columns, goal, laws, at, along, unit, found, whole, wider)
    kept = _spare_portions(trials, _spare_dearest(trials, spent), spent)
    gone = np.flatnonzero(~kept[unit])
    return ShrunkStudy(
        kept=np.flatnonzero(kept[unit]),
        left_out=gone[np.argsort(-cost[gone], kind="stable")],
        runs=labels,
        cost=cost,
        total_cost=float(spent.sum()),
        saved_fraction=float(spent[~kept].sum() / spent.sum()),
        whole=whole,
        shrunk=trials.said.get(kept.tobytes()) or whole,
        num_tried=len(trials.said),
    )


def _cost(points: Mapping[str, ArrayLike], columns: Mapping[str, Array], count: int) -> Array:
    """Return the compute of every row, [n]."""
    if "flops" in points:
        return positive_column("flops", points["flops"], count)
    if {"parameters", "tokens"} == {*columns}:
        return SIX_N_D.flops(columns["parameters"], columns["tokens"])
    # Of other axes only the ratios of the products are used.
    return np.prod(np.stack(list(columns.values())), axis=0)


@dataclass(eq=False)
class _Trials:
    """Forecasts from parts of a study, each made once.

    Attributes:
        columns: inputs of all rows, [n] each.
        goal: what is forecast, [n].
        laws: forms to weigh, or None.
        at: the run that is forecast.
        along: input that measures size.
        unit: number of the run of each row, [n].
        found: forms fitted to the whole study.
        whole: forecast of the whole study.
        wider: how many times as wide the interval may become.
        said: forecasts that are good enough by part; None where one is not.
    """

    columns: dict[str, Array]
    goal: Array
    laws: Sequence[Law] | None
    at: Mapping[str, float]
    along: str
    unit: NDArray[np.int64]
    found: Ensemble
    whole: EnsembleForecast
    wider: float
    said: dict[bytes, EnsembleForecast | None] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Trials that may still be made."""
        return _FITS - len(self.said)

    def is_enough(self, kept: _Mask) -> bool:
        """Say whether some of the runs forecast nearly as well as all, [runs]."""
        key = kept.tobytes()
        if key not in self.said:
            self.said[key] = self._forecast(kept[self.unit])
        return self.said[key] is not None

    def _forecast(self, rows: _Mask) -> EnsembleForecast | None:
        """Forecast from some of the rows; None where that is not good enough."""
        points = {name: column[rows] for name, column in self.columns.items()}
        # Where an axis no longer varies, nothing is known along it.
        axes = [points[name] for name in self.found.rolling.inputs]
        if rows.sum() < _FEWEST or any(np.ptp(np.log(axis)) <= SAME_LOG for axis in axes):
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SteelyardWarning)
            try:
                said = ensemble(points, self.goal[rows], self.laws, along=self.along).predict(
                    self.at, self.whole.level
                )
            except FitError:
                return None
        # Without a record an interval is assumed, and may be narrow by accident.
        knows = len(said.past_errors) > 0 or not len(self.whole.past_errors)
        inside = self.whole.low[0] <= said.value[0] <= self.whole.high[0]
        return said if knows and inside and _ratio(said, self.whole) <= self.wider else None


def _ratio(said: EnsembleForecast, whole: EnsembleForecast) -> float:
    """Return how many times as wide an interval is, in log units."""
    return float(np.log(said.high[0] / said.low[0]) / np.log(whole.high[0] / whole.low[0]))


def _spare_dearest(trials: _Trials, spent: Array) -> _Mask:
    """Leave out the dearest runs, as many as bisection over their compute finds, [runs]."""
    order = np.argsort(-spent, kind="stable")
    total = np.concatenate([[0.0], np.cumsum(spent[order])])

    def without(count: int) -> _Mask:
        kept = np.ones(len(spent), dtype=np.bool_)
        kept[order[:count]] = False
        return kept

    low, high = 0, len(spent)
    # Half of the trials are kept for what the pass over the others may find.
    while high - low > 1 and trials.left > _FITS // 2:
        half = int(np.searchsorted(total, (total[low] + total[high]) / 2))
        middle = min(max(half, low + 1), high - 1)
        low, high = (middle, high) if trials.is_enough(without(middle)) else (low, middle)
    return without(low)


def _spare_portions(trials: _Trials, kept: _Mask, spent: Array) -> _Mask:
    """Leave out more runs in portions of like compute, the dearest first, [runs]."""
    order = np.argsort(-spent, kind="stable")
    order = order[kept[order]]
    before = np.cumsum(spent[order]) - spent[order]
    portion = (before / spent[order].sum() * trials.left).astype(np.int64)
    for number in np.unique(portion):
        fewer = kept.copy()
        fewer[order[portion == number]] = False
        if trials.left and trials.is_enough(fewer):
            kept = fewer
    return kept
