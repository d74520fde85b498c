"""Columns of all tables of a lake as flat arrays, so that pairs of tables are compared in loops."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.data.lake.tables import LakeTable, column_token

__all__ = ["ColumnIndex"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnIndex:
    """What footers say of the columns of tables, table after table, columns by their code.

    Attributes:
        names: columns by code, name and type.
        starts: first column of each table, and the number of all, [tables + 1].
        codes: codes of the columns, rising within a table, [columns].
        places: place of the column in its table, [columns].
        kinds: class of types whose values can be compared, 0 for text, [columns].
        low: codes of the least values, NaN unknown, [columns].
        high: codes of the largest values, [columns].
        nulls: missing values, -1 unknown, [columns].
        schema_of: which of the different schemas each table has, [tables]; -1 for one without
            columns.
        first_of: a table of each schema, [schemas].
    """

    names: tuple[str, ...]
    starts: NDArray[np.int64]
    codes: NDArray[np.int64]
    places: NDArray[np.int64]
    kinds: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    nulls: NDArray[np.int64]
    schema_of: NDArray[np.int64]
    first_of: NDArray[np.int64]

    @classmethod
    def of(cls, tables: Sequence[LakeTable], *, coerce: bool = False) -> "ColumnIndex":
        """Index the columns of tables.

        Args:
            tables: the tables.
            coerce: let whole and real numbers of any width be one type.

        Returns:
            The index.
        """
        tokens = [
            [column_token(column, coerce=True) for column in table.columns]
            if coerce
            else table.tokens
            for table in tables
        ]
        names = tuple(sorted({name for own in tokens for name in own}))
        code_of = {name: code for code, name in enumerate(names)}
        starts = np.cumsum([0, *map(len, tokens)]).astype(np.int64)
        unsorted = np.array([code_of[name] for own in tokens for name in own], np.int64)
        owners = np.repeat(np.arange(len(tables)), np.diff(starts))
        order = np.lexsort((unsorted, owners))
        codes = unsorted[order]
        groups: dict[str, int] = {"text": 0}
        kinds = np.array(
            [groups.setdefault(kind, len(groups)) for table in tables for kind in table.kinds],
            np.int64,
        )
        schemas: dict[bytes, int] = {}
        schema_of = np.full(len(tables), -1, np.int64)
        first_of = []
        for place in range(len(tables)):
            key = codes[starts[place] : starts[place + 1]].tobytes()
            if not key:
                continue
            schema_of[place] = schemas.setdefault(key, len(schemas))
            if schema_of[place] == len(first_of):
                first_of.append(place)
        low, high, nulls = (
            np.concatenate([np.zeros(0), *(getattr(table, name) for table in tables)])[order]
            for name in ("low", "high", "nulls")
        )
        return cls(
            names=names,
            starts=starts,
            codes=codes,
            places=(order - starts[owners]).astype(np.int64),
            kinds=kinds[order],
            low=low,
            high=high,
            nulls=nulls.astype(np.int64),
            schema_of=schema_of,
            first_of=np.array(first_of, np.int64),
        )
