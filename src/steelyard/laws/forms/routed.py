"""Routed (mixture-of-experts) models: loss bilinear in log size and log experts.

All logarithms of these laws have base 10, as in the paper: log10 L = a log10 N + b log10 Eh + c
log10 N log10 Eh + d, where Eh is the number of experts E after saturation, 1/Eh = 1/(E - 1 +
1/(1/E_start - 1/E_max)) + 1/E_max. So Eh(1) = E_start and Eh(inf) = E_max. The law holds at one
number of training tokens; it says nothing about others.
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.fitting.estimate import Estimate, band
from steelyard.laws.fitting.fitted import Fit, Prediction
from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.points import positive_column, refuse_rows
from steelyard.laws.fitting.terms import Array, Derivatives
from steelyard.laws.forms.terms import Formula, formula_law, positive, real

__all__ = [
    "cutoff",
    "effective_parameters",
    "level_curve",
    "routed",
    "routed_coefficients",
    "routed_points",
]

_LN10 = math.log(10.0)
_SHARES = {
    "experts": ("parameters", "experts"),
    "utilization": ("forward_parameters", "utilization"),
}


def routed(by: str = "experts", saturation: bool | str = True) -> Law:
    """Log10 loss = a log10 N + b log10 Eh + c log10 N log10 Eh + d, for routed models.

    With by = "utilization" the same form in F, the dense parameters that cost the same forward
    FLOP, and B, total parameters per F: runs with more experts per token or another share of routed
    layers fall onto it as well.

    Args:
        by: "experts" (inputs "parameters" of the dense model and "experts", dense runs as 1
            expert), or "utilization" (inputs "forward_parameters" and "utilization", dense runs as
            1).
        saturation: whether few and very many experts count less; "unsaturated" says no.

    Returns:
        The law with 6 parameters (4 without saturation).

    Raises:
        FitError: `by` is something else.

    Example:
        >>> fit(routed(), {"parameters": n, "experts": e}, loss, delta=math.inf)  # doctest: +SKIP

    Source: Clark et al. 2022 (arXiv 2202.01169), equations 1, 5 and 8; starts and bounds around its
    table 3.
    """
    if by not in _SHARES:
        raise FitError(f"a routed law by {by!r}", hint=f"known: {', '.join(_SHARES)}")
    parameters = (
        real("a", -1.0, 1.0, -0.15, -0.05),
        real("b", -2.0, 2.0, -0.2, -0.05),
        real("c", -0.5, 0.5, 0.0, 0.015),
        real("d", -10.0, 10.0, 1.0),
    )
    name, formula = f"routed:{by}", "log10 L = a log10 N + b log10 Eh + c log10 N log10 Eh + d"
    if saturation in (False, "unsaturated"):
        return formula_law(f"{name}:unsaturated", _bilinear, _SHARES[by], parameters, formula)
    # Their ranges do not overlap (E_start below e^3, E_max above e^3.2), because the saturation has
    # no meaning where the ends meet.
    ends = (positive("E_start", 0.0, 3.0, 0.5, 1.5), positive("E_max", 3.2, 12.0, 4.5, 6.0, 8.0))
    return formula_law(name, _bilinear, _SHARES[by], (*parameters, *ends), formula)


def _bilinear(theta: Mapping[str, Array], size: Array, spread: Array) -> tuple[Array, Derivatives]:
    """Return ln 10^(a u + b v + c u v + d), u = log10 size, v = log10 Eh of the spread, [S, n]."""
    u = np.log10(size)
    log_spread, ends = _log_spread(theta, spread)
    along = theta["b"] + theta["c"] * u
    slopes: Derivatives = {name: along * slope for name, slope in ends.items()}
    slopes |= {"a": _LN10 * u, "b": log_spread, "c": u * log_spread, "d": _LN10}
    return _LN10 * (theta["a"] * u + theta["d"]) + along * log_spread, slopes


def _log_spread(theta: Mapping[str, Array], spread: Array) -> tuple[Array, Derivatives]:
    """Return ln Eh with its derivatives by its ends, or the log spread without ends, [S, n]."""
    if "E_start" not in theta:
        return np.log(spread), {}
    start, top = np.exp(theta["E_start"]), np.exp(theta["E_max"])
    offset = start * top / (top - start)
    shifted = spread - 1 + offset
    total = shifted * (shifted + top)
    return np.log(shifted) + theta["E_max"] - np.log(shifted + top), {
        "E_start": top * offset**2 / start / total,
        "E_max": (shifted**2 - offset**2) / total,
    }


def routed_coefficients(
    *, a: float, b: float, c: float, d: float, E_start: float, E_max: float, log_base: float
) -> dict[str, float]:
    """Bring coefficients of the bilinear law to base 10, the base of `routed`.

    Args:
        a: coefficient of log size.
        b: coefficient of log experts.
        c: coefficient of their product.
        d: the constant.
        E_start: experts that one expert counts as.
        E_max: experts that infinitely many count as.
        log_base: base of the logarithms the coefficients belong to, 10 or e; it cannot be guessed
            from the numbers.

    Returns:
        Values by parameter for `Law.coordinates`.

    Raises:
        FitError: the base is not above 1, or the saturation is not 0 < E_start < E_max.

    Source: from log_B x = log10 x / log10 B, a and b stay, c becomes c / log10 B and d becomes d
        log10 B.
    """
    if not (math.isfinite(log_base) and log_base > 1):
        raise FitError(
            f"logarithms of base {log_base} do not exist here",
            hint="log_base=10 for the paper's, math.e for natural ones",
        )
    if not 0 < E_start < E_max:
        raise FitError(
            f"E_start {E_start} must lie between 0 and E_max {E_max}",
            hint="both are counts of experts, not logarithms",
        )
    scale = math.log10(log_base)
    return {"a": a, "b": b, "c": c / scale, "d": d * scale, "E_start": E_start, "E_max": E_max}


def routed_points(
    parameters: ArrayLike,
    experts: ArrayLike,
    *,
    experts_per_token: ArrayLike = 1,
    total_parameters: ArrayLike | None = None,
    flop_ratio: ArrayLike = 1.0,
) -> dict[str, Array]:
    """Make the inputs of both routed laws from what a run table holds.

    Args:
        parameters: size of the dense model with the same layers, what one token meets, [n].
        experts: number of experts per routed layer, at least 1; dense runs enter every router's fit
            as 1, [n].
        experts_per_token: how many a token is sent to, at most `experts` unless the run is dense,
            [n] or one for all.
        total_parameters: parameters of the whole model; None leaves the columns of the utilization
            form out, [n].
        flop_ratio: forward FLOP over those of the dense model, [n] or one for all.

    Returns:
        Columns "parameters" and "experts", and with `total_parameters` also "forward_parameters"
        and "utilization", [n] each.

    Raises:
        FitError: experts below 1 or not whole, more experts per token than experts, or other values
            that are not positive.
    """
    size, count, chosen, ratio = np.broadcast_arrays(
        *(
            np.asarray(column, dtype=np.float64)
            for column in (np.atleast_1d(parameters), experts, experts_per_token, flop_ratio)
        )
    )
    refuse_rows(
        ~(np.isfinite(count) & (count >= 1) & (count == np.round(count))),
        "experts are whole numbers of at least 1",
        count,
        "a dense run has 1 expert, not 0",
    )
    refuse_rows(
        ~(chosen >= 1) | ((chosen > count) & (count > 1)),
        "experts_per_token lie between 1 and the experts",
        chosen,
        "a token meets at most all experts",
    )
    for name, column in (("parameters", size), ("flop_ratio", ratio)):
        positive_column(name, column, len(size))
    columns = {"parameters": np.array(size), "experts": np.array(count)}
    if total_parameters is not None:
        total = positive_column("total_parameters", total_parameters, len(size))
        columns |= {"forward_parameters": size * ratio, "utilization": total / (size * ratio)}
    return columns


def effective_parameters(
    fit: Fit, parameters: ArrayLike, experts: ArrayLike, level: float = 0.8
) -> Prediction:
    """Say how large a dense model reaches the loss of a routed one.

    It puts dense and routed models onto one line: loss = 10^(d + b log10 E_start) * effective^(a +
    c log10 E_start).

    Args:
        fit: fit of a `routed` law with saturation; for the utilization form sizes and spread are
            its two inputs.
        parameters: what one token meets, [n] or a number.
        experts: number of experts, [n] or a number.
        level: probability inside the interval, which holds the spread of the coefficients only,
            0..1.

    Returns:
        Dense parameters with low and high, [n].

    Source: Clark et al. 2022 (arXiv 2202.01169), equation 7.
    """
    size, count = _columns(parameters, experts)
    values = _values(fit)
    dense = values["a"] + values["c"] * np.log10(values["E_start"])
    spread = _log10_spread(values, count)
    log = (
        (values["a"] + values["c"] * spread) * np.log10(size)
        + values["b"] * (spread - np.log10(values["E_start"]))
    ) / dense
    return band(_LN10 * log, level)


def level_curve(fit: Fit, loss: float, experts: ArrayLike, level: float = 0.8) -> Prediction:
    """Return the model size that reaches a loss at each number of experts.

    Args:
        fit: fit of a `routed` law with saturation.
        loss: wanted loss, in the unit of the fit's targets, positive.
        experts: number of experts, [n] or a number.
        level: probability inside the interval, which holds the spread of the coefficients only,
            0..1.

    Returns:
        Parameters one token meets with low and high, [n].

    Raises:
        FitError: the loss is not positive and finite.

    Source: Clark et al. 2022 (arXiv 2202.01169), equation 5, solved for N.
    """
    if not (math.isfinite(loss) and loss > 0):
        raise FitError(
            f"a loss of {loss} cannot be reached",
            hint="give a positive loss in the unit of the points",
        )
    values = _values(fit)
    spread = _log10_spread(values, _columns(1.0, experts)[1])
    log = (math.log10(loss) - values["d"] - values["b"] * spread) / (
        values["a"] + values["c"] * spread
    )
    with np.errstate(over="ignore"):
        return band(_LN10 * log, level)


def cutoff(fit: Fit, level: float = 0.8) -> Estimate:
    """Estimate the model size beyond which more experts stop lowering the loss.

    It is 10^(-b / c), so small changes of either move it by factors: read the interval, not the
    value. It belongs to one router, one number of tokens and one set-up.

    Args:
        fit: fit of a `routed` law.
        level: probability inside the interval, 0..1.

    Returns:
        Parameters with interval; infinite where c is not positive, which means the points show no
        such size.

    Source: Clark et al. 2022 (arXiv 2202.01169), section 5.2.
    """
    _check_routed(fit)
    inverse = fit.derive(lambda values: -values["c"] / values["b"], level)
    return Estimate(
        _power_of_ten(inverse.value), _power_of_ten(inverse.high), _power_of_ten(inverse.low)
    )


def _power_of_ten(inverse: float) -> float:
    """Return 10^(1 / inverse); infinite when that overflows or has no meaning."""
    return 10 ** (1 / inverse) if inverse > 1 / 300 else math.inf


def _check_routed(fit: Fit) -> None:
    """Refuse fits of other laws."""
    if not isinstance(fit.law.term, Formula) or fit.law.term.function is not _bilinear:
        raise FitError(
            f"law {fit.law.name} is not a routed law",
            hint="fit routed() of steelyard.laws.forms.routed",
        )


def _columns(parameters: ArrayLike, experts: ArrayLike) -> tuple[Array, Array]:
    """Check the two inputs of a question; [n] each."""
    size, count = np.broadcast_arrays(
        np.atleast_1d(np.asarray(parameters, float)), np.atleast_1d(np.asarray(experts, float))
    )
    positive_column("parameters", size, len(size))
    refuse_rows(
        ~(np.isfinite(count) & (count >= 1)),
        "experts are at least 1",
        count,
        "a dense model has 1 expert",
    )
    return size, count


def _values(fit: Fit) -> dict[str, Array]:
    """Return the optimum and the bootstraps as natural values, [1 + B, 1] each."""
    _check_routed(fit)
    if "E_start" not in fit.law.term.transforms:
        raise FitError(
            f"law {fit.law.name} has no saturation, so one expert counts for nothing",
            hint="fit routed() with saturation",
        )
    return {name: column[:, None] for name, column in fit.draws().items()}


def _log10_spread(values: Mapping[str, Array], experts: Array) -> Array:
    """Return log10 Eh, [1 + B, n]."""
    logs = {name: np.log(values[name]) for name in ("E_start", "E_max")}
    return _log_spread(logs, experts)[0] / _LN10
