"""Data and compute to reach a return as laws of the updates-to-data ratio (UTD)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.fit import fit
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.points import positive_column
from steelyard.laws.fitting.terms import Array, Constant, Input, Product, Raised, Sum
from steelyard.laws.forms.powers import power_form
from steelyard.laws.forms.terms import Number, Quotient, positive, real

__all__ = [
    "Hyperparameters",
    "UpdatesLaw",
    "fit_hyperparameters",
    "hyperparameter_law",
    "updates_setting",
    "updates_to_data",
]

_BATCH_MULTIPLE = 16


def updates_to_data(unit: float | str = 1.0) -> Law:
    """Data needed = Dmin + unit x (utd / beta)^-alpha.

    Args:
        unit: environment steps (or whatever the data are counted in) of excess at utd = beta; 1 for
            normalized data.

    Returns:
        The law with input "utd", 3 parameters.

    Source: Rybkin et al. 2025 (arXiv 2502.04327), equation 1.
    """
    size = float(unit)
    ratio = Quotient((Constant("beta"), Input("utd")))
    return Law(
        name=f"updates_to_data:{size!r}",
        term=Sum((Constant("Dmin"), Product((Number(size), Raised(ratio, "alpha"))))),
        parameters=(
            positive("Dmin", -30.0, 50.0, math.log(size)),
            positive("beta", -40.0, 40.0, 0.0),
            real("alpha", 0.02, 6.0, 0.5, 1.2),
        ),
        formula="Dmin + unit (utd / beta)^-alpha",
    )


def updates_setting() -> Law:
    """Best batch size or learning rate = coefficient x utd^-slope.

    Its scale is free, unlike that of a loss.

    Returns:
        The law with input "utd", 2 parameters.

    Source: Rybkin et al. 2025 (arXiv 2502.04327), equations 3 and 4.
    """
    parameters = (positive("coefficient", -60.0, 60.0, 0.0), real("slope", -4.0, 4.0, 0.3))
    roles = ("coefficient", "slope")
    return power_form("updates_setting", "utd", roles, parameters, "coefficient utd^-slope")


def hyperparameter_law(tasks: Sequence[str]) -> Law:
    """Best batch size or learning rate = coefficient[task] x utd^-slope, one slope for all tasks.

    Args:
        tasks: names of the tasks; the input "group" holds the number 1..G or the name of each
            point's task.

    Returns:
        The law with inputs "utd" and "group".

    Source: Rybkin et al. 2025 (arXiv 2502.04327), equations 3 and 4, shared fit.
    """
    return updates_setting().grouped(("coefficient",), tuple(tasks))


def fit_hyperparameters(
    utd: ArrayLike,
    task: Sequence[str],
    values: ArrayLike,
    *,
    bootstrap: Bootstrap = Bootstrap(count=200),
    source: str = "",
) -> Fit:
    """Fit the best values of one hyper-parameter by least squares of their logs.

    Args:
        utd: updates-to-data ratio of each best value, [n].
        task: name of its task, [n].
        values: best batch sizes or learning rates, positive, [n].
        bootstrap: resampled fits, and their seed.
        source: where the values come from.

    Returns:
        The fit of `hyperparameter_law`.
    """
    names = tuple(dict.fromkeys(task))
    number = np.array([names.index(name) + 1.0 for name in task])
    law = hyperparameter_law(names)
    return fit(
        law,
        {"utd": np.asarray(utd), "group": number},
        values,
        delta=math.inf,
        bootstrap=bootstrap,
        source=source,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Hyperparameters:
    """What to train with at a UTD.

    Attributes:
        batch_size: a multiple of 16, at least 16.
        learning_rate: learning rate of the optimizer.
    """

    batch_size: int
    learning_rate: float


@dataclass(frozen=True, kw_only=True, eq=False)
class UpdatesLaw:
    """Data and compute to reach a return at any updates-to-data ratio.

    Attributes:
        utds: tested updates-to-data ratios, ascending, [U].
        thresholds: returns to reach, ascending, [J].
        fits: fits of `updates_to_data`, one per threshold.
        batch_size: fit of `hyperparameter_law` to the best batch sizes.
        learning_rate: fit of `hyperparameter_law` to the best learning rates.
        critic_parameters: number of parameters of the critic, P.
        flops_factor: FLOP per gradient step, sample and critic parameter; 10 is 6 for the critic
            and 4 for target and actor.
        rises: (threshold, UTD) where more updates needed more data than the next lower UTD; noise,
            or too many updates.
    """

    utds: Array
    thresholds: Array
    fits: tuple[Fit, ...]
    batch_size: Fit
    learning_rate: Fit
    critic_parameters: float
    flops_factor: float = 10.0
    rises: tuple[tuple[float, float], ...] = ()

    def data_needed(self, threshold: float, utd: float, level: float = 0.8) -> Estimate:
        """Return the environment steps to reach a return, log-linear between thresholds.

        Args:
            threshold: return, between the lowest and highest fitted.
            utd: gradient steps per environment step, positive.
            level: probability inside the interval, 0..1.

        Returns:
            Environment steps with the interval of resampled seeds.

        Raises:
            FitError: the threshold lies outside the fitted ones, or the UTD is not positive.
        """
        steps = self.steps(threshold, positive_column("utd", utd, 1))[:, 0]
        return Estimate.of(steps[0], steps[1:], level)

    def compute_needed(self, threshold: float, utd: float, level: float = 0.8) -> Estimate:
        """Return the training FLOP to reach a return.

        Factor x utd x D x B(utd) x P, with the mean best batch size over tasks.

        Args:
            threshold: return, between the lowest and highest fitted.
            utd: gradient steps per environment step, positive.
            level: probability inside the interval, 0..1.

        Returns:
            FLOP with the interval of resampled seeds.

        Source: Rybkin et al. 2025 (arXiv 2502.04327), equation 2.
        """
        ratios = positive_column("utd", utd, 1)
        flops = (self.steps(threshold, ratios) * self.flops_per_step(ratios))[:, 0]
        return Estimate.of(flops[0], flops[1:], level)

    def frontier(self, threshold: float, count: int = 200) -> tuple[Array, Array, Array]:
        """Return tested UTDs with the data and compute they need for a return, [count] each."""
        ratios = np.geomspace(self.utds[0], self.utds[-1], count)
        steps = self.steps(threshold, ratios)[0]
        return ratios, steps, steps * self.flops_per_step(ratios)

    def hyperparameters(self, utd: float, task: str = "") -> Hyperparameters:
        """Return batch size and learning rate for a UTD.

        Args:
            utd: gradient steps per environment step, positive; batch size and learning rate fall as
                it grows.
            task: name of a fitted task; empty for the mean over tasks.

        Returns:
            The batch size rounded to a multiple of 16, and the learning rate.

        Raises:
            FitError: no such task was fitted.

        Source: Rybkin et al. 2025 (arXiv 2502.04327), equations 3 and 4 and appendix C.
        """
        ratios = positive_column("utd", utd, 1)
        batch, rate = (
            float(_best_value(one, ratios, task)[0])
            for one in (self.batch_size, self.learning_rate)
        )
        multiple = max(1, round(int(batch) / _BATCH_MULTIPLE))
        return Hyperparameters(batch_size=_BATCH_MULTIPLE * multiple, learning_rate=rate)

    def steps(self, threshold: float, utds: Array) -> Array:
        """Return the environment steps to a return, of the optimum and of the resamplings.

        Args:
            threshold: return, between the lowest and highest fitted.
            utds: gradient steps per environment step, [n].

        Returns:
            Environment steps, [1 + B, n].

        Raises:
            FitError: the threshold lies outside the fitted ones.
        """
        low, high = self.thresholds[0], self.thresholds[-1]
        if not low <= threshold <= high:
            raise FitError(
                f"return {threshold:g} lies outside the fitted thresholds, {low:g} to {high:g}",
                hint="fit it from the curves",
            )
        # Thresholds share the resampled seeds, so row b may be interpolated between two of them.
        at = float(np.interp(threshold, self.thresholds, np.arange(len(self.fits))))
        first, second = (
            one.law.predict(one.thetas, {"utd": utds})
            for one in (self.fits[math.floor(at)], self.fits[math.ceil(at)])
        )
        return np.exp(first + at % 1 * (second - first))

    def flops_per_step(self, utds: Array) -> Array:
        """Return training FLOP per environment step, [n]."""
        return (
            self.flops_factor
            * self.critic_parameters
            * utds
            * _best_value(self.batch_size, utds, "")
        )


def _best_value(one: Fit, utds: Array, task: str) -> Array:
    """Return a hyper-parameter of a task, or its mean over tasks, [n]."""
    groups = one.law.groups
    if task and task not in groups:
        raise FitError(
            f"no hyper-parameters were fitted for task {task}", hint=f"tasks: {', '.join(groups)}"
        )
    numbers = [groups.index(task) + 1] if task else range(1, len(groups) + 1)
    logs = [
        one.law.predict(one.theta[None], {"utd": utds, "group": np.full(len(utds), float(number))})[
            0
        ]
        for number in numbers
    ]
    return np.exp(logs).mean(axis=0)
