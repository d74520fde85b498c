"""Traces from files: the content tells the format, and errors name file, row and field."""

import math
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import msgspec
import numpy as np

from steelyard.errors import TraceError
from steelyard.serve.traces.fields import open_text
from steelyard.serve.traces.order import RowOrder
from steelyard.serve.traces.prompts import with_prompts
from steelyard.serve.traces.record import TraceRequest, TraceRow
from steelyard.serve.traces.reshape import draw_arrivals, rescale_rate, scale_lengths
from steelyard.serve.traces.tables import ARRIVALS, csv_rows

__all__ = ["has_arrivals", "load_rows", "load_trace", "read_rows"]

_FORMATS = (
    "a CSV with input_tokens, output_tokens and perhaps arrival_s, or JSON lines with "
    "timestamp, input_length, output_length, hash_ids, in UTF-8"
)
_BLOCK_TOKENS = 512


class _Line(msgspec.Struct):
    """One line of a Mooncake trace: a time in milliseconds, and ids of blocks of 512 tokens.

    The rest is what our own files of this kind may add.
    """

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []
    block_tokens: int = _BLOCK_TOKENS
    client: str = "default"
    session: str = ""
    think_s: float = 0.0
    id: str | int = ""


def read_rows(path: Path) -> Iterator[TraceRow]:
    """Read a trace row by row, plain or gzip-compressed; the content tells the format.

    Known are our CSV (`arrival_s, prompt_tokens, output_tokens`, perhaps `client, session,
    think_s, id`), Azure's (`arrival_s` or `TIMESTAMP`, `input_tokens` or `ContextTokens`,
    `output_tokens` or `GeneratedTokens`), BurstGPT's (`Timestamp` in seconds, `Model`, `Request
    tokens`, `Response tokens`, `Total tokens`, `Log Type`, perhaps `Session ID` and `Elapsed
    time`), lengths without arrivals (`input_tokens, output_tokens`; all arrive at 0), and
    Mooncake's JSON lines with prefix hashes.

    Args:
        path: the file.

    Yields:
        Rows in the order of the file.

    Raises:
        TraceError: the file is missing or empty, its format unknown, a row has a bad value, is
            earlier than the one before, counts in another unit, or has an id that was there before;
            names file, row and field.

    Source: Splitwise (arXiv 2311.18677) for Azure's columns; Mooncake (arXiv 2407.00079), section
        4, for hashed blocks; BurstGPT (arXiv 2401.17644) for its columns.
    """
    count = 0
    with open_text(path, _FORMATS) as stream:
        first = stream.readline()
        lines = chain([first], stream)
        for row in (
            _json_rows(lines, path) if first.lstrip().startswith("{") else csv_rows(lines, path)
        ):
            count += 1
            yield row
    if not count:
        raise TraceError(f"{path} has no rows", hint="give at least one request")


def has_arrivals(path: Path) -> bool:
    """Tell whether a trace file says when its requests arrive; a file of lengths only does not.

    Args:
        path: CSV or JSON lines file, plain or gzip-compressed.

    Returns:
        False for lengths only.

    Raises:
        TraceError: the file cannot be read.
    """
    with open_text(path, _FORMATS) as stream:
        first = stream.readline()
    return first.lstrip().startswith("{") or bool(
        set(ARRIVALS) & {name.strip() for name in first.split(",")}
    )


def _json_rows(lines: Iterator[str], path: Path) -> Iterator[TraceRow]:
    """Read Mooncake's JSON lines; blank lines are skipped."""
    decoder = msgspec.json.Decoder(_Line)
    order = RowOrder("timestamp")
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        where = f"{path}, line {number}"
        try:
            line = decoder.decode(text)
        except msgspec.DecodeError as error:
            raise TraceError(
                f"{where}: {error}",
                hint="give timestamp (ms), input_length, output_length and hash_ids",
            ) from error
        _check_line(line, where)
        order.see(line.timestamp / 1e3, where)
        if line.id != "":
            order.once(str(line.id), where)
        yield TraceRow(
            arrival_s=line.timestamp / 1e3,
            input_tokens=line.input_length,
            output_tokens=line.output_length,
            client=line.client,
            session=line.session,
            think_s=line.think_s,
            hash_ids=tuple(line.hash_ids),
            block_tokens=line.block_tokens,
        )
    order.end()


def _check_line(line: _Line, where: str) -> None:
    """Refuse values no request has."""
    held = len(line.hash_ids) * line.block_tokens
    for name, value, good, allowed in (
        (
            "timestamp",
            line.timestamp,
            math.isfinite(line.timestamp) and line.timestamp >= 0,
            "finite and at least 0",
        ),
        ("block_tokens", line.block_tokens, line.block_tokens >= 1, "at least 1"),
        (
            "think_s",
            line.think_s,
            math.isfinite(line.think_s) and line.think_s >= 0,
            "finite and at least 0",
        ),
        ("input_length", line.input_length, line.input_length >= 1, "at least 1"),
        ("output_length", line.output_length, line.output_length >= 1, "at least 1"),
        (
            "hash_ids",
            len(line.hash_ids),
            not held or held >= line.input_length,
            f"one id per {line.block_tokens} tokens of the prompt",
        ),
        (
            "hash_ids",
            min(line.hash_ids, default=0),
            min(line.hash_ids, default=0) >= 0,
            "at least 0",
        ),
    ):
        if not good:
            raise TraceError(f"{where}: {name} is {value}", hint=f"{name} must be {allowed}")


def load_rows(
    path: Path,
    generator: np.random.Generator,
    *,
    limit: int = 0,
    scale: float = 1.0,
    rate_per_s: float | None = None,
) -> list[TraceRow]:
    """Read a trace, shortened and brought to a rate.

    Args:
        path: file in any format of `read_rows`.
        generator: draws arrivals where the file has none.
        limit: only so many rows from the file's beginning; 0 for all.
        scale: factor on all lengths, such as 1/8 for a small model.
        rate_per_s: mean arrivals per second: those of the file are stretched, those of a file of
            lengths only drawn (Poisson). None leaves them; lengths only then all arrive at 0.

    Returns:
        Rows by arrival.

    Raises:
        TraceError: the file cannot be read.
        ConfigError: a scale or rate is not positive.
    """
    rows = list(islice(scale_lengths(read_rows(path), scale), limit or None))
    if rate_per_s is not None and not has_arrivals(path):
        return draw_arrivals(rows, generator, rate_per_s=rate_per_s)
    return rows if rate_per_s is None else rescale_rate(rows, rate_per_s)


def load_trace(
    path: Path,
    generator: np.random.Generator,
    *,
    vocab_size: int,
    limit: int = 0,
    scale: float = 1.0,
) -> list[TraceRequest]:
    """Read a trace in any format of `read_rows` and make prompts for its requests.

    Args:
        path: the file.
        generator: draws the prompts' tokens, which no file holds.
        vocab_size: tokens are uniform in [0, vocab_size).
        limit: only so many rows from the file's beginning; 0 for all.
        scale: factor on all lengths.

    Returns:
        Requests by arrival.

    Raises:
        TraceError: the file is missing, a column is, or a row has a bad value; the message names
            file, row and field.
    """
    return list(
        with_prompts(
            load_rows(path, generator, limit=limit, scale=scale), generator, vocab_size=vocab_size
        )
    )
