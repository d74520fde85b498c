"""Baskets: what was bought, read or seen together, as lists of item numbers in one array."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.arrow import compute
from steelyard.data.table.item_lines import ITEMS
from steelyard.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from steelyard.data.table import DataTable

__all__ = ["Baskets", "baskets_of_lists", "item_column", "read_baskets"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Baskets:
    """Baskets in memory.

    Attributes:
        begins: begin of each basket, int64 [baskets + 1]; an empty basket counts in their number.
        items: item numbers of all baskets, int32; one that a basket holds twice counts once.
        labels: what each item number stands for: whole numbers or texts, ascending.
    """

    begins: NDArray[np.int64]
    items: NDArray[np.int32]
    labels: NDArray[Any]

    def __len__(self) -> int:
        """Return the number of baskets."""
        return len(self.begins) - 1

    @classmethod
    def of(cls, lists: Iterable[Iterable[Any]]) -> "Baskets":
        """Make baskets of lists.

        Args:
            lists: items of each basket: all of them whole numbers of 0 or more, or all texts.

        Returns:
            The baskets.

        Raises:
            DataError: an item is something else; the basket and the item are named.
        """
        rows = [list(row) for row in lists]
        flat = [item for row in rows for item in row]
        kind = str if flat and isinstance(flat[0], str) else (int, np.integer)
        for place, row in enumerate(rows):
            for item in row:
                is_good = isinstance(item, kind) and not isinstance(item, bool)
                if not is_good or (not isinstance(item, str) and item < 0):
                    raise DataError(
                        f"basket {place} has the item {item!r}",
                        hint="items are whole numbers of 0 or more, or all of them texts",
                    )
        begins = np.cumsum([0, *map(len, rows)]).astype(np.int64)
        values = np.array(flat, dtype=None if kind is str else np.int64)
        return _numbered(begins, values if flat else np.zeros(0, np.int64))


def _numbered(begins: NDArray[np.int64], values: NDArray[Any]) -> Baskets:
    """Number items by their labels in ascending order."""
    labels, numbers = np.unique(values, return_inverse=True)
    return Baskets(begins=begins, items=numbers.astype(np.int32), labels=labels)


def item_column(table: "DataTable", name: str = "") -> str:
    """Return the column of lists that holds the baskets of a table.

    Args:
        table: the table.
        name: the column; empty for the only one that holds lists.

    Returns:
        Its name.

    Raises:
        ConfigError: there is no such column, it holds no lists of whole numbers or texts, or
            there are several.
    """
    import pyarrow as pa

    lists = [field.name for field in table.schema if _is_list(field.type, pa)]
    hint = "name a column of lists, or with --transaction and --item the two of a long table"
    if name and name not in lists:
        raise ConfigError(f"column {name!r} holds no lists of items", hint=hint)
    if not name and len(lists) != 1:
        raise ConfigError(f"the table has {len(lists)} columns of lists, not one", hint=hint)
    return name or lists[0]


def _is_list(kind: Any, pa: Any) -> bool:
    """Return whether a type is a list of whole numbers or texts."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    return pa.types.is_integer(kind.value_type) or _is_text(kind.value_type, pa)


def _is_text(kind: Any, pa: Any) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def baskets_of_lists(column: "pa.Array | pa.ChunkedArray", where: str = ITEMS) -> Baskets:
    """Make baskets of an Arrow column of lists.

    Args:
        column: lists of whole numbers or texts; a missing list is an empty basket.
        where: what messages call it.

    Returns:
        The baskets.

    Raises:
        DataError: an item is missing or negative.
    """
    import pyarrow as pa

    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    pc = compute()
    lengths = pc.fill_null(pc.list_value_length(whole), 0).to_numpy(zero_copy_only=False)
    begins = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return _encoded(begins, pc.list_flatten(whole), where)


def _encoded(begins: NDArray[np.int64], values: Any, where: str) -> Baskets:
    """Number the values of an Arrow column."""
    if values.null_count:
        raise DataError(f"{where}: {values.null_count:,} items are missing", hint="fill them")
    pc = compute()
    encoded = pc.dictionary_encode(values)
    labels = np.asarray(encoded.dictionary.to_pylist() or np.zeros(0, np.int64))
    if labels.dtype.kind == "i" and len(labels) and labels.min() < 0:
        raise DataError(f"{where}: the item {labels.min()} is negative", hint="number from 0")
    order = np.argsort(labels, kind="stable")
    numbers = np.empty(len(order), np.int32)
    numbers[order] = np.arange(len(order), dtype=np.int32)
    items = numbers[encoded.indices.to_numpy(zero_copy_only=False)]
    return Baskets(begins=begins, items=items, labels=labels[order])


def read_baskets(
    table: "DataTable", *, items: str = "", transaction: str = "", item: str = ""
) -> "tuple[Baskets, Any]":
    """Read all baskets of a table into memory.

    Args:
        table: files of baskets (.dat), a column of lists, or a long table.
        items: column of lists; empty for the only one.
        transaction: column of a long table that says which basket a row belongs to; its rows may
            lie anywhere.
        item: column of a long table with the item of the row.

    Returns:
        The baskets, those of a long table in the order of their first rows; and the rows that were
        set aside.

    Raises:
        ConfigError: there are no such columns.
        DataError: an item is missing, negative, or neither whole number nor text.
    """
    if bool(transaction) != bool(item):
        raise ConfigError(
            "a long table needs both the column of the transaction and that of the item",
            hint="give --transaction and --item",
        )
    if not transaction:
        name = item_column(table, items)
        rows, quarantine = table.select([name]).collect()
        return baskets_of_lists(rows[name], name), quarantine
    rows, quarantine = table.select([transaction, item]).collect()
    return _of_long(rows[transaction], rows[item], item), quarantine


def _of_long(transactions: Any, items: Any, where: str) -> Baskets:
    """Gather the rows of each transaction."""
    import pyarrow as pa

    kind = items.type
    if not (pa.types.is_integer(kind) or _is_text(kind, pa)):
        raise DataError(
            f"column {where!r} is {kind}, but items are whole numbers or texts",
            hint=f'read it as text: --types "{where}=text"',
        )
    if transactions.null_count:
        raise DataError(f"{transactions.null_count:,} rows name no transaction", hint="fill them")
    pc = compute()
    owners = pc.dictionary_encode(transactions).combine_chunks().indices.to_numpy()
    lengths = np.bincount(owners) if len(owners) else np.zeros(0, np.int64)
    begins = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    order = np.argsort(owners, kind="stable")
    return _encoded(begins, items.combine_chunks().take(pa.array(order)), where)


def joined(parts: Sequence[Baskets]) -> Baskets:
    """Return the baskets of several parts in their order."""
    if not parts:
        return Baskets.of([])
    labels = np.unique(np.concatenate([part.labels for part in parts]))
    items = [np.searchsorted(labels, part.labels)[part.items] for part in parts]
    lengths = np.concatenate([np.diff(part.begins) for part in parts])
    begins = np.concatenate([[0], np.cumsum(lengths)])
    return Baskets(begins=begins, items=np.concatenate(items).astype(np.int32), labels=labels)
