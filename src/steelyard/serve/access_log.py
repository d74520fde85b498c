"""The access log of a server: when requests came, their lengths, and how long they took."""

import csv
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import TraceError
from steelyard.serve.traces.fields import open_text, read_number

__all__ = ["AccessLog"]

_COLUMNS = {
    "arrival_s": ("arrival_s", "sent_s", "time_s"),
    "prompt_tokens": ("prompt_tokens", "input_tokens", "ContextTokens"),
    "output_tokens": ("output_tokens", "completion_tokens", "GeneratedTokens"),
    "latency_s": ("latency_s", "e2e_s", "duration_s"),
    "ttft_s": ("ttft_s",),
}
"""Names under which each field is found; a name in `usage` of an OpenAI-compatible answer is known
too."""
_OPTIONAL = ("ttft_s",)
_FORMATS = (
    "a CSV with a head and the columns arrival_s, prompt_tokens, output_tokens, latency_s and "
    "perhaps ttft_s, in seconds, one row per request that ended well"
)
_LEAST_ROWS = 50

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessLog:
    """R requests that a server answered, by arrival.

    Attributes:
        arrival_s: [R] seconds from the first arrival.
        input_tokens: [R] prompt lengths, at least 1.
        output_tokens: [R] tokens of the answers, at least 1.
        latency_s: [R] seconds from arrival to the last token, above 0.
        ttft_s: [R] seconds from arrival to the first token; NaN where the log does not say.
    """

    arrival_s: Array
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    latency_s: Array
    ttft_s: Array

    @classmethod
    def read(cls, path: Path) -> "AccessLog":
        """Read a log from a CSV, plain or gzip-compressed, or from `requests.parquet`.

        Args:
            path: the file; its rows may be in any order. Parquet is what `steelyard serve bench
                --out` writes, of a single level; its requests that failed are left out.

        Returns:
            The requests by arrival.

        Raises:
            TraceError: the file cannot be read, lacks a column, has fewer than 50 rows, or a row
                has a bad value; names file, line and field.
        """
        rows = _parquet_rows(path) if path.suffix == ".parquet" else _csv_rows(path)
        if len(rows) < _LEAST_ROWS:
            raise TraceError(
                f"{path} has {len(rows)} rows, but at least {_LEAST_ROWS} are needed",
                hint="give a longer part of the log",
            )
        columns = np.array(rows).T
        columns = columns[:, np.argsort(columns[0], kind="stable")]
        return cls(
            arrival_s=columns[0] - columns[0, 0],
            input_tokens=columns[1].astype(np.int64),
            output_tokens=columns[2].astype(np.int64),
            latency_s=columns[3],
            ttft_s=columns[4],
        )

    @property
    def decode_s(self) -> Array:
        """Seconds from the first token to the last, [R]; NaN where that is not known."""
        return np.where(self.output_tokens > 1, self.latency_s - self.ttft_s, math.nan)


def _csv_rows(path: Path) -> list[tuple[float, ...]]:
    """Return the rows of a CSV."""
    with open_text(path, _FORMATS) as stream:
        reader = csv.DictReader(stream)
        names = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = names
        found = _found_columns(names, path)
        return [_row(cells, found, f"{path}, line {reader.line_num}") for cells in reader]


def _parquet_rows(path: Path) -> list[tuple[float, ...]]:
    """Return the rows of a load's requests that ended well."""
    import polars as pl

    try:
        frame = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise TraceError(
            f"cannot read {path}: {error}", hint="give requests.parquet of `steelyard serve bench`"
        ) from error
    if "concurrency" in frame.columns and frame["concurrency"].n_unique() > 1:
        raise TraceError(
            f"{path} holds several levels, and the times of each begin at 0",
            hint="load the server with one --concurrency or one --rate",
        )
    found = _found_columns(frame.columns, path)
    if "error" in frame.columns:
        frame = frame.filter(pl.col("error") == "")
    wanted = frame.select([name for name in found.values() if name])
    return [
        _row({name: "" if cell is None else str(cell) for name, cell in row.items()}, found, where)
        for where, row in (
            (f"{path}, row {index}", row) for index, row in enumerate(wanted.iter_rows(named=True))
        )
    ]


def _found_columns(names: list[str], path: Path) -> dict[str, str]:
    """Return the file's name of each field, empty for an optional one that it lacks."""
    found = {}
    for field, known in _COLUMNS.items():
        found[field] = next((name for name in known if name in names), "")
        if not found[field] and field not in _OPTIONAL:
            raise TraceError(
                f"{path}: no column {' or '.join(known)}, found were "
                f"{', '.join(names)[:120] or 'none'}",
                hint=f"give {_FORMATS}",
            )
    return found


def _row(cells: dict[str, str], found: dict[str, str], where: str) -> tuple[float, ...]:
    """Return the fields of a row in the order of `_COLUMNS`."""
    seconds = partial(read_number, kind="a number of seconds")
    count = partial(read_number, read=int, kind="a whole number", least=1)
    arrival_s = seconds(cells, found["arrival_s"], where)
    prompt, output = (count(cells, found[name], where) for name in _COLUMNS if "tokens" in name)
    latency_s = seconds(cells, found["latency_s"], where)
    if not latency_s > 0:
        raise TraceError(
            f"{where}: {found['latency_s']} is {latency_s}",
            hint="leave out requests that failed; an answer takes time",
        )
    name = found["ttft_s"]
    # A server that does not stream a request leaves its cell empty.
    ttft_s = seconds(cells, name, where) if name and (cells[name] or "").strip() else math.nan
    if ttft_s > latency_s or ttft_s == 0:
        raise TraceError(
            f"{where}: {name} is {ttft_s}, and {found['latency_s']} is {latency_s}",
            hint="the first token comes after the arrival and not after the last token",
        )
    return arrival_s, prompt, output, latency_s, ttft_s
