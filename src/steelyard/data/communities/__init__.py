"""Communities around a few accounts of a large network, found by signatures of neighbourhoods."""

from steelyard.data.communities.building import IndexSettings, build_index
from steelyard.data.communities.evaluation import recall_areas
from steelyard.data.communities.index import CommunityIndex
from steelyard.data.communities.quality import CommunityMetrics
from steelyard.data.communities.results import Community, Explanation

__all__ = [
    "Community",
    "CommunityIndex",
    "CommunityMetrics",
    "Explanation",
    "IndexSettings",
    "build_index",
    "recall_areas",
]
