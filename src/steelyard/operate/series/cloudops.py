"""The schema of the CloudOps collections: a row is a series with its start, step and values.

Source: Woo et al. 2023 (arXiv 2310.05063), section 3; fields as in GluonTS.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

import numpy as np

from steelyard.errors import TraceError
from steelyard.operate.series.grid import Origin, step_of_frequency
from steelyard.operate.series.series_set import SeriesSet

__all__ = ["from_records", "is_cloudops"]

_FIELDS = {"start", "target", "freq"}


def is_cloudops(columns: Sequence[str]) -> bool:
    """Tell whether a table has the columns of the schema."""
    return set(columns) >= _FIELDS


def from_records(records: Iterable[Mapping[str, Any]], source: str) -> SeriesSet:
    """Turn rows of the schema into series.

    Args:
        records: `start`, `target` [T] or [dims, T], `freq`, and optionally `item_id` and
            `feat_static_real` [k]; other fields are left out.
        source: file, for messages.

    Returns:
        A series for each row, or for each dimension of it, named "id/0", "id/1".

    Raises:
        TraceError: a row is refused: unknown frequency, no values, or a wrong start.
    """
    arrays, ids, starts, steps, statics = [], [], [], [], []
    for row, record in enumerate(records):
        name = str(record.get("item_id") or f"row-{row}")
        here = f"{source}, row {row + 1}"
        step = step_of_frequency(str(record["freq"]), Origin(here, "freq", name))
        parts = _targets(record["target"], Origin(here, "target", name))
        begin = _seconds(record["start"], Origin(here, "start", name))
        for index, values in enumerate(parts):
            arrays.append(values)
            # Dimensions share an id in the schema; in a set every series has one of its own.
            ids.append(f"{name}/{index}" if len(parts) > 1 else name)
            starts.append(begin)
            steps.append(step)
            statics.append(record.get("feat_static_real") or [])
    widths = {len(item) for item in statics}
    if len(widths) > 1:
        raise TraceError(
            f"{source}, field 'feat_static_real': rows have {sorted(widths)} numbers",
            hint="give every row as many",
        )
    width = widths.pop() if widths else 0
    return SeriesSet.from_arrays(
        arrays,
        step_s=steps,
        ids=ids,
        start_s=starts,
        statics=np.array(statics, np.float32).reshape(len(arrays), width),
        static_names=[f"static-{index}" for index in range(width)],
        provenance=f"{source}: target",
    )


def _targets(target: Any, origin: Origin) -> list[np.ndarray]:
    """Return the values of each dimension of a row."""
    try:
        found = np.array(target, np.float64)
    except (TypeError, ValueError) as error:
        raise TraceError(f"{origin.words()}: not a list of numbers") from error
    if found.ndim not in (1, 2) or not np.isfinite(found).any():
        raise TraceError(f"{origin.words()}: no value is a finite number")
    missing = 1 - np.isfinite(found).mean()
    if missing > 0.05:
        raise TraceError(
            f"{origin.words()}: {missing:.1%} of the values are missing, at most 5% may be",
            hint="fill the gaps or leave the row out",
        )
    return list(np.atleast_2d(found))


def _seconds(start: Any, origin: Origin) -> float:
    """Turn a start, a date or text, to seconds since 1970; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(start) if isinstance(start, str) else start
        # Parquet gives days as dates, which are no times, though a datetime is also a date.
        if isinstance(moment, date) and not isinstance(moment, datetime):
            moment = datetime(moment.year, moment.month, moment.day)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, AttributeError) as error:
        raise TraceError(
            f"{origin.words()}: {start!r} is no time", hint="write it as 2026-01-31T12:00:00"
        ) from error
