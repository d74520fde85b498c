"""Pools of data with a utility and a half-life each, and the error of their mixtures.

The excess error of one pool falls as a power of the samples seen; with every pass over the pool the
power weakens by a factor of two per half-life. In a mixture each pool acts on the same relative
growth of samples with the share at which it is drawn, and its half-life counts passes that come 1 /
share times more rarely. So the excess error of a mixture is a product over pools:

    ln(y - d) = ln a + sum_i share_i b_i (X_i(n) - ln n0),  X_i = sum over passes k of 2^(-k share_i
    / tau_i) ln(n_end / n_begin)
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import FitError
from steelyard.laws.fitting.law import Law, Parameter
from steelyard.laws.fitting.terms import (
    Array,
    Constant,
    Derivatives,
    Input,
    Minimum,
    Product,
    Raised,
    Sum,
    Term,
)
from steelyard.laws.forms.terms import Formula, Quotient, Repeated, positive, real

__all__ = [
    "Meeting",
    "Stretch",
    "binomial_weights",
    "effective_pool",
    "log_mixture_excess",
    "pool_utility",
]

Meeting = Literal["inside", "outside", "both"]
"""Where the curves of all pools meet: at an excess error of 1, at one sample, or at a fitted
point."""

Stretch = Literal["share", "size"]
"""How a half-life stretches in a mixture: by 1 / share drawn, or by all unique samples over the
pool's; equal for draws by size."""

_EFFECTIVE = Repeated(
    Input("samples"), Minimum((Input("samples"), Input("pool_size"))), "R", "geometric"
)
"""What samples of a pool are worth of which the repeated ones count less."""


def pool_utility(meeting: Meeting = "inside") -> Law:
    """Error = d + a (samples / n0)^b, with the utility b halved every tau passes over the pool.

    With `Law.grouped(("b", "tau"), pools)` each pool has its own utility and half-life and all
    share the rest; `fit_pools` does so.

    Args:
        meeting: which of a and n0 is fitted, the other being 1. "inside" fits n0, the samples at
            which every pool has an excess error of 1, as the paper's programs do for errors between
            0 and 1; "outside" fits a, the excess of every pool after one sample, as its formula;
            "both" fits both, for metrics on another scale.

    Returns:
        The law with inputs "samples" and "pool_size"; 4 parameters, or 5.

    Raises:
        FitError: an unknown meeting.

    Source: Goyal, Maini et al. 2024 (arXiv 2404.07177), equations 1 to 3.
    """
    half_life = positive("tau", -2.5, 9.0, 0.5, 2.0)
    growth = Formula(_log_growth, (half_life,), ("samples", "pool_size"))
    return _law(
        "pool_utility", growth, meeting, half_life, "d + a (n / n0)^b_k, b_k = b / 2^(k / tau)"
    )


def _log_growth(
    theta: Mapping[str, Array], samples: Array, sizes: Array
) -> tuple[Array, Derivatives]:
    """Return the growth of the samples in log units, weakened with every pass, [S, n]."""
    from steelyard.laws.forms.pools.pool_passes import log_growth

    half_lives = np.broadcast_to(theta["tau"], (len(theta["tau"]), len(samples)))
    growth, slope = log_growth(samples, sizes, np.log(2.0) * np.exp(-half_lives))
    return growth, {"tau": slope}


def effective_pool(meeting: Meeting = "inside") -> Law:
    """Error = d + a (effective samples / n0)^b, where a repeated sample counts less.

    The baseline the utility is compared with. Effective samples are m (1 + R (1 - (R / (1 + R))^r))
    after r repetitions of a pool of m.

    Args:
        meeting: where curves meet, as in `pool_utility`.

    Returns:
        The law with inputs "samples" and "pool_size"; 4 parameters, or 5.

    Raises:
        FitError: an unknown meeting.

    Source: Goyal, Maini et al. 2024 (arXiv 2404.07177), the effective-data baseline, after
        Muennighoff et al. 2023 (arXiv 2305.16264), equation 5.
    """
    return _law(
        "effective_pool",
        _EFFECTIVE,
        meeting,
        positive("R", -5.0, 9.0, 0.5, 2.0),
        "d + a (n_eff / n0)^b",
    )


