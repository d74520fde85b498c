"""Baskets and what occurs together in them: itemsets, rules, forecasts, and drawn baskets."""

from steelyard.data.mining.advisor import MiningForecast, forecast_mining
from steelyard.data.mining.baskets import Baskets, read_baskets
from steelyard.data.mining.generators import heaton_baskets, quest_baskets
from steelyard.data.mining.itemsets import Itemsets, write_itemsets
from steelyard.data.mining.miner import count_itemsets, mine, mine_top
from steelyard.data.mining.partitioned import mine_table
from steelyard.data.mining.rules import AssociationRules, find_rules

__all__ = [
    "AssociationRules",
    "Baskets",
    "Itemsets",
    "MiningForecast",
    "count_itemsets",
    "find_rules",
    "forecast_mining",
    "heaton_baskets",
    "mine",
    "mine_table",
    "mine_top",
    "quest_baskets",
    "read_baskets",
    "write_itemsets",
]
