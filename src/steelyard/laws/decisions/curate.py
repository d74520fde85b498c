"""Choose the pools of data to train on; the best choice widens as good data are repeated."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import FitError
from steelyard.laws.fitting.estimate import Estimate
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.pools.pool_fit import PoolFit

__all__ = [
    "Candidates",
    "Crossing",
    "Curation",
    "PoolFrontier",
    "best_weights",
    "curate",
    "pool_frontier",
]

Candidates = Literal["prefixes", "subsets"]
"""The pools in order of utility (the best, the best two, ...), or every subset of them."""

_BUDGETS = 241
_MOST_POOLS = 10
_REACH = 30.0
_FINEST_STEP = 1e-3


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where a wider choice of pools overtakes a narrower one.

    Attributes:
        samples: number of samples seen in all at that point, with the interval over the fit's
            bootstrap.
        before: pools that are best below.
        after: pools that are best above.
    """

    samples: Estimate
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolFrontier:
    """The error of each choice of pools over the number of samples.

    Attributes:
        budgets: numbers of samples seen in all, rising, [n].
        candidates: the C choices, each drawn in proportion to its pools' sizes.
        errors: predicted errors, [C, n].
        best: number of the best candidate at each budget, [n].
        crossings: changes of the best within the budgets, in order.
    """

    budgets: Array
    candidates: tuple[tuple[str, ...], ...]
    errors: Array
    best: NDArray[np.int64]
    crossings: tuple[Crossing, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Curation:
    """The pools to train on.

    Attributes:
        samples: number of samples seen in all.
        pools: the choice.
        weights: share of samples drawn from each of its pools.
        error: predicted error, with the interval of a new run.
        rejected: the other candidates with the error predicted for each, best first.
        crossings: budgets at which another choice becomes best, as `PoolFrontier`.
        value_of_more: for each pool of the choice, the fall of the error with `more` further
            unique samples of it.
    """

    samples: float
    pools: tuple[str, ...]
    weights: dict[str, float]
    error: Estimate
    rejected: tuple[tuple[tuple[str, ...], float], ...]
    crossings: tuple[Crossing, ...]
    value_of_more: dict[str, float]


def pool_frontier(
    fit: PoolFit,
    budgets: ArrayLike,
    *,
    pool_sizes: Mapping[str, float] | None = None,
    candidates: Candidates | Sequence[Sequence[str]] = "prefixes",
    level: float = 0.8,
) -> PoolFrontier:
    """Predict each choice of pools at each budget and find where the best one changes.

    Args:
        fit: fit of all pools.
        budgets: numbers of samples seen in all, at least one pass of the smallest pool, [n].
        pool_sizes: unique samples by pool where they differ from the measured pools.
        candidates: choices to compare, by rule or as lists of names; each is drawn in proportion to
            its pools' sizes.
        level: probability inside the crossings' intervals.

    Returns:
        Errors, the best choice per budget and the crossings, interpolated between budgets.

    Raises:
        FitError: an unknown pool, no candidates, or a budget below one pass of the smallest pool.

    Source: Goyal, Maini et al. 2024 (arXiv 2404.07177), section 5: estimating the best pool without
        training on mixtures.
    """
    sizes = fit.sizes_of(pool_sizes)
    seen = np.unique(np.atleast_1d(np.asarray(budgets, dtype=np.float64)))
    _check_budgets(seen, sizes)
    chosen = _candidates(fit, candidates)
    shares = np.stack(
        [
            fit.shares({name: sizes[fit.pools.index(name)] for name in names}, sizes)
            for names in chosen
        ]
    )
    errors = fit.errors(
        np.repeat(shares, len(seen), axis=0), sizes, np.tile(seen, len(chosen))
    ).reshape(-1, len(chosen), len(seen))
    best = errors[0].argmin(axis=0)
    crossings = tuple(
        _crossing(errors, np.log(seen), chosen, int(best[at]), int(best[at + 1]), int(at), level)
        for at in np.flatnonzero(np.diff(best))
    )
    return PoolFrontier(
        budgets=seen, candidates=chosen, errors=errors[0], best=best, crossings=crossings
    )


def curate(
    fit: PoolFit,
    samples: float,
    pool_sizes: Mapping[str, float] | None = None,
    *,
    candidates: Candidates | Sequence[Sequence[str]] = "prefixes",
    weights: Literal["size", "best"] = "size",
    more: float = 1e6,
    level: float = 0.8,
) -> Curation:
    """Choose the pools to train on for a number of samples.

    Args:
        fit: fit of all pools.
        samples: number of samples to be seen in all, at least one pass of the smallest pool.
        pool_sizes: unique samples by pool where they differ from the measured pools.
        candidates: choices to compare, by rule or as lists of names.
        weights: draw the chosen pools in proportion to their "size", or at the "best" weights that
            the law knows of.
        more: number of further unique samples whose value is asked for.
        level: probability inside the intervals.

    Returns:
        The choice with its error, the rejected ones, the crossing budgets and what more data would
        bring.

    Raises:
        FitError: an unknown pool, no candidates, or fewer samples than one pass of the smallest
            pool.

    Example:
        >>> curate(fit, 1.28e8).pools  # doctest: +SKIP
        ('top 10 %', '10-20 %')
    """
    sizes = fit.sizes_of(pool_sizes)
    _check_budgets(np.array([samples], dtype=np.float64), sizes)
    reach = np.geomspace(sizes.min(), max(_REACH * sizes.sum(), samples), _BUDGETS)
    frontier = pool_frontier(
        fit, np.append(reach, samples), pool_sizes=pool_sizes, candidates=candidates, level=level
    )
    errors = frontier.errors[:, np.searchsorted(frontier.budgets, samples)]
    order = np.argsort(errors, kind="stable")
    pools = frontier.candidates[order[0]]
    drawn = (
        best_weights(fit, samples, pools, pool_sizes)
        if weights == "best"
        else _by_size(fit, pools, sizes)
    )
    return Curation(
        samples=float(samples),
        pools=pools,
        weights=drawn,
        error=fit.predict(
            drawn, samples, level, pool_sizes=dict(zip(fit.pools, sizes.tolist(), strict=True))
        ).first,
        rejected=tuple((frontier.candidates[row], float(errors[row])) for row in order[1:]),
        crossings=frontier.crossings,
        value_of_more={
            pool: _value(fit, drawn, pool, samples, sizes, more, weights) for pool in pools
        },
    )


def best_weights(
    fit: PoolFit,
    samples: float,
    pools: Sequence[str] | None = None,
    pool_sizes: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Find the shares of samples per pool with the least predicted error.

    Starting from draws by size and from each pool alone, share moves from one pool to another in
    ever smaller steps while the error falls; half-lives stretch by 1 / share, so that the error is
    a smooth function of the shares.

    Args:
        fit: fit of all pools, with `stretch="share"`.
        samples: number of samples to be seen in all.
        pools: pools to draw from; all when None.
        pool_sizes: unique samples by pool where they differ from the measured pools.

    Returns:
        Shares by pool, sum 1; pools that get none are left out.

    Raises:
        FitError: half-lives stretch by size, under which a pool in play but never drawn would make
            all others last longer.
    """
    if fit.stretch != "share":
        raise FitError(
            "weights are optimized only with half-lives that stretch by share",
            hint='use fit_pools(..., stretch="share")',
        )
    sizes = fit.sizes_of(pool_sizes)
    names = tuple(pools or fit.pools)
    starts = [
        fit.shares(_by_size(fit, names, sizes), sizes),
        *(fit.shares({name: 1.0}, sizes) for name in names),
    ]
    found = [
        _move_shares(fit, start, [fit.pools.index(name) for name in names], sizes, samples)
        for start in starts
    ]
    best = min(found, key=lambda pair: pair[1])[0]
    return {name: float(share) for name, share in zip(fit.pools, best, strict=True) if share > 0}


def _move_shares(
    fit: PoolFit, shares: Array, rows: list[int], sizes: Array, samples: float
) -> tuple[Array, float]:
    """Move share between pairs of pools while the error falls; return shares and error."""
    error = float(_errors(fit, shares[None], sizes, samples)[0])
    step = 0.25
    while step > _FINEST_STEP:
        moves = []
        for giver, taker in itertools.permutations(rows, 2):
            moved = shares.copy()
            amount = min(step, moved[giver])
            moved[giver], moved[taker] = moved[giver] - amount, moved[taker] + amount
            moves.append(moved)
        if not moves:
            break
        trial = _errors(fit, np.stack(moves), sizes, samples)
        if trial.min() < error - 1e-12:
            shares, error = moves[int(trial.argmin())], float(trial.min())
        else:
            step /= 2
    return shares, error


def _errors(fit: PoolFit, shares: Array, sizes: Array, samples: float) -> Array:
    """Return the errors of shares [C, P] at the optimum, without the bootstrap's, [C]."""
    point = replace(fit, fit=replace(fit.fit, samples=fit.fit.samples[:0]))
    return point.errors(shares, sizes, np.full(len(shares), samples))[0]


def _value(
    fit: PoolFit,
    weights: Mapping[str, float],
    pool: str,
    samples: float,
    sizes: Array,
    more: float,
    kind: str,
) -> float:
    """Return the fall of the error when a pool grows; draws by size follow the new sizes."""
    grown = sizes.copy()
    grown[fit.pools.index(pool)] += more
    before = fit.shares(weights, sizes)
    after = before if kind == "best" else fit.shares(_by_size(fit, tuple(weights), grown), grown)
    fall = _errors(fit, before[None], sizes, samples) - _errors(fit, after[None], grown, samples)
    return float(fall[0])


def _by_size(fit: PoolFit, pools: Sequence[str], sizes: Array) -> dict[str, float]:
    """Return shares in proportion to size."""
    own = {name: float(sizes[fit.pools.index(name)]) for name in pools}
    return {name: size / sum(own.values()) for name, size in own.items()}


def _check_budgets(seen: Array, sizes: Array) -> None:
    """Refuse budgets below one pass of the smallest pool."""
    bad = seen[~(np.isfinite(seen) & (seen >= sizes.min()))]
    if len(bad) or not len(seen):
        given = f"{bad[0]:.4g} samples" if len(bad) else "no budget"
        raise FitError(
            f"{given}: at least one pass of the smallest pool is needed, {sizes.min():.4g}",
            hint="ask for more samples",
        )


def _candidates(
    fit: PoolFit, wanted: Candidates | Sequence[Sequence[str]]
) -> tuple[tuple[str, ...], ...]:
    """List the choices of pools."""
    order = sorted(fit.pools, key=lambda pool: fit.fit.params[f"b[{pool}]"])
    if wanted == "prefixes":
        return tuple(tuple(order[:count]) for count in range(1, len(order) + 1))
    if wanted == "subsets":
        if len(order) > _MOST_POOLS:
            raise FitError(
                f"{len(order)} pools have too many subsets",
                hint=f"at most {_MOST_POOLS}; use prefixes or list the candidates",
            )
        return tuple(
            names
            for count in range(1, len(order) + 1)
            for names in itertools.combinations(order, count)
        )
    if isinstance(wanted, str) or not len(wanted):
        raise FitError(
            f"unknown candidates {wanted!r}", hint="prefixes, subsets, or lists of pool names"
        )
    return tuple(tuple(names) for names in wanted)


def _crossing(
    errors: Array,
    logs: Array,
    candidates: tuple[tuple[str, ...], ...],
    before: int,
    after: int,
    at: int,
    level: float,
) -> Crossing:
    """Interpolate where two candidates are equal, for the optimum and each bootstrap."""
    ahead = errors[:, after] - errors[:, before]
    samples = np.array([_first_zero(row, logs) for row in ahead[1:]])
    return Crossing(
        Estimate.of(float(np.exp(_zero(ahead[0], logs, at))), np.exp(samples), level),
        candidates[before],
        candidates[after],
    )


def _zero(ahead: Array, logs: Array, at: int) -> float:
    """Interpolate a sign change between budgets `at` and `at` + 1."""
    share = ahead[at] / (ahead[at] - ahead[at + 1])
    return float(logs[at] + share * (logs[at + 1] - logs[at]))


def _first_zero(ahead: Array, logs: Array) -> float:
    """Find the last change from behind to ahead; NaN when there is none."""
    # A bootstrap may cross several times; the last one is beyond which the wider choice stays
    # ahead.
    changes = np.flatnonzero((ahead[:-1] > 0) & (ahead[1:] <= 0))
    return _zero(ahead, logs, int(changes[-1])) if len(changes) else float("nan")
