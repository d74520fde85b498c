"""How large a batch may be: steps to a target, the critical batch, and the cheapest batch."""

from steelyard.laws.forms.batch_size import (
    batch_for_exchange_rate,
    cost_optimal_batch,
    critical_batch,
    fit_steps,
    time_compute,
    tradeoff,
)
from steelyard.laws.forms.powers import critical_batch_at_loss

__all__ = [
    "batch_for_exchange_rate",
    "cost_optimal_batch",
    "critical_batch",
    "critical_batch_at_loss",
    "fit_steps",
    "time_compute",
    "tradeoff",
]
