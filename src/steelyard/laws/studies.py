"""Studies: schedules planned with their branches and cost, and runs that could be left out."""

from steelyard.laws.decisions.forecasting.shrink import shrink
from steelyard.laws.decisions.study import branch_tokens, cheapest_study, plan_study

__all__ = ["branch_tokens", "cheapest_study", "plan_study", "shrink"]
