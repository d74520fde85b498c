"""What a plan of re-ranking says of its design, as forecasts that a search can be held against."""

from collections.abc import Sequence

import numpy as np

from steelyard.cost.past_errors import past_width
from steelyard.plan.retrieve.rerank import RerankPlan
from steelyard.quantity import Z80, Check, Forecast
from steelyard.retrieve.multivector.profile import RerankProfile

__all__ = ["FORECASTER", "rerank_forecasts"]

FORECASTER = "retrieve.rerank"
"""Name of these forecasts in the ledger."""
_SPREAD, _SPREAD_BYTES = 0.01, 2e5
"""Standard deviations of memory: pages of maps, relative, and threads and Python's objects. Made
stores of 2,000, 30,000 and a million took 1.5 % more, .8 % less and 1 % more than was counted."""


def rerank_forecasts(
    plan: RerankPlan, profile: RerankProfile, queries: int, past: Sequence[Check] = ()
) -> list[Forecast]:
    """Return what a plan says of latency, memory and hits.

    Args:
        plan: its chosen design.
        profile: what it was chosen by.
        queries: that the design will be measured with, 1 or more.
        past: checked forecasts of earlier plans on this machine, oldest first. What those were off
            by was measured at other times and on other collections, which tries of one plan do not
            know of: intervals follow it.

    Returns:
        Median and 95th percentile of the latency, memory that searches add, and the share of the
        ranked documents that is guessed early, with 80 % intervals.
    """
    best = plan.best
    latencies = [_widened(item, past) for item in (best.p50_s, best.p95_s)]
    told = float(plan.memory_bytes)
    half = Z80 * float(np.hypot(_SPREAD, _SPREAD_BYTES / told))
    memory = Forecast(
        quantity="retrieve.rerank_memory",
        value=told,
        low=told * float(np.exp(-half)),
        high=told * float(np.exp(half)),
        provenance="derived",
        source="sizes of index, table and buffers",
    )
    return [*latencies, _widened(memory, past), _hits(profile, plan, queries)]


def _widened(said: Forecast, past: Sequence[Check]) -> Forecast:
    """Return a forecast with an interval of past errors, where there are any."""
    own = [item for item in past if item.forecast.quantity == said.quantity]
    if not own:
        return said
    half = float(np.log(said.high / said.low)) / 2
    factor = float(np.exp(past_width(own, assumed_spread=half / Z80)))
    return Forecast(
        quantity=said.quantity,
        value=said.value,
        low=said.value / factor,
        high=said.value * factor,
        provenance=said.provenance,
        source=said.source,
    )


def _hits(profile: RerankProfile, plan: RerankPlan, queries: int) -> Forecast:
    """Return the share that is guessed early, with the spread of two draws of queries."""
    own = profile.is_hit(plan.best.prefetch_step, plan.best.rerank).mean(axis=1)
    value = float(own.mean())
    # Where all sample queries agree, others may still differ by a document.
    each = max(float(own.std(ddof=1)), 1 / plan.best.rerank) if plan.best.prefetch_step < 1 else 0.0
    half = Z80 * each * (1 / len(own) + 1 / queries) ** 0.5
    return Forecast(
        quantity="retrieve.rerank_hits",
        value=value,
        low=max(value - half, 0.0),
        high=min(value + half, 1.0),
        provenance="fitted",
        source="sample queries",
    )
