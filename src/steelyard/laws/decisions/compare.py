"""Compare laws on the same points by how well small runs foretell larger ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import FitError
from steelyard.laws.fitting.fit import beliefs
from steelyard.laws.fitting.holdout import can_fit
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.points import Points
from steelyard.laws.fitting.study import Study
from steelyard.laws.fitting.terms import Array

__all__ = ["Comparison", "Form", "compare"]

_CUTS = 5
_FEWEST_HELD = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """How one law did.

    Attributes:
        law: the form.
        extrapolation_error: mean of the absolute log errors of the points beyond each cut, averaged
            over the cuts; near the mean relative error.
        errors: the same per cut, rising in size, [K].
        noise: standard deviation of the log residuals when fitted to all points.
        aic: Akaike's criterion of the fit to all points with Laplace noise, up to a constant all
            forms share; lower is better.
    """

    law: Law
    extrapolation_error: float
    errors: Array
    noise: float
    aic: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The forms, the best first.

    Attributes:
        forms: one per law, by rising extrapolation error.
        sizes: size of the largest point each cut trained on, product of the axes or the chosen
            input, [K].
        held: (cut, row) of each held point with the size it has, for a chart: columns "cut", "row",
            "size", and per law name the log error.
    """

    forms: tuple[Form, ...]
    sizes: Array
    held: dict[str, Array]

    @property
    def best(self) -> Law:
        """The form that extrapolated best."""
        return self.forms[0].law


def compare(
    points: Mapping[str, ArrayLike],
    target: ArrayLike | str,
    laws: Sequence[Law],
    *,
    along: str = "",
    delta: float = 1e-3,
    weights: ArrayLike | None = None,
) -> Comparison:
    """Compare laws by rolling extrapolation.

    At several sizes in the upper half the points are cut: every law is fitted to the smaller ones
    as `fit` would, weak priors of small studies included, and predicts the larger ones. All laws
    see the same cuts; no fit sees a held point.

    Args:
        points: per input its values in natural units, [n].
        target: positive, [n], or the name of a column of `points`.
        laws: at least two with different names; they may use different inputs.
        along: input that measures size; empty for the product of all axes, which is compute for
            parameters and tokens.
        delta: where the Huber loss turns linear, in log units.
        weights: not negative, [n]; none for equal ones.

    Returns:
        The forms, best first, with the errors behind the order.

    Raises:
        FitError: fewer than two laws, an unknown `along`, or too few points for any cut.
    """
    if len({law.name for law in laws}) < 2 or len({law.name for law in laws}) != len(laws):
        raise FitError("a comparison needs at least two laws with different names")
    checked = [Points.checked(law, points, target, weights) for law in laws]
    size = _size(laws, checked, along)
    cuts = _cuts(laws, checked, size)
    errors = [_held_errors(law, data, delta, cuts) for law, data in zip(laws, checked, strict=True)]
    forms = [
        _form(Study(law, data, delta), error, cuts)
        for law, data, error in zip(laws, checked, errors, strict=True)
    ]
    cut, row = np.nonzero(cuts)
    held = {"cut": cut.astype(float), "row": row.astype(float), "size": np.exp(size[row])}
    held |= {law.name: error[cut, row] for law, error in zip(laws, errors, strict=True)}
    sizes = np.array([float(np.exp(size[~mask].max())) for mask in cuts])
    return Comparison(
        forms=tuple(sorted(forms, key=lambda form: form.extrapolation_error)),
        sizes=sizes,
        held=held,
    )


def _size(laws: Sequence[Law], checked: Sequence[Points], along: str) -> Array:
    """Return the log size of each point, [n]."""
    columns = {
        name: data.inputs[name]
        for law, data in zip(laws, checked, strict=True)
        for name in law.axes
    }
    if along and along not in columns:
        raise FitError(
            f"cannot cut along {along!r}",
            hint=f"axes of these laws: {', '.join(columns) or 'none'}",
        )
    chosen = [columns[along]] if along else list(columns.values())
    if not chosen:
        raise FitError(
            "these laws have no axis to extrapolate along",
            hint="give laws whose inputs are not all conditions",
        )
    return np.sum([np.log(column) for column in chosen], axis=0)


def _cuts(laws: Sequence[Law], checked: Sequence[Points], size: Array) -> NDArray[np.bool_]:
    """Mark the held points of up to five cuts, rising, each trained on half or more, [K, n]."""
    used = np.all([data.weights > 0 for data in checked], axis=0)
    count = int(used.sum())
    fewest = max(max(len(law.parameters) for law in laws) + 2, count // 2)
    if count < fewest + _FEWEST_HELD:
        raise FitError(
            f"{count} points cannot be cut: {fewest} are needed to fit the largest law, and "
            f"{_FEWEST_HELD} must be left to predict",
            hint="add runs, or compare laws with fewer parameters",
        )
    # Cuts lie evenly among the points, not among the sizes, so that each holds some.
    ordered = np.sort(size[used])
    masks: dict[bytes, NDArray[np.bool_]] = {}
    for last in np.linspace(fewest - 1, count - _FEWEST_HELD - 1, _CUTS).round().astype(int):
        # Runs of one size stay together: a size that is trained on is not extrapolated to.
        held = (size > ordered[last] + 1e-9) & used
        if held.sum() >= _FEWEST_HELD and all(
            can_fit(law, data.inputs, used & ~held) for law, data in zip(laws, checked, strict=True)
        ):
            masks[held.tobytes()] = held
    if not masks:
        raise FitError(
            "no cut leaves enough spread among the smaller points",
            hint="add smaller runs that differ in every input",
        )
    return np.stack(list(masks.values()))


def _held_errors(law: Law, data: Points, delta: float, cuts: NDArray[np.bool_]) -> Array:
    """Fit below each cut and give log prediction minus log target everywhere, [K, n]."""
    errors = []
    for held in cuts:
        kept = replace(data, weights=np.where(held, 0.0, data.weights))
        study = Study(law, kept, delta, beliefs(law, "auto", int((kept.weights > 0).sum())))
        errors.append(-study.residuals(study.optimum(law.start_grid())[0]))
    return np.stack(errors)


def _form(study: Study, errors: Array, cuts: NDArray[np.bool_]) -> Form:
    """Summarize one law."""
    per_cut = np.array(
        [float(np.abs(error[held]).mean()) for error, held in zip(errors, cuts, strict=True)]
    )
    theta, _, _ = study.optimum(study.law.start_grid())
    # Laplace noise, because the fit itself minimizes nearly absolute residuals.
    size = max(float(np.average(np.abs(study.residuals(theta)), weights=study.data.weights)), 1e-12)
    aic = 2 * study.num_used * float(np.log(size)) + 2 * len(study.law.parameters)
    return Form(
        law=study.law,
        extrapolation_error=float(per_cut.mean()),
        errors=per_cut,
        noise=study.noise(theta),
        aic=aic,
    )
