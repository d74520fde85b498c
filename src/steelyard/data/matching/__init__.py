"""Which columns of two tables say the same, which join them, and which rows are one thing."""

from steelyard.data.matching.entities import (
    EntityMatch,
    EntityModel,
    EntityPairs,
    find_pairs,
    fit_matches,
    match_entities,
)
from steelyard.data.matching.joins import JoinCandidate, find_joins
from steelyard.data.matching.schemas import ColumnMatch, match_schemas, name_similarity
from steelyard.data.matching.values import ValueSketch, ValueSketchFold

__all__ = [
    "ColumnMatch",
    "EntityMatch",
    "EntityModel",
    "EntityPairs",
    "JoinCandidate",
    "ValueSketch",
    "ValueSketchFold",
    "find_joins",
    "find_pairs",
    "fit_matches",
    "match_entities",
    "match_schemas",
    "name_similarity",
]
