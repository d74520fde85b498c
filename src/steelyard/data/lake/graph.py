"""Which table of a lake lies in which: edges with their evidence, and pairs that were ruled out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import msgspec

from steelyard.config import convert
from steelyard.errors import ConfigError
from steelyard.files import read_json, write_json

__all__ = ["ContainmentEdge", "ContainmentGraph", "GraphSettings", "RuledOut", "TableNode"]


class TableNode(msgspec.Struct, frozen=True, kw_only=True):
    """A table in the graph.

    Attributes:
        name: name of the table.
        path: file or folder.
        num_bytes: its size.
        rows: number of rows; -1 unknown.
        columns: its columns, nested ones as leaves.
        is_columnar: whether it can be rebuilt to the bit, which files of text cannot.
        prints: files with their fingerprints.
    """

    name: str
    path: str
    num_bytes: int
    rows: int
    columns: tuple[str, ...]
    is_columnar: bool
    prints: tuple[tuple[str, str], ...]


class ContainmentEdge(msgspec.Struct, frozen=True, kw_only=True):
    """A child whose rows, over its own columns, are all in a parent, as far as was looked.

    Attributes:
        child: the table that is contained.
        parent: the table that contains it.
        rows: different rows of the child that were looked for and found.
        is_whole: whether these are all rows of the child.
        lower_bound: share of the child's rows that the parent holds at least, at the confidence of
            the settings.
    """

    child: str
    parent: str
    rows: int
    is_whole: bool
    lower_bound: float


class RuledOut(msgspec.Struct, frozen=True, kw_only=True):
    """A pair whose schemas fit and whose rows do not.

    Attributes:
        child: the table that is not contained.
        parent: the table that does not contain it.
        reason: what contradicted.
        column: column of the child whose statistics did; empty for rows.
        row: row of the child, from 1, that the parent lacks; 0 for statistics.
    """

    child: str
    parent: str
    reason: str
    column: str = ""
    row: int = 0


class GraphSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How pairs were checked.

    Attributes:
        epsilon: share of rows that a wrong parent lacks at least.
        delta: chance that such a parent is kept.
        verify: "sample"; "exact" for all rows; "sketch" for none, so that edges are candidates.
        coerce: whether numbers of different types match.
        bag: whether a parent must have each row as often.
        seed: seed of the samples.
    """

    epsilon: float = 0.01
    delta: float = 0.01
    verify: str = "sample"
    coerce: bool = False
    bag: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse values that mean nothing."""
        for name in ("epsilon", "delta"):
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, but must be between 0 and 1")
        if self.verify not in ("sample", "exact", "sketch"):
            raise ConfigError(
                f"verify is {self.verify!r}", hint='give "sample", "exact" or "sketch"'
            )
        if self.bag and self.verify != "exact":
            raise ConfigError("how often a row occurs is known from all rows", hint="verify=exact")


class ContainmentGraph(msgspec.Struct, frozen=True, kw_only=True):
    """Tables of a lake, and which lies in which.

    Attributes:
        root: folder of the lake.
        settings: how pairs were checked.
        nodes: tables, by name.
        edges: pairs that hold.
        ruled_out: pairs that rows contradict; those that statistics do are counted only.
        counts: pairs left after each step, by what the step is called.
        rows_read: rows that were decoded.
        brute_rows: rows that joining every pair of fitting schemas would read.
        problems: tables that could not be read, with the reason; no pair of theirs is an edge.
    """

    root: str
    settings: GraphSettings
    nodes: tuple[TableNode, ...]
    edges: tuple[ContainmentEdge, ...]
    ruled_out: tuple[RuledOut, ...]
    counts: Mapping[str, int]
    rows_read: int
    brute_rows: int
    problems: Mapping[str, str]

    def node(self, name: str) -> TableNode:
        """Return a table.

        Args:
            name: name of the table.

        Returns:
            The table.

        Raises:
            ConfigError: there is none of that name.
        """
        for item in self.nodes:
            if item.name == name:
                return item
        some = ", ".join(item.name for item in self.nodes[:5])
        raise ConfigError(f"no table {name!r} in {self.root}", hint=f"tables are {some}, ...")

    def save(self, path: Path) -> None:
        """Write the graph as JSON.

        Args:
            path: the file.
        """
        write_json(path, self)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a graph.

        Args:
            path: a file that `save` wrote.

        Returns:
            The graph.

        Raises:
            DataError: the file cannot be read.
            ConfigError: it is no graph.
        """
        return convert(read_json(path), cls, where=str(path))
