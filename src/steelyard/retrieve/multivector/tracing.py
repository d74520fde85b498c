"""What a search with prefetched documents did, stage by stage."""

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["RerankTrace"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RerankTrace:
    """Times and counts of one search, all queries of its batch together.

    Attributes:
        early_s: search for candidates up to the prefetch.
        beside_s: the rest of it, beside which documents are read and scored.
        stall_s: waiting for these after the search was done.
        late_s: reading and scoring what the prefetch had missed.
        merge_s: ordering.
        total_s: everything.
        prefetched: documents read early.
        hits: candidates of the end that were among them.
        misses: candidates of the end that were not.
        reads: documents read, each once for all queries that wanted it.
        read_bytes: bytes of them.
        damaged: documents dropped because their bytes are not whole.
        note: what a user should know of how it was read.
    """

    early_s: float
    beside_s: float
    stall_s: float
    late_s: float
    merge_s: float
    total_s: float
    prefetched: int
    hits: int
    misses: int
    reads: int
    read_bytes: int
    damaged: int
    note: str = ""

    @property
    def hit_rate(self) -> float:
        """Share of the candidates that were read early; 0 without candidates."""
        wanted = self.hits + self.misses
        return self.hits / wanted if wanted else 0.0

    def values(self) -> dict[str, Any]:
        """Return all figures by name, for programs."""
        return {**asdict(self), "hit_rate": self.hit_rate}
