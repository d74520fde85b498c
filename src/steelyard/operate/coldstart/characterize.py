"""`characterize`: what a trace says about its cold starts, read once, however large it is."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray
from scipy import signal, stats

from steelyard.errors import DataError, FitError
from steelyard.operate.coldstart.fits import TimeFit, fit_times
from steelyard.operate.coldstart.traces import PARTS, read_functions, scan_traces

__all__ = ["ColdStartReport", "TopFunction", "characterize", "peak_to_trough", "utility_ratios"]

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
_PER_OCTAVE = 64
"""Bins of the quantiles per doubling: 1.1 % wide."""
_SAMPLE = 200_000
_MOST_TOP = 10


@dataclass(frozen=True)
class TopFunction:
    """A function with many rows.

    Attributes:
        name: the function.
        count: its rows.
        share: fraction of all rows.
        peak_to_trough: highest peak over lowest trough of its smoothed hourly counts.
    """

    name: str
    count: int
    share: float
    peak_to_trough: float


@dataclass(frozen=True, kw_only=True)
class ColdStartReport:
    """What a trace says; parts that its schema lacks are empty.

    Attributes:
        schema: huawei, azure-2021 or azure-2019.
        num_rows: cold starts, or invocations where the trace has these.
        num_functions: functions seen.
        span_s: seconds from the first row to the last.
        quantiles: for each runtime ("all" is there always) and part ("total_s"; "duration_s" of
            invocations): seconds at the levels of `LEVELS`, to 1.1 %.
        hourly: columns: hour, count, and mean seconds of each part.
        correlation: Spearman matrix of per-minute means: names, rho and p-values.
        fits: fits of "total_s" (or "duration_s") and "interarrival_s", the best first.
        top: functions with the most rows.
        utility: quantiles of the pod utility ratio at `LEVELS`, and the fraction below 1.
    """

    schema: str
    num_rows: int
    num_functions: int
    span_s: float
    quantiles: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    hourly: dict[str, list[float]] = field(default_factory=dict)
    correlation: dict[str, list] = field(default_factory=dict)
    fits: dict[str, list[TimeFit]] = field(default_factory=dict)
    top: list[TopFunction] = field(default_factory=list)
    utility: dict[str, list[float]] = field(default_factory=dict)


def characterize(
    paths: Sequence[Path],
    *,
    functions: Path | None = None,
    requests: Sequence[Path] = (),
    keep_alive_s: float = 60.0,
) -> ColdStartReport:
    """Characterize cold starts, or invocations.

    Args:
        paths: files of one schema, in the order of time.
        functions: Huawei's table of runtimes and triggers.
        requests: Huawei's request tables of the same pods, for utility ratios.
        keep_alive_s: keep-alive of the platform, after which a pod without requests has ended.

    Returns:
        The report.

    Raises:
        TraceError: names file, row and column of what is wrong.
        DataError: a file is missing or has no rows.
    """
    frame, schema = scan_traces(paths)
    if schema == "huawei-requests":
        raise DataError("these are requests, not cold starts", hint="give them as the requests")
    if schema == "azure-2019":
        return _of_counts(frame)
    names = frame.collect_schema().names()
    if functions is not None:
        drop = [name for name in ("runtime", "trigger") if name in names]
        frame = frame.drop(drop).join(read_functions(functions).lazy(), on="function", how="left")
        names = frame.collect_schema().names()
    columns = ["total_s", *PARTS.values()] if schema == "huawei" else ["duration_s"]
    size = frame.select(
        pl.len().alias("rows"),
        pl.col("function").n_unique().alias("functions"),
        (pl.col("time_s").max() - pl.col("time_s").min()).alias("span"),
    )
    rows, count, span_s = size.collect(engine="streaming").row(0)
    if not rows:
        raise DataError(f"{', '.join(path.name for path in paths)}: no rows")
    return ColdStartReport(
        schema=schema,
        num_rows=rows,
        num_functions=count,
        span_s=float(span_s),
        quantiles=_quantiles(frame, columns, has_runtime="runtime" in names),
        hourly=_hourly(frame, columns),
        correlation=_correlation(frame, columns),
        fits=_fits(frame, columns[0], rows),
        top=_top(frame, rows),
        utility=_utility(frame, requests, keep_alive_s) if requests else {},
    )


def _quantiles(
    frame: pl.LazyFrame, columns: list[str], *, has_runtime: bool
) -> dict[str, dict[str, list[float]]]:
    """Return quantiles by runtime and column, from counts in bins of equal ratio."""
    group = pl.col("runtime").fill_null("unknown") if has_runtime else pl.lit("all")
    counted = pl.collect_all(
        [
            frame.filter(pl.col(name).is_not_null())
            .select(
                group.alias("group"),
                # Times of 0 have a bin of their own, far below a nanosecond's.
                pl.when(pl.col(name) > 0)
                .then((pl.col(name).log(2.0) * _PER_OCTAVE).floor())
                .otherwise(-1e6)
                .alias("bin"),
            )
            .group_by("group", "bin")
            .len()
            for name in columns
        ],
        engine="streaming",
    )
    found: dict[str, dict[str, list[float]]] = {"all": {}}
    for name, table in zip(columns, counted, strict=True):
        found["all"][name] = _of_bins(table.group_by("bin").agg(pl.col("len").sum()))
        for (runtime,), part in table.sort("group").group_by("group", maintain_order=True):
            if runtime != "all":
                found.setdefault(str(runtime), {})[name] = _of_bins(part)
    return found


def _of_bins(table: pl.DataFrame) -> list[float]:
    """Return quantiles of counted bins: the middle of the bin that holds each level."""
    table = table.sort("bin")
    bins, counts = table["bin"].to_numpy(), table["len"].to_numpy()
    seen = np.cumsum(counts)
    at = np.searchsorted(seen, np.array(LEVELS) * seen[-1])
    chosen = bins[at]
    return np.where(chosen < -1e5, 0.0, np.exp2((chosen + 0.5) / _PER_OCTAVE)).tolist()


def _hourly(frame: pl.LazyFrame, columns: list[str]) -> dict[str, list[float]]:
    """Return the count and the mean parts of each hour."""
    hour = (pl.col("time_s") / 3600.0).floor().cast(pl.Int64).alias("hour")
    table = frame.group_by(hour).agg(
        pl.len().alias("count"), *[pl.col(name).mean() for name in columns]
    )
    return table.sort("hour").collect(engine="streaming").to_dict(as_series=False)


def _correlation(frame: pl.LazyFrame, columns: list[str]) -> dict[str, list]:
    """Return the rank correlations of per-minute means and counts, with their p-values."""
    minute = (pl.col("time_s") / 60.0).floor().cast(pl.Int64).alias("minute")
    table = frame.group_by(minute).agg(
        *[pl.col(name).mean() for name in columns], pl.len().alias("count")
    )
    values = table.drop("minute").collect(engine="streaming").to_numpy().astype(float)
    if len(values) < 3:
        return {}
    width = values.shape[1]
    rho, p_value = np.eye(width), np.zeros((width, width))
    for row in range(width):
        for column in range(row):
            # A part that never varies has no rank; it correlates with nothing.
            if np.ptp(values[:, row]) == 0 or np.ptp(values[:, column]) == 0:
                pair = (float("nan"), float("nan"))
            else:
                pair = tuple(stats.spearmanr(values[:, row], values[:, column]))
            rho[row, column] = rho[column, row] = pair[0]
            p_value[row, column] = p_value[column, row] = pair[1]
    return {"names": [*columns, "count"], "rho": rho.tolist(), "p_value": p_value.tolist()}


def _fits(frame: pl.LazyFrame, column: str, rows: int) -> dict[str, list[TimeFit]]:
    """Fit the times, and the times between rows, on at most 200,000 rows."""
    gaps = frame.select(pl.col("time_s").sort().diff().drop_nulls().alias("interarrival_s"))
    found: dict[str, list[TimeFit]] = {}
    for name, table in ((column, frame.select(column)), ("interarrival_s", gaps)):
        # A fixed seed of the hash: the same trace has the same fit.
        chosen = pl.int_range(pl.len()).hash(seed=1) % max(rows, 1) < _SAMPLE
        sample = table.filter(chosen).collect(engine="streaming").to_series().to_numpy()
        try:
            found[name] = fit_times(sample)
        except FitError:
            continue  # too short a trace has no fit, which the report shows by its absence
    return found


def _top(frame: pl.LazyFrame, rows: int) -> list[TopFunction]:
    """Return the functions with the most rows."""
    most = frame.group_by("function").len().top_k(_MOST_TOP, by="len").sort("len", descending=True)
    counts = most.collect(engine="streaming")
    names = counts["function"].to_list()
    hour = (pl.col("time_s") / 3600.0).floor().cast(pl.Int64).alias("hour")
    hours = (
        frame.filter(pl.col("function").is_in(names))
        .group_by("function", hour)
        .len()
        .collect(engine="streaming")
    )
    found = []
    begin, end = (hours["hour"].min() or 0), (hours["hour"].max() or 0)
    for name, count in counts.iter_rows():
        mine = hours.filter(pl.col("function") == name)
        series = np.zeros(int(end) - int(begin) + 1)  # pyright: ignore[reportArgumentType]
        series[(mine["hour"] - begin).to_numpy().astype(np.int64)] = mine["len"].to_numpy()
        found.append(TopFunction(str(name), count, count / rows, peak_to_trough(series)))
    return found


def peak_to_trough(counts: ArrayLike, *, window: int = 3) -> float:
    """Return the largest peak over the lowest trough of a smoothed series.

    Args:
        counts: evenly spaced counts.
        window: length of the moving mean.

    Returns:
        The ratio; 1 where there are no peaks, as of a constant series. A trough of 0 counts as one
        call in the whole window.

    Source: Joosen et al. 2025 (arXiv 2410.06145), section 3.3.
    """
    series = np.asarray(counts, dtype=np.float64)
    if len(series) < 2 * window + 1:
        return 1.0
    smooth = np.convolve(series, np.full(window, 1 / window), mode="valid")
    peaks, troughs = signal.find_peaks(smooth)[0], signal.find_peaks(-smooth)[0]
    if not len(peaks) or not len(troughs):
        return 1.0
    return float(max(smooth[peaks].max() / max(smooth[troughs].min(), 1 / window), 1.0))


def _utility(
    frame: pl.LazyFrame, requests: Sequence[Path], keep_alive_s: float
) -> dict[str, list[float]]:
    """Return utility ratios of pods whose start and whose last request are known."""
    asked, _ = scan_traces(requests)
    ends = asked.group_by("pod").agg(
        (pl.col("time_s") + pl.col("duration_s")).max().alias("last_end_s")
    )
    horizon = asked.select((pl.col("time_s") + pl.col("duration_s")).max())
    end_s = horizon.collect(engine="streaming").item()
    pods = frame.group_by("pod").agg(pl.col("time_s").first(), pl.col("total_s").first())
    table = pods.join(ends, on="pod").collect(engine="streaming")
    ready_s = table["time_s"].to_numpy() + table["total_s"].to_numpy()
    ratios = utility_ratios(
        ready_s, table["total_s"].to_numpy(), table["last_end_s"].to_numpy(), end_s, keep_alive_s
    )
    if not len(ratios):
        return {}
    return {
        "levels": list(LEVELS),
        "ratio": np.quantile(ratios, LEVELS).tolist(),
        "below_1": [float((ratios < 1).mean())],
        "pods": [float(len(ratios))],
    }


def utility_ratios(
    ready_s: NDArray[np.float64],
    start_s: NDArray[np.float64],
    last_end_s: NDArray[np.float64],
    horizon_s: float,
    keep_alive_s: float,
) -> NDArray[np.float64]:
    """Return useful lifetime over start-up time of pods that have ended.

    Args:
        ready_s: when each pod could serve.
        start_s: its start-up time, above 0.
        last_end_s: end of its last request.
        horizon_s: end of the trace.
        keep_alive_s: pods idle for less than this at the end are censored and left out.

    Returns:
        Ratios of the others.
    """
    ended = (last_end_s + keep_alive_s <= horizon_s) & (start_s > 0)
    return np.maximum(last_end_s - ready_s, 0.0)[ended] / start_s[ended]


def _of_counts(frame: pl.LazyFrame) -> ColdStartReport:
    """Characterize counts by minute."""
    table = frame.collect(engine="streaming")
    minutes = sorted((name for name in table.columns if name.isdigit()), key=int)
    counts = table.select(minutes).to_numpy().astype(float)
    total = counts.sum()
    if not total:
        raise DataError("the trace has no invocations")
    order = np.argsort(-counts.sum(axis=1), kind="stable")[:_MOST_TOP]
    hours = np.add.reduceat(counts, np.arange(0, len(minutes), 60), axis=1)
    names = table["HashFunction"].to_list()
    return ColdStartReport(
        schema="azure-2019",
        num_rows=int(total),
        num_functions=len(table),
        span_s=60.0 * len(minutes),
        hourly={"hour": list(range(hours.shape[1])), "count": hours.sum(axis=0).tolist()},
        top=[
            TopFunction(
                str(names[row]),
                int(counts[row].sum()),
                float(counts[row].sum() / total),
                peak_to_trough(hours[row]),
            )
            for row in order
        ],
    )
