"""A site under controllers: what each cost in energy, water, carbon and money, on one trace."""

from steelyard.operate.site.account import SiteAccount, hourly_account
from steelyard.operate.site.compare import SiteAnswer, compare_controllers
from steelyard.operate.site.recipe import SiteRecipe

__all__ = ["SiteAccount", "SiteAnswer", "SiteRecipe", "compare_controllers", "hourly_account"]
