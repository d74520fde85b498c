"""Compare laws on the same points by how well small runs foretell larger ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.decisions.forecasting.forecast import Ensemble, ensemble
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.terms import Array

__all__ = ["Comparison", "Form", "compare"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """How one law did.

    Attributes:
        law: the form.
        weight: its weight in a forecast from these points, both weightings of the runs together.
        extrapolation_error: mean absolute log error of the points beyond the cuts, recent cuts
            counting most; near the mean relative error. Of the better weighting of the runs.
        errors: the same per cut, rising in size, [K]; nan where a cut had too few points.
        noise: standard deviation of the log residuals when fitted to all points alike.
        aic: Akaike's criterion of that fit with Laplace noise, up to a constant all forms share;
            lower is better.
    """

    law: Law
    weight: float
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
    laws: Sequence[Law] | None = None,
    *,
    along: str = "",
) -> Comparison:
    """Compare laws by rolling extrapolation.

    At up to eight sizes the points are cut: every law is fitted to the smaller ones as `ensemble`
    does, and predicts the larger ones. All laws see the same cuts; no fit sees a held point.

    Args:
        points: per input its values in natural units, [n].
        target: positive, [n], or the name of a column of `points`.
        laws: two laws or more with different names; their inputs may differ. None for those of
            the literature that read the table's axes.
        along: input that measures size; empty for the product of all axes, which is compute for
            parameters and tokens.

    Returns:
        The forms, best first, with the errors behind the order.

    Raises:
        FitError: fewer than two laws, an unknown `along`, or too few points for any cut.
    """
    if laws is not None and len(laws) < 2:
        raise FitError("a comparison needs at least two laws with different names")
    found = ensemble(points, target, laws, along=along)
    cuts = len(found.rolling.cuts) - 1
    if not cuts or not len(found.stacked.errors):
        raise FitError(
            f"{len(found.rolling.target)} points cannot be cut: six are needed below a cut, and "
            f"larger ones beyond it",
            hint="add runs, or compare laws with fewer parameters",
        )
    forms = _forms(found)
    held = np.stack([found.rolling.beyond(cut) for cut in range(cuts)])
    cut, row = np.nonzero(held)
    columns = {"cut": cut.astype(float), "row": row.astype(float), "size": found.rolling.size[row]}
    errors = found.rolling.errors
    for index, item in enumerate(found.rolling.entrants):
        if item.law is not None and not item.fall:
            columns[item.name] = errors[cut, index, row]
    return Comparison(
        forms=tuple(sorted(forms, key=lambda form: form.extrapolation_error)),
        sizes=found.rolling.cuts[:-1],
        held=columns,
    )


def _forms(found: Ensemble) -> list[Form]:
    """Summarize every law."""
    rolling = found.rolling
    beyond = np.stack([rolling.beyond(cut) for cut in range(len(rolling.cuts) - 1)])
    size = np.where(beyond[:, None], np.abs(rolling.errors[:-1]), 0.0).sum(axis=2)
    per_cut = size / np.maximum(beyond.sum(axis=1), 1)[:, None]
    forms = []
    for index, item in enumerate(rolling.entrants):
        if item.law is None or item.fall or not len(rolling.theta[-1][index]):
            continue
        # The second weighting of the same law stands right after the first.
        own = [index, index + 1]
        better = min(own, key=lambda one: found.stacked.entrant_errors[one])
        residuals = rolling.errors[-1, index] - rolling.shift[-1, index]
        count, free = len(residuals), len(item.law.parameters)
        # Laplace noise, because the fit itself minimizes nearly absolute residuals.
        spread = max(float(np.abs(residuals).mean()), 1e-12)
        forms.append(
            Form(
                law=item.law,
                weight=float(found.stacked.weights[own].sum()),
                extrapolation_error=float(found.stacked.entrant_errors[better]),
                errors=per_cut[:, better],
                noise=float(np.sqrt((residuals**2).sum() / max(count - free, 1))),
                aic=2 * count * float(np.log(spread)) + 2 * free,
            )
        )
    return forms
