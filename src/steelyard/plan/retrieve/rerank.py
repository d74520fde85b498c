"""Re-ranking beyond memory: when to prefetch and how many to rank, for a latency and a loss."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.storage import StorageTier
from steelyard.cost.overlap import Prefetched, read_ready_s
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.quantity import Forecast
from steelyard.retrieve.multivector.profile import RerankProfile

__all__ = ["RerankDesign", "RerankPlan", "plan_rerank", "predict_rerank"]

Floats = NDArray[np.float64]
_MODEL_ERROR = {50: 0.05, 95: 0.10}
"""Relative error of the model itself, by percentile; assumed, not fitted."""
_NORMAL_80 = 1.2816
_SOURCE = "profile of sample queries, and the drive's latency and rates"


@dataclass(frozen=True, kw_only=True, slots=True)
class RerankDesign:
    """One way to re-rank, with its forecasts.

    Attributes:
        prefetch_step: share of the search after which reads begin.
        rerank: documents that are ranked by their tokens.
        hit_rate: share of them that is guessed early.
        kept: share of the best documents that it finds.
        p50_s: median latency.
        p95_s: latency of which 5 % of queries take more.
        queries_per_s: of one machine.
        bound_by: "processor" or "drive": what ends that rate.
        reads: documents read per query, wrong guesses among them.
    """

    prefetch_step: float
    rerank: int
    hit_rate: float
    kept: float
    p50_s: Forecast
    p95_s: Forecast
    queries_per_s: Forecast
    bound_by: str
    reads: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RerankPlan:
    """The chosen design, and the others with the reason why they lost.

    Attributes:
        best: the chosen one.
        memory_bytes: index, table and buffers.
        in_memory_bytes: index, and all token vectors.
        drive: what is read from.
        depth: reads under way at once.
        others: design and why it lost.
    """

    best: RerankDesign
    memory_bytes: int
    in_memory_bytes: int
    drive: StorageTier
    depth: int
    others: Sequence[tuple[RerankDesign, str]]


def plan_rerank(
    profile: RerankProfile,
    drive: StorageTier,
    *,
    p95_s: float,
    recall_loss: float = 0.005,
    depth: int = 32,
    processors: int = 1,
) -> RerankPlan:
    """Choose when to prefetch and how many documents to rank.

    Args:
        profile: of index and store.
        drive: what documents are read from.
        p95_s: latency that 95 % of queries must keep.
        recall_loss: share of the best documents that may be lost against ranking all candidates.
        depth: reads under way at once.
        processors: that serve queries side by side.

    Returns:
        The design of the least median latency among those that keep both, and the others.

    Raises:
        ConfigError: a number is out of range, or the drive's latency and rate are unknown.
        InfeasibleError: no design keeps both; the best that there is is named.
    """
    if not (p95_s > 0 and 0 <= recall_loss < 1 and processors >= 1):
        raise ConfigError(
            f"p95 of {p95_s:g} s, loss of {recall_loss:g}, {processors} processors",
            hint="give a latency above 0, a loss from 0 to below 1, and 1 processor or more",
        )
    designs = [
        predict_rerank(profile, drive, share, rerank, depth=depth, processors=processors)
        for share in profile.shares
        for rerank in profile.reranks
    ]
    good = [item for item in designs if 1 - item.kept <= recall_loss + 1e-12]
    quick = [item for item in good if item.p95_s.value <= p95_s]
    if not quick:
        raise InfeasibleError(
            f"no design loses at most {recall_loss:.1%} within {p95_s * 1e3:.3g} ms",
            hint=_nearest(designs, good, recall_loss),
        )
    best = min(quick, key=lambda item: (item.p50_s.value, item.reads))
    buffers = depth * int(np.ceil(profile.document_bytes / 4096)) * 4096
    return RerankPlan(
        best=best,
        memory_bytes=profile.index_bytes + profile.table_bytes + buffers,
        in_memory_bytes=profile.index_bytes + profile.table_bytes + profile.store_bytes,
        drive=drive,
        depth=depth,
        others=[
            (item, _why(item, best, p95_s, recall_loss)) for item in designs if item is not best
        ],
    )


def _nearest(
    designs: Sequence[RerankDesign], good: Sequence[RerankDesign], recall_loss: float
) -> str:
    """Say what is possible."""
    if not good:
        return f"the least loss is {1 - max(item.kept for item in designs):.1%}; allow that"
    best = min(good, key=lambda item: item.p95_s.value)
    return (
        f"the least p95 at a loss of {recall_loss:.1%} is {best.p95_s.value * 1e3:.3g} ms; allow "
        "that, a larger loss, or take a faster drive"
    )


def _why(item: RerankDesign, best: RerankDesign, p95_s: float, recall_loss: float) -> str:
    """Say why a design lost."""
    if 1 - item.kept > recall_loss + 1e-12:
        return f"loses {1 - item.kept:.1%} of the best documents"
    if item.p95_s.value > p95_s:
        return f"p95 is {item.p95_s.value * 1e3:.3g} ms"
    if item.p50_s.value > best.p50_s.value:
        return f"p50 is {item.p50_s.value / best.p50_s.value:.2f} of the chosen one's"
    return "reads more documents"


def predict_rerank(
    profile: RerankProfile,
    drive: StorageTier,
    share: float,
    rerank: int,
    *,
    depth: int = 32,
    processors: int = 1,
) -> RerankDesign:
    """Forecast one design.

    The latency of each sample query is computed from its own search times and hits: reads begin
    after a share of the search and run beside the rest; what was missed is read at the end.

    Args:
        profile: of index and store.
        drive: latency and rates.
        share: one of the profile's.
        rerank: one of the profile's.
        depth: reads under way at once.
        processors: that serve queries side by side.

    Returns:
        The design.

    Raises:
        ConfigError: the drive's latency or rate is unknown, or the profile lacks the design.

    Source: Shrestha et al. 2023 (ESPN, arXiv 2312.05417), latency of a query with prefetch.
    """
    if not (drive.first_byte_s > 0 and drive.bytes_per_s > 0):
        raise ConfigError(
            f"latency and rate of {drive.name} are unknown",
            hint="run `steelyard calibrate`, or name a drive such as pm9a3",
        )
    if share not in profile.shares or rerank not in profile.reranks:
        raise ConfigError(
            f"a prefetch after {share:g} of the search with {rerank} documents was not profiled",
            hint=f"shares {list(profile.shares)}, documents {list(profile.reranks)}",
        )
    hits = profile.hits[profile.shares.index(share), profile.reranks.index(rerank)]
    times_s = _latencies(profile, drive, share, rerank, depth)
    is_early = share < 1
    reads = float((rerank - hits).mean() + (rerank if is_early else 0))
    processor_s = (
        float((profile.early_s + profile.beside_s)[profile.shares.index(share)].mean())
        + reads * profile.document_s
        + profile.job_s
        + profile.merge_s
    )
    rates = {"processor": processors / processor_s, "drive": drive_queries(profile, drive, reads)}
    bound_by = min(rates, key=lambda name: rates[name])
    return RerankDesign(
        prefetch_step=share,
        rerank=rerank,
        hit_rate=float(hits.mean() / rerank),
        kept=float(profile.kept[profile.reranks.index(rerank)]),
        p50_s=_forecast("retrieve.rerank_p50", times_s, 50, profile.noise),
        p95_s=_forecast("retrieve.rerank_p95", times_s, 95, profile.noise),
        queries_per_s=_rate(rates[bound_by], profile.noise),
        bound_by=bound_by,
        reads=reads,
    )


def drive_queries(profile: RerankProfile, drive: StorageTier, reads: float) -> float:
    """Return the queries per second that a drive's rates allow.

    Args:
        profile: bytes of a document.
        drive: its rates; one of 0 does not limit.
        reads: documents per query.

    Returns:
        Queries per second.
    """
    by_bytes = drive.bytes_per_s / (reads * profile.document_bytes)
    return min(by_bytes, drive.reads_per_s / reads) if drive.reads_per_s else by_bytes


def _latencies(
    profile: RerankProfile, drive: StorageTier, share: float, rerank: int, depth: int
) -> Floats:
    """Return the latency of each sample query [Q]."""
    row = profile.shares.index(share)
    hits = profile.hits[row, profile.reranks.index(rerank)]
    sizes = np.full(rerank, round(profile.document_bytes), np.int64)
    found = np.empty(len(hits))
    for query, hit in enumerate(hits.tolist()):
        missed = _read_s(sizes[: rerank - hit], drive, depth, profile.document_s)
        early = _read_s(sizes, drive, depth, profile.document_s) if share < 1 else 0.0
        found[query] = (
            Prefetched(
                before_s=profile.early_s[row, query],
                beside_s=profile.beside_s[row, query],
                read_s=profile.start_s + early if share < 1 else 0.0,
                late_s=profile.job_s + missed,
                after_s=profile.merge_s,
            )
            .time()
            .total_s
        )
    return found


def _read_s(sizes: NDArray[np.int64], drive: StorageTier, depth: int, document_s: float) -> float:
    """Return when all of some documents are read and scored; each is scored as it arrives."""
    if not len(sizes):
        return 0.0
    ready_s = read_ready_s(sizes, drive, depth)
    return float((ready_s + document_s * np.arange(len(sizes), 0, -1)).max())


def _forecast(name: str, times_s: Floats, percentile: int, noise: float) -> Forecast:
    """Return a percentile with an interval: of the sample, of the measurement, of the model."""
    value = float(np.percentile(times_s, percentile))
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(times_s), (400, len(times_s)))
    spread = float(np.std(np.percentile(times_s[drawn], percentile, axis=1))) / value
    half = _NORMAL_80 * float(np.sqrt(spread**2 + noise**2 + _MODEL_ERROR[percentile] ** 2))
    return Forecast(
        quantity=name,
        value=value,
        low=value * max(1 - half, 0.0),
        high=value * (1 + half),
        provenance="simulated",
        source=_SOURCE,
    )


def _rate(value: float, noise: float) -> Forecast:
    """Return a rate with the interval of the measurement and the model."""
    half = _NORMAL_80 * float(np.hypot(noise, _MODEL_ERROR[95]))
    return Forecast(
        quantity="retrieve.rerank_rate",
        value=value,
        low=value * max(1 - half, 0.0),
        high=value * (1 + half),
        provenance="simulated",
        source=_SOURCE,
    )
