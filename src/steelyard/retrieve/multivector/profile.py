"""What a plan needs to know of an index and a store, measured on sample queries in memory."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.retrieve.multivector.candidates import CandidateIndex, CandidateSearch
from steelyard.retrieve.multivector.guesses import guessed_places
from steelyard.retrieve.multivector.jobs import AskedTexts, ScoreJob
from steelyard.retrieve.multivector.readers import MappedReader
from steelyard.retrieve.multivector.reranker import PrefetchedReranker
from steelyard.retrieve.multivector.store import MultiVectorStore
from steelyard.retrieve.multivector.tracing import RerankTrace

__all__ = ["SHARES", "RerankProfile", "profile_rerank"]

Floats = NDArray[np.float64]
SHARES = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
"""Shares of the search after which reads may begin; 1 is none before its end."""
_LEAST_QUERIES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class RerankProfile:
    """Times, hits and losses of Q sample queries, on this machine, without a drive.

    Attributes:
        documents: in the store.
        index_bytes: memory of the index.
        table_bytes: memory of the store's table.
        store_bytes: size of the records.
        document_bytes: mean bytes of the documents that are read.
        probes: cells, or vectors of a tree, that a query looks into.
        k: documents that are returned.
        shares: shares of the search S after which reads begin.
        reranks: documents that are ranked by tokens R, ascending; the last is all.
        early_s: search up to the reads [S, Q].
        beside_s: rest of the search [S, Q].
        places: place at the end of each candidate that was guessed, in the order of the guess
            [S, Q, last of R]; -1 for one that has fallen out.
        kept: share of the best k of the last of `reranks` that fewer find too [R].
        document_s: reading from memory and scoring a document, amid a search.
        job_s: preparing the reads of what was missed.
        start_s: handing reads to another thread.
        merge_s: ordering.
        noise: relative spread of the median between rounds.
    """

    documents: int
    index_bytes: int
    table_bytes: int
    store_bytes: int
    document_bytes: float
    probes: int
    k: int
    shares: tuple[float, ...]
    reranks: tuple[int, ...]
    early_s: Floats
    beside_s: Floats
    places: NDArray[np.int64]
    kept: Floats
    document_s: float
    job_s: float
    start_s: float
    merge_s: float
    noise: float

    def hit_rate(self, share: float, rerank: int) -> float:
        """Return the mean share of candidates that are guessed after a share of the search."""
        return float(self.is_hit(share, rerank).mean())

    def is_hit(self, share: float, rerank: int) -> NDArray[np.bool_]:
        """Return which documents, of those that are guessed, are wanted at the end [Q, R]."""
        places = self.places[self.shares.index(share), :, :rerank]
        return (places >= 0) & (places < rerank)


def profile_rerank(
    candidates: CandidateIndex,
    store: MultiVectorStore,
    texts: NDArray[np.float32],
    tokens: list[NDArray[np.float32]],
    *,
    reranks: Sequence[int] = (16, 32, 64, 128, 256),
    shares: Sequence[float] = SHARES,
    k: int = 10,
    nprobe: int = 0,
    weight: float = 1.0,
    rounds: int = 3,
    **words: str,
) -> RerankProfile:
    """Measure an index and a store with sample queries; records come from the page cache.

    Args:
        candidates: the index.
        store: the store.
        texts: vectors of the queries' texts [Q, D], 8 or more.
        tokens: vectors of their tokens.
        reranks: documents that may be ranked by tokens; what the most of them find counts as all.
        shares: shares of the search after which reads may begin.
        k: documents that are returned.
        nprobe: cells, or vectors of a tree, that a query looks into; the index's own when 0.
        weight: of the texts' vectors in a score.
        rounds: times that all is measured; medians are taken.
        **words: `tenant` or `where` of an index that tenants share.

    Returns:
        The profile.

    Raises:
        ConfigError: too few queries, or numbers out of range.
    """
    _check(len(texts), rounds, reranks, k)
    reranks, shares = tuple(sorted(set(reranks))), tuple(sorted(set(shares)))
    search = CandidateSearch(index=candidates, nprobe=nprobe, **words)
    reader = MappedReader(store)
    reader.fill()
    options: dict[str, Any] = {"reader": reader, "weight": weight, "nprobe": nprobe}
    rerankers = {
        share: PrefetchedReranker(
            candidates, store, prefetch_step=share, rerank=reranks[-1], **options
        )
        for share in shares
    }
    traces = _traces(rerankers, texts, tokens, k, rounds, words)
    early_s, beside_s, merge_s, noise = _summed(traces)
    start_s = _hand_over_s(reader, store, search, texts, tokens)
    kept = _kept(search, rerankers[shares[-1]], texts, tokens, reranks, k, words)
    reader.close()
    return RerankProfile(
        documents=len(store),
        index_bytes=sum(candidates.memory_bytes().values()),
        table_bytes=sum(store.memory_bytes().values()),
        store_bytes=store.records.stat().st_size,
        document_bytes=_mean_bytes(traces[shares[-1]][0]),
        probes=search.probes,
        k=k,
        shares=shares,
        reranks=reranks,
        early_s=early_s,
        beside_s=beside_s,
        places=guessed_places(search, texts, shares, reranks[-1]),
        kept=kept,
        **_late_costs(traces),
        start_s=start_s,
        merge_s=merge_s,
        noise=noise,
    )


def _check(queries: int, rounds: int, reranks: Sequence[int], k: int) -> None:
    """Refuse numbers out of range."""
    if queries < _LEAST_QUERIES or rounds < 1 or min(reranks, default=0) < k:
        raise ConfigError(
            f"{queries} sample queries, {rounds} rounds, {list(reranks)} documents for {k}",
            hint=f"give {_LEAST_QUERIES} queries and 1 round or more, and rank k or more again",
        )


def _traces(
    rerankers: dict[float, PrefetchedReranker],
    texts: NDArray[np.float32],
    tokens: list[NDArray[np.float32]],
    k: int,
    rounds: int,
    words: dict[str, str],
) -> dict[float, list[list[RerankTrace]]]:
    """Search each query with each share some times; the first pass warms everything up."""
    found: dict[float, list[list[RerankTrace]]] = {share: [] for share in rerankers}
    for turn in range(rounds + 1):
        for share, reranker in rerankers.items():
            traces = [
                reranker.search(texts[query : query + 1], [own], k, **words).trace
                for query, own in enumerate(tokens)
            ]
            if turn:
                found[share].append(traces)
    return found


def _summed(
    traces: dict[float, list[list[RerankTrace]]],
) -> tuple[Floats, Floats, float, float]:
    """Return medians over rounds of both parts of the search [S, Q], of merging, and the noise."""
    early_s, beside_s = (
        np.array([np.median(_by_query(turns, name), axis=1) for turns in traces.values()])
        for name in ("early_s", "beside_s")
    )
    merges = [trace.merge_s for turns in traces.values() for turn in turns for trace in turn]
    rounds = len(next(iter(traces.values())))
    totals = [
        float(np.median([trace.total_s for turns in traces.values() for trace in turns[turn]]))
        for turn in range(rounds)
    ]
    return early_s, beside_s, float(np.median(merges)), float(np.std(totals) / np.mean(totals))


def _mean_bytes(traces: list[RerankTrace]) -> float:
    """Return the mean bytes of the documents that were read."""
    return sum(item.read_bytes for item in traces) / max(sum(item.reads for item in traces), 1)


def _by_query(turns: list[list[RerankTrace]], name: str) -> Floats:
    """Return one field of all traces [Q, rounds]."""
    return np.array([[getattr(trace, name) for trace in turn] for turn in turns]).T


def _late_costs(traces: dict[float, list[list[RerankTrace]]]) -> dict[str, float]:
    """Return seconds per job of late reads and per document of it, from records in memory.

    They are taken from whole searches, after which neither records nor this code are in the
    processor's caches; the same calls one after the other take half as long.
    """
    misses, late_s = (
        np.concatenate([np.median(_by_query(turns, name), axis=1) for turns in traces.values()])
        for name in ("misses", "late_s")
    )
    few, many = np.quantile(misses, (0.25, 0.75))
    if many <= few:
        half_s = float(np.median(late_s)) / 2
        return {"job_s": half_s, "document_s": half_s / max(float(many), 1.0)}
    # Medians of both ends: one search that was disturbed does not tilt the line.
    low, high = misses <= few, misses >= many
    rise_s = float(np.median(late_s[high]) - np.median(late_s[low]))
    slope_s = max(rise_s / float(np.median(misses[high]) - np.median(misses[low])), 1e-9)
    job_s = max(float(np.median(late_s - slope_s * misses)), 0.0)
    return {"job_s": job_s, "document_s": slope_s}


def _hand_over_s(
    reader: MappedReader,
    store: MultiVectorStore,
    search: CandidateSearch,
    texts: NDArray[np.float32],
    tokens: list[NDArray[np.float32]],
) -> float:
    """Return seconds to hand a job to another thread and to hear that it is done."""
    handed: list[float] = []
    for query, own in enumerate(tokens):
        asked = AskedTexts.of(texts[query : query + 1], [own], store)
        *_, (hits, _) = search.steps(asked.texts, 1, 1.0)
        begin_s = time.perf_counter()
        reader.score(ScoreJob.of(store, asked, hits.ids[:, :1]))
        here_s = time.perf_counter() - begin_s
        begin_s = time.perf_counter()
        reader.start(ScoreJob.of(store, asked, hits.ids[:, :1])).result()
        handed.append(time.perf_counter() - begin_s - here_s)
    return max(float(np.median(handed)), 0.0)


def _kept(
    search: CandidateSearch,
    reranker: PrefetchedReranker,
    texts: NDArray[np.float32],
    tokens: list[NDArray[np.float32]],
    reranks: tuple[int, ...],
    k: int,
    words: dict[str, str],
) -> Floats:
    """Return the share of the best k, by all candidates, that fewer candidates find [R]."""
    found = np.zeros(len(reranks))
    for query, own in enumerate(tokens):
        text = texts[query : query + 1]
        *_, (hits, _) = search.steps(text, reranks[-1], 1.0)
        ranked = reranker.search(text, [own], reranks[-1], **words).ids[0]
        best = ranked[ranked >= 0][:k]
        for column, rerank in enumerate(reranks):
            few = hits.ids[0, :rerank]
            found[column] += np.isin(best, few).mean() if len(best) else 1.0
    return found / len(tokens)
