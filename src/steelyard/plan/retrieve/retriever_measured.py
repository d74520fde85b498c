"""Speeds and recalls of retrievers, measured on this machine with a sample of vectors."""

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import CalibrationError
from steelyard.plan.retrieve.retriever_cost import DocumentIndex
from steelyard.plan.retrieve.retriever_speed import LatencySample, SpeedLine, time_calls
from steelyard.retrieve import IVF, IVFPQ, IVFFlat
from steelyard.retrieve.tuning import recall_at

__all__ = [
    "IndexTrial",
    "encoder_speed",
    "flat_option",
    "pq_option",
    "scan_trial",
    "trial_index",
]

Floats = NDArray[np.float32]
_LEAST = 1024
_K = 10


class IndexTrial:
    """An index of codes over a sample, tried with several numbers of cells.

    Attributes:
        recalls: recall at 10 of each number of cells.
        shares: share of all codes that each scans.
        line: seconds of a search by codes scanned, with the centers compared in the fixed part.
    """

    def __init__(
        self, recalls: dict[int, float], shares: dict[int, float], line: SpeedLine
    ) -> None:
        """Keep what was measured."""
        self.recalls, self.shares, self.line = recalls, shares, line


def encoder_speed(
    encoders: Sequence[tuple[float, Callable[[str], object]]],
    texts: Sequence[str],
    *,
    clock: Callable[[], float] = time.perf_counter,
    between: Callable[[], object] | None = None,
) -> SpeedLine:
    """Return seconds of encoding one text by its operations.

    Args:
        encoders: operations of a text, and what encodes one; two sizes or more.
        texts: texts like the queries.
        clock: seconds.
        between: see `time_calls`.

    Returns:
        The line.

    Raises:
        CalibrationError: fewer than two sizes, or no text.
    """
    if not texts:
        raise CalibrationError("no text to time encoders with", hint="give some queries")
    samples = []
    for flops, encode in encoders:

        def call(number: int, encode: Callable[[str], object] = encode) -> object:
            return encode(texts[number % len(texts)])

        timed = time_calls(call, max(50, len(texts)), flops, clock=clock, between=between)
        samples.append(timed)
    return SpeedLine.through(samples)


def trial_index(
    vectors: Floats, *, nlist: int, parts: int, rerank: int = 10, seed: int = 0
) -> IVFPQ:
    """Build an index of codes over a sample.

    Args:
        vectors: unit vectors of documents [N, D].
        nlist: cells.
        parts: bytes of a code.
        rerank: candidates per neighbour that are compared again by whole vectors.
        seed: seed of the training.

    Returns:
        The index.

    Raises:
        CalibrationError: fewer vectors than codes are trained on.
    """
    if len(vectors) < _LEAST:
        raise CalibrationError(
            f"{len(vectors)} vectors to try an index with", hint=f"give {_LEAST} or more"
        )
    index = IVFPQ(vectors.shape[1], nlist=nlist, parts=parts, metric="ip", rerank=rerank)
    index.train(vectors, seed=seed)
    index.add(vectors)
    return index


def scan_trial(
    index: IVFPQ,
    vectors: Floats,
    queries: Floats,
    *,
    probes: Sequence[int],
    clock: Callable[[], float] = time.perf_counter,
    between: Callable[[], object] | None = None,
) -> IndexTrial:
    """Try an index of a sample with several numbers of cells.

    Args:
        index: of `trial_index`.
        vectors: what is in it [N, D].
        queries: unit vectors of queries [Q, D].
        probes: numbers of cells to look into; two or more.
        clock: seconds.
        between: see `time_calls`.

    Returns:
        What was measured.
    """
    exact = IVFFlat(vectors.shape[1], metric="ip")
    exact.add(vectors)
    truth = exact.search(queries, _K).ids
    recalls, shares, samples = {}, {}, []
    for nprobe in probes:
        hits = index.search(queries, _K, nprobe=nprobe)
        recalls[nprobe] = float(recall_at(hits.ids, truth).mean())
        scanned = hits.stats.scanned / len(queries)
        shares[nprobe] = scanned / len(vectors)
        samples.append(_timed(index, queries, nprobe, scanned, clock, between))
    return IndexTrial(recalls, shares, SpeedLine.through(samples))


def _timed(
    index: IVF,
    queries: Floats,
    nprobe: int,
    work: float,
    clock: Callable[[], float],
    between: Callable[[], object] | None = None,
) -> LatencySample:
    """Time searches of one query each."""

    def call(number: int) -> object:
        row = number % len(queries)
        return index.search(queries[row : row + 1], _K, nprobe=nprobe)

    return time_calls(call, max(50, len(queries)), work, clock=clock, between=between)


def pq_option(
    trial: IndexTrial, nprobe: int, documents: int, *, dim: int, parts: int
) -> DocumentIndex:
    """Return what an index of codes over all documents would be like.

    Cells hold more vectors each; which share of them is scanned, and the recall at equal cells,
    stay as on the sample.

    Args:
        trial: what a sample gave.
        nprobe: cells to look into.
        documents: documents in the whole index.
        dim: numbers of a vector.
        parts: bytes of a code.

    Returns:
        The option; whole vectors for the comparison are counted in its memory.
    """
    scanned = trial.shares[nprobe] * documents
    return DocumentIndex(
        name=f"codes of {parts} bytes, {nprobe} cells",
        recall=trial.recalls[nprobe],
        memory_bytes=documents * (parts + 4 + 8 + 4 * dim),
        median_s=trial.line.median_s(scanned),
        tail=trial.line.tail,
        kind="ivfpq",
    )


def flat_option(
    vectors: Floats,
    queries: Floats,
    documents: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> DocumentIndex:
    """Return what an exact search over all documents would be like.

    Args:
        vectors: sample [N, D].
        queries: [Q, D].
        documents: documents in the whole index.
        clock: seconds.

    Returns:
        The option; seconds grow with the documents along a line through the sample and half of
        it.
    """
    samples = []
    for count in (len(vectors) // 2, len(vectors)):
        index = IVFFlat(vectors.shape[1], metric="ip")
        index.add(vectors[:count])
        samples.append(_timed(index, queries, 1, count, clock))
    line = SpeedLine.through(samples)
    return DocumentIndex(
        name="whole vectors, exact",
        recall=1.0,
        memory_bytes=documents * (4 * vectors.shape[1] + 8),
        median_s=line.median_s(documents),
        tail=line.tail,
    )
