"""How far forecasts of layouts may be off, together: errors of parts that layouts share.

The seconds of a step are a sum of parts: kernels, traffic of each kind, the pipeline's bubble. The
forecast of each part is off by a factor that all layouts of one machine and model share, and each
layout has a rest of its own. So the errors of two layouts that spend their time alike move
together: what is measured of one says much of the other, and little of one that waits for links.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.cost.step import StepCost
from steelyard.errors import FitError, require
from steelyard.quantity import Z80

__all__ = ["PARTS", "Beliefs", "Doubt", "fit_beliefs", "part_shares"]

Array = NDArray[np.float64]

PARTS = (
    "compute_s",
    "tensor_s",
    "context_s",
    "expert_s",
    "bubble_s",
    "data_s",
    "host_s",
    "update_s",
)
"""Parts of a step that are forecast, as `cost.step.StepCost` names them."""

_LEAST, _MOST = 1e-3, 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Beliefs:
    """Spreads of the errors of a step's forecast, as standard deviations of logarithms.

    Attributes:
        parts: spread of each part's factor, in the order of `names`.
        own: spread of what a layout's time has of its own.
        names: parts of the time; those of an optimizer step when not given.
    """

    parts: tuple[float, ...]
    own: float
    names: tuple[str, ...] = PARTS

    def __post_init__(self) -> None:
        """Refuse spreads that no error has.

        Raises:
            ConfigError: a spread is negative, or there is not one for each part.
        """
        good = len(self.parts) == len(self.names) and min(self.parts) >= 0
        require(
            self,
            parts=(good, f"{len(self.names)} numbers of at least 0"),
            own=(self.own > 0, "above 0"),
        )

    def doubt(self, shares: ArrayLike) -> "Doubt":
        """Return what is believed of layouts before any is measured.

        Args:
            shares: parts of each layout's time, [layouts, parts], as `part_shares` returns them.

        Returns:
            The doubt about their times.
        """
        rows = np.atleast_2d(np.asarray(shares, dtype=float))
        return Doubt(
            shares=rows,
            mean=np.zeros(len(self.parts)),
            covariance=np.diag(np.square(self.parts)),
            own=self.own,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Doubt:
    """What is believed of the errors of some layouts' forecasts; logarithms of measured / forecast.

    Attributes:
        shares: parts of each layout's time, [layouts, parts].
        mean: expected error of each part's factor, [parts].
        covariance: covariance of the parts' factors, [parts, parts].
        own: spread of what a layout's time has of its own.
    """

    shares: Array
    mean: Array
    covariance: Array
    own: float

    def shared(self, spread: float) -> "Doubt":
        """Return the doubt where one more factor is off, the same one for every layout.

        Args:
            spread: standard deviation of its logarithm.

        Returns:
            The new doubt; how sure the order of layouts is does not change.
        """
        # Shares add up to 1, so that a constant adds the same to all covariances of times.
        return replace(self, covariance=self.covariance + spread**2)

    @property
    def shift(self) -> Array:
        """Expected error of each layout's time, [layouts]."""
        return self.shares @ self.mean

    @property
    def times_covariance(self) -> Array:
        """Covariance of the layouts' errors, [layouts, layouts]."""
        return self.shares @ self.covariance @ self.shares.T + self.own**2 * np.eye(
            len(self.shares)
        )

    @property
    def spread(self) -> Array:
        """Standard deviation of each layout's error, [layouts]."""
        shared = np.einsum("lp,pq,lq->l", self.shares, self.covariance, self.shares)
        return np.sqrt(shared + self.own**2)

    def interval(self, seconds: ArrayLike) -> tuple[Array, Array, Array]:
        """Return expected times and their 80 % intervals.

        Args:
            seconds: forecast times, [layouts].

        Returns:
            Expected, low and high seconds, each [layouts].
        """
        middle = np.asarray(seconds, dtype=float) * np.exp(self.shift)
        width = np.exp(Z80 * self.spread)
        return middle, middle / width, middle * width

    def after(self, mix: ArrayLike, error: float, noise: float) -> "Doubt":
        """Return what is believed once a mix of parts has been measured.

        Args:
            mix: how much of each part the measurement shows, [parts]: a layout's shares, or a part
                alone.
            error: logarithm of measured over forecast.
            noise: standard deviation of what the measurement has of its own: its scatter, and for a
                layout's step the rest that is its own.

        Returns:
            The new doubt.
        """
        seen = np.asarray(mix, dtype=float)
        across = self.covariance @ seen
        gain = across / (seen @ across + noise**2)
        return replace(
            self,
            mean=self.mean + gain * (error - seen @ self.mean),
            covariance=self.covariance - np.outer(gain, across),
        )


