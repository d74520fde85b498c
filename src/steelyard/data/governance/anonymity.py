"""Whether every combination of quasi-identifiers stands for enough rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.sketch.hashing import add_to_rows, scramble
from steelyard.data.table.columns import columns_of
from steelyard.errors import CapacityError, ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table import DataTable

__all__ = ["AnonymityReport", "GroupCountsFold", "check_anonymity"]

_MOST_GROUPS = 1 << 24
_SHOWN = 20


@dataclass(slots=True)
class GroupCounts:
    """Rows of each group.

    Attributes:
        hashes: groups, ascending [G].
        counts: rows of each [G].
        codes: hash of a sensitive value of each [G].
        is_one: whether all rows of a group have that one [G].
    """

    hashes: NDArray[np.uint64]
    counts: NDArray[np.int64]
    codes: NDArray[np.uint64]
    is_one: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class GroupCountsFold:
    """A `Fold` of the rows of each combination of values; exact of 16 million combinations.

    Attributes:
        columns: the columns.
        sensitive: column of which it is told where one value alone stands in a group; empty for
            none.
    """

    columns: tuple[str, ...]
    sensitive: str = ""

    @property
    def name(self) -> str:
        """What it is called in results."""
        return f"groups of {', '.join(self.columns)}" + f" by {self.sensitive}" * bool(
            self.sensitive
        )

    def init(self, schema: "pa.Schema") -> GroupCounts:
        """Return the state before any row."""
        if missing := [
            name for name in (*self.columns, self.sensitive) if name and name not in schema.names
        ]:
            names = ", ".join(schema.names)
            raise ConfigError(f"no column {missing[0]!r}", hint=f"columns are {names}")
        none = np.zeros(0, np.uint64)
        return GroupCounts(none, np.zeros(0, np.int64), none, np.zeros(0, bool))

    def keys(self, batch: "pa.RecordBatch") -> NDArray[np.uint64]:
        """Return a hash of the combination of each row [rows]."""
        columns = columns_of(batch)
        whole = np.zeros(len(batch), np.uint64)
        for at, name in enumerate(self.columns):
            add_to_rows(whole, columns.hashes(batch.schema.get_field_index(name)), at)
        scramble(whole)
        return whole

    def update(self, state: GroupCounts, batch: "pa.RecordBatch") -> None:
        """Take rows in."""
        codes = np.zeros(len(batch), np.uint64)
        if self.sensitive:
            codes = columns_of(batch).hashes(batch.schema.get_field_index(self.sensitive))
        rows = np.ones(len(batch), np.int64)
        self._take(state, GroupCounts(self.keys(batch), rows, codes, rows.astype(bool)))
        if len(state.hashes) > _MOST_GROUPS:
            raise CapacityError(
                f"{', '.join(self.columns)} have more than {_MOST_GROUPS:,} combinations",
                hint="check fewer columns: nearly every row stands alone by these",
            )

    def _take(self, state: GroupCounts, other: GroupCounts) -> None:
        """Add groups, which may stand twice."""
        hashes = np.concatenate([state.hashes, other.hashes])
        known, first, at = np.unique(hashes, return_index=True, return_inverse=True)
        codes = np.concatenate([state.codes, other.codes])
        is_one = np.concatenate([state.is_one, other.is_one]) & (codes == codes[first][at])
        counts = np.bincount(at, np.concatenate([state.counts, other.counts]), len(known))
        others = np.bincount(at, ~is_one, len(known))
        state.hashes, state.counts = known, counts.astype(np.int64)
        state.codes, state.is_one = codes[first], others == 0

    def merge(self, state: GroupCounts, later: GroupCounts) -> None:
        """Take in the state of rows that come later."""
        self._take(state, later)

    def finish(self, state: GroupCounts) -> GroupCounts:
        """Return the counts."""
        return state

    def sections(self, state: GroupCounts) -> dict[str, NDArray[Any]]:
        """Return a state as arrays by name."""
        return {name: getattr(state, name) for name in ("hashes", "counts", "codes", "is_one")}

    def of(self, schema: "pa.Schema", sections: dict[str, NDArray[Any]]) -> GroupCounts:
        """Return the state of such arrays."""
        return GroupCounts(**{name: np.array(values) for name, values in sections.items()})


@dataclass(frozen=True, kw_only=True)
class AnonymityReport:
    """What groups of quasi-identifiers tell.

    Attributes:
        columns: the quasi-identifiers.
        k: rows that a group should have at least.
        rows: rows of the table.
        groups: combinations that there are.
        smallest: rows of the smallest.
        small_groups: combinations of fewer than k rows.
        small_rows: rows in them.
        told_groups: combinations of k rows or more that all have one sensitive value.
        told_rows: rows in them.
        examples: combinations of fewer than k rows with their rows, the smallest first.
    """

    columns: tuple[str, ...]
    k: int
    rows: int
    groups: int
    smallest: int
    small_groups: int
    small_rows: int
    told_groups: int
    told_rows: int
    examples: list[tuple[dict[str, Any], int]]

    @property
    def holds(self) -> bool:
        """Whether every row is hidden among k."""
        return not self.small_groups


def check_anonymity(
    table: "DataTable",
    columns: Sequence[str],
    k: int = 5,
    *,
    sensitive: str = "",
    memory: str | float | None = None,
    workers: int = 1,
) -> AnonymityReport:
    """Count the rows of every combination of quasi-identifiers.

    Args:
        table: the table; it is read once, and once more where groups are small, for examples.
        columns: the quasi-identifiers; a missing value counts as a value.
        k: rows that a group should have at least, 2 or more.
        sensitive: column of which one value alone should not stand in a group.
        memory: most bytes of the pass.
        workers: processes.

    Returns:
        The report.

    Raises:
        ConfigError: no such column, or k is below 2.
        CapacityError: there are more than 16 million combinations.

    Source: Sweeney 2002, "k-anonymity: a model for protecting privacy"; one value alone in a group
        is what Machanavajjhala et al. 2007 ("l-diversity") call a homogeneity attack.
    """
    if k < 2 or not columns:
        raise ConfigError(
            f"k = {k} of {len(columns)} columns", hint="give a k of 2 or more, and 1 column or more"
        )
    fold = GroupCountsFold(tuple(columns), sensitive)
    folded = table.fold(fold, memory=memory, workers=workers)
    found: GroupCounts = folded.results[fold.name]
    small = found.counts < k
    told = ~small & found.is_one & bool(sensitive)
    return AnonymityReport(
        columns=tuple(columns),
        k=k,
        rows=folded.rows,
        groups=len(found.counts),
        smallest=int(found.counts.min()) if len(found.counts) else 0,
        small_groups=int(small.sum()),
        small_rows=int(found.counts[small].sum()),
        told_groups=int(told.sum()),
        told_rows=int(found.counts[told].sum()),
        examples=_examples(table, fold, found, small),
    )


def _examples(
    table: "DataTable", fold: GroupCountsFold, found: GroupCounts, small: NDArray[np.bool_]
) -> list[tuple[dict[str, Any], int]]:
    """Return some of the smallest groups with their values."""
    places = np.flatnonzero(small)
    places = places[np.argsort(found.counts[places], kind="stable")][:_SHOWN]
    wanted = {int(found.hashes[at]): int(found.counts[at]) for at in places}
    known: dict[int, dict[str, Any]] = {}
    for batch in table.batches if wanted else ():
        keys = fold.keys(batch)
        for row in np.flatnonzero(np.isin(keys, np.array(list(wanted), np.uint64))).tolist():
            key = int(keys[row])
            if key not in known:
                known[key] = {name: batch[name][row].as_py() for name in fold.columns}
        if len(known) == len(wanted):
            break
    return [(known[key], count) for key, count in wanted.items() if key in known]
