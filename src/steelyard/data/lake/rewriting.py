"""Which tables to keep, which to write in another way, and which to delete and rebuild."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from steelyard.data.lake.deletion import (
    Deletion,
    DeletionPlan,
    KeepReasons,
    KeptTable,
    PlanRequest,
    TableRewrite,
    plan_deletion,
    safe_deletions,
)
from steelyard.data.lake.encodings import Encoding
from steelyard.data.lake.graph import ContainmentGraph
from steelyard.data.lake.retention import Retention, retain
from steelyard.errors import ConfigError

__all__ = ["plan_rewrites"]


def plan_rewrites(
    graph: ContainmentGraph,
    request: PlanRequest,
    encodings: Mapping[str, Encoding],
    *,
    locked: Mapping[str, str] | None = None,
    is_exact: bool = True,
) -> DeletionPlan:
    """Choose for each table whether it stays, is written in another way, or is deleted and rebuilt.

    The best plan that only deletes is one of the choices, so that this one is never dearer. A
    rebuild from a table that was written anew reads its new size.

    Args:
        graph: which table lies in which.
        request: prices, accesses, the longest latency, and months over which writing is spread.
        encodings: the other way to write each table, of those that have one.
        locked: tables that have to stay as they are, with the reason.
        is_exact: solve integer programs; False takes the greedy choice.

    Returns:
        The plan. Its gap is that of the choice among all three.

    Raises:
        ConfigError: a table is not in the graph, or a number is out of range.

    Source: R2D2 (arXiv 2312.13427), optimal retention, with a second way to keep each table.
    """
    if not request.rewrite_months > 0:
        raise ConfigError(
            f"rewrite_months is {request.rewrite_months}, but must be above 0",
            hint="give the months over which writing a table once is paid",
        )
    plain = plan_deletion(graph, request, locked=locked, is_exact=is_exact)
    fixed = dict(locked or {})
    ways = {name: way for name, way in encodings.items() if name not in fixed}
    program = _TwoWays(graph, request, ways)
    chosen = program.solve(fixed, is_exact=is_exact)
    made = program.plan(chosen, plain, fixed)
    if made.cost_usd_month > plain.cost_usd_month:
        # Single steps may end above the other choice; the program never does.
        made = plain
    return msgspec.structs.replace(made, delete_only_usd_month=plain.cost_usd_month)


def _rewrite_usd_month(request: PlanRequest, old_bytes: float, new_bytes: float) -> float:
    """Return the share of a month in reading a table and writing it anew once."""
    return request.prices.rebuild_usd(old_bytes, new_bytes) / request.rewrite_months


@dataclass(frozen=True, slots=True)
class _TwoWays:
    """The program of retention in which a table that can be written anew stands twice.

    Its second one costs what the new file does. Each of both is served by the other for nothing,
    and both by the parents of the table: so one is kept, or none.
    """

    graph: ContainmentGraph
    request: PlanRequest
    ways: Mapping[str, Encoding]

    @property
    def names(self) -> list[str]:
        """Tables by their numbers; the second ones follow in the order of `ways`."""
        return [node.name for node in self.graph.nodes]

    def keep(self) -> dict[str, float]:
        """Return what each second one costs a month."""
        sizes = {node.name: node.num_bytes for node in self.graph.nodes}
        prices = self.request.prices
        return {
            name: prices.keep_usd_month(way.num_bytes)
            + _rewrite_usd_month(self.request, sizes[name], way.num_bytes)
            for name, way in self.ways.items()
        }

    def options(self, *, is_rewritten: bool) -> dict[tuple[str, str], Deletion]:
        """Return deletions by table and parent, from parents as they are or as written anew."""
        sizes = {name: way.num_bytes for name, way in self.ways.items()} if is_rewritten else {}
        found = safe_deletions(self.graph, self.request, sizes)
        return {pair: item for pair, item in found.items() if not is_rewritten or pair[1] in sizes}

    def solve(self, locked: Mapping[str, str], *, is_exact: bool) -> Retention:
        """Return which tables and second ones are kept, and what serves the others."""
        names = self.names
        places = {name: place for place, name in enumerate(names)}
        second = {name: len(names) + place for place, name in enumerate(self.ways)}
        edges = [(places[name], other, 0.0) for name, other in second.items()]
        edges += [(other, own, 0.0) for own, other, _ in edges]
        for is_rewritten, home in ((False, places), (True, second)):
            for (child, parent), item in self.options(is_rewritten=is_rewritten).items():
                edges.append((places[child], home[parent], item.rebuild_usd_month))
                if child in second:
                    edges.append((second[child], home[parent], 0.0))
        keep = [self.request.prices.keep_usd_month(node.num_bytes) for node in self.graph.nodes]
        children, parents, costs = zip(*edges, strict=True) if edges else ((), (), ())
        return retain(
            [*keep, *self.keep().values()],
            children,
            parents,
            costs,
            locked=[places[name] for name in locked if name in places],
            is_exact=is_exact,
        )

    def plan(
        self, chosen: Retention, plain: DeletionPlan, locked: Mapping[str, str]
    ) -> DeletionPlan:
        """Return the plan of a choice."""
        names = self.names
        new = {
            name for place, name in enumerate(self.ways) if chosen.parents[len(names) + place] < 0
        }
        served = [*names, *self.ways]
        options, after = (self.options(is_rewritten=flag) for flag in (False, True))
        deletions = []
        for name, parent in zip(names, chosen.parents[: len(names)].tolist(), strict=True):
            if parent >= 0 and name not in new:
                pair = name, served[parent]
                deletions.append((after if pair[1] in new else options)[pair])
        rewrites = self._rewrites(new)
        gone = {item.table for item in deletions}
        stays = [node for node in self.graph.nodes if node.name not in gone]
        why = KeepReasons(self.graph, set(options), deletions, locked)
        prices = self.request.prices
        cost = (
            sum(prices.keep_usd_month(item.num_bytes) for item in stays if item.name not in new)
            + sum(item.keep_usd_month for item in rewrites)
            + sum(item.rebuild_usd_month for item in deletions)
        )
        return msgspec.structs.replace(
            plain,
            deletions=tuple(sorted(deletions, key=lambda item: -item.saved_usd_month)),
            kept=tuple(
                KeptTable(table=node.name, num_bytes=node.num_bytes, reason=why.of(node))
                for node in stays
            ),
            rewrites=tuple(sorted(rewrites, key=lambda item: -item.saved_usd_month)),
            cost_usd_month=cost,
            gap=max(cost - chosen.bound, 0.0) / cost if cost else 0.0,
        )

    def _rewrites(self, new: set[str]) -> list[TableRewrite]:
        """Return what writing some tables anew means."""
        nodes = {node.name: node for node in self.graph.nodes}
        costs = self.keep()
        return [
            TableRewrite(
                table=name,
                path=nodes[name].path,
                prints=nodes[name].prints,
                option=self.ways[name].option,
                old_bytes=nodes[name].num_bytes,
                new_bytes=self.ways[name].num_bytes,
                load_s=self.ways[name].load_s,
                keep_usd_month=costs[name],
                saved_usd_month=self.request.prices.keep_usd_month(nodes[name].num_bytes)
                - costs[name],
            )
            for name in sorted(new)
        ]
