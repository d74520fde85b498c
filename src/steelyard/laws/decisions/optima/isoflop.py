"""The model size of least loss per compute budget, and how it grows with the budget."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.decisions.optima.valley import Edge, Method, curve_noise, valleys
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.points import check_positive, positive_columns, refuse_constant
from steelyard.laws.fitting.terms import Array

__all__ = ["BudgetMinimum", "IsoFlop", "isoflop"]

_SAME_BUDGET = 0.05
_FEWEST_BUDGETS = 3
_ASSUMED_NOISE = 0.002
"""Log loss spread of one run where the points leave no residual to measure it: seeds of small
language models differ by so much."""
_AT_EDGE_TOO_OFTEN = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetMinimum:
    """The best model size of one budget.

    Attributes:
        flops: the budget, FLOP.
        parameters: size of least loss with its interval under the noise of the losses.
        tokens: training tokens at that size.
        loss: least loss, in the unit of the points.
        num_points: sizes that were trained at this budget.
        edge: "low" or "high" when the least loss lies at the smallest or largest size trained, ""
            when it lies inside.
        state: "used", "extended" (a minimum beyond the edge, by a parabola) or "dropped".
        reason: why it was dropped; empty otherwise.
    """

    flops: float
    parameters: Estimate
    tokens: float
    loss: float
    num_points: int
    edge: Edge
    state: Literal["used", "extended", "dropped"]
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class IsoFlop:
    """How the best model size and token count grow with compute.

    Attributes:
        budgets: one per compute budget, rising.
        lines: (intercept, slope) of ln N* over ln C and of ln D* over ln C, [1 + B, 2, 2]; the
            estimate, then B bootstraps.
        noise: standard deviation of the log losses that the bootstrap added.
        noise_source: "given", "measured" from the points, or "assumed".
        scatter: standard deviation of ln N* about the line beyond what that noise explains.
        level: probability inside the intervals.
        source: source of the points.
    """

    budgets: tuple[BudgetMinimum, ...]
    lines: Array
    noise: float
    noise_source: Literal["given", "measured", "assumed"]
    scatter: float
    level: float
    source: str

    @property
    def exponent(self) -> Estimate:
        """Exponent a of N* ~ C^a."""
        return Estimate.over(self.lines[:, 0, 1], self.level)

    @property
    def token_exponent(self) -> Estimate:
        """Exponent of D* ~ C^b; 1 - a when FLOPs are 6 N D."""
        return Estimate.over(self.lines[:, 1, 1], self.level)

    @property
    def dropped(self) -> tuple[BudgetMinimum, ...]:
        """Budgets that took no part, each with its reason."""
        return tuple(item for item in self.budgets if item.state == "dropped")

    def parameters(self, flops: float) -> Estimate:
        """Return the best model size of a budget, counted as the points count.

        Args:
            flops: budget in FLOP, positive; beyond the points the line goes on.

        Returns:
            Size with its interval.

        Raises:
            FitError: the budget is not positive and finite.
        """
        return self._at(flops, 0)

    def tokens(self, flops: float) -> Estimate:
        """Return the training tokens that belong to the best size of a budget.

        Args:
            flops: budget in FLOP, positive.

        Returns:
            Tokens with their interval.

        Raises:
            FitError: the budget is not positive and finite.
        """
        return self._at(flops, 1)

    def _at(self, flops: float, which: int) -> Estimate:
        if not (np.isfinite(flops) and flops > 0):
            raise FitError(
                f"a budget of {flops:g} FLOP has no best size", hint="give the budget like 1e22"
            )
        return Estimate.over(
            np.exp(self.lines[:, which, 0] + self.lines[:, which, 1] * np.log(flops)), self.level
        )


def isoflop(
    points: Mapping[str, ArrayLike],
    *,
    method: Method = "interpolation",
    window: int = 5,
    edges: Literal["drop", "extend"] = "drop",
    noise: float | None = None,
    bootstrap: Bootstrap = Bootstrap(count=400),
    level: float = 0.8,
    flops_per_parameter_token: float = 6.0,
) -> IsoFlop:
    """Find the best model size of each compute budget and its power law in compute.

    Rows of one budget differ in size; their losses form a valley over ln N whose bottom is N*. The
    bootstrap adds noise to all losses and finds every bottom again; their spread weighs the budgets
    in the regression of ln N* on ln C, together with the scatter about the line that noise does not
    explain.

    Args:
        points: a `RunTable` or columns "parameters", "loss" and "flops", or "tokens" in place of
            "flops", [n] each; budgets within 5 % are one. With all of them tokens at the minimum
            are interpolated, otherwise they are C / (6 N).
        method: "interpolation" by Akima's splines through the points, or "parabola" through those
            nearest the least loss.
        window: points of the parabola, at least 3.
        edges: "drop" budgets whose least loss lies at an edge of the sizes, or "extend" the valley
            by a parabola through the three points at the edge, by at most the distance between the
            last two sizes.
        noise: standard deviation of the log loss of one run (its seed); None to measure it from the
            roughness of the valleys.
        bootstrap: noisy copies, at least 20, and their seed.
        level: probability inside the intervals, 0..1.
        flops_per_parameter_token: FLOP per parameter and token where a column is missing.

    Returns:
        Exponents, minima and predictions with intervals.

    Raises:
        FitError: columns are missing or not positive, fewer than three budgets have a usable
            minimum (each is named with its reason), or an argument is out of range.

    Example:
        >>> isoflop(table).exponent  # doctest: +SKIP
        Estimate(value=0.497, low=0.478, high=0.514)

    Source: Hoffmann et al. 2022 (arXiv 2203.15556), approach 2; noise and Akima's
        interpolation as in Porian et al. 2024 (arXiv 2406.19146), section 3.
    """
    _check_options(window, noise, bootstrap.count, level)
    curves = _curves(_columns(points, flops_per_parameter_token))
    size, origin = _noise(curves, noise)
    generator = bootstrap.only_way("isoflop adds noise to the losses")
    found = [
        _minimum(curve, size, method, window, edges, bootstrap.count, level, generator)
        for curve in curves
    ]
    used = [item for item in found if item[0].state != "dropped"]
    if len(used) < _FEWEST_BUDGETS:
        reasons = "; ".join(
            f"{record.flops:.3g} FLOP: {record.reason}" for record, *_ in found if record.reason
        )
        raise FitError(
            f"{len(used)} budgets have a minimum, at least {_FEWEST_BUDGETS} are "
            f"needed{' (' + reasons + ')' if reasons else ''}",
            hint="train sizes on both sides of the least loss at each budget, or allow "
            "edges='extend'",
        )
    lines, scatter = _regress(used, generator)
    return IsoFlop(
        budgets=tuple(record for record, *_ in found),
        lines=lines,
        noise=size,
        noise_source=origin,
        scatter=scatter,
        level=level,
        source=str(getattr(points, "source", "")),
    )


@dataclass(frozen=True, slots=True)
class _Curve:
    """The points of one budget by rising size: logs of sizes, tokens and losses, [m] each."""

    flops: float
    size: Array
    tokens: Array
    loss: Array


_Found = tuple[BudgetMinimum, Array, Array]
"""A budget with its ln N* and ln D*, the estimate and the bootstraps, [1 + B] each."""


def _check_options(window: int, noise: float | None, bootstraps: int, level: float) -> None:
    """Refuse options out of range."""
    if window < 3 or bootstraps < 20 or not 0 < level < 1:
        raise FitError(
            f"window {window} must be >= 3, bootstraps {bootstraps} >= 20 and level {level} "
            f"between 0 and 1"
        )
    if noise is not None:
        check_positive("0.002 says that seeds move a loss by 0.2 %", noise=noise)


def _columns(points: Mapping[str, ArrayLike], factor: float) -> dict[str, Array]:
    """Collect positive float64 columns parameters, tokens, flops and loss."""
    missing = [name for name in ("parameters", "loss") if name not in points]
    if missing or not ("flops" in points or "tokens" in points):
        raise FitError(
            f"isoflop needs parameters, loss and flops or tokens; missing: "
            f"{', '.join(missing) or 'flops or tokens'}",
            hint=f"given: {', '.join(points)}",
        )
    names = ("parameters", "loss", "flops", "tokens")
    columns = positive_columns({name: points[name] for name in names if name in points})
    refuse_constant("loss", columns["loss"])
    columns.setdefault("flops", factor * columns["parameters"] * columns.get("tokens", np.ones(1)))
    columns.setdefault("tokens", columns["flops"] / factor / columns["parameters"])
    return columns


def _curves(columns: Mapping[str, Array]) -> list[_Curve]:
    """Split the rows into budgets; several runs of one size become their mean log loss."""
    order = np.argsort(columns["flops"], kind="stable")
    logs = {name: np.log(column[order]) for name, column in columns.items()}
    starts = np.flatnonzero(np.diff(logs["flops"], prepend=-np.inf) > _SAME_BUDGET)
    curves = []
    for rows in np.split(np.arange(len(order)), starts[1:]):
        sizes, place = np.unique(logs["parameters"][rows], return_inverse=True)
        mean = {
            name: np.bincount(place, logs[name][rows]) / np.bincount(place)
            for name in ("tokens", "loss")
        }
        curves.append(
            _Curve(float(np.exp(logs["flops"][rows].mean())), sizes, mean["tokens"], mean["loss"])
        )
    return curves


def _noise(
    curves: list[_Curve], given: float | None
) -> tuple[float, Literal["given", "measured", "assumed"]]:
    """Resolve the noise of the log losses."""
    if given is not None:
        return given, "given"
    measured = curve_noise([(curve.size, curve.loss) for curve in curves])
    return (_ASSUMED_NOISE, "assumed") if measured is None else (measured, "measured")


def _minimum(
    curve: _Curve,
    noise: float,
    method: Method,
    window: int,
    edges: str,
    bootstraps: int,
    level: float,
    generator: np.random.Generator,
) -> _Found:
    """Find one budget's minimum in the losses and in noisy copies of them."""
    copies = np.empty((1 + bootstraps, len(curve.loss)))
    # In place, because a table may have tens of thousands of sizes at one budget.
    copies[0] = 0.0
    generator.standard_normal(out=copies[1:])
    copies *= noise
    copies += curve.loss
    found = valleys(curve.size, copies, method, window)
    is_inside = np.isfinite(found.size) & (~found.is_extended | (edges == "extend"))
    state: Literal["used", "extended", "dropped"] = "dropped"
    reason = ""
    if len(curve.size) < 3:
        reason = f"{len(curve.size)} sizes are too few for a minimum"
    elif not is_inside[0]:
        reason = (
            f"the least loss lies at the {'smallest' if found.edge[0] < 0 else 'largest'} of "
            f"{len(curve.size)} sizes"
        )
    elif np.mean(~is_inside) > _AT_EDGE_TOO_OFTEN:
        reason = (
            f"noise of {noise:.2%} moves the minimum to the edge of the sizes in "
            f"{np.mean(~is_inside):.0%} of the copies"
        )
    else:
        state = "extended" if found.is_extended[0] else "used"
    size = np.where(is_inside, found.size, curve.size[copies.argmin(axis=1)])
    tokens = _tokens_at(curve, size)
    edge: Edge = "" if found.edge[0] == 0 else "low" if found.edge[0] < 0 else "high"
    record = BudgetMinimum(
        flops=curve.flops,
        parameters=Estimate.over(np.exp(size), level),
        tokens=float(np.exp(tokens[0])),
        loss=float(np.exp(found.loss[0])),
        num_points=len(curve.size),
        edge=edge,
        state=state,
        reason=reason,
    )
    return record, size, tokens


