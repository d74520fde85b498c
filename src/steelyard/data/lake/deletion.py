"""Which tables of a lake can go, what each is rebuilt from, and the dollars that saves."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec

from steelyard.config import convert
from steelyard.data.lake.costs import StorageCosts
from steelyard.data.lake.graph import (
    ContainmentEdge,
    ContainmentGraph,
    GraphSettings,
    TableNode,
)
from steelyard.data.lake.retention import retain
from steelyard.errors import ConfigError
from steelyard.files import read_json, write_json

__all__ = [
    "Deletion",
    "DeletionPlan",
    "KeepReasons",
    "KeptTable",
    "PlanRequest",
    "TableRewrite",
    "plan_deletion",
    "safe_deletions",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a plan of deletions needs besides the lake.

    Attributes:
        max_latency_s: longest a rebuild may take to read the table that it is made from.
        checks: how containment is checked.
        prices: what keeping, reading and writing costs.
        accesses: how often a month each table is asked for; 1 for those that are not named.
        rewrite_months: months over which writing a table anew once is spread.
    """

    max_latency_s: float = 60.0
    checks: GraphSettings = field(default_factory=GraphSettings)
    prices: StorageCosts = field(default_factory=StorageCosts)
    accesses: dict[str, float] = field(default_factory=dict)
    rewrite_months: float = 12.0


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """A table that can go.

    Attributes:
        table: its name.
        path: file or folder.
        num_bytes: its size.
        prints: its files and their fingerprints when the plan was made.
        parent: table that it is rebuilt from.
        rows_checked: different rows that were found in the parent.
        is_whole: whether these are all its rows.
        keep_usd_month: what keeping it costs.
        rebuild_usd_month: what rebuilding it costs, as often as it is asked for.
        accesses_month: how often that is.
        latency_s: seconds that a rebuild takes to read the parent.
        saved_usd_month: dollars a month that go with the table.
    """

    table: str
    path: str
    num_bytes: int
    prints: tuple[tuple[str, str], ...]
    parent: str
    rows_checked: int
    is_whole: bool
    keep_usd_month: float
    rebuild_usd_month: float
    accesses_month: float
    latency_s: float
    saved_usd_month: float


class TableRewrite(msgspec.Struct, frozen=True, kw_only=True):
    """A table that stays, and is written in another way.

    Attributes:
        table: its name.
        path: its file.
        prints: its file and fingerprint when the plan was made.
        option: how it is written, such as "parquet zstd".
        old_bytes: its size.
        new_bytes: its size afterwards, predicted.
        load_s: seconds that reading all of it takes then.
        keep_usd_month: what keeping it costs then, with its share of writing it once.
        saved_usd_month: dollars a month that this saves.
    """

    table: str
    path: str
    prints: tuple[tuple[str, str], ...]
    option: str
    old_bytes: int
    new_bytes: float
    load_s: float
    keep_usd_month: float
    saved_usd_month: float


class KeptTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table that stays.

    Attributes:
        table: its name.
        num_bytes: its size.
        reason: why it stays.
    """

    table: str
    num_bytes: int
    reason: str


class DeletionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Tables that can go and tables that stay.

    Attributes:
        root: folder of the lake.
        deletions: tables that can go, the one that saves most first.
        kept: tables that stay.
        keep_all_usd_month: what keeping every table costs.
        cost_usd_month: what the plan costs.
        gap: share of that by which the best plan could be cheaper at most.
        max_latency_s: longest a rebuild may take.
        source: where the prices are from.
        rewrites: tables that stay and are written in another way, the one that saves most first.
        delete_only_usd_month: what the best plan without rewriting costs, None
            where rewriting was not asked for.
    """

    root: str
    deletions: tuple[Deletion, ...]
    kept: tuple[KeptTable, ...]
    keep_all_usd_month: float
    cost_usd_month: float
    gap: float
    max_latency_s: float
    source: str
    rewrites: tuple[TableRewrite, ...] = ()
    delete_only_usd_month: float | None = None

    def save(self, path: Path) -> None:
        """Write the plan as JSON.

        Args:
            path: the file.
        """
        write_json(path, self)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a plan.

        Args:
            path: a file that `save` wrote.

        Returns:
            The plan.

        Raises:
            DataError: the file cannot be read.
            ConfigError: it is no plan.
        """
        return convert(read_json(path), cls, where=str(path))


def plan_deletion(
    graph: ContainmentGraph,
    request: PlanRequest,
    *,
    locked: Mapping[str, str] | None = None,
    is_exact: bool = True,
) -> DeletionPlan:
    """Choose which tables to delete so that keeping, and rebuilding on demand, costs least.

    A table goes only where a table that stays contains it and can be read within the latency.

    Args:
        graph: which table lies in which.
        request: prices, accesses and the longest latency.
        locked: tables that have to stay, with the reason.
        is_exact: solve integer programs; False takes the greedy choice.

    Returns:
        The plan.

    Raises:
        ConfigError: a table is not in the graph, or a number is below 0.

    Source: R2D2 (arXiv 2312.13427), optimal retention; C = c_read S_parent + c_write S_table.
    """
    fixed = dict(locked or {})
    _refuse(graph, request.accesses, request.max_latency_s)
    options = safe_deletions(graph, request)
    names = [node.name for node in graph.nodes]
    places = {name: place for place, name in enumerate(names)}
    keep = [request.prices.keep_usd_month(node.num_bytes) for node in graph.nodes]
    found = retain(
        keep,
        [places[child] for child, _ in options],
        [places[parent] for _, parent in options],
        [option.rebuild_usd_month for option in options.values()],
        locked=[places[name] for name in fixed if name in places],
        is_exact=is_exact,
    )
    deletions = {
        names[child]: options[names[child], names[parent]]
        for child, parent in enumerate(found.parents)
        if parent >= 0
    }
    why = KeepReasons(graph, set(options), list(deletions.values()), fixed)
    return DeletionPlan(
        root=graph.root,
        deletions=tuple(sorted(deletions.values(), key=lambda item: -item.saved_usd_month)),
        kept=tuple(
            KeptTable(table=node.name, num_bytes=node.num_bytes, reason=why.of(node))
            for node in graph.nodes
            if node.name not in deletions
        ),
        keep_all_usd_month=sum(keep),
        cost_usd_month=found.cost,
        gap=max(found.cost - found.bound, 0.0) / found.cost if found.cost else 0.0,
        max_latency_s=request.max_latency_s,
        source=request.prices.source,
    )


def safe_deletions(
    graph: ContainmentGraph,
    request: PlanRequest,
    sizes: Mapping[str, float] | None = None,
) -> dict[tuple[str, str], Deletion]:
    """Return what could go if its parent stayed, by table and parent.

    Args:
        graph: which table lies in which.
        request: prices, accesses and the longest latency.
        sizes: bytes of parents that are not as large as in the graph.

    Returns:
        Deletions whose parent is read in time.
    """
    nodes = {node.name: node for node in graph.nodes}
    found = {}
    for edge in graph.edges:
        child, parent = nodes[edge.child], nodes[edge.parent]
        size = (sizes or {}).get(parent.name, parent.num_bytes)
        # Values of text are not kept to the bit, and a parent has to be read in time.
        is_safe = child.is_columnar and parent.is_columnar
        if is_safe and request.prices.latency_s(size) <= request.max_latency_s:
            accesses = request.accesses.get(edge.child, 1.0)
            found[edge.child, edge.parent] = _option(edge, child, size, request.prices, accesses)
    return found


def _refuse(graph: ContainmentGraph, accesses: Mapping[str, float], max_latency_s: float) -> None:
    """Refuse numbers below nothing, and tables that there are not."""
    if not max_latency_s >= 0:
        raise ConfigError(f"the latency is {max_latency_s} s, but must be 0 or more")
    for name, count in accesses.items():
        graph.node(name)
        if not 0 <= count < math.inf:
            raise ConfigError(f"accesses of {name!r} are {count}, but must be 0 or more a month")


def _option(
    edge: ContainmentEdge,
    child: TableNode,
    parent_bytes: float,
    costs: StorageCosts,
    accesses_month: float,
) -> Deletion:
    """Return what deleting a table would mean if its parent stayed."""
    keep = costs.keep_usd_month(child.num_bytes)
    rebuild = accesses_month * costs.rebuild_usd(parent_bytes, child.num_bytes)
    return Deletion(
        table=child.name,
        path=child.path,
        num_bytes=child.num_bytes,
        prints=child.prints,
        parent=edge.parent,
        rows_checked=edge.rows,
        is_whole=edge.is_whole,
        keep_usd_month=keep,
        rebuild_usd_month=rebuild,
        accesses_month=accesses_month,
        latency_s=costs.latency_s(parent_bytes),
        saved_usd_month=keep - rebuild,
    )


class KeepReasons:
    """Says why tables stay."""

    def __init__(
        self,
        graph: ContainmentGraph,
        safe: set[tuple[str, str]],
        deletions: Sequence[Deletion],
        locked: Mapping[str, str],
    ) -> None:
        """Take a plan's parts.

        Args:
            graph: which table lies in which.
            safe: tables with the parents that they could be rebuilt from.
            deletions: what was chosen.
            locked: tables that have to stay, with the reason.
        """
        self._locked = locked
        self._contained = {edge.child for edge in graph.edges}
        self._safe = {child for child, _ in safe}
        self._served: dict[str, list[str]] = {}
        for item in deletions:
            self._served.setdefault(item.parent, []).append(item.table)

    def of(self, node: TableNode) -> str:
        """Return the reason in words."""
        if node.name in self._locked:
            return self._locked[node.name]
        if served := self._served.get(node.name):
            return (
                f"{len(served)} {'table is' if len(served) == 1 else 'tables are'} rebuilt from it"
            )
        if node.name not in self._contained:
            return "no other table contains it"
        if not node.is_columnar:
            return "a file of text cannot be rebuilt to the bit"
        if node.name not in self._safe:
            return "what contains it takes too long to read, or is a file of text"
        return "rebuilding it costs as much as keeping it"
