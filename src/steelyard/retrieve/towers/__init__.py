"""Towers that turn texts into vectors: trained on pairs, distilled for queries, used to encode."""

from steelyard.retrieve.towers.distillation import distill_queries
from steelyard.retrieve.towers.encoder import TowerEncoder
from steelyard.retrieve.towers.pairs import TextPairs
from steelyard.retrieve.towers.training import mine_negatives, train_towers

__all__ = ["TextPairs", "TowerEncoder", "distill_queries", "mine_negatives", "train_towers"]
