"""What the chosen design of a plan of re-ranking does: its forecasts are checked by that."""

import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.plan.retrieve.rerank import RerankPlan
from steelyard.quantity import Measurement
from steelyard.retrieve.multivector.candidates import CandidateIndex
from steelyard.retrieve.multivector.footprint import measure_footprint
from steelyard.retrieve.multivector.readers import ReaderKind, RecordReader
from steelyard.retrieve.multivector.reranker import PrefetchedReranker
from steelyard.retrieve.multivector.store import MultiVectorStore
from steelyard.retrieve.multivector.throttled import ThrottledReader
from steelyard.retrieve.multivector.tracing import RerankTrace

__all__ = ["measure_rerank"]

_ROUNDS = 3


def measure_rerank(
    plan: RerankPlan,
    candidates: CandidateIndex,
    store: MultiVectorStore,
    texts: NDArray[np.float32],
    tokens: list[NDArray[np.float32]],
    *,
    index: Path,
    is_here: bool = False,
    nprobe: int = 0,
    k: int = 10,
    weight: float = 1.0,
) -> list[Measurement]:
    """Search with the chosen design, and measure what `rerank_forecasts` says.

    Args:
        plan: its chosen design.
        candidates: the index.
        store: the store.
        texts: vectors of queries' texts [Q, D], of queries that the plan has not seen.
        tokens: vectors of their tokens.
        index: file of the index.
        is_here: whether the plan's drive is what the store lies on: it is read past the page
            cache then, and played otherwise.
        nprobe: cells to look into; the index's own number when 0.
        k: documents of each query.
        weight: of the texts' vectors in a score.

    Returns:
        Median and 95th percentile of the latency, memory that searches add to a process of their
        own, and the share of the ranked documents that was guessed early.

    Raises:
        ConfigError: the drive has no latency or rate.
        BackendError: the process that measures memory failed.
    """
    best, depth = plan.best, plan.depth
    reader: ReaderKind | RecordReader = "threads"
    if not is_here:
        reader = ThrottledReader(store, plan.drive, depth=depth)
    with PrefetchedReranker(
        candidates,
        store,
        reader=reader,
        prefetch_step=best.prefetch_step,
        rerank=best.rerank,
        depth=depth,
        weight=weight,
        nprobe=nprobe,
    ) as reranker:
        # The first search starts threads and fills caches.
        reranker.search(texts[:1], tokens[:1], k)
        traces = [
            reranker.search(texts[place : place + 1], [own], k).trace
            for _ in range(_ROUNDS)
            for place, own in enumerate(tokens)
        ]
    memory = measure_footprint(
        *(store.path, index, texts, tokens),
        k=k,
        weight=weight,
        prefetch_step=best.prefetch_step,
        rerank=best.rerank,
        depth=depth,
        nprobe=nprobe,
    )
    return _measurements(traces, len(tokens), memory)


def _measurements(traces: list[RerankTrace], queries: int, memory: int) -> list[Measurement]:
    """Return figures of searches as what was measured."""
    totals_s = np.array([trace.total_s for trace in traces])
    hits = np.array([trace.hit_rate for trace in traces])
    found = {
        "retrieve.rerank_p50": (np.median(totals_s), np.std(totals_s), len(traces)),
        "retrieve.rerank_p95": (np.percentile(totals_s, 95), np.std(totals_s), len(traces)),
        "retrieve.rerank_memory": (memory, 0.0, 1),
        "retrieve.rerank_hits": (hits.mean(), hits.std(), queries),
    }
    now_s = time.time()
    return [
        Measurement(
            quantity=name, value=float(value), spread=float(spread), count=count, time_s=now_s
        )
        for name, (value, spread, count) in found.items()
    ]
