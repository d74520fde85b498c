"""The answer of a Prometheus range query, as a set of series."""

from pathlib import Path
from typing import Any

import numpy as np

from steelyard.errors import TraceError
from steelyard.files import read_json
from steelyard.operate.series.grid import Origin, differenced, is_counter, on_grid
from steelyard.operate.series.series_set import SeriesSet

__all__ = ["from_prometheus", "read_prometheus"]


def read_prometheus(
    path: Path, *, step_s: float | None = None, counter: bool | None = None
) -> SeriesSet:
    """Read a file that holds the answer of `/api/v1/query_range`.

    Args:
        path: the JSON file.
        step_s: seconds between two values; None takes the most frequent distance.
        counter: the choice that `read_series` takes.

    Returns:
        A series for each of the answer's metrics.

    Raises:
        DataError: the file is missing or no JSON.
        TraceError: it is no range answer, or a series of it is refused.
    """
    return from_prometheus(read_json(path), str(path), step_s=step_s, counter=counter)


def from_prometheus(
    answer: Any, source: str, *, step_s: float | None = None, counter: bool | None = None
) -> SeriesSet:
    """Turn the parsed answer of a range query into series.

    Args:
        answer: what the server sent, parsed.
        source: file or address, for messages.
        step_s: seconds between two values; None takes the most frequent distance.
        counter: the choice that `read_series` takes.

    Returns:
        A series for each metric, named like "http_requests_total{pod="a"}".

    Raises:
        TraceError: it is no range answer, or a series of it is refused.
    """
    arrays, ids, starts, steps = [], [], [], []
    for item in _results(answer, source):
        labels = {key: str(text) for key, text in item.get("metric", {}).items()}
        name = labels.pop("__name__", "")
        words = ",".join(f'{key}="{text}"' for key, text in sorted(labels.items()))
        label = f"{name}{{{words}}}" if words else name or "value"
        origin = Origin(source, "values", label, first_row=1)
        times, values = _columns(item.get("values"), origin)
        start, step, grid = on_grid(times, values, origin, step_s)
        grows = is_counter(name, grid) if counter is None else counter
        arrays.append(differenced(grid, step) if grows else grid)
        # Growth is that of the step up to a value, so that the first value has none.
        starts.append(start + step * grows)
        steps.append(step)
        ids.append(label)
    return SeriesSet.from_arrays(
        arrays, step_s=steps, ids=ids, start_s=starts, provenance=f"{source}: Prometheus"
    )


def _results(answer: Any, source: str) -> list[dict[str, Any]]:
    """Return the series of an answer, or say what it is instead."""
    if isinstance(answer, dict) and answer.get("status") == "error":
        raise TraceError(f"{source}: Prometheus answered with an error: {answer.get('error')}")
    # People also save the part under "data" alone.
    data = answer.get("data", answer) if isinstance(answer, dict) else None
    kind = data.get("resultType") if isinstance(data, dict) else None
    found = data.get("result") if isinstance(data, dict) else None
    if kind != "matrix" or not isinstance(found, list):
        raise TraceError(
            f"{source}: resultType is {kind!r}, not 'matrix'",
            hint="save the answer of /api/v1/query_range, not of /api/v1/query",
        )
    if not found:
        raise TraceError(f"{source}: the answer holds no series", hint="widen the query")
    return [item if isinstance(item, dict) else {} for item in found]


def _columns(pairs: Any, origin: Origin) -> tuple[np.ndarray, np.ndarray]:
    """Return times and values of the answer's pairs; text such as "NaN" is a hole."""
    times, values = [], []
    for row, pair in enumerate(pairs if isinstance(pairs, list) else []):
        try:
            time, value = pair
            times.append(float(time))
            values.append(float(value))
        except (TypeError, ValueError) as error:
            raise TraceError(
                f"{origin.words(row)}: {pair!r} is no pair of time and value"
            ) from error
    found = np.array(values, float)
    return np.array(times, float), np.where(np.isfinite(found), found, np.nan)
