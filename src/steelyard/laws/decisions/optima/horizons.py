"""Laws of the best learning rate fitted to optima of sweeps, and judged by horizons left out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.decisions.optima.optimum import Optima
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.fit import fit
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.learning_rate import learning_rate

__all__ = ["HorizonError", "fit_learning_rate", "leave_one_horizon_out"]

_SAME_AXIS_SD = 0.03


def fit_learning_rate(
    optima: Optima, law: Law | None = None, *, bootstrap: Bootstrap = Bootstrap()
) -> Fit:
    """Fit a learning-rate law to the optima of a sweep, by weighted least squares of the log.

    Args:
        optima: optima of "learning_rate" by "tokens", and as the law needs "parameters" and
            "batch_tokens".
        law: law made by `learning_rate`; None for the smooth one.
        bootstrap: resampled fits.

    Returns:
        The fit.

    Raises:
        FitError: columns are missing, or there are too few cells, horizons, sizes or batches.
    """
    law, columns = law or learning_rate(), optima.columns
    if "batch_tokens" in law.inputs and "batch_tokens" in columns:
        _check_batches(columns)
    return fit(
        law,
        columns,
        optima.x,
        weights=optima.weights(),
        delta=math.inf,
        bootstrap=bootstrap,
    )


def _check_batches(columns: Mapping[str, Array]) -> None:
    """Refuse sweeps in which the batch is constant or follows the tokens."""
    log_tokens, log_batch = np.log(columns["tokens"]), np.log(columns["batch_tokens"])
    # What of the batch does not follow the tokens is all that tells their effects apart.
    own = log_batch - np.polyval(np.polyfit(log_tokens, log_batch, 1), log_tokens)
    if own.std() < _SAME_AXIS_SD:
        raise FitError(
            "batch_tokens is constant or follows tokens in every cell, so its effect cannot be "
            "told apart",
            hint='sweep several batches per training length, or fit learning_rate("size")',
        )


@dataclass(frozen=True, slots=True)
class HorizonError:
    """How well a law predicts the optima of horizons it was not fitted to.

    Attributes:
        law: name of the law.
        rms: root mean square error of ln learning rate over all cells.
        r2: explained share of the variance of ln learning rate.
        num_parameters: number of free parameters.
    """

    law: str
    rms: float
    r2: float
    num_parameters: int


def leave_one_horizon_out(optima: Optima, laws: Sequence[Law]) -> tuple[HorizonError, ...]:
    """Compare laws by predicting each horizon from the others.

    Args:
        optima: optima of "learning_rate", with at least three different "tokens".
        laws: laws made by `learning_rate`.

    Returns:
        Errors, the best law first.

    Raises:
        FitError: fewer than three horizons, or too few cells without one of them.
    """
    columns = optima.columns
    horizons = np.unique(columns["tokens"])
    if len(horizons) < 3:
        raise FitError(
            f"{len(horizons)} training lengths cannot be left out in turn",
            hint="sweep at least three, each a factor 2 apart",
        )
    goal = np.log(columns[optima.x])
    found = []
    for law in laws:
        error = np.empty(len(optima))
        for horizon in horizons:
            held = columns["tokens"] == horizon
            known = fit_learning_rate(optima.where(~held), law, bootstrap=Bootstrap(count=0))
            inputs = {name: columns[name][held] for name in law.inputs}
            error[held] = goal[held] - law.predict(known.theta[None], inputs)[0]
        r2 = 1 - float((error**2).sum() / ((goal - goal.mean()) ** 2).sum())
        found.append(
            HorizonError(law.name, float(np.sqrt((error**2).mean())), r2, len(law.parameters))
        )
    return tuple(sorted(found, key=lambda item: item.rms))
