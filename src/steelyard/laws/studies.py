"""Studies of schedules planned: runs, branches and what they cost."""

from steelyard.laws.decisions.study import branch_tokens, cheapest_study, plan_study

__all__ = ["branch_tokens", "cheapest_study", "plan_study"]
