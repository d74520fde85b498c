"""Where the results of a load go: a folder with JSON, Parquet and a page, and the run store."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.config import to_plain
from steelyard.files import write_bytes
from steelyard.quantity import Forecast
from steelyard.serve.client.load import LoadResult
from steelyard.serve.client.record import RequestRecord
from steelyard.serve.client.summary import LoadSummary

if TYPE_CHECKING:
    import polars as pl

    from steelyard.runs.report import Report
    from steelyard.runs.store import RunStore

__all__ = ["record_frame", "store_load", "to_json", "write_results"]


def record_frame(records: Sequence[RequestRecord]) -> "pl.DataFrame":
    """Return records as a table.

    Args:
        records: records of a load.

    Returns:
        One row per request: its fields, "ttft_s", "tpot_s", "e2e_s", and one column "stage_NAME"
        per stage; what is missing is null.
    """
    import polars as pl

    stages = sorted({name for record in records for name in record.stages})
    plain = (
        "index",
        "client",
        "session",
        "prompt_tokens",
        "output_tokens",
        "expected_tokens",
        "retries",
        "finish_reason",
        "error",
        "message",
    )
    times = ("scheduled_s", "sent_s", "first_byte_s", "finished_s", "ttft_s", "tpot_s", "e2e_s")
    columns: dict[str, list[Any]] = {
        name: [getattr(record, name) for record in records] for name in plain
    }
    columns |= {name: [_known(getattr(record, name)) for record in records] for name in times}
    columns |= {f"stage_{name}": [record.stages.get(name) for record in records] for name in stages}
    schema: dict[str, Any] = dict.fromkeys(
        (*times, *(f"stage_{name}" for name in stages)), pl.Float64
    )
    frame = pl.DataFrame(columns, schema_overrides=schema)
    return frame.with_columns(
        pl.Series("chunk_s", [record.chunk_s for record in records], dtype=pl.List(pl.Float64))
    )


def _known(value: float) -> float | None:
    """Turn NaN into a missing value."""
    return None if math.isnan(value) else value


def to_json(levels: Mapping[int, LoadSummary], about: Mapping[str, Any]) -> str:
    """Return summaries as JSON.

    Args:
        levels: summaries by concurrency, 0 for an open loop.
        about: what was sent, to whom.

    Returns:
        `{"load": about, "levels": [{"concurrency": ..., summary ...}]}`; numbers that are not
        finite become null.
    """
    rows = [
        {"concurrency": level, **_plain(summary), "warnings": summary.warnings()}
        for level, summary in levels.items()
    ]
    return json.dumps({"load": _finite(to_plain(dict(about))), "levels": rows}, indent=2)


def _plain(summary: LoadSummary) -> dict[str, Any]:
    """Return a summary as plain values."""
    return _finite(to_plain(summary))


def _finite(value: Any) -> Any:
    """Replace numbers that JSON cannot hold."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    # JSON has no NaN or infinity; other readers refuse a file that has them.
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_results(
    folder: Path,
    levels: Mapping[int, tuple[LoadSummary, LoadResult]],
    report: "Report",
    about: Mapping[str, Any],
) -> list[Path]:
    """Write `load.json` (summaries), `requests.parquet` (a row per request) and `report.html`.

    Args:
        folder: made when missing; files of an earlier load are replaced.
        levels: summary and result by concurrency, 0 for an open loop.
        report: report of the load.
        about: what was sent, to whom.

    Returns:
        The files.

    Raises:
        CapacityError: the disk is full.
    """
    import io

    import polars as pl

    frames = [
        record_frame(result.records).with_columns(concurrency=pl.lit(level))
        for level, (_, result) in levels.items()
    ]
    buffer = io.BytesIO()
    pl.concat(frames, how="diagonal_relaxed").write_parquet(buffer)
    files = [folder / name for name in ("load.json", "requests.parquet", "report.html")]
    write_bytes(
        files[0],
        to_json({level: summary for level, (summary, _) in levels.items()}, about).encode(),
    )
    write_bytes(files[1], buffer.getvalue())
    report.write_html(files[2])
    return files


def store_load(
    store: "RunStore",
    summary: LoadSummary,
    result: LoadResult,
    *,
    about: Mapping[str, Any],
    name: str,
    seed: int,
    files: Sequence[Path] = (),
    forecasts: Sequence[Forecast] = (),
) -> str:
    """Keep a load as a run of kind "load" with its measurements and a logged row per request.

    Args:
        store: store of the run.
        summary: summary of the result.
        result: the records.
        about: what was sent, to whom; the run's recipe.
        name: name of the run.
        seed: seed of the prompts and arrivals.
        files: written by `write_results`, recorded as artifacts.
        forecasts: what was said of the load before it was sent.

    Returns:
        The run's id.

    Raises:
        StoreError: the store cannot be written.
    """
    with store.create("load", about, seed=seed, name=name) as run:
        for forecast in forecasts:
            run.forecast(forecast)
        for measurement in summary.measurements():
            run.measure(measurement)
        for record in result.records:
            numbers = {
                "sent_s": record.sent_s,
                "ttft_s": record.ttft_s,
                "tpot_s": record.tpot_s,
                "e2e_s": record.e2e_s,
            }
            counts = {
                "prompt_tokens": record.prompt_tokens,
                "output_tokens": record.output_tokens,
                "failed": not record.is_ok,
            }
            run.log(record.index, **numbers, **counts)
        for path in files:
            run.artifact(path.name, path)
        return run.id
