"""What an index of texts will take, forecast from a part of its files."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.data.sources import TextFile
from steelyard.retrieve.corpus.cutting import cut_lines
from steelyard.retrieve.corpus.files import SkippedFiles, read_file
from steelyard.retrieve.datastore import Datastore
from steelyard.retrieve.datastore.shape import StoreShape
from steelyard.retrieve.forecasts import BuildFigures, timed
from steelyard.retrieve.text.encoder import LatentEncoder
from steelyard.retrieve.text.lexical import BM25Index
from steelyard.retrieve.text.weighing import POOL, made_queries, weigh
from steelyard.retrieve.tuning import recall_at

__all__ = ["PilotSample", "forecast_corpus", "measure_corpus", "sample_passages"]

_MOST, _LEAST, _PART = 3000, 40, 6
_TRIED, _FEWEST_TRIED, _WARM = 20, 100, 20
"""A pilot fits and indexes one passage of twenty, which with both sizes is a tenth of the work, but
a hundred or more, below which what every call takes would be carried over; these many warm it."""
_QUERIES, _K = 60, 10


@dataclass(frozen=True, kw_only=True)
class PilotSample:
    """Passages of some of the files.

    Attributes:
        texts: the passages.
        read_s: seconds of reading and cutting them.
        passages: passages that all files are expected to have.
        scale: bytes of all files over those that were read.
    """

    texts: list[str]
    read_s: float
    passages: float
    scale: float


def sample_passages(
    files: Sequence[TextFile], words: int, text_field: str, *, seed: int = 0
) -> PilotSample | None:
    """Read some files until there are enough passages for a pilot.

    Args:
        files: all files.
        words: most words of a passage.
        text_field: column or key with the text of tables.
        seed: seed of their order.

    Returns:
        The sample; None where there is too little text for one.
    """
    total = sum(file.size_bytes for file in files)
    order = np.random.default_rng(seed).permutation(len(files)).tolist()
    texts: list[str] = []
    read_bytes, skipped = 0, SkippedFiles()
    began_s = time.perf_counter()
    for place in order:
        file = files[place]
        before = len(texts)
        for part in read_file(file, skipped, text_field):
            texts += [passage.text for passage in cut_lines(part, words)]
            if len(texts) > 2 * _MOST:
                break
        read_bytes += file.size_bytes if len(texts) > before else 0
        enough = _PART * read_bytes >= total and len(texts) >= _LEAST
        if len(texts) >= _MOST or enough:
            break
    read_s = time.perf_counter() - began_s
    if len(texts) < _LEAST or not read_bytes:
        return None
    scale = max(total / read_bytes, 1.0)
    return PilotSample(texts=texts[:_MOST], read_s=read_s, passages=len(texts) * scale, scale=scale)


def forecast_corpus(
    sample: PilotSample,
    shape: StoreShape,
    dim: int,
    fitted_texts: int,
    encode: Callable[[Sequence[str]], NDArray[np.floating]] | None = None,
    *,
    seed: int = 0,
) -> BuildFigures:
    """Forecast an index of texts by one of a part of its passages.

    Args:
        sample: passages of some files.
        shape: what is indexed.
        dim: numbers in a vector of a latent encoder.
        fitted_texts: passages that a latent encoder is fitted on at most.
        encode: turns texts into vectors; None for a latent encoder.
        seed: seed of all draws.

    Returns:
        The figures.
    """
    count = sample.passages
    texts = sample.texts[: max(int(count / _TRIED), _FEWEST_TRIED)]
    build_s = sample.read_s * sample.scale * _WRITTEN
    # What compiles and loads does so before anything is timed.
    _warm(texts[:_WARM], shape, dim, encode, seed)
    if shape.vectors and encode is None:
        fit_s, encode = _fitted(texts, dim, count, fitted_texts, seed)
        build_s += fit_s
    if shape.vectors and shape.words and encode is not None:
        pooled = min(count, POOL) / min(len(texts), POOL)
        build_s += pooled * _weigh_s(texts, dim, seed)
    half, whole = (_Pilot(texts[:size], shape, encode) for size in (len(texts) // 2, len(texts)))
    build_s += whole.index_s * count / len(texts)
    made = made_queries(texts, np.random.default_rng(seed), _QUERIES)
    queries = [query for _, query, _ in made] or [text[:60] for text in texts[:_QUERIES]]
    few, many = timed(half.search, queries), timed(whole.search, queries)
    p50_s, p95_s = (_extended(few[n], many[n], len(texts), count) for n in (0, 1))
    per_query_s = _extended(1 / few[2], 1 / many[2], len(texts), count)
    return BuildFigures(
        build_s=build_s,
        memory_bytes=whole.memory_bytes(count),
        p50_s=p50_s,
        p95_s=p95_s,
        rate_per_s=1 / per_query_s,
        build_quantity="retrieve.index_time",
    )


def _warm(
    texts: list[str],
    shape: StoreShape,
    dim: int,
    encode: Callable[[Sequence[str]], NDArray[np.floating]] | None,
    seed: int,
) -> None:
    """Go through all stages with a few passages."""
    if shape.vectors and encode is None:
        encode = LatentEncoder.fit(texts, dim, seed=seed).encode
    if shape.vectors and shape.words and encode is not None:
        _weigh_s(texts, dim, seed)
    _Pilot(texts, shape, encode).search([text[:60] for text in texts])


def measure_corpus(store: Datastore, build_s: float, *, seed: int = 0) -> BuildFigures:
    """Measure the searches of an index of texts, by sentences of its passages.

    Args:
        store: the index.
        build_s: seconds that the build took.
        seed: seed of the queries.

    Returns:
        The figures; recall is that of the vectors.
    """
    passages = store.passages
    places = np.random.default_rng(seed + 1).integers(0, len(passages), 4 * _QUERIES)
    texts = [passages.text(place) for place in places.tolist()]
    made = made_queries(texts, np.random.default_rng(seed), _QUERIES)
    queries = [query for _, query, _ in made] or [text[:60] for text in texts[:_QUERIES]]
    p50_s, p95_s, rate = timed(lambda asked: store.hits(asked, _K), queries)
    words = sum(store.words.memory_bytes().values()) if store.words else 0
    vectors = sum(sum(shard.memory_bytes().values()) for shard in store.shards)
    is_exact = all(shard.nlist == 1 for shard in store.shards)
    recall = 1.0
    if not is_exact:
        found = store.vector_hits(queries, _K).ids
        most = max(shard.nlist for shard in store.shards)
        # Codes in all cells are not exact either; whole vectors in all cells are.
        recall = float(recall_at(found, store.vector_hits(queries, _K, nprobe=most).ids).mean())
    return BuildFigures(
        build_s=build_s,
        memory_bytes=float(words + vectors),
        p50_s=p50_s,
        p95_s=p95_s,
        rate_per_s=rate,
        recall=recall,
        is_exact=True,
        build_quantity="retrieve.index_time",
    )


_WRITTEN = 1.6
"""Reading, cutting and writing passages over reading and cutting them."""


def _extended(half: float, whole: float, size: int, count: float) -> float:
    """Carry a time at two sizes over to another one, along a line that does not fall."""
    slope = max(whole - half, 0.0) / (size - size // 2)
    # A part of each search takes the same time at any size: a slope through 0 is the steepest.
    return whole + min(slope, whole / size) * (count - size)


def _fitted(
    texts: list[str], dim: int, count: float, most: int, seed: int
) -> tuple[float, Callable[[Sequence[str]], NDArray[np.floating]]]:
    """Fit an encoder on half of the sample and on all; return the seconds on all passages."""
    taken: list[float] = []
    encoder = None
    for size in (len(texts) // 2, len(texts)):
        begun = _now()
        encoder = LatentEncoder.fit(texts[:size], dim, seed=seed)
        taken.append(_worked_s(begun))
    assert encoder is not None
    power = float(np.clip(np.log2(taken[1] / taken[0]), 0.7, 1.2))
    return taken[1] * (min(count, most) / len(texts)) ** power, encoder.encode


def _weigh_s(texts: list[str], dim: int, seed: int) -> float:
    """Return the seconds of choosing weights."""
    begun = _now()
    weigh(texts, lambda pool: LatentEncoder.fit(pool, dim, seed=seed).encode, seed=seed)
    return _worked_s(begun)


def _now() -> tuple[float, float]:
    """Return the moment, and the processor time of this process."""
    return time.perf_counter(), time.process_time()


def _worked_s(begun: tuple[float, float]) -> float:
    """Return the seconds since a moment, without those in which other programs had the processor.

    A pilot is short: what runs beside it is likely not there for all of the build, and would be
    carried over to it. Threads that work side by side take more processor time than time.
    """
    ended = _now()
    return min(ended[0] - begun[0], ended[1] - begun[1])


class _Pilot:
    """Words and vectors of some passages."""

    def __init__(
        self,
        texts: list[str],
        shape: StoreShape,
        encode: Callable[[Sequence[str]], NDArray[np.floating]] | None,
    ) -> None:
        self._texts, self._shape, self._encode = texts, shape, encode
        begun = _now()
        self._words = BM25Index.build(text.encode() for text in texts) if shape.words else None
        self._vectors = None
        if shape.vectors and encode is not None:
            rows = np.asarray(encode(texts), np.float32)
            self._vectors = shape.index(rows.shape[1], len(rows))
            self._vectors.train(rows)
            self._vectors.add(rows)
        self.index_s = _worked_s(begun)

    def search(self, queries: Sequence[str]) -> object:
        """Search as the index will."""
        words = self._words.search(list(queries), 100) if self._words else None
        if self._vectors is None or self._encode is None:
            return words
        vectors = self._vectors.search(np.asarray(self._encode(queries)), 100)
        return self._shape.fusion.fuse(words, vectors, 10) if words else vectors

    def memory_bytes(self, count: float) -> float:
        """Return the bytes of an index of so many passages."""
        scale = count / len(self._texts)
        total = sum(self._vectors.memory_bytes().values()) * scale if self._vectors else 0.0
        if self._words:
            memory = self._words.memory_bytes()
            # Distinct words grow as the square root of the text or a little faster (Heaps).
            total += memory["lists"] * scale + memory["words"] * scale**0.6
        return total
