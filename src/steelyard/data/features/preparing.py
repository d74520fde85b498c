"""Features of all rows of a table in a file, narrower ones if wanted."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steelyard.data.features.encoder import FeatureEncoder
from steelyard.data.features.finding import find_features
from steelyard.data.features.reducing import FeatureReducer, fit_reduction, parse_reduction, reduced
from steelyard.data.features.store import write_features
from steelyard.data.table.budget import FoldBudget
from steelyard.data.table.columns import has_numbers
from steelyard.data.table.row_folds import RowCountFold
from steelyard.errors import ConfigError, DataError
from steelyard.files import disk_full_told, exclusive
from steelyard.units import parse

if TYPE_CHECKING:
    from steelyard.data.table import DataTable

__all__ = ["PreparedFeatures", "bounded", "prepare_features", "work_folder"]


@dataclass(frozen=True, kw_only=True)
class PreparedFeatures:
    """Features in a file.

    Attributes:
        encoder: how rows became features.
        features: what is worked on, narrower features where they were wanted [N, K].
        whole: features before that [N, D]; the same array where nothing was narrowed.
        reducer: what made them narrower; None for nothing.
        warnings: columns that are left out, and infinite values.
    """

    encoder: FeatureEncoder
    features: NDArray[np.float32]
    whole: NDArray[np.float32]
    reducer: FeatureReducer | None
    warnings: list[str]


@contextmanager
def work_folder(folder: Path) -> Iterator[None]:
    """Work in a folder alone, and remove it at the end, or where what was asked for cannot be.

    After a kill, a full disk or another fault it stays, so that the same call goes on.

    Args:
        folder: made if it is not there.

    Yields:
        Nothing.

    Raises:
        StoreError: another process works in the folder.
        CapacityError: the disk is full.
    """
    try:
        with exclusive(folder), disk_full_told(folder):
            yield
    except (ConfigError, DataError):
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder)


def bounded(table: "DataTable", memory: str) -> "DataTable":
    """Return the table in batches that a budget allows.

    Args:
        table: the table.
        memory: budget such as "200MB"; empty for no bound.

    Returns:
        The table.
    """
    if not memory:
        return table
    budget = FoldBudget.of(table, [RowCountFold()], parse(memory, "byte"))
    return table.with_limits(budget.limits)


def prepare_features(
    table: "DataTable",
    folder: Path,
    *,
    leave_out: Sequence[str] = (),
    reduce: str = "",
    memory: str = "",
    seed: int = 0,
    done: Callable[[str, float], None] = lambda _what, _share: None,
) -> PreparedFeatures:
    """Write the features of a table in two passes over it.

    Missing numbers count as the mean of their column, and have no flag: they would be what parts
    rows most.

    Args:
        table: the table.
        folder: takes the files.
        leave_out: columns that do not count.
        reduce: fewer features, such as "pca:16"; empty for all.
        memory: most bytes that the first pass may take; empty for no bound.
        seed: seed of random directions.
        done: is told what is worked on, "columns" and "rows", and the share of it that is done.

    Returns:
        The features.

    Raises:
        ConfigError: no such column, or the reduction has another form.
        DataError: no column varies, or there is no row.
    """
    for name in leave_out:
        if name not in table.schema.names:
            raise ConfigError(
                f"no column {name!r}", hint=f"columns are {', '.join(table.schema.names)}"
            )
    wanted, reducer = parse_reduction(reduce), None
    names = [item.name for item in table.schema if has_numbers(item.type)]
    found = find_features(
        table,
        [name for name in names if name not in leave_out],
        flags_missing=False,
        memory=memory,
        done=lambda share: done("columns", share),
    )
    if not found.rows:
        raise DataError("the table has no rows", hint="give one that has")
    whole = features = write_features(
        folder,
        bounded(table, memory),
        found.encoder,
        found.rows,
        done=lambda rows: done("rows", rows / found.rows),
    )
    if wanted is not None:
        reducer = fit_reduction(wanted, whole, np.arange(len(whole)), seed)
        features = reduced(reducer, whole, folder)
    return PreparedFeatures(
        encoder=found.encoder,
        features=features,
        whole=whole,
        reducer=reducer,
        warnings=found.warnings,
    )
