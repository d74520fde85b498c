"""The error of a mixture of pools as the programs of the paper compute it."""

from collections.abc import Mapping

import numpy as np

from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.pools.pool_utility import log_mixture_excess

__all__ = ["error_with_floor_inside"]


def error_with_floor_inside(
    numbers: Mapping[str, Array], shares: Array, sizes: Array, samples: Array
) -> Array:
    """Return the error as the programs of the paper compute it, with the floor inside.

    For comparison only: (a n_1^b + d) times the later factors, where the paper's formula adds d at
    the end.

    Args:
        numbers: parameters as in `log_mixture_excess`, and "d" [S].
        shares: shares of the pools, in proportion to their sizes, [C, P].
        sizes: unique samples per pool, [C, P].
        samples: number of samples seen in all, [C].

    Returns:
        Errors, [S, C].

    Source: github locuslab/scaling_laws_data_filtering, its objective of effective utility.
    """
    unique = np.where(shares > 0, sizes, 0.0).sum(axis=1)
    first = log_mixture_excess(numbers, shares, sizes, np.minimum(samples, unique))
    later = log_mixture_excess(numbers, shares, sizes, samples) - first
    return (np.exp(first) + numbers["d"][:, None]) * np.exp(later)
