"""Does a law somebody else fitted hold on one's own runs?"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.estimate import Estimate, normal, student
from steelyard.laws.fitting.fit import fit
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.points import check_inputs, named_column, positive_column
from steelyard.laws.fitting.terms import Array
from steelyard.laws.registry import PublishedLaw
from steelyard.laws.tables.conventions import COLUMN_OF, UNSTATED
from steelyard.laws.tables.table import RunTable

__all__ = ["CheckedParameter", "LawCheck", "check_law"]

_REJECTS = 0.01
"""Chance below which runs of the law itself are taken to be of another."""
_CLIP = 4.0
_FEWEST = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedParameter:
    """A number of the law beside what the runs say.

    Attributes:
        name: parameter.
        given: the law's number.
        fitted: the number of a fit of the same form to the runs, with its bootstrap interval.
        is_outside: whether the given number lies outside the interval.
    """

    name: str
    given: float
    fitted: Estimate
    is_outside: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class LawCheck:
    """How a law with given numbers does on runs it was not fitted to.

    Attributes:
        law: its name.
        source: where its numbers come from.
        num_runs: runs it was asked about.
        error: mean absolute relative error of its predictions.
        bias: mean of log(measured / predicted), with the interval of a mean.
        noise: deviation of the runs about their own fit of the form, log units; about the law
            itself, corrected for the bias, where the runs allow no fit.
        within_noise: share of runs that the law predicts to within `level` of that noise.
        level: probability inside the intervals, and the share of runs expected within noise.
        parameters: its parameters beside those of a fit of the form to the runs; empty where the
            runs allow no fit.
        p_value: chance of so much more error than the runs' own fit has, were the law right.
        assumed: conventions the table does not state and that were taken to be the law's.
        why_no_fit: why the form could not be fitted to the runs; empty otherwise.
    """

    law: str
    source: str
    num_runs: int
    error: float
    bias: Estimate
    noise: float
    within_noise: float
    level: float
    parameters: tuple[CheckedParameter, ...]
    p_value: float
    assumed: dict[str, str]
    why_no_fit: str = ""

    @property
    def is_rejected(self) -> bool:
        """Whether the runs are not of this law."""
        return self.p_value < _REJECTS

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        size = f"its predictions are off by {100 * self.error:.2g} % on average"
        sign = "above" if self.bias.value > 0 else "below"
        lean = f"the runs lie {100 * abs(self.bias.value):.2g} % {sign} it"
        if not self.is_rejected:
            return f"not rejected: {size}, {lean}, and chance makes as much (p {self.p_value:.2g})"
        outside = [
            f"{item.name} {item.given:.4g} lies outside {item.fitted.low:.4g} to "
            f"{item.fitted.high:.4g}"
            for item in self.parameters
            if item.is_outside
        ]
        chance = "p below 1e-6" if self.p_value < 1e-6 else f"p {self.p_value:.2g}"
        return f"rejected: {'; '.join([*outside, size, lean])} ({chance})"


def check_law(
    law: PublishedLaw | Fit,
    points: Mapping[str, ArrayLike],
    target: str = "loss",
    *,
    level: float = 0.8,
    bootstrap: Bootstrap | None = None,
) -> LawCheck:
    """Score a law with given numbers on runs, without fitting it to them.

    The form is then fitted to the runs, and the law is rejected where its squared errors exceed
    those of that fit by more than chance, by an F test; errors beyond four robust deviations count
    as four, so that single outliers do not decide.

    Args:
        law: one of `published`, or a fit of other runs.
        points: runs, such as a `RunTable`, with the inputs of the law and the target.
        target: column with what the law predicts.
        level: probability inside the intervals.
        bootstrap: how the runs are drawn again for the intervals of the parameters.

    Returns:
        Errors of the predictions, the refitted parameters beside the given ones, and a verdict.

    Raises:
        FitError: a convention differs, a column is missing, or there are fewer than three runs.
    """
    asked = law.fit() if isinstance(law, PublishedLaw) else law
    table, assumed = _conventions(law, points)
    inputs = check_inputs(asked.law, table)
    count = len(inputs[asked.law.inputs[0]])
    measured = positive_column(target, named_column(table, target), count)
    if len(measured) < _FEWEST:
        raise FitError(f"{len(measured)} runs cannot judge a law", hint=f"give {_FEWEST} or more")
    errors = np.log(measured) - asked.law.predict(asked.theta[None], inputs)[0]
    own, reason = _refit(asked, inputs, measured, bootstrap or Bootstrap())
    beside = own.residuals if own else errors - errors.mean()
    freedom = max(len(errors) - (len(own.theta) if own else 1), 1)
    noise = float(np.sqrt((beside**2).sum() / freedom))
    mean = float(errors.mean())
    half = student(len(errors) - 1, level) * float(errors.std(ddof=1)) / len(errors) ** 0.5
    return LawCheck(
        law=law.name if isinstance(law, PublishedLaw) else asked.law.name,
        source=asked.source,
        num_runs=len(errors),
        error=float(np.abs(np.expm1(-errors)).mean()),
        bias=Estimate(mean, mean - half, mean + half),
        noise=noise,
        within_noise=float((np.abs(errors) <= normal(level) * noise).mean()),
        level=level,
        parameters=_beside(asked, own, level) if own else (),
        p_value=_chance(errors, beside, freedom),
        assumed=assumed,
        why_no_fit=reason,
    )


def _conventions(
    law: PublishedLaw | Fit, points: Mapping[str, ArrayLike]
) -> tuple[Mapping[str, ArrayLike], dict[str, str]]:
    """Refuse runs of other conventions, and name those that are taken on trust."""
    if not (isinstance(law, PublishedLaw) and isinstance(points, RunTable)):
        return points, {}
    wanted = {"counts": law.counts, "loss_unit": law.loss_unit, "tokenizer": law.tokenizer}
    assumed, stated = {}, points.conventions
    for name, word in wanted.items():
        said = getattr(stated, name)
        if word and COLUMN_OF[name] in points and (said == UNSTATED).all():
            assumed[name] = word
            stated = replace(stated, **{name: np.full(len(said), word)})
    checked = replace(points, conventions=stated)
    law.check_table(checked)
    return checked, assumed


def _refit(
    asked: Fit, inputs: dict[str, Array], measured: Array, bootstrap: Bootstrap
) -> tuple[Fit | None, str]:
    """Fit the form to the runs, or say why they do not allow it."""
    try:
        return fit(asked.law, inputs, measured, bootstrap=bootstrap, prior=None), ""
    except FitError as error:
        return None, str(error)


def _beside(asked: Fit, own: Fit, level: float) -> tuple[CheckedParameter, ...]:
    """Put the given parameters beside the fitted ones."""
    found = []
    for name, value in asked.params.items():
        fitted = Estimate(own.params[name], *own.interval(name, level))
        is_outside = not fitted.low <= value <= fitted.high and len(own.samples) > 0
        found.append(CheckedParameter(name=name, given=value, fitted=fitted, is_outside=is_outside))
    return tuple(found)


def _chance(errors: Array, beside: Array, freedom: int) -> float:
    """Return the chance of so much larger errors than those of the runs' own fit."""
    from scipy.special import fdtrc

    robust = 1.4826 * float(np.median(np.abs(beside))) or 1e-12
    before = float((np.minimum(np.abs(errors), _CLIP * robust) ** 2).sum())
    after = float((np.minimum(np.abs(beside), _CLIP * robust) ** 2).sum())
    spent = max(len(errors) - freedom, 1)
    ratio = max(before - after, 0.0) / spent / max(after / freedom, 1e-300)
    return float(fdtrc(spent, freedom, ratio))
