"""Communities around a few accounts of a large network, found by signatures of neighbourhoods."""

from steelyard.data.communities.building import IndexSettings, build_index
from steelyard.data.communities.evaluation import recall_areas
from steelyard.data.communities.index import Community, CommunityIndex
from steelyard.data.communities.quality import CommunityMetrics

__all__ = [
    "Community",
    "CommunityIndex",
    "CommunityMetrics",
    "IndexSettings",
    "build_index",
    "recall_areas",
]
