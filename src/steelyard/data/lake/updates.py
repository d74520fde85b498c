"""What an earlier graph still says of a lake that has changed since."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from steelyard.data.lake.graph import ContainmentEdge, ContainmentGraph, GraphSettings, RuledOut
from steelyard.data.lake.tables import LakeTable

__all__ = ["KnownPairs", "OpenPair"]

_SAME, _LONGER, _OTHER = "same", "longer", "other"


class OpenPair(NamedTuple):
    """A pair whose rows have to be read.

    Attributes:
        child: the table, or its new files alone.
        before: the edge that held without those.
    """

    child: LakeTable
    before: ContainmentEdge | None


@dataclass(frozen=True, slots=True)
class KnownPairs:
    """What an earlier graph says.

    Attributes:
        edges: edges of its graph, by child and parent.
        ruled_out: pairs of child and parent that are ruled out.
        changes: what became of each table that it knew.
        old_files: files of each table then.
        bag: whether it counted how often rows occur.
    """

    edges: Mapping[tuple[str, str], ContainmentEdge] = field(default_factory=dict)
    ruled_out: Mapping[tuple[str, str], RuledOut] = field(default_factory=dict)
    changes: Mapping[str, str] = field(default_factory=dict)
    old_files: Mapping[str, frozenset[str]] = field(default_factory=dict)
    bag: bool = False

    @classmethod
    def of(
        cls,
        previous: ContainmentGraph | None,
        asked: GraphSettings,
        tables: Sequence[LakeTable],
    ) -> "KnownPairs":
        """Return what a graph says about tables as they are now.

        Args:
            previous: the graph; None says nothing.
            asked: how pairs are to be checked; a graph of other settings says nothing.
            tables: tables as they are now.

        Returns:
            What is known.
        """
        if previous is None or previous.settings != asked:
            return cls()
        nodes = {node.name: node for node in previous.nodes}
        changes, old_files = {}, {}
        for table in tables:
            if table.name not in nodes or table.name in previous.problems:
                continue
            old, new = nodes[table.name], table.prints
            is_known = tuple(column.name for column in table.columns) == old.columns
            if new == old.prints:
                changes[table.name] = _SAME
            elif is_known and set(old.prints) < set(new):
                changes[table.name] = _LONGER
            else:
                changes[table.name] = _OTHER
            old_files[table.name] = frozenset(path for path, _ in old.prints)
        return cls(
            {(edge.child, edge.parent): edge for edge in previous.edges},
            {(pair.child, pair.parent): pair for pair in previous.ruled_out},
            changes,
            old_files,
            asked.bag,
        )

    def tell(self, child: LakeTable, parent: LakeTable) -> ContainmentEdge | RuledOut | OpenPair:
        """Return what is known of a pair whose schemas and statistics fit now.

        Rows that were added to a parent take no child from it; rows that were added to a child have
        to be looked for, and they alone; a child stays ruled out while its parent does not grow.

        Args:
            child: child of the pair, in its present state.
            parent: parent of the pair, in its present state.

        Returns:
            The edge or the reason against it, or what has to be read.

        Source: R2D2 (arXiv 2312.13427), updates of the graph.
        """
        pair = (child.name, parent.name)
        own = self.changes.get(child.name, _OTHER)
        other = self.changes.get(parent.name, _OTHER)
        if _OTHER in (own, other):
            return OpenPair(child, None)
        if pair in self.edges:
            if own == _SAME:
                return self.edges[pair]
            if self.bag:
                # How often a row occurs is known of old and new files together only.
                return OpenPair(child, None)
            old = self.old_files[child.name]
            fresh = tuple(part for part in child.parts if part.source.path not in old)
            return OpenPair(replace(child, parts=fresh), self.edges[pair])
        if pair in self.ruled_out and other == _SAME:
            return self.ruled_out[pair]
        return OpenPair(child, None)
