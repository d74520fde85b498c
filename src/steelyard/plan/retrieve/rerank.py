"""Re-ranking beyond memory: when to prefetch and how many to rank, for a latency and a loss."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.storage import StorageTier
from steelyard.cost.overlap import Prefetched, read_ready_s
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan.retrieve.rerank_errors import RerankErrors
from steelyard.quantity import Forecast
from steelyard.retrieve.multivector.profile import RerankProfile

__all__ = ["RerankDesign", "RerankPlan", "plan_rerank", "predict_rerank"]

Floats = NDArray[np.float64]
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
    errors: RerankErrors | None = None,
) -> RerankPlan:
    """Choose when to prefetch and how many documents to rank.

    Args:
        profile: of index and store.
        drive: what documents are read from.
        p95_s: latency that 95 % of queries must keep.
        recall_loss: share of the best documents that may be lost against ranking all candidates.
        depth: reads under way at once.
        processors: that serve queries side by side.
        errors: how far such forecasts were off, of `check_rerank`.

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
        predict_rerank(
            profile, drive, share, rerank, depth=depth, processors=processors, errors=errors
        )
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
    errors: RerankErrors | None = None,
) -> RerankDesign:
    """Forecast one design.

    The latency of each sample query is computed from its own search times and hits: reads begin
    after a share of the search and run beside the rest. At its end those that have fallen out and
    are not under way are left out; what was missed is read then.

    Args:
        profile: of index and store.
        drive: latency and rates.
        share: one of the profile's.
        rerank: one of the profile's.
        depth: reads under way at once.
        processors: that serve queries side by side.
        errors: how far such forecasts were off, of `check_rerank`.

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
    errors = errors or RerankErrors()
    times_s, read = _latencies(profile, drive, share, rerank, depth)
    reads = float(read.mean())
    row = profile.shares.index(share)
    processor_s = (
        float((profile.early_s + profile.beside_s)[row].mean())
        + reads * profile.document_s
        + profile.job_s
        + profile.merge_s
    )
    rates = {"processor": processors / processor_s, "drive": drive_queries(profile, drive, reads)}
    bound_by = min(rates, key=lambda name: rates[name])
    return RerankDesign(
        prefetch_step=share,
        rerank=rerank,
        hit_rate=profile.hit_rate(share, rerank),
        kept=float(profile.kept[profile.reranks.index(rerank)]),
        p50_s=_forecast("retrieve.rerank_p50", times_s, 50, (share, rerank), errors, profile.noise),
        p95_s=_forecast("retrieve.rerank_p95", times_s, 95, (share, rerank), errors, profile.noise),
        queries_per_s=_rate(rates[bound_by], errors, profile.noise),
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
) -> tuple[Floats, Floats]:
    """Return the latency of each sample query, and the documents that it reads [Q]."""
    row = profile.shares.index(share)
    is_hit = profile.is_hit(share, rerank)
    size = round(profile.document_bytes)
    found, read = np.empty(len(is_hit)), np.empty(len(is_hit))
    for query, own in enumerate(is_hit):
        missed = rerank - int(own.sum())
        late_s = _scored_s(read_ready_s(np.full(missed, size), drive, depth), profile.document_s)
        beside_s, ready_s = float(profile.beside_s[row, query]), np.empty(0)
        if share < 1:
            ready_s = read_ready_s(
                np.full(rerank, size),
                drive,
                depth,
                is_kept=own,
                dropped_s=max(beside_s - profile.start_s, 0.0),
            )
        found[query] = (
            Prefetched(
                before_s=profile.early_s[row, query],
                beside_s=beside_s,
                read_s=profile.start_s + _scored_s(ready_s, profile.document_s),
                late_s=profile.job_s + late_s,
                after_s=profile.merge_s,
            )
            .time()
            .total_s
        )
        read[query] = missed + np.isfinite(ready_s).sum()
    return found, read


def _scored_s(ready_s: Floats, document_s: float) -> float:
    """Return when all documents that are read are scored; each is scored as it arrives."""
    made_s = ready_s[np.isfinite(ready_s)]
    if not len(made_s):
        return 0.0
    return float((made_s + document_s * np.arange(len(made_s), 0, -1)).max())


def _forecast(
    name: str,
    times_s: Floats,
    percentile: int,
    design: tuple[float, int],
    errors: RerankErrors,
    noise: float,
) -> Forecast:
    """Return a percentile with an interval: of the sample, and of the model."""
    told = float(np.percentile(times_s, percentile))
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(times_s), (400, len(times_s)))
    spread = float(np.std(np.percentile(times_s[drawn], percentile, axis=1))) / told
    scale = errors.scale(percentile, *design)
    return _within(name, told * scale, errors.half_width(percentile, spread, noise))


def _rate(value: float, errors: RerankErrors, noise: float) -> Forecast:
    """Return a rate with the interval of the measurement and the model."""
    return _within("retrieve.rerank_rate", value, errors.half_width(95, 0.0, noise))


def _within(name: str, value: float, half: float) -> Forecast:
    """Return a forecast with an interval of some half-width in logarithms."""
    return Forecast(
        quantity=name,
        value=value,
        low=value * float(np.exp(-half)),
        high=value * float(np.exp(half)),
        provenance="simulated",
        source=_SOURCE,
    )
