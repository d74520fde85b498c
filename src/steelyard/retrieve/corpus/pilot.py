"""What an index of texts will take, forecast from a part of its files, and measured after."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from steelyard.retrieve.corpus.sampling import PilotSample
from steelyard.retrieve.corpus.trial import CorpusTrial
from steelyard.retrieve.datastore import Datastore, PassageEncoder
from steelyard.retrieve.datastore.searching import StoreSearch
from steelyard.retrieve.datastore.shape import StoreShape
from steelyard.retrieve.forecasts import BuildFigures, timed
from steelyard.retrieve.text.encoder import LatentEncoder
from steelyard.retrieve.text.fusion import DEPTH
from steelyard.retrieve.text.weighing import CANDIDATES, POOL, QUERIES, made_queries
from steelyard.retrieve.work_clock import fastest, free_threads

__all__ = ["CorpusForecast", "forecast_corpus", "measure_corpus"]

_TRIED, _FEWEST_TRIED, _WARM = 20, 300, 20
"""A pilot fits and indexes one passage of twenty, but some hundreds, below which what every call
takes would be carried over; so many warm it."""
_QUERIES, _K = 60, 10
_GROWN_MOST = 50_000
"""Passages up to which searches are tried at full size."""
_WRITTEN, _FITTED, _SAVED = 1.2, 1.1, 1.35
"""Reading, cutting and writing passages over reading and cutting them; fitting an encoder once over
fitting it again; indexing and saving passages over indexing them."""


@dataclass(frozen=True, kw_only=True)
class CorpusForecast:
    """What an index of texts will take.

    Attributes:
        figures: the whole.
        stage_s: seconds of the build by stage: "read", "fit", "weigh", "index".
    """

    figures: BuildFigures
    stage_s: Mapping[str, float]


@free_threads()
def forecast_corpus(
    sample: PilotSample,
    shape: StoreShape,
    dim: int,
    fitted_texts: int,
    encoder: PassageEncoder | None = None,
    *,
    seed: int = 0,
) -> CorpusForecast:
    """Forecast an index of texts by one of a part of its passages.

    Args:
        sample: passages of some files.
        shape: what is indexed.
        dim: numbers in a vector of a latent encoder.
        fitted_texts: passages that a latent encoder is fitted on at most.
        encoder: turns texts into vectors; None for a latent encoder.
        seed: seed of all draws.

    Returns:
        The forecast.
    """
    count = max(round(sample.passages), 1)
    texts = sample.texts[: max(count // _TRIED, _FEWEST_TRIED)]
    # What compiles and loads does so before anything is timed.
    few = _CorpusPilot(texts[:_WARM], shape, dim, encoder, seed)
    few.stage_seconds(sample, _WARM, _WARM, few.trial.grown(_WARM), texts[:1])
    pilot = _CorpusPilot(texts, shape, dim, encoder, seed)
    held = min(count, _GROWN_MOST)
    searched, queries = pilot.trial.grown(held), _asked(texts, seed)
    found = _searches(searched, queries)
    if held < count:
        half = _searches(pilot.trial.grown(held // 2), queries)
        found = _extended(half, found, held, count)
    stage_s = pilot.stage_seconds(sample, count, fitted_texts, searched, queries)
    growth = pilot.growth() if shape.words else 0.0
    return CorpusForecast(
        figures=BuildFigures(
            build_s=sum(stage_s.values()),
            memory_bytes=pilot.trial.memory_bytes(searched, held, growth) * count / held,
            p50_s=found["p50"],
            p95_s=found["p95"],
            rate_per_s=1 / found["each"],
            ways_s=_ways(found),
            build_quantity="retrieve.index_time",
        ),
        stage_s=stage_s,
    )


def measure_corpus(store: Datastore, build_s: float, *, seed: int = 0) -> BuildFigures:
    """Measure the searches of an index of texts, by sentences of its passages.

    Args:
        store: the index.
        build_s: seconds that the build took.
        seed: seed of the queries.

    Returns:
        The figures.
    """
    passages = store.passages
    places = np.random.default_rng(seed + 1).integers(0, len(passages), 4 * _QUERIES)
    found = _searches(store.searching, _asked([passages.text(n) for n in places.tolist()], seed))
    words = sum(store.words.memory_bytes().values()) if store.words else 0
    vectors = sum(sum(shard.memory_bytes().values()) for shard in store.shards)
    return BuildFigures(
        build_s=build_s,
        memory_bytes=float(words + vectors),
        p50_s=found["p50"],
        p95_s=found["p95"],
        rate_per_s=1 / found["each"],
        ways_s=_ways(found),
        build_quantity="retrieve.index_time",
    )


def _asked(texts: Sequence[str], seed: int) -> list[str]:
    """Return sentences of texts, or their beginnings where they have none."""
    made = made_queries(texts, np.random.default_rng(seed), _QUERIES)
    return [query for _, query, _ in made] or [text[:60] for text in texts[:_QUERIES]]


def _searches(search: StoreSearch, queries: Sequence[str]) -> dict[str, float]:
    """Return seconds of a query: "p50", "p95", "each" of many together, and of each way."""
    p50_s, p95_s, rate = timed(lambda asked: search.hits(asked, _K), queries)
    found = {"p50": p50_s, "p95": p95_s, "each": 1 / rate}
    for name, way in search.ways().items():
        found[name] = timed(lambda asked, way=way: way.hits(asked, _K), queries, passes=1)[0]
    return found


def _ways(found: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of words alone, vectors alone and both; none where there is one way."""
    ways = {name: found[name] for name in ("words", "vectors") if name in found}
    return ways | {"words + vectors": found["p50"]} if ways else {}


