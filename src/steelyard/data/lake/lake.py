"""A data lake: its tables by their footers, and which of them lie in which."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from steelyard.data.lake.content import check_pairs, lower_bound, sample_size
from steelyard.data.lake.graph import (
    ContainmentEdge,
    ContainmentGraph,
    GraphSettings,
    RuledOut,
    TableNode,
)
from steelyard.data.lake.hashing import RowReader
from steelyard.data.lake.index import ColumnIndex
from steelyard.data.lake.listing import list_tables
from steelyard.data.lake.pruning import KEPT, REASONS, prune_by_statistics
from steelyard.data.lake.schemas import SchemaEdges, schema_edges
from steelyard.data.lake.sketches import ContainmentSketch, can_contain, load_sketches
from steelyard.data.lake.tables import LakeTable, look_at_table
from steelyard.data.lake.updates import KnownPairs
from steelyard.errors import DataError

__all__ = ["Lake"]

_Pair = TypeVar("_Pair", ContainmentEdge, RuledOut)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """Tables below a folder.

    Attributes:
        root: the folder.
        tables: those that can be read, by name.
        index: their columns.
        unreadable: reason by path of those that cannot.
    """

    root: Path
    tables: tuple[LakeTable, ...]
    index: ColumnIndex
    unreadable: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def scan(cls, root: str | Path) -> "Lake":
        """Look at the tables below a folder; of Parquet files only the footers are read.

        A file is a table, and a folder whose name ends like a file's ("sales.parquet/") is one
        table of many files. Files and folders that begin with "." or "_" are left out.

        Args:
            root: the folder, or a pattern such as "lake/*.parquet".

        Returns:
            The lake; what cannot be read is in `unreadable`.

        Raises:
            DataError: there is no table.
        """
        folder, listed = list_tables(str(root))
        tables, unreadable = [], {}
        for name, path, files in listed:
            try:
                tables.append(look_at_table(name, path, files))
            except (DataError, OSError) as error:
                unreadable[str(path)] = str(error)
        return cls(
            root=folder,
            tables=tuple(tables),
            index=ColumnIndex.of(tables),
            unreadable=unreadable,
        )

    def schema_edges(self, *, coerce: bool = False) -> SchemaEdges:
        """Return pairs of tables of which one has all columns of the other.

        Args:
            coerce: let numbers of different types match.

        Returns:
            The pairs.
        """
        return schema_edges(self._index(coerce=coerce))

    def _index(self, *, coerce: bool) -> ColumnIndex:
        return ColumnIndex.of(self.tables, coerce=True) if coerce else self.index

    def containment(
        self,
        settings: GraphSettings | None = None,
        *,
        previous: ContainmentGraph | None = None,
        sketches: Path | None = None,
    ) -> ContainmentGraph:
        """Find which table lies in which, by schemas, then statistics, then rows.

        No pair that holds is missed. A pair that does not hold, with a share of at least epsilon of
        the child's rows missing from the parent, is kept with a chance of at most delta.

        Args:
            settings: epsilon, delta and the like; None for the defaults.
            previous: an earlier graph of this lake; rows of pairs that did not change are not read.
            sketches: folder where `write_sketches` left what it found; pairs that it contradicts
                are not read.

        Returns:
            The graph.

        Source: R2D2 (arXiv 2312.13427).
        """
        asked = settings or GraphSettings()
        index = self._index(coerce=asked.coerce)
        found = schema_edges(index)
        reasons, _ = prune_by_statistics(index, found.children, found.parents)
        pairs = [
            (self.tables[child], self.tables[parent])
            for child, parent in zip(
                found.children[reasons == KEPT], found.parents[reasons == KEPT], strict=True
            )
        ]
        counts = {"schemas": len(found.children)}
        for code, words in enumerate(REASONS[1:], 1):
            counts[words] = int(((reasons == KEPT) | (reasons > code)).sum())
        if sketches is not None:
            pairs = _not_contradicted(pairs, load_sketches(self.tables, sketches))
            counts["sketches"] = len(pairs)
        reader = RowReader()
        if asked.verify == "sketch":
            edges, ruled_out = _unread(pairs), []
        else:
            known = KnownPairs.of(previous, asked, self.tables)
            edges, ruled_out = _checked(pairs, asked, reader, known)
            counts["rows"] = len(edges)
        return ContainmentGraph(
            root=str(self.root),
            settings=asked,
            nodes=tuple(_node(table) for table in self.tables),
            edges=tuple(edges),
            ruled_out=tuple(ruled_out),
            counts=counts,
            rows_read=reader.rows_read,
            brute_rows=self._joined_rows(found),
            problems={**self.unreadable, **reader.problems},
        )

    def _joined_rows(self, found: SchemaEdges) -> int:
        """Return the rows that joining every pair would read, unknown ones as none."""
        rows = np.array([max(table.rows, 0) for table in self.tables], np.int64)
        return int(rows[found.children].sum() + rows[found.parents].sum())


def _node(table: LakeTable) -> TableNode:
    return TableNode(
        name=table.name,
        path=str(table.path),
        num_bytes=table.num_bytes,
        rows=table.rows,
        columns=tuple(column.name for column in table.columns),
        is_columnar=table.is_columnar,
        prints=table.prints,
    )


def _not_contradicted(
    pairs: Sequence[tuple[LakeTable, LakeTable]], sketches: Mapping[str, ContainmentSketch]
) -> list[tuple[LakeTable, LakeTable]]:
    """Return the pairs that sketches do not rule out."""
    return [
        (child, parent)
        for child, parent in pairs
        if child.name not in sketches
        or parent.name not in sketches
        or can_contain(sketches[parent.name], sketches[child.name])
    ]


def _unread(pairs: Sequence[tuple[LakeTable, LakeTable]]) -> list[ContainmentEdge]:
    """Return pairs as edges of which no row was looked at."""
    return _in_order(
        [
            ContainmentEdge(
                child=child.name, parent=parent.name, rows=0, is_whole=False, lower_bound=0.0
            )
            for child, parent in pairs
        ]
    )


def _checked(
    pairs: Sequence[tuple[LakeTable, LakeTable]],
    asked: GraphSettings,
    reader: RowReader,
    known: KnownPairs,
) -> tuple[list[ContainmentEdge], list[RuledOut]]:
    """Check pairs by rows, those that an earlier graph decides left out."""
    edges: list[ContainmentEdge] = []
    ruled_out: list[RuledOut] = []
    open_pairs: list[tuple[LakeTable, LakeTable]] = []
    before: list[ContainmentEdge | None] = []
    for child, parent in pairs:
        told = known.tell(child, parent)
        if isinstance(told, ContainmentEdge):
            edges.append(told)
        elif isinstance(told, RuledOut):
            ruled_out.append(told)
        else:
            open_pairs.append((told.child, parent))
            before.append(told.before)
    sample = None if asked.verify == "exact" else sample_size(asked.epsilon, asked.delta)
    rng = np.random.default_rng(asked.seed)
    for place, check in check_pairs(open_pairs, reader, sample=sample, rng=rng, bag=asked.bag):
        child, parent = open_pairs[place]
        if check.missing:
            ruled_out.append(
                RuledOut(child=child.name, parent=parent.name, reason="rows", row=check.example)
            )
            continue
        old = before[place]
        is_whole = check.is_whole and (old is None or old.is_whole)
        bound = lower_bound(check, asked.delta)
        edges.append(
            ContainmentEdge(
                child=child.name,
                parent=parent.name,
                rows=check.rows + (old.rows if old else 0),
                is_whole=is_whole,
                lower_bound=min(bound, old.lower_bound) if old else bound,
            )
        )
    # A table that turned out to be unreadable late is in no edge, whatever was found before.
    edges = [edge for edge in edges if not {edge.child, edge.parent} & set(reader.problems)]
    return _in_order(edges), _in_order(ruled_out)


def _in_order(pairs: "list[_Pair]") -> "list[_Pair]":
    """Return pairs by the names of their tables, in whatever order they were read."""
    return sorted(pairs, key=lambda pair: (pair.child, pair.parent))