def part_shares(cost: StepCost) -> Array:
    """Return which share of each layout's time its parts take.

    Args:
        cost: step of one layout, or of arrays of layouts.

    Returns:
        Shares, [layouts, parts]; rows add up to 1.
    """
    columns = np.broadcast_arrays(*(np.atleast_1d(getattr(cost, name)) for name in PARTS))
    rows = np.stack([column.ravel() for column in columns], axis=1).astype(float)
    return rows / rows.sum(axis=1, keepdims=True)


def fit_beliefs(
    groups: Sequence[tuple[ArrayLike, ArrayLike]], names: tuple[str, ...] = PARTS
) -> Beliefs:
    """Estimate the spreads from forecasts that were measured, by maximum likelihood.

    Args:
        groups: shares of the layouts of each machine and model, [layouts, parts], and the
            logarithms of measured over forecast time, [layouts]. The parts' factors differ from
            group to group.
        names: parts of the time, in the order of the shares.

    Returns:
        The spreads; parts that no layout has get the spread of the first.

    Raises:
        FitError: there are fewer than two groups, or a logarithm is not finite.
    """
    from scipy.optimize import minimize

    rows = [(np.asarray(a, dtype=float), np.asarray(b, dtype=float)) for a, b in groups]
    finite = all(np.isfinite(errors).all() for _, errors in rows)
    if len(rows) < 2 or not finite:
        raise FitError(
            f"{len(rows)} groups of measured layouts, but at least 2 with finite times are needed",
            hint="measure layouts of another model or machine",
        )
    largest = np.max([shares.max(axis=0) for shares, _ in rows], axis=0)
    used = largest > 0

    sums = [_moments(shares[:, used], errors) for shares, errors in rows]

    def loss(logs: Array) -> float:
        values = np.exp(logs)
        return sum(_surprise(moments, values) for moments in sums)

    start = np.log(np.full(used.sum() + 1, 0.1))
    bounds = [(np.log(_LEAST), np.log(_MOST))] * len(start)
    found: Any = minimize(loss, start, method="L-BFGS-B", bounds=bounds)
    spreads = np.exp(found.x)
    parts = np.full(len(names), spreads[0])
    parts[used] = spreads[:-1]
    return Beliefs(parts=tuple(map(float, parts)), own=float(spreads[-1]), names=names)


def _surprise(moments: tuple[Array, Array, float, int], spreads: Array) -> float:
    """Return minus the log likelihood of a group's errors, without constants.

    Their covariance is diagonal but for as many directions as there are parts, so that sums over
    the group's layouts say all of it, however many they are.
    """
    gram, cross, squares, count = moments
    # A weak pull towards 0.1 keeps spreads of parts that hardly matter from running off.
    pull = 0.02 * float(np.square(np.log(spreads / 0.1)).sum())
    parts, own = spreads[:-1], spreads[-1]
    inner = np.eye(len(parts)) + gram * np.outer(parts, parts) / own**2
    factor = np.linalg.cholesky(inner)
    seen = np.linalg.solve(factor, parts * cross) / own
    scaled = (squares - float(seen @ seen)) / own**2
    return 0.5 * scaled + float(np.log(np.diag(factor)).sum()) + count * float(np.log(own)) + pull


def _moments(shares: Array, errors: Array) -> tuple[Array, Array, float, int]:
    """Return the sums over a group's layouts that its likelihood rests on."""
    return shares.T @ shares, shares.T @ errors, float(errors @ errors), len(errors)
