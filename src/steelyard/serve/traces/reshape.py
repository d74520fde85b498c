"""Traces made smaller: lengths scaled for a small model."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from steelyard.errors import ConfigError
from steelyard.serve.traces.record import TraceRow

__all__ = ["scale_lengths"]


def scale_lengths(rows: Iterable[TraceRow], factor: float) -> Iterator[TraceRow]:
    """Multiply prompt and output lengths, row by row.

    Blocks of hashed prompts shrink alike, so that prompts share the same fraction of their tokens
    as before.

    Args:
        rows: rows of a trace.
        factor: above 0, such as 1/8.

    Yields:
        Rows with lengths rounded to whole tokens, at least 1.

    Raises:
        ConfigError: the factor is not positive.
    """
    if not 0 < factor < float("inf"):
        raise ConfigError(
            f"cannot scale lengths by {factor}", hint="give a factor above 0, such as 1/8"
        )
    for row in rows:
        if factor == 1.0:
            yield row
            continue
        block = max(1, round(row.block_tokens * factor))
        size = max(1, round(row.input_tokens * factor))
        size = min(size, block * len(row.hash_ids)) if row.hash_ids else size
        yield replace(
            row,
            input_tokens=size,
            output_tokens=max(1, round(row.output_tokens * factor)),
            block_tokens=block,
        )
