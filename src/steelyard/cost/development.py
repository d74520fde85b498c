"""What developing a model costs: people and experiments beside the final training run."""

import math
from dataclasses import dataclass

import numpy as np

from steelyard.cost.estimate import CostEstimate
from steelyard.errors import require
from steelyard.quantity import Z80

__all__ = ["Staff", "development_of"]

_STAFF_RANGE = 1.5
_EXPERIMENT_RANGE = 1.6
"""Factors from the middle to the ends of 80 % ranges. Experiments: a lognormal distribution whose
90 % range is 1.2 to 4 times the final run (arXiv 2405.21015, section 2.3); staff: assumed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Staff:
    """The people who made a model.

    Attributes:
        people: contributors.
        months: how long they worked on it.
        fraction: part of their time.
        usd_per_year: pay of one, benefits and equity included.
    """

    people: float
    months: float
    fraction: float = 1.0
    usd_per_year: float = 700_000.0

    def __post_init__(self) -> None:
        """Refuse what no group of people has."""
        names = ("people", "months", "usd_per_year")
        rules = {name: (0 < getattr(self, name) < math.inf, "positive") for name in names}
        require(self, **rules, fraction=(0 < self.fraction <= 1, "in (0, 1]"))

    @property
    def usd(self) -> float:
        """Pay for the whole development."""
        return self.people * self.fraction * self.months / 12 * self.usd_per_year


def development_of(
    final: CostEstimate,
    staff: Staff,
    experiment_factor: float,
    generator: np.random.Generator,
    *,
    samples: int = 20_000,
) -> CostEstimate:
    """Estimate the cost of a development by Monte Carlo.

    Args:
        final: amortized cost of the final run, with its interval.
        staff: people.
        experiment_factor: compute of all experiments with the final run over the final run's.
        generator: source of randomness.
        samples: draws.

    Returns:
        The parts of the final run times the experiments, and "staff"; the interval holds the middle
        80 % of the draws. All three factors are lognormal and independent.

    Source: Cottier et al. 2024 (arXiv 2405.21015), section 2.3.
    """
    parts = {name: usd * experiment_factor for name, usd in final.parts_usd.items()}
    compute_range = math.sqrt(final.high_usd / final.low_usd)
    draws = [
        np.exp(generator.normal(0.0, math.log(width) / Z80, samples))
        for width in (compute_range, _EXPERIMENT_RANGE, _STAFF_RANGE)
    ]
    # More compute than the final run's is an experiment; less is none.
    experiments = np.maximum(experiment_factor * draws[1], 1.0)
    usd = final.total_usd * draws[0] * experiments + staff.usd * draws[2]
    low, high = np.quantile(usd, [0.1, 0.9])
    total = math.fsum(parts.values()) + staff.usd
    return CostEstimate(
        method="development",
        parts_usd=parts | {"staff": staff.usd},
        low_usd=min(float(low), total),
        high_usd=max(float(high), total),
        month=final.month,
        source=f"experiments {experiment_factor:g} x the final run, {staff.people:g} people; "
        f"{final.source}",
    )
