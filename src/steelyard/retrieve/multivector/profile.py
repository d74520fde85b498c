"""What a plan needs to know of an index and a store, measured on sample queries in memory."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError
from steelyard.retrieve.multivector.candidates import CandidateIndex, CandidateSearch
from steelyard.retrieve.multivector.jobs import AskedTexts, ScoreJob
from steelyard.retrieve.multivector.readers import MappedReader
from steelyard.retrieve.multivector.reranker import PrefetchedReranker
from steelyard.retrieve.multivector.store import MultiVectorStore
from steelyard.retrieve.multivector.tracing import RerankTrace

__all__ = ["SHARES", "RerankProfile", "count_hits", "profile_rerank"]

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
        hits: candidates that were guessed [S, R, Q].
        kept: share of the best k of the last of `reranks` that fewer find too [R].
        document_s: reading from memory and scoring a document.
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
    hits: NDArray[np.int64]
    kept: Floats
    document_s: float
    job_s: float
    start_s: float
    merge_s: float
    noise: float

    def hit_rate(self, share: float, rerank: int) -> float:
        """Return the mean share of candidates that are guessed after a share of the search."""
        at, column = self.shares.index(share), self.reranks.index(rerank)
        return float(self.hits[at, column].mean() / rerank)


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
    costs = _costs(reader, store, search, texts, tokens, reranks)
    some = traces[shares[-1]][0]
    kept = _kept(search, rerankers[shares[-1]], texts, tokens, reranks, k, words)
    reader.close()
    return RerankProfile(
        documents=len(store),
        index_bytes=sum(candidates.memory_bytes().values()),
        table_bytes=sum(store.memory_bytes().values()),
        store_bytes=store.records.stat().st_size,
        document_bytes=sum(item.read_bytes for item in some) / max(sum(i.reads for i in some), 1),
        probes=search.probes,
        k=k,
        shares=shares,
        reranks=reranks,
        early_s=early_s,
        beside_s=beside_s,
        hits=count_hits(search, texts, shares, reranks),
        kept=kept,
        **costs,
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


def _by_query(turns: list[list[RerankTrace]], name: str) -> Floats:
    """Return one field of all traces [Q, rounds]."""
    return np.array([[getattr(trace, name) for trace in turn] for turn in turns]).T


def count_hits(
    search: CandidateSearch,
    texts: NDArray[np.float32],
    shares: Sequence[float],
    reranks: Sequence[int],
) -> NDArray[np.int64]:
    """Count candidates of the end that were there after a share of the search.

    Args:
        search: index and how far it is searched.
        texts: vectors of queries [Q, D].
        shares: S.
        reranks: candidates R.

    Returns:
        Counts [S, R, Q].
    """
    found = np.zeros((len(shares), len(reranks), len(texts)), np.int64)
    for place, share in enumerate(shares):
        steps = [hits.ids for hits, _ in search.steps(texts, max(reranks), share)]
        if len(steps) < 2:
            # The search was not stopped: nothing was guessed.
            continue
        for column, rerank in enumerate(reranks):
            for query in range(len(texts)):
                early, final = steps[0][query, :rerank], steps[-1][query, :rerank]
                found[place, column, query] = np.isin(final[final >= 0], early).sum()
    return found


def _costs(
    reader: MappedReader,
    store: MultiVectorStore,
    search: CandidateSearch,
    texts: NDArray[np.float32],
    tokens: list[NDArray[np.float32]],
    reranks: tuple[int, ...],
) -> dict[str, float]:
    """Return seconds per document, per job of late reads, and to hand a job to a thread."""
    points: list[tuple[int, float]] = []
    handed: list[float] = []
    for query, own in enumerate(tokens):
        asked = AskedTexts.of(texts[query : query + 1], [own], store)
        *_, (hits, _) = search.steps(asked.texts, reranks[-1], 1.0)
        for count in (1, reranks[0], reranks[-1]):
            begin_s = time.perf_counter()
            job = ScoreJob.of(store, asked, hits.ids[:, :count])
            reader.score(job)
            points.append((len(job), time.perf_counter() - begin_s))
        begin_s = time.perf_counter()
        reader.score(ScoreJob.of(store, asked, hits.ids[:, :1]))
        here_s = time.perf_counter() - begin_s
        begin_s = time.perf_counter()
        reader.start(ScoreJob.of(store, asked, hits.ids[:, :1])).result()
        handed.append(time.perf_counter() - begin_s - here_s)
    sizes = np.array([count for count, _ in points])
    seconds = np.array([took_s for _, took_s in points])
    one_s, all_s = (
        float(np.median(seconds[sizes == count])) for count in (sizes.min(), sizes.max())
    )
    slope_s = max((all_s - one_s) / max(int(sizes.max() - sizes.min()), 1), 0.0)
    return {
        "document_s": slope_s,
        "job_s": max(one_s - slope_s, 0.0),
        "start_s": max(float(np.median(handed)), 0.0),
    }


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
