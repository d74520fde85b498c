"""A forecast of runs beyond the fitted ones: several forms, weighed by how well they foresaw."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.decisions.forecasting.entrants import SAME_LOG, default_laws, entrants
from steelyard.laws.decisions.forecasting.rolling import Rolling, roll
from steelyard.laws.decisions.forecasting.scale import ASSUMED_ERROR, LEARNED, WidthScale, doubt
from steelyard.laws.decisions.forecasting.stacking import Stacked, stack
from steelyard.laws.fitting.estimate import tails
from steelyard.laws.fitting.fitted import Prediction, outside
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.points import check_inputs, named_column, positive_column
from steelyard.laws.fitting.terms import Array

__all__ = ["Ensemble", "EnsembleForecast", "FormShare", "ensemble", "forecast"]

_AXES = ("parameters", "tokens", "samples", "examples", "steps")
"""Columns that measure size, where the caller names no laws."""
_COMPUTE = "flops"
"""Measures size where none of the axes does: beside them it would count them twice."""
_FARTHEST = 3.0
"""Runs proposed to separate the forms cost at most this many times the largest run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FormShare:
    """One form's part in a forecast.

    Attributes:
        name: the form, or "largest run".
        weight: its weight, both weightings of the runs together.
        value: what it says alone, [m].
        low: lower ends of its own intervals, from its own record alone, [m].
        high: upper ends, [m].
        error: mean absolute log error on the table's own larger runs, of the better weighting.
    """

    name: str
    weight: float
    value: Array
    low: Array
    high: Array
    error: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EnsembleForecast:
    """What the forms together say about m runs.

    Attributes:
        value: forecast, natural units, [m].
        low: lower ends of the intervals, [m].
        high: upper ends, [m].
        level: probability inside.
        reach: factors of e from the largest run to each target, [m].
        forms: the parts, heaviest first.
        past_errors: log errors that the same procedure made on the table's own larger runs, [J].
    """

    value: Array
    low: Array
    high: Array
    level: float
    reach: Array
    forms: tuple[FormShare, ...]
    past_errors: Array

    @property
    def prediction(self) -> Prediction:
        """Values with their interval."""
        return Prediction(self.value, self.low, self.high)

    @property
    def carried_by(self) -> str:
        """Name of the heaviest form."""
        return self.forms[0].name


@dataclass(frozen=True, kw_only=True, slots=True)
class Ensemble:
    """Forms fitted to the same runs, with their weights.

    Attributes:
        rolling: the fits below rising cuts.
        stacked: weights and record.
        constant: columns that are the same in all runs, so that nothing is known about others.
        scale: how doubt becomes a width.
        along: input that measures size; empty for the product of all.
    """

    rolling: Rolling
    stacked: Stacked
    constant: dict[str, float]
    scale: WidthScale = LEARNED
    along: str = ""

    def predict(self, at: Mapping[str, ArrayLike], level: float = 0.8) -> EnsembleForecast:
        """Forecast runs.

        Args:
            at: value or column by input, natural units, [m].
            level: probability inside the interval, 0..1.

        Returns:
            Values with intervals and what each form says.

        Raises:
            FitError: an input is missing or not positive, or the level is not between 0 and 1.
        """
        tails(level)
        inputs = _columns(self.rolling.inputs, at)
        self._refuse_other(at)
        said = self.rolling.ask(inputs)
        weights = self.stacked.weights
        # An entrant that was not fitted says nan and weighs 0; their product would be nan.
        middle = weights @ np.nan_to_num(said)
        reach = self.reach(inputs)
        below, above = (
            self.scale.half_width(side, reach, level) for side in doubt(self.stacked, said, reach)
        )
        return EnsembleForecast(
            value=np.exp(middle),
            low=np.exp(middle - below),
            high=np.exp(middle + above),
            level=level,
            reach=reach,
            forms=_shares(self, said, reach, level),
            past_errors=self.stacked.errors,
        )

    def reach(self, inputs: Mapping[str, Array]) -> Array:
        """Return how far runs lie beyond the largest one, in factors of e; 0 inside, [m]."""
        size = _size(inputs, self.along)
        return np.maximum(
            np.log(size / self.rolling.size.max()), outside(self.rolling.inputs, inputs)
        ).clip(0.0)

    def _refuse_other(self, at: Mapping[str, ArrayLike]) -> None:
        """Refuse runs that differ in what all known runs share."""
        for name, value in self.constant.items():
            asked = np.asarray(at.get(name, value), dtype=np.float64)
            if (np.abs(np.log(asked / value)) > SAME_LOG).any():
                raise FitError(
                    f"{name} is {value:.4g} in every run, so nothing is known about "
                    f"{float(asked.ravel()[0]):.4g}",
                    hint=f"add runs with other {name}",
                )

    def separating(self) -> dict[str, float]:
        """Return the run on which the forms differ most among those near in size.

        Returns:
            Its inputs; at most three times the size of the largest run.
        """
        ends = [
            np.geomspace(column.min(), _FARTHEST * column.max(), 12)
            for column in self.rolling.inputs.values()
        ]
        grid = np.stack([axis.ravel() for axis in np.meshgrid(*ends, indexing="ij")])
        cells = dict(zip(self.rolling.inputs, grid, strict=True))
        near = _size(cells, self.along) <= _FARTHEST * self.rolling.size.max()
        cells = {name: column[near] for name, column in cells.items()}
        said = np.nan_to_num(self.rolling.ask(cells))
        weights = self.stacked.weights
        apart = weights @ (said - weights @ said) ** 2
        return {name: float(column[apart.argmax()]) for name, column in cells.items()}


