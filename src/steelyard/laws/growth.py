"""Growth over the years: trends, crossings, frontiers, and what machines balance."""

from steelyard.laws.decisions.frontier import (
    above_trend,
    decimal_year,
    rank_at_publication,
    top_at_publication,
)
from steelyard.laws.decisions.wall import balance_points, chip_trend, wall
from steelyard.laws.forms.growth import fit_growth, growth
from steelyard.laws.forms.growth_line import (
    crossing_year,
    doubling_time_years,
    forecast_growth,
    growth_in,
    growth_per_year,
    last_residual,
)

__all__ = [
    "above_trend",
    "balance_points",
    "chip_trend",
    "crossing_year",
    "decimal_year",
    "doubling_time_years",
    "fit_growth",
    "forecast_growth",
    "growth",
    "growth_in",
    "growth_per_year",
    "last_residual",
    "rank_at_publication",
    "top_at_publication",
    "wall",
]
