"""A table's rows in fewer columns, as a file."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steelyard.data.features.preparing import prepare_features, work_folder
from steelyard.data.features.reducing import FeatureReducer, parse_reduction
from steelyard.data.features.store import blocks_of
from steelyard.data.table.writing import write_file
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table import DataTable

__all__ = ["ReducedTable", "write_reduced"]


@dataclass(frozen=True, kw_only=True)
class ReducedTable:
    """What was written.

    Attributes:
        rows: rows.
        width: features before.
        count: columns afterwards.
        reducer: what makes rows narrower.
        warnings: columns that are left out, and infinite values.
    """

    rows: int
    width: int
    count: int
    reducer: FeatureReducer
    warnings: list[str]


def write_reduced(
    table: "DataTable",
    to: str,
    out: Path,
    *,
    leave_out: Sequence[str] = (),
    memory: str = "",
    seed: int = 0,
    done: Callable[[str, float], None] = lambda _what, _share: None,
) -> ReducedTable:
    """Write the rows of a table in fewer columns, c0, c1 and so on.

    Args:
        table: the table.
        to: reduction such as "pca:8" or "random:64".
        out: file for the rows; an older one is replaced at the end.
        leave_out: columns that do not count.
        memory: most bytes that the first pass may take; empty for no bound.
        seed: seed of random directions.
        done: is told what is worked on, and the share of it that is done.

    Returns:
        What was written.

    Raises:
        ConfigError: no such column, or the reduction has another form.
        DataError: no column varies, or there is no row.
        CapacityError: the disk is full.
    """
    if parse_reduction(to) is None:
        raise ConfigError("no reduction is given", hint="give one, such as pca:8")
    folder = out.with_name(out.name + ".work")
    with work_folder(folder):
        given = prepare_features(
            table,
            folder,
            leave_out=leave_out,
            reduce=to,
            memory=memory,
            seed=seed,
            done=done,
        )
        import pyarrow as pa

        schema = pa.schema([(f"c{at}", pa.float32()) for at in range(given.features.shape[1])])
        rows = write_file(out, schema, _batches(given.features, schema))
        assert given.reducer is not None, "one was wanted"
        found = ReducedTable(
            rows=rows,
            width=given.whole.shape[1],
            count=given.features.shape[1],
            reducer=given.reducer,
            warnings=given.warnings,
        )
        del given
    return found


def _batches(features: NDArray[np.float32], schema: "pa.Schema") -> "Iterator[pa.RecordBatch]":
    """Return features as batches."""
    import pyarrow as pa

    for block in blocks_of(features):
        columns = [pa.array(np.ascontiguousarray(column)) for column in block.T]
        yield pa.record_batch(columns, schema=schema)
