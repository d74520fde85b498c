"""Every entrant fitted below rising cuts: what small runs would have said about larger ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import FitError
from steelyard.laws.decisions.forecasting.entrants import Entrant
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.minimizer import Problem, minimize
from steelyard.laws.fitting.terms import Array

__all__ = ["Rolling", "roll"]

_CUTS = 8
"""Cuts below the largest run; their fits start where those of the cut before ended."""
_FEWEST = 6
_MOST_ROWS = 400
"""Runs that are fitted of larger tables, evenly by size."""
_DELTA = 0.01
"""Where the Huber loss turns linear, log units: few runs are better kept than split into those that
count and those that do not."""
_KEPT = 4
_ROUGH = 20
_FINE = 60
_LEAST_NOISE = 1e-5
_ANCHOR = 0.91
"""Exponent of size in the weights of the residuals that a law is moved by: a run a third as large
as the largest counts a third of it. A form that bends wrongly at the end of the runs stays wrong
beyond them, so each is moved to where the largest runs lie."""
_EDGE = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Rolling:
    """Fits of F entrants below K cuts of n runs; the last cut holds all runs.

    Attributes:
        entrants: the F entrants.
        inputs: columns of the runs, natural units, [n] each.
        target: measured values, [n].
        size: size of the runs, such as compute, [n].
        cuts: largest size each fit has seen, rising, [K].
        theta: fitted coordinates by cut and entrant, empty where there were too few runs.
        shift: what each fit is moved by in log units, [K, F].
        log_fitted: log predictions for the runs, moved, [K, F, n]; nan where nothing was fitted.
    """

    entrants: tuple[Entrant, ...]
    inputs: dict[str, Array]
    target: Array
    size: Array
    cuts: Array
    theta: list[list[Array]]
    shift: Array
    log_fitted: Array

    @property
    def errors(self) -> Array:
        """Log prediction minus log target, [K, F, n]."""
        return self.log_fitted - np.log(self.target)

    def beyond(self, cut: int) -> NDArray[np.bool_]:
        """Mark the runs that a cut has not seen, [n]."""
        return self.size > self.cuts[cut] * (1 + _EDGE)

    def ask(self, inputs: Mapping[str, Array]) -> Array:
        """Return what the fits to all runs say about others.

        Args:
            inputs: inputs of m runs, natural units.

        Returns:
            Log predictions, [F, m]; nan for an entrant that could not be fitted.
        """
        count = len(next(iter(inputs.values())))
        said = [
            _predict(item, theta, inputs, count, np.log(self.target[self.size.argmax()]))
            for item, theta in zip(self.entrants, self.theta[-1], strict=True)
        ]
        return np.stack(said) + self.shift[-1][:, None]


def roll(
    entrants: Sequence[Entrant], inputs: Mapping[str, Array], target: Array, size: Array
) -> Rolling:
    """Fit every entrant below every cut.

    No fit sees a run beyond its cut, and none starts from a fit that did.

    Args:
        entrants: what takes part.
        inputs: columns by name, natural units, [n].
        target: positive, [n].
        size: what grows from cut to cut, positive, [n].

    Returns:
        The fits with what they say about all runs.

    Raises:
        FitError: no entrant can be fitted to all runs.
    """
    kept = _thinned(size)
    columns = {name: column[kept] for name, column in inputs.items()}
    target, size = target[kept], size[kept]
    cuts = _cuts(size)
    fits = [_fit_each(item, columns, target, size, cuts) for item in entrants]
    theta = [[found[cut] for found in fits] for cut in range(len(cuts))]
    if not any(item.law and len(last) for item, last in zip(entrants, theta[-1], strict=True)):
        names = ", ".join(item.name for item in entrants if item.law)
        raise FitError(f"{len(target)} runs cannot fit any of {names}", hint="add runs")
    log_fitted = np.full((len(cuts), len(entrants), len(target)), np.nan)
    shift = np.zeros((len(cuts), len(entrants)))
    log_target = np.log(target)
    for cut, largest in enumerate(cuts):
        seen = size <= largest * (1 + _EDGE)
        last = log_target[seen][size[seen].argmax()]
        weights = np.where(seen, (size / largest) ** _ANCHOR, 0.0)
        for index, item in enumerate(entrants):
            said = _predict(item, theta[cut][index], columns, len(target), last)
            if item.law is not None:
                shift[cut, index] = weights @ (log_target - said) / weights.sum()
            log_fitted[cut, index] = said + shift[cut, index]
    return Rolling(
        entrants=tuple(entrants),
        inputs=columns,
        target=target,
        size=size,
        cuts=cuts,
        theta=theta,
        shift=np.nan_to_num(shift),
        log_fitted=log_fitted,
    )


def _thinned(size: Array) -> NDArray[np.int64]:
    """Keep at most `_MOST_ROWS` rows, evenly by size, the largest among them."""
    if len(size) <= _MOST_ROWS:
        return np.arange(len(size))
    order = np.argsort(size, kind="stable")
    return np.sort(order[np.linspace(0, len(size) - 1, _MOST_ROWS).round().astype(np.int64)])


def _cuts(size: Array) -> Array:
    """Choose sizes to cut at, evenly in their logs, and the largest, [K]."""
    known = np.unique(size)
    ordered = np.sort(size)
    allowed = known[known >= ordered[min(_FEWEST, len(size)) - 1] * (1 - _EDGE)]
    wanted = np.geomspace(allowed[0], allowed[-1], _CUTS + 1)
    nearest = np.abs(np.log(allowed[:, None] / wanted)).argmin(axis=0)
    return allowed[np.unique([*nearest, len(allowed) - 1])]


def _fit_each(
    item: Entrant, inputs: Mapping[str, Array], target: Array, size: Array, cuts: Array
) -> list[Array]:
    """Fit one entrant below each cut; what cannot be fitted is empty."""
    nothing = np.zeros(0)
    if item.law is None:
        return [nothing] * len(cuts)
    found: list[Array] = []
    starts = item.law.start_grid()
    for largest in cuts:
        seen = size <= largest * (1 + _EDGE)
        if seen.sum() < len(item.law.parameters) + 1:
            found.append(nothing)
            continue
        columns = {name: inputs[name][seen] for name in item.law.inputs}
        weights = (size[seen] / largest) ** item.fall
        starts = _minima(item.law, columns, np.log(target[seen]), weights, starts)
        found.append(starts[0])
    return found


def _minima(
    law: Law, inputs: Mapping[str, Array], log_target: Array, weights: Array, starts: Array
) -> Array:
    """Return the few best minima, the best first, [<= _KEPT, P]."""
    center = np.array([item.prior.center if item.prior else 0.0 for item in law.parameters])
    sd = np.array([item.prior.sd if item.prior else np.inf for item in law.parameters])
    free = Problem(
        law=law,
        inputs=inputs,
        target=log_target,
        weights=weights / weights.mean(),
        delta=_DELTA,
        center=center,
        precision=np.zeros(len(center)),
    )
    if len(starts) > _KEPT:
        rough = minimize(free, starts, max_iterations=_ROUGH)
        starts = rough.theta[np.argsort(rough.objective, kind="stable")[:_KEPT]]
    # With Laplace noise of mean size b the objective is b * delta times the negative log
    # likelihood; that of the best start stands for it, which the last cut has left near its end.
    residual = np.abs(law.predict(starts[:1], inputs)[0] - log_target)
    size = max(float((residual * free.weights).mean()), _LEAST_NOISE)
    believed = replace(free, precision=size * min(size, _DELTA) / sd**2)
    found = minimize(believed, starts, far=False, max_iterations=_FINE)
    return found.theta[np.argsort(found.objective, kind="stable")]


def _predict(
    item: Entrant, theta: Array, inputs: Mapping[str, Array], count: int, last: float
) -> Array:
    """Return one entrant's log predictions, [count]; nan where it was not fitted."""
    if item.law is None:
        return np.full(count, last)
    if not len(theta):
        return np.full(count, np.nan)
    return item.law.predict(theta[None], {name: inputs[name] for name in item.law.inputs})[0]
