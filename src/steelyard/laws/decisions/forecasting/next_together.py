"""Which run to do next when it is not known which form is right."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.decisions.forecasting.forecast import Ensemble
from steelyard.laws.decisions.next_cell import CellDraws, NextCell, rank_cells
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.fit import fit
from steelyard.laws.fitting.points import check_inputs

__all__ = ["next_together"]

_LEAST_WEIGHT = 0.02
"""A form of less weight says too little to be resampled."""


def next_together(
    found: Ensemble,
    candidates: Mapping[str, ArrayLike],
    wanted: Mapping[str, ArrayLike],
    *,
    flops: ArrayLike | None = None,
    max_flops: float = np.inf,
    level: float = 0.8,
    bootstrap: Bootstrap = Bootstrap(count=100),
) -> NextCell:
    """Rank candidate runs by how much each narrows the forecast of several forms, per FLOP.

    As `next_cell`, but the laws that may be true are the bootstraps of all forms, each form with
    its weight in the forecast: a run on which the forms differ as they do at the wanted one tells
    them apart, and is worth more than a single form would hold.

    Args:
        found: forms fitted to runs, with their weights.
        candidates: per input its values, [m].
        wanted: the run whose forecast should become sharper, one value per input.
        flops: cost of each candidate, [m]; None for 6 x parameters x tokens.
        max_flops: candidates that cost more are left out.
        level: probability inside the intervals, 0..1.
        bootstrap: how each form is resampled, at least 50 times.

    Returns:
        The candidates by rising cost of a given gain, best buy first.

    Raises:
        FitError: too few bootstraps or runs, no candidate within `max_flops`, several wanted runs,
            or costs that are not positive.
    """
    parts: list[CellDraws] = []
    shares: list[float] = []
    refused: list[FitError] = []
    rolling = found.rolling
    weights: dict[str, float] = {}
    for item, weight in zip(rolling.entrants, found.stacked.weights.tolist(), strict=True):
        weights[item.name] = weights.get(item.name, 0.0) + weight
    for law in {item.name: item.law for item in rolling.entrants}.values():
        if law is None or weights[law.name] < _LEAST_WEIGHT:
            continue
        columns, goal = check_inputs(law, candidates), check_inputs(law, wanted)
        try:
            fitted = fit(law, rolling.inputs, rolling.target, bootstrap=bootstrap)
        except FitError as error:
            refused.append(error)
            continue
        parts.append(CellDraws.of(fitted, columns, goal))
        shares.append(weights[law.name] / len(fitted.samples))
    if not parts:
        raise refused[0] if refused else FitError("no form has a weight", hint="add runs")
    total = [share * part.weights for share, part in zip(shares, parts, strict=True)]
    noise = np.average([part.noise for part in parts], weights=[own.sum() for own in total])
    draws = CellDraws(
        columns={name: column for part in parts for name, column in part.columns.items()},
        at_goal=np.concatenate([part.at_goal for part in parts]),
        at_cells=np.concatenate([part.at_cells for part in parts]),
        weights=np.concatenate(total),
        noise=float(noise),
    )
    return rank_cells(draws, flops=flops, max_flops=max_flops, level=level)
