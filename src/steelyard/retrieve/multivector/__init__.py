"""Documents by several vectors each: candidates by one, the order by those of all tokens."""

from steelyard.retrieve.multivector.reranker import PrefetchedReranker, RankedDocuments
from steelyard.retrieve.multivector.store import MultiVectorStore
from steelyard.retrieve.multivector.throttled import ThrottledReader
from steelyard.retrieve.multivector.tracing import RerankTrace

__all__ = [
    "MultiVectorStore",
    "PrefetchedReranker",
    "RankedDocuments",
    "RerankTrace",
    "ThrottledReader",
]
