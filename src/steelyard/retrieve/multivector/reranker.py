"""Ranks candidates by their token vectors, which are read from a drive while they are searched."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import ConfigError, DataError
from steelyard.retrieve.index import Hits, checked_k
from steelyard.retrieve.multivector.candidates import CandidateIndex, CandidateSearch
from steelyard.retrieve.multivector.jobs import AskedTexts, ScoreJob
from steelyard.retrieve.multivector.readers import ReaderKind, RecordReader, make_reader
from steelyard.retrieve.multivector.store import MultiVectorStore
from steelyard.retrieve.multivector.tracing import RerankTrace

__all__ = ["PrefetchedReranker", "RankedDocuments", "merged"]

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RankedDocuments:
    """The best documents of Q queries.

    Attributes:
        ids: int64 [Q, K], the best first; -1 where there are fewer.
        scores: float32 [Q, K]; minus infinity where there are fewer.
        trace: what the search did.
    """

    ids: Ids
    scores: Floats
    trace: RerankTrace


class PrefetchedReranker:
    """Searches candidates, and reads and scores what will likely be among them meanwhile.

    After a share of the search, its best so far are read and scored in the background, and the rest
    of the search goes on. At its end, those of them that have fallen out and are not asked for yet
    are left out, and candidates that were not among them are read too. The result
    does not depend on the share, nor on the reader: prefetching changes times, never scores.

    A document's score is the inner product of the texts' vectors, weighted, plus for each token of
    the query the best inner product with a token of the document.

    Attributes:
        candidates: the index that is searched, and how far.
        store: token vectors.
        prefetch_step: share of the search after which reads begin; 1 for none before its end.
        rerank: candidates that are ranked by token vectors; more that are wanted follow in the
            order of the index.
        weight: of the texts' vectors in a score.
        reader: reads the store.

    Source: Shrestha et al. 2023 (ESPN, arXiv 2312.05417), prefetcher, early re-ranking, and
        partial re-ranking.
    """

    def __init__(
        self,
        candidates: CandidateIndex,
        store: MultiVectorStore,
        *,
        reader: ReaderKind | RecordReader = "threads",
        prefetch_step: float = 0.2,
        rerank: int = 128,
        depth: int = 32,
        weight: float = 1.0,
        nprobe: int = 0,
        encoder: str = "",
    ) -> None:
        """Put an index in front of a store.

        Args:
            candidates: index of the texts' vectors, by the store's numbers.
            store: token vectors.
            reader: "threads" past the page cache, "mmap", "memory", or a reader.
            prefetch_step: see the class.
            rerank: see the class.
            depth: reads under way at once.
            weight: see the class.
            nprobe: cells, or vectors of a tree, that a query looks into; the index's own when 0.
            encoder: name of what makes the queries' vectors; compared with the store's.

        Raises:
            ConfigError: a number is out of range.
            DataError: index or encoder do not belong to the store.
        """
        if not 0 < prefetch_step <= 1 or rerank < 1 or not np.isfinite(weight) or nprobe < 0:
            raise ConfigError(
                f"prefetch after {prefetch_step:g} of a search, {rerank} ranked again, weight "
                f"{weight:g}, nprobe {nprobe}",
                hint="give a share above 0 up to 1, 1 document or more, and a finite weight",
            )
        if candidates.dim != store.layout.text_dim:
            raise DataError(
                f"the index has vectors of {candidates.dim} numbers, the store's texts of "
                f"{store.layout.text_dim}",
                hint="build both from the same vectors",
            )
        if encoder and store.encoder and encoder != store.encoder:
            raise DataError(
                f"queries are encoded by {encoder}, the store by {store.encoder}",
                hint="use the encoder that the store was built with",
            )
        self.candidates, self.store, self.nprobe = candidates, store, nprobe
        self.prefetch_step, self.rerank, self.weight = prefetch_step, rerank, weight
        self.reader = make_reader(reader, store, depth=depth)
        self._lock = threading.Lock()

    def search(
        self,
        texts: NDArray[Any],
        tokens: Sequence[NDArray[Any]],
        k: int = 10,
        *,
        tenant: str = "",
        where: str = "",
    ) -> RankedDocuments:
        """Return the best documents of each query; queries of one call share reads.

        Args:
            texts: vectors of the queries' texts [Q, D].
            tokens: vectors of the tokens [T, E] of each query.
            k: documents of each.
            tenant: whose documents are searched, of an index that tenants share.
            where: a condition on tenants in its place.

        Returns:
            The documents, with what the search did.

        Raises:
            ConfigError: k below 1, or a tenant that does not fit the index.
            DataError: vectors of another width or not finite, or a candidate that the store does
                not hold.
        """
        begin_s = time.perf_counter()
        search = CandidateSearch(
            index=self.candidates, nprobe=self.nprobe, tenant=tenant, where=where
        )
        asked = AskedTexts.of(texts, tokens, self.store)
        wanted = max(self.rerank, checked_k(k))
        # Buffers of a reader serve one search at a time.
        with self._lock:
            return self._search(search, asked, wanted, k, begin_s)

    def _search(
        self, search: CandidateSearch, asked: AskedTexts, wanted: int, k: int, begin_s: float
    ) -> RankedDocuments:
        """Search, prefetch, wait, read the rest, and merge."""
        steps = search.steps(asked.texts, wanted, self.prefetch_step)
        hits, is_last = next(steps)
        early: ScoreJob | None = None
        guessed = np.empty((len(hits.ids), 0), np.int64)
        running: Future[Any] | None = None
        early_s = time.perf_counter()
        if not is_last:
            guessed = hits.ids[:, : self.rerank]
            early = ScoreJob.of(self.store, asked, guessed)
            running = self.reader.start(early)
            hits, _ = next(steps)
            # A slow drive is still at the first of them: what has fallen out is not asked for.
            early.keep_only(hits.ids[:, : self.rerank])
        searched_s = time.perf_counter()
        if running is not None:
            running.result()
        waited_s = time.perf_counter()
        final = hits.ids[:, : self.rerank]
        places = _places(guessed, final)
        late = ScoreJob.of(self.store, asked, np.where(places >= 0, -1, final))
        if len(late):
            self.reader.score(late)
        late_s = time.perf_counter()
        scores = self._scores(final, places, early, late)
        ids, values = merged(hits, scores, k, is_l2=self.candidates.metric == "l2")
        end_s = time.perf_counter()
        jobs = [job for job in (early, late) if job is not None]
        trace = RerankTrace(
            early_s=early_s - begin_s,
            beside_s=searched_s - early_s,
            stall_s=waited_s - searched_s,
            late_s=late_s - waited_s,
            merge_s=end_s - late_s,
            total_s=end_s - begin_s,
            prefetched=early.num_read if early is not None else 0,
            hits=int((places >= 0).sum()),
            misses=int((final >= 0).sum() - (places >= 0).sum()),
            reads=sum(job.num_read for job in jobs),
            read_bytes=sum(job.num_bytes for job in jobs),
            damaged=sum(job.damaged for job in jobs),
            note=self.reader.note,
        )
        return RankedDocuments(ids, values, trace)

    def _scores(self, final: Ids, places: Ids, early: ScoreJob | None, late: ScoreJob) -> Floats:
        """Return the score of each candidate [Q, R]; NaN without a whole record."""
        found = self._filled(late, final.shape)
        if early is not None:
            known = self._filled(early, (len(final), early.wanted_width)).reshape(-1)
            is_hit = places >= 0
            found[is_hit] = known[places[is_hit]]
        return found

    def _filled(self, job: ScoreJob, shape: tuple[int, ...]) -> Floats:
        """Return the scores of a job at the places of what was wanted."""
        found = np.full(int(np.prod(shape)), np.nan, np.float32)
        is_scored = job.is_scored()
        values = np.float32(self.weight) * job.text_scores + job.token_scores
        found[job.pair_places[is_scored]] = values[is_scored]
        return found.reshape(shape)

    def close(self) -> None:
        """Close the reader's files and end its threads."""
        self.reader.close()

    def __enter__(self) -> Self:
        """Return this."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def _places(guessed: Ids, final: Ids) -> Ids:
    """Return where each candidate stands among all guessed ones [Q, R]; -1 for nowhere."""
    found = np.full(final.shape, -1, np.int64)
    width = guessed.shape[1]
    if not width:
        return found
    for query, (known, wanted) in enumerate(zip(guessed, final, strict=True)):
        order = np.argsort(known, kind="stable")
        spots = order[np.minimum(np.searchsorted(known[order], wanted), width - 1)]
        is_there = (known[spots] == wanted) & (wanted >= 0)
        found[query, is_there] = spots[is_there] + query * width
    return found


def merged(hits: Hits, scores: Floats, k: int, *, is_l2: bool) -> tuple[Ids, Floats]:
    """Order candidates: those with scores by them, then the rest as the index has them.

    Args:
        hits: candidates of the index [Q, C].
        scores: of the first R of each query [Q, R]; NaN drops the candidate.
        k: documents that are wanted.
        is_l2: distances of the index are squared ones, smaller is nearer.

    Returns:
        Numbers and scores [Q, k]. The rest keep their distances from each other, shifted below the
        least score.
    """
    ranked = scores.shape[1]
    ids = np.full((len(scores), k), -1, np.int64)
    found = np.full((len(scores), k), -np.inf, np.float32)
    for query, own in enumerate(scores):
        there = np.flatnonzero(~np.isnan(own))
        order = there[np.lexsort((hits.ids[query, there], -own[there]))][:k]
        ids[query, : len(order)] = hits.ids[query, order]
        found[query, : len(order)] = own[order]
        tail = np.flatnonzero(hits.ids[query, ranked:] >= 0)[: k - len(order)] + ranked
        if len(tail):
            nearness = hits.distances[query, tail] * (-1 if is_l2 else 1)
            least = own[there].min() if len(there) else np.float32(0.0)
            spots = slice(len(order), len(order) + len(tail))
            ids[query, spots] = hits.ids[query, tail]
            found[query, spots] = np.nextafter(least, -np.inf) + (nearness - nearness.max())
    return ids, found