def _extended(
    half: Mapping[str, float], whole: Mapping[str, float], size: int, count: int
) -> dict[str, float]:
    """Carry times at two sizes over to another one, along lines that do not fall.

    A part of each search takes the same time at any size: a line through 0 is the steepest.
    """
    found = {}
    for name, took_s in whole.items():
        slope = max(took_s - half[name], 0.0) / (size - size // 2)
        found[name] = took_s + min(slope, took_s / size) * (count - size)
    return found


class _CorpusPilot:
    """An encoder and an index of some passages, with the seconds that each took."""

    def __init__(
        self,
        texts: Sequence[str],
        shape: StoreShape,
        dim: int,
        encoder: PassageEncoder | None,
        seed: int,
    ) -> None:
        self._texts, self._shape, self.fit_s = texts, shape, 0.0
        if shape.vectors and encoder is None:
            self.fit_s, encoder = fastest(lambda: LatentEncoder.fit(texts, dim, seed=seed))
        self.trial = CorpusTrial(texts, shape, encoder)

    def stage_seconds(
        self,
        sample: PilotSample,
        count: int,
        fitted_texts: int,
        searched: StoreSearch,
        queries: Sequence[str],
    ) -> dict[str, float]:
        """Return the seconds of each stage of a build of so many passages."""
        size = len(self._texts)
        index_s = (self.trial.words_s + self.trial.vectors_s) / size
        found = {
            "read": sample.read_s * sample.scale * _WRITTEN,
            "fit": self._fit_s(min(count, fitted_texts)),
            "index": index_s * count * _SAVED,
        }
        if self._shape.vectors and self._shape.words:
            pool = min(count, POOL)
            fused = len(CANDIDATES) * min(QUERIES, pool)
            weighed_s = self._fit_s(pool) + index_s * pool
            found["weigh"] = weighed_s + _fuse_s(searched, queries) * fused
        return found

    def _fit_s(self, passages: int) -> float:
        return _FITTED * self.fit_s * passages / len(self._texts)

    def growth(self) -> float:
        """Return the power of passages that distinct words grow with (Heaps 1978)."""
        half = CorpusTrial(self._texts[::2], StoreShape.named("bm25"), None)
        share = len(self._texts) / len(self._texts[::2])
        return float(np.log(self.trial.num_words / half.num_words) / np.log(share))


def _fuse_s(searched: StoreSearch, queries: Sequence[str]) -> float:
    """Return the seconds of making two rankings of a query one."""
    assert searched.words is not None
    words, vectors = searched.words.search(queries, DEPTH), searched.vector_hits(queries, DEPTH)
    fuse_s, _ = fastest(lambda: searched.shape.fusion.fuse(words, vectors, DEPTH))
    return fuse_s / len(queries)