def ensemble(
    points: Mapping[str, ArrayLike],
    target: ArrayLike | str,
    laws: Sequence[Law] | None = None,
    *,
    along: str = "",
    scale: WidthScale = LEARNED,
) -> Ensemble:
    """Fit several forms below rising cuts and weigh them by what they foresaw.

    Every form is fitted twice, to all runs alike and with weights that fall with distance from the
    largest run, below up to nine sizes. A fit's error on the runs beyond its cut decides its
    weight. The weak beliefs of the literature take part: a floor above zero, wide exponents.

    Args:
        points: columns by name in natural units, [n], such as a `RunTable`.
        target: positive, [n], or the name of a column.
        laws: forms to weigh; None for those of the literature that read the table's axes.
        along: input that measures size; empty for the product of all, which is compute for
            parameters and tokens.
        scale: how doubt becomes a width; as learned on published tables.

    Returns:
        The forms with their weights.

    Raises:
        FitError: no form reads these axes, or too few runs.
    """
    goal = np.asarray(named_column(points, target), dtype=np.float64)
    for law in laws or ():
        check_inputs(law, points)  # refuses a missing input in words
    names = dict.fromkeys(name for law in laws or () for name in law.inputs)
    names = names or [name for name in _AXES if name in points] or [_COMPUTE] * (_COMPUTE in points)
    inputs = {name: positive_column(name, points[name], len(goal)) for name in names}
    goal = positive_column(target if isinstance(target, str) else "target", goal, len(goal))
    chosen = list(laws) if laws else default_laws(inputs)
    read = {name: inputs[name] for law in chosen for name in law.inputs}
    # What all runs share is no axis; another value of it must not be extrapolated to.
    constant = {
        name: float(column[0])
        for name, column in inputs.items()
        if name not in read and np.ptp(np.log(column)) <= SAME_LOG
    }
    rolling = roll(entrants(chosen), read, goal, _size(read, along))
    return Ensemble(
        rolling=rolling, stacked=stack(rolling), constant=constant, scale=scale, along=along
    )


def forecast(
    points: Mapping[str, ArrayLike],
    target: ArrayLike | str,
    laws: Sequence[Law] | None = None,
    *,
    at: Mapping[str, ArrayLike],
    level: float = 0.8,
    along: str = "",
) -> EnsembleForecast:
    """Forecast runs beyond the measured ones; see `ensemble`.

    The interval joins how far the forms lie apart with the errors that the same procedure made on
    the table's own larger runs, at a reach like the one asked for, and is scaled as published
    tables of runs demand.

    Args:
        points: columns by name in natural units, [n], such as a `RunTable`.
        target: positive, [n], or the name of a column.
        laws: forms to weigh; None for those of the literature that read the table's axes.
        at: the runs, value or column by input, [m].
        level: probability inside the interval, 0..1.
        along: input that measures size; empty for the product of all.

    Returns:
        Values with intervals, the forms and their weights.

    Raises:
        FitError: no form reads these axes, too few runs, or a target that is not positive.

    Example:
        >>> said = forecast(table, "loss", at={"parameters": 7e9, "tokens": 1.4e11})
        ... # doctest: +SKIP
        >>> said.value, said.low, said.high, said.carried_by  # doctest: +SKIP
        (array([2.31]), array([2.27]), array([2.35]), 'coupled')
    """
    return ensemble(points, target, laws, along=along).predict(at, level)


def _columns(known: Mapping[str, Array], at: Mapping[str, ArrayLike]) -> dict[str, Array]:
    """Turn the asked runs into columns of one length."""
    missing = [name for name in known if name not in at]
    if missing:
        raise FitError(
            f"a forecast of these runs needs {', '.join(known)}; missing: {', '.join(missing)}",
            hint=f"given: {', '.join(at) or 'nothing'}",
        )
    count = max(np.size(np.asarray(at[name])) for name in known)
    return {name: positive_column(name, at[name], count) for name in known}


def _size(inputs: Mapping[str, Array], along: str) -> Array:
    """Return the size of runs, [n]."""
    if along and along not in inputs:
        raise FitError(f"cannot cut along {along!r}", hint=f"axes: {', '.join(inputs)}")
    return inputs[along] if along else np.prod(np.stack(list(inputs.values())), axis=0)


def _shares(item: Ensemble, said: Array, reach: Array, level: float) -> tuple[FormShare, ...]:
    """Join the two weightings of each form, and give it the interval that its own record asks."""
    rows: dict[str, list[int]] = {}
    for index, entrant in enumerate(item.rolling.entrants):
        if np.isfinite(said[index]).all():
            rows.setdefault(entrant.name, []).append(index)
    found = []
    for name, own in rows.items():
        weights = item.stacked.weights[own]
        share = weights / weights.sum() if weights.sum() else np.full(len(own), 1 / len(own))
        error = float(item.stacked.entrant_errors[own].min())
        middle = share @ said[own]
        half = item.scale.half_width(np.array(error or ASSUMED_ERROR), reach, level)
        found.append(
            FormShare(
                name=name,
                weight=float(weights.sum()),
                value=np.exp(middle),
                low=np.exp(middle - half),
                high=np.exp(middle + half),
                error=error,
            )
        )
    return tuple(sorted(found, key=lambda form: -form.weight))
