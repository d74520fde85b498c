"""How far forecasts of re-ranking are off on this machine: a few designs are forecast and tried."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.storage import StorageTier
from steelyard.plan.retrieve.rerank import predict_rerank
from steelyard.plan.retrieve.rerank_errors import RerankErrors
from steelyard.retrieve.multivector.candidates import CandidateIndex
from steelyard.retrieve.multivector.profile import RerankProfile
from steelyard.retrieve.multivector.reranker import PrefetchedReranker
from steelyard.retrieve.multivector.store import MultiVectorStore
from steelyard.retrieve.multivector.throttled import ThrottledReader

__all__ = ["check_rerank"]

_WARM, _LEAST_QUERIES = 3, 8


def check_rerank(
    profile: RerankProfile,
    candidates: CandidateIndex,
    store: MultiVectorStore,
    texts: NDArray[np.float32],
    tokens: list[NDArray[np.float32]],
    drive: StorageTier,
    *,
    depth: int = 32,
    weight: float = 1.0,
    most_s: float = 5.0,
    **words: str,
) -> RerankErrors:
    """Search with some designs while a drive is played, and compare with their forecasts.

    Args:
        profile: of index and store, on this machine.
        candidates: the index.
        store: the store.
        texts: vectors of queries' texts [Q, D], best others than the profile's.
        tokens: vectors of their tokens.
        drive: what is played; no faster than memory.
        depth: reads under way at once.
        weight: of the texts' vectors in a score.
        most_s: seconds that trying may take; a slow drive is tried with fewer queries, or not.
        **words: `tenant` or `where` of an index that tenants share.

    Returns:
        Measured over forecast latencies of six designs: early and late reads of few, some and many
        documents; fewer where the profile holds fewer, and none where there is no time for them.

    Raises:
        ConfigError: the drive has no latency or rate.
    """
    early = [share for share in profile.shares if share < 1] or [1.0]
    counts = profile.reranks
    designs = [
        (share, rerank)
        for share in sorted({early[len(early) // 2], profile.shares[-1]})
        for rerank in sorted({counts[0], counts[len(counts) // 2], counts[-1]})
    ]
    told = [predict_rerank(profile, drive, share, rerank, depth=depth) for share, rerank in designs]
    count = min(len(tokens), int(most_s / sum(item.p50_s.value for item in told)))
    if count < _LEAST_QUERIES:
        return RerankErrors()
    reader = ThrottledReader(store, drive, depth=depth)
    options: dict[str, Any] = {"reader": reader, "weight": weight, "nprobe": profile.probes}
    ways = [
        PrefetchedReranker(candidates, store, prefetch_step=share, rerank=rerank, **options)
        for share, rerank in designs
    ]
    # In turn, so that a machine that slows down does so for all of them.
    took_s = np.array(
        [
            [
                way.search(texts[query : query + 1], [own], profile.k, **words).trace.total_s
                for way in ways
            ]
            for query, own in enumerate(tokens[:count])
        ]
    )
    reader.close()
    # The first ones start threads and fill caches.
    p50_s, p95_s = np.percentile(took_s[_WARM:], [50, 95], axis=0)
    return RerankErrors(
        ranked=tuple(rerank for _, rerank in designs),
        p50=tuple((p50_s / [item.p50_s.value for item in told]).tolist()),
        p95=tuple((p95_s / [item.p95_s.value for item in told]).tolist()),
    )