def _tokens_at(curve: _Curve, size: Array) -> Array:
    """Interpolate ln tokens at ln sizes, [k]; beyond the edges tokens fall as sizes grow."""
    inside = np.clip(size, curve.size[0], curve.size[-1])
    return np.interp(inside, curve.size, curve.tokens) - (size - inside)


def _regress(found: list[_Found], generator: np.random.Generator) -> tuple[Array, float]:
    """Fit both lines to estimate and bootstraps, [1 + B, 2, 2]; return also the scatter."""
    records, sizes, tokens = zip(*found, strict=True)
    x = np.array([float(np.log(record.flops)) for record in records])
    values = np.stack([sizes, tokens])
    variance = values[0, :, 1:].var(axis=1)
    scatter = _scatter(x, values[0, :, 0], variance)
    weights = 1 / (variance + scatter**2 + 1e-12)
    # The scatter about the line is no noise of the losses, so the bootstrap must add it itself;
    # what goes to the size is taken from the tokens, because the budget is fixed.
    shift = scatter * generator.standard_normal(values[0, :, 1:].shape)
    values[0, :, 1:] += shift
    values[1, :, 1:] -= shift
    return np.transpose(_lines(x, values, weights), (2, 0, 1)), scatter


def _scatter(x: Array, y: Array, variance: Array) -> float:
    """Return the unexplained spread about the line (DerSimonian and Laird 1986, moments)."""
    weights = 1 / (variance + 1e-12)
    intercept, slope = _lines(x, y[None, :, None], weights)[0, :, 0]
    excess = float((weights * (y - intercept - slope * x) ** 2).sum()) - (len(x) - 2)
    basis = np.stack([np.ones_like(x), x], axis=1)
    normal = np.linalg.inv(basis.T @ (weights[:, None] * basis))
    trace = weights.sum() - np.trace(normal @ (basis.T @ ((weights**2)[:, None] * basis)))
    return float(np.sqrt(max(excess / trace, 0.0)))


def _lines(x: Array, values: Array, weights: Array) -> Array:
    """Regress values [k, n, S] on x [n]; return intercepts and slopes, [k, 2, S]."""
    center = (weights * x).sum() / weights.sum()
    spread = (weights * (x - center) ** 2).sum()
    slope = np.einsum("n,kns->ks", weights * (x - center), values) / spread
    mean = np.einsum("n,kns->ks", weights, values) / weights.sum()
    return np.stack([mean - slope * center, slope], axis=1)