def _law(name: str, growth: Term, meeting: Meeting, memory: Parameter, formula: str) -> Law:
    """Declare a floor d and a (growth / n0)^b above it; b and memory differ between pools."""
    known = {"inside": {"a": 1.0}, "outside": {"n0": 1.0}, "both": {}}
    if meeting not in known:
        raise FitError(f"unknown meeting {meeting!r}", hint="inside, outside or both")
    excess = Product((Constant("a"), Raised(Quotient((growth, Constant("n0"))), "b")))
    law = Law(
        name=f"{name}:{meeting}",
        term=Sum((excess, Constant("d"))),
        parameters=(
            positive("a", -20.0, 40.0, 0.0),
            positive("n0", -20.0, 40.0, 8.0),
            positive("d", -12.0, 5.0, -2.0),
            real("b", -3.0, -1e-4, -0.1, -0.4),
            memory,
        ),
        formula=formula,
        conditions=("pool_size",),
    )
    return law.fix(**known[meeting])


def log_mixture_excess(
    numbers: Mapping[str, Array],
    shares: Array,
    sizes: Array,
    samples: Array,
    stretch: Stretch = "share",
) -> Array:
    """Return the log excess error of mixtures.

    Args:
        numbers: "a" and "n0" [S], "b" and "tau" (or "R" of the effective-data baseline) [S, P],
            natural values.
        shares: rates at which the P pools are drawn, not negative, sum 1 per mixture, [C, P].
        sizes: unique samples per pool, [C, P].
        samples: number of samples seen in all, [C].
        stretch: how half-lives stretch in a mixture.

    Returns:
        ln(error - d), [S, C].

    Source: Goyal, Maini et al. 2024 (arXiv 2404.07177), theorem 1 for equal pools; the weights of
    unequal pools are an extension.
    """
    utility = shares @ numbers["b"].T
    if "tau" not in numbers:
        return _effective_mixture(numbers, shares, sizes, samples, utility.T)
    from steelyard.laws.forms.pools.pool_passes import log_growth

    unique = np.where(shares > 0, sizes, 0.0).sum(axis=1)
    total = np.log(numbers["a"])[:, None] - np.log(numbers["n0"])[:, None] * utility.T
    # A pool that is not drawn is left out: its half-life would stretch without end.
    for pool in range(shares.shape[1]):
        drawn = shares[:, pool] > 0
        share, size = shares[drawn, pool], sizes[drawn, pool]
        rarer = 1 / share if stretch == "share" else unique[drawn] / size
        rate = np.log(2.0) / numbers["tau"][:, pool : pool + 1] / rarer
        growth = log_growth(samples[drawn], size / share, rate)[0]
        total[:, drawn] += share * numbers["b"][:, pool : pool + 1] * growth
    return total


def _effective_mixture(
    numbers: Mapping[str, Array], shares: Array, sizes: Array, samples: Array, utility: Array
) -> Array:
    """Sum the effective samples of the pools and raise them to the mean utility, [S, C]."""
    total = np.zeros(utility.shape)
    for pool in range(shares.shape[1]):
        drawn = shares[:, pool] > 0
        seen = {"samples": samples[drawn] * shares[drawn, pool], "pool_size": sizes[drawn, pool]}
        log_constant = np.log(numbers["R"][:, pool : pool + 1])
        total[:, drawn] += np.exp(_EFFECTIVE.evaluate({"R": log_constant}, seen)[0])
    return np.log(numbers["a"])[:, None] + utility * (
        np.log(total) - np.log(numbers["n0"])[:, None]
    )


def binomial_weights(error: ArrayLike, tests: float) -> Array:
    """Weigh measured error rates by how well so many test items determine their logarithm.

    Args:
        error: fractions wrong, between 0 and 1, [n].
        tests: items of the test set, positive.

    Returns:
        Inverse variances of the log errors, tests * error / (1 - error), [n].

    Raises:
        FitError: an error does not lie between 0 and 1, or tests is not positive.
    """
    values = np.asarray(error, dtype=np.float64)
    if not (np.isfinite(values) & (values > 0) & (values < 1)).all() or not tests > 0:
        raise FitError(
            "binomial weights need errors between 0 and 1 and a positive number of tests",
            hint="leave weights out for losses",
        )
    return tests * values / (1 - values)
