"""Towers that turn texts into vectors: trained on pairs, distilled for queries, used to encode."""

from steelyard.retrieve.towers.beginning import begin_with_teacher, begin_with_texts
from steelyard.retrieve.towers.distillation import distill_queries, distill_to_vectors
from steelyard.retrieve.towers.encoder import QueryEncoder, TowerEncoder
from steelyard.retrieve.towers.folder import load_encoder, save_encoder
from steelyard.retrieve.towers.imported import import_sentence_transformer
from steelyard.retrieve.towers.made_queries import made_queries
from steelyard.retrieve.towers.pairs import TextPairs
from steelyard.retrieve.towers.quality import contrastive_entropy, ndcg, ranks_of_own
from steelyard.retrieve.towers.refinement import refine_queries
from steelyard.retrieve.towers.sources import PairTexts, cloze_pairs, title_pairs
from steelyard.retrieve.towers.training import mine_negatives, train_towers

__all__ = [
    "PairTexts",
    "QueryEncoder",
    "TextPairs",
    "TowerEncoder",
    "begin_with_teacher",
    "begin_with_texts",
    "cloze_pairs",
    "contrastive_entropy",
    "distill_queries",
    "distill_to_vectors",
    "import_sentence_transformer",
    "load_encoder",
    "made_queries",
    "mine_negatives",
    "ndcg",
    "ranks_of_own",
    "refine_queries",
    "save_encoder",
    "title_pairs",
    "train_towers",
]
