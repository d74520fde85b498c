"""How far forecasts of re-ranking are off on this machine: a few designs are forecast and tried."""

from collections.abc import Sequence
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

__all__ = ["RerankTries", "check_rerank", "tried_designs"]

_ROUNDS, _LEAST_QUERIES = 5, 8
_INSIDE, _NORMAL_80 = 0.8, 1.2816

Design = tuple[float, int]
"""Share of the search after which reads begin, and documents that are ranked."""


def tried_designs(profile: RerankProfile) -> list[Design]:
    """Choose designs to try: early, later and late reads of few, some and many documents.

    Args:
        profile: what may be tried.

    Returns:
        Nine, or fewer where the profile holds fewer.
    """
    early = [share for share in profile.shares if share < 1] or [1.0]
    counts = profile.reranks
    shares = {early[len(early) // 4], early[3 * len(early) // 4], profile.shares[-1]}
    ranked = {counts[0], counts[len(counts) // 2], counts[-1]}
    return [(share, rerank) for share in sorted(shares) for rerank in sorted(ranked)]


class RerankTries:
    """Some designs that are tried round by round while a drive is played.

    Rounds may lie apart: what a design takes differs from one to the next with the machine's speed,
    which no interval that was found in one of them knows of.

    Attributes:
        designs: what is tried.
        told_s: forecast median latency of each.
    """

    def __init__(
        self,
        profile: RerankProfile,
        candidates: CandidateIndex,
        store: MultiVectorStore,
        texts: NDArray[np.float32],
        tokens: list[NDArray[np.float32]],
        drive: StorageTier,
        *,
        designs: Sequence[Design] = (),
        depth: int = 32,
        weight: float = 1.0,
        **words: str,
    ) -> None:
        """Forecast the designs, and open a reader.

        Args:
            profile: of index and store, on this machine.
            candidates: the index.
            store: the store.
            texts: vectors of queries' texts [Q, D], best others than the profile's.
            tokens: vectors of their tokens.
            drive: what is played; no faster than memory.
            designs: what is tried; those of `tried_designs` where there are none.
            depth: reads under way at once.
            weight: of the texts' vectors in a score.
            **words: `tenant` or `where` of an index that tenants share.

        Raises:
            ConfigError: the drive has no latency or rate, or a design was not profiled.
        """
        self.designs = list(designs) or tried_designs(profile)
        told = [
            predict_rerank(profile, drive, share, rerank, depth=depth)
            for share, rerank in self.designs
        ]
        self.told_s = np.array([item.p50_s.value for item in told])
        self._told_p95_s = np.array([item.p95_s.value for item in told])
        self._texts, self._tokens, self._k, self._words = texts, tokens, profile.k, words
        self._reader = ThrottledReader(store, drive, depth=depth)
        options: dict[str, Any] = {"reader": self._reader, "nprobe": profile.probes}
        self._ways = [
            PrefetchedReranker(
                candidates, store, prefetch_step=share, rerank=rerank, weight=weight, **options
            )
            for share, rerank in self.designs
        ]
        self._rounds: list[NDArray[np.float64]] = []

    def round(self, count: int = 0) -> None:
        """Search with each design once for each query; the first round warms everything up before.

        Each design's searches come one after the other, as they do in use: what a design takes
        differs more from one such moment to the next than in the mean of longer ones. No search
        follows one with the same query, which would find its cells in the processor's caches.

        Args:
            count: queries, the first ones; all when 0.
        """
        queries = min(count or len(self._tokens), len(self._tokens))
        apart = -(-queries // len(self._ways))
        took_s = np.empty((queries, len(self._ways)))
        if not self._rounds:
            for place, way in enumerate(self._ways):
                self._search_s(way, place * apart % queries)
        for place, way in enumerate(self._ways):
            for turn in range(queries):
                query = (turn + place * apart) % queries
                took_s[query, place] = self._search_s(way, query)
        self._rounds.append(took_s)

    def _search_s(self, way: PrefetchedReranker, query: int) -> float:
        """Return the seconds of one search."""
        text, own = self._texts[query : query + 1], [self._tokens[query]]
        return way.search(text, own, self._k, **self._words).trace.total_s

    def errors(self) -> RerankErrors:
        """Return measured over forecast latencies of all rounds; nothing without a round."""
        if not self._rounds:
            return RerankErrors()
        p50_s, p95_s = np.percentile(np.concatenate(self._rounds), [50, 95], axis=0)
        levels = np.log([np.median(took_s, axis=0) for took_s in self._rounds])
        # Of each design around its own middle: what designs have in common, and what they have not.
        apart = np.abs(levels - np.median(levels, axis=0))
        rounds = len(levels)
        # By the part that an 80 % interval holds, not by the variance, which one slow moment among
        # many rounds would double.
        drift = float(np.quantile(apart, _INSIDE)) / _NORMAL_80
        if rounds > 1:
            drift *= (rounds / (rounds - 1)) ** 0.5
        return RerankErrors(
            ranked=tuple(rerank for _, rerank in self.designs),
            is_late=tuple(share >= 1 for share, _ in self.designs),
            p50=tuple((p50_s / self.told_s).tolist()),
            p95=tuple((p95_s / self._told_p95_s).tolist()),
            drift=drift,
            rounds=rounds,
        )

    def close(self) -> None:
        """Let go of the reader's map."""
        self._reader.close()


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
    most_s: float = 10.0,
    **words: str,
) -> RerankErrors:
    """Search with some designs in a few rounds, and compare with their forecasts.

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
        Measured over forecast latencies of up to nine designs; none where there is no time.

    Raises:
        ConfigError: the drive has no latency or rate.
    """
    parts = (profile, candidates, store, texts, tokens, drive)
    tries = RerankTries(*parts, designs=(), depth=depth, weight=weight, **words)
    try:
        count = min(len(tokens), int(most_s / _ROUNDS / tries.told_s.sum()))
        for _ in range(_ROUNDS if count >= _LEAST_QUERIES else 0):
            tries.round(count)
        return tries.errors()
    finally:
        tries.close()
