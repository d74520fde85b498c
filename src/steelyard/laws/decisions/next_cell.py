"""Which run to do next: the one that shrinks the wanted interval most for its compute."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import FitError
from steelyard.laws.fitting.estimate import normal
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.points import check_inputs, positive_column
from steelyard.laws.fitting.terms import Array

__all__ = ["CellDraws", "NextCell", "next_cell", "rank_cells"]

_SMALLEST_BOOTSTRAP = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class NextCell:
    """Candidate runs, the best buy first.

    Attributes:
        rows: row numbers among the candidates, the first is 0, [m].
        inputs: per input its values, in the same order, [m].
        flops: cost of each, [m].
        interval_before: relative width of the wanted interval now, (high - low) / value of the law
            itself, without the noise of a run.
        interval_after: the width expected once the candidate is measured, [m].
        level: probability inside these intervals.
    """

    rows: list[int]
    inputs: dict[str, Array]
    flops: Array
    interval_before: float
    interval_after: Array
    level: float

    @property
    def best(self) -> dict[str, float]:
        """The inputs of the best buy."""
        return {name: float(column[0]) for name, column in self.inputs.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class CellDraws:
    """Log predictions under S laws that may be true.

    Attributes:
        columns: inputs of the candidates, natural units, [m] each.
        at_goal: log predictions of the wanted run, [S].
        at_cells: log predictions of the candidates, [S, m].
        weights: how likely each law is, positive up to a factor, [S].
        noise: standard deviation of the log of one run about its law.
    """

    columns: dict[str, Array]
    at_goal: Array
    at_cells: Array
    weights: Array
    noise: float

    @classmethod
    def of(cls, fit: Fit, columns: dict[str, Array], goal: Mapping[str, Array]) -> "CellDraws":
        """Take the bootstraps of one fit as the laws that may be true.

        Args:
            fit: fit with at least 50 bootstraps.
            columns: inputs of the candidates, [m] each.
            goal: inputs of the wanted run, [1] each.

        Returns:
            The draws, alike in weight.

        Raises:
            FitError: too few bootstraps, or several wanted runs.
        """
        if len(fit.samples) < _SMALLEST_BOOTSTRAP:
            raise FitError(
                f"{len(fit.samples)} bootstraps cannot tell what a run would teach",
                hint=f"fit with {_SMALLEST_BOOTSTRAP} or more",
            )
        if len(goal[fit.law.inputs[0]]) != 1:
            raise FitError("give one wanted run, not several", hint="ask once per run")
        return cls(
            columns=columns,
            at_goal=fit.law.predict(fit.samples, goal)[:, 0],
            at_cells=fit.law.predict(fit.samples, columns),
            weights=np.ones(len(fit.samples)),
            noise=fit.noise,
        )


def next_cell(
    fit: Fit,
    candidates: Mapping[str, ArrayLike],
    wanted: Mapping[str, ArrayLike],
    *,
    flops: ArrayLike | None = None,
    max_flops: float = np.inf,
    level: float = 0.8,
) -> NextCell:
    """Rank candidate runs by how much each narrows the law's interval at a wanted run, per FLOP.

    A run at x with noise s leaves the variance V(w) - C(x, w)^2 / (V(x) + s^2) of the log
    prediction at w, where V and C are variance and covariance of the log predictions over the
    bootstrap: what is learned is weighed before anything is trained.

    Args:
        fit: fit with at least 50 bootstraps.
        candidates: per input of the law its values, [m].
        wanted: the run whose prediction should become sharper, one value per input.
        flops: cost of each candidate, [m]; None for 6 x parameters x tokens.
        max_flops: candidates that cost more are left out.
        level: probability inside the intervals, 0..1.

    Returns:
        The candidates by rising cost of a given gain, best buy first.

    Raises:
        FitError: too few bootstraps, no candidate within `max_flops`, several wanted runs, or costs
            that are not positive.

    Source: MacKay 1992, Information-based objective functions for active data selection, section 3.
    """
    draws = CellDraws.of(fit, check_inputs(fit.law, candidates), check_inputs(fit.law, wanted))
    return rank_cells(draws, flops=flops, max_flops=max_flops, level=level)


def rank_cells(
    draws: CellDraws,
    *,
    flops: ArrayLike | None = None,
    max_flops: float = np.inf,
    level: float = 0.8,
) -> NextCell:
    """Rank candidate runs by what their log predictions share with that of the wanted run.

    Args:
        draws: log predictions of candidates and wanted run under what the law may be.
        flops: cost of each candidate, [m]; None for 6 x parameters x tokens.
        max_flops: candidates that cost more are left out.
        level: probability inside the intervals, 0..1.

    Returns:
        The candidates by rising cost of a given gain, best buy first.

    Raises:
        FitError: no candidate within `max_flops`, or costs that are not positive.
    """
    cost = _cost(draws.columns, flops)
    rows = np.flatnonzero(cost <= max_flops)
    if not len(rows):
        raise FitError(
            f"no candidate costs at most {max_flops:.3g} FLOP; the cheapest costs {cost.min():.3g}"
        )
    before, after = _spread(draws, rows)
    gain = np.log(before / after) / cost[rows]
    order = np.argsort(-gain, kind="stable")
    width = 2 * normal(level)
    return NextCell(
        rows=rows[order].tolist(),
        inputs={name: column[rows][order] for name, column in draws.columns.items()},
        flops=cost[rows][order],
        interval_before=width * before,
        interval_after=width * after[order],
        level=level,
    )


def _cost(columns: Mapping[str, Array], flops: ArrayLike | None) -> Array:
    """Return each candidate's FLOP, [m]."""
    if flops is None:
        if not {"parameters", "tokens"} <= set(columns):
            raise FitError(
                "candidates of this law have no known cost",
                hint="give flops=, one number per candidate",
            )
        return 6.0 * columns["parameters"] * columns["tokens"]
    return positive_column("flops", flops, len(next(iter(columns.values()))))


def _spread(draws: CellDraws, rows: NDArray[np.int64]) -> tuple[float, Array]:
    """Return the deviation of the log prediction at the goal, now and after each run, [m]."""
    weights = draws.weights / draws.weights.mean()
    at_goal, at_cells = draws.at_goal, draws.at_cells[:, rows]
    at_goal = at_goal - np.average(at_goal, weights=weights)
    at_cells = at_cells - np.average(at_cells, axis=0, weights=weights)
    count = len(weights) - 1
    variance = float((weights * at_goal) @ at_goal) / count
    known = weights @ at_cells**2 / count + draws.noise**2
    learned = ((weights * at_goal) @ at_cells / count) ** 2 / known
    # Of few bootstraps a run may seem to teach everything; a thousandth of the width is left.
    return float(np.sqrt(variance)), np.sqrt(np.maximum(variance - learned, 1e-6 * variance))
