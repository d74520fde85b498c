"""What data are worth: repeated, from pools and sources, and what to keep of them."""

from steelyard.laws.decisions.curate import best_weights, curate, pool_frontier
from steelyard.laws.decisions.repeated import allocate_repeated
from steelyard.laws.decisions.sources import compare_sources
from steelyard.laws.decisions.store_budget import allocate_store
from steelyard.laws.forms.pools.pool_fit import fit_pools
from steelyard.laws.forms.pools.pool_utility import binomial_weights, effective_pool, pool_utility
from steelyard.laws.forms.repetition import (
    data_constrained,
    effective_tokens,
    overfitting_penalty,
    repetition_constants,
    value_of_next_epoch,
)

__all__ = [
    "allocate_repeated",
    "allocate_store",
    "best_weights",
    "binomial_weights",
    "compare_sources",
    "curate",
    "data_constrained",
    "effective_pool",
    "effective_tokens",
    "fit_pools",
    "overfitting_penalty",
    "pool_frontier",
    "pool_utility",
    "repetition_constants",
    "value_of_next_epoch",
]
