"""What makes a fit doubtful, and what an allocation under it must refuse."""

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.decisions.optima.isoflop import IsoFlop
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.terms import Array
from steelyard.laws.tables.table_trouble import table_trouble
from steelyard.laws.tables.trouble import Trouble

__all__ = ["edge_trouble", "fit_trouble", "refuse_blind_allocation", "residual_trouble"]

_LARGEST_SHARE = 0.2
_FEWEST_LARGEST = 4
_SIDED = 2.8
"""Standard errors of a mean; one clean table in two hundred lies farther out."""
_LEAST_BIAS = 0.002
_FALLS = 2.0
_STEPS = 33


def fit_trouble(fit: Fit, target: str = "loss") -> tuple[Trouble, ...]:
    """Look a fit over: its points, its residuals at the large end, its parameters.

    Args:
        fit: fit with its points; a published set has nothing to look at.
        target: name of what was fitted, for the sentences.

    Returns:
        What was found, that of the points first.
    """
    if not fit.num_points:
        return ()
    used = fit.weights > 0
    points = {name: column[used] for name, column in fit.inputs.items() if name != "group"}
    found = table_trouble({**points, target: fit.target[used]}, target) if points else ()
    return (*found, *residual_trouble(fit, target))


def residual_trouble(fit: Fit, target: str = "loss") -> tuple[Trouble, ...]:
    """Look at what only the fit knows: residuals of the largest runs, and bounds.

    Args:
        fit: fit with its points.
        target: name of what was fitted.

    Returns:
        What was found.
    """
    if not fit.num_points:
        return ()
    stuck = [
        Trouble(
            kind="bound",
            sentence=f"{name} ended at its bound, {fit.params[name]:.3g}",
            advice=f"the runs do not determine it: hold it (--fix {name}=...), take a law without "
            f"it, or add runs over a wider range",
            columns=(),
        )
        for name in fit.at_bounds
    ]
    return (*_one_sided(fit, target), *stuck)


def _one_sided(fit: Fit, target: str) -> tuple[Trouble, ...]:
    """Find the largest runs all on one side of the law."""
    if not fit.law.axes:
        return ()
    used = fit.weights > 0
    size = np.sum([np.log(fit.inputs[name]) for name in fit.law.axes], axis=0)[used]
    residuals, clusters = fit.residuals[used], fit.clusters[used]
    large = size >= np.quantile(size, 1 - _LARGEST_SHARE)
    # Checkpoints of one run err together, so a run counts once.
    means = [residuals[large & (clusters == item)].mean() for item in np.unique(clusters[large])]
    count, bias = len(means), float(np.mean(means))
    if count < _FEWEST_LARGEST or abs(bias) < max(_LEAST_BIAS, _SIDED * fit.noise / np.sqrt(count)):
        return ()
    side = "above" if bias > 0 else "below"
    rows = np.flatnonzero(used)[large]
    return (
        Trouble(
            kind="one-sided",
            sentence=f"the {large.sum()} largest runs lie {100 * abs(bias):.2g} % {side} the law "
            f"on average, {abs(bias) / fit.noise * np.sqrt(count):.1f} standard errors: forecasts "
            f"of larger runs will err the same way",
            advice="compare other forms (laws compare), or leave the smallest runs out",
            rows=tuple(int(row) + 1 for row in rows),
            columns=(target,),
        ),
    )


def edge_trouble(found: IsoFlop) -> tuple[Trouble, ...]:
    """Look for budgets whose best size lies at the edge of the sizes that were trained.

    Args:
        found: answer of `isoflop`.

    Returns:
        One finding, or none.
    """
    edges = [item for item in found.budgets if item.edge]
    if not edges:
        return ()
    ends = " and ".join(sorted({"smallest" if item.edge == "low" else "largest" for item in edges}))
    return (
        Trouble(
            kind="edge",
            sentence=f"{len(edges)} of {len(found.budgets)} budgets have their least loss at the "
            f"{ends} size trained",
            advice="their best size is not known: train further sizes there",
            columns=("parameters",),
        ),
    )


def refuse_blind_allocation(fit: Fit) -> None:
    """Refuse to split a budget by a law that cannot say which side is worth more.

    Args:
        fit: fit of a law with inputs "parameters" and "tokens"; a published set passes.

    Raises:
        FitError: an exponent ended at a bound, or the loss falls with parameters or with tokens by
            no more than chance within the points.
    """
    if not fit.num_points:
        return
    exponents = {item.name for item in fit.law.parameters if item.transform == "identity"}
    stuck = [name for name in fit.at_bounds if name in exponents]
    if stuck:
        raise FitError(
            f"{' and '.join(stuck)} of {fit.law.name} ended at a bound "
            f"({', '.join(f'{name} {fit.params[name]:.3g}' for name in stuck)}), so the split "
            f"between size and tokens would be the bound's, not that of the runs",
            hint=f"hold it when fitting (--fix {stuck[0]}=0.35), fit a law with fewer parameters "
            f"such as chinchilla_tied, or add runs over a wider range of sizes and tokens",
        )
    chance = _FALLS * fit.noise * 2 / np.sqrt(fit.num_points)
    for name in ("parameters", "tokens"):
        fall = _fall(fit, name)
        if fall <= chance:
            low, high = fit.inputs[name].min(), fit.inputs[name].max()
            raise FitError(
                f"the loss does not fall with {name} within the points: between {low:.3g} and "
                f"{high:.3g} {name} the law falls by {100 * fall:.2g} %, and chance alone makes "
                f"{100 * chance:.2g} %",
                hint=f"add runs that differ more in {name}, or ask a published law "
                f"(--published besiroglu2024)",
            )


def _fall(fit: Fit, name: str) -> float:
    """Return how far the law falls over the points' range of an input, the others in the middle."""
    # Laws of repeated data fall and rise again: more parameters overfit few unique tokens.
    steps = np.geomspace(fit.inputs[name].min(), fit.inputs[name].max(), _STEPS)
    middle = {key: np.full(_STEPS, np.median(column)) for key, column in fit.inputs.items()}
    logs: Array = fit.law.predict(fit.theta[None], {**middle, name: steps})[0]
    return float(logs[0] - logs.min())
