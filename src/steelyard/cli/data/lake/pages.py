"""Pages of `steelyard data lake`: tables, the graph, the plan, and what was deleted."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.runs.report import Block, Cell, Chart, Column, Facts, Report, Section, Table, Text
from steelyard.units import pretty

if TYPE_CHECKING:
    from steelyard.data.lake import Applied, ContainmentGraph, DeletedTable, DeletionPlan, Lake

__all__ = [
    "applied_page",
    "deleted_page",
    "graph_page",
    "plan_page",
    "scan_page",
    "scan_values",
]

_MOST_LINES = 200
_ROUNDING = 1e-9


def scan_page(lake: "Lake") -> Report:
    """Return the page of a lake's tables."""
    rows: list[list[Cell]] = [
        [item.name, _rows(item.rows), len(item.columns), len(item.parts), _size(item.num_bytes)]
        for item in lake.tables[:_MOST_LINES]
    ]
    heads = ("rows", "columns", "parts", "size")
    facts = Facts(
        [
            ("tables", f"{len(lake.tables):,}", ""),
            ("size", _size(sum(item.num_bytes for item in lake.tables)), ""),
            ("not readable", f"{len(lake.unreadable):,}", ""),
        ]
    )
    note = _more(len(lake.tables))
    listed = Table(
        [Column("table"), *(Column(name, align="right") for name in heads)], rows, caption=note
    )
    return Report(
        "Lake", str(lake.root), [Section("Tables", [facts, listed]), *_problems(lake.unreadable)]
    )


def scan_values(lake: "Lake") -> dict[str, Any]:
    """Return a lake's tables for programs."""
    return {
        "root": str(lake.root),
        "tables": [
            {
                "name": item.name,
                "path": str(item.path),
                "rows": item.rows,
                "num_bytes": item.num_bytes,
                "columns": {column.name: str(column.type) for column in item.columns},
            }
            for item in lake.tables
        ],
        "unreadable": dict(lake.unreadable),
    }


def graph_page(graph: "ContainmentGraph") -> Report:
    """Return the page of a graph."""
    rows: list[list[Cell]] = [
        [
            edge.child,
            edge.parent,
            "all rows" if edge.is_whole else f"{edge.rows:,} drawn",
            f"{edge.lower_bound:.2%}",
        ]
        for edge in graph.edges[:_MOST_LINES]
    ]
    heads = [Column("table"), Column("lies in"), Column("checked"), Column("share", align="right")]
    note = (
        f"share of the rows that are in the other table, at least, with a confidence of "
        f"{1 - graph.settings.delta:.0%}"
    )
    edges = Table(heads, rows, caption=" ".join(filter(None, (note, _more(len(graph.edges))))))
    sections = [
        Section("Containment", [_steps(graph), edges]),
        *_drawing(graph, {}),
        *_problems(graph.problems),
    ]
    return Report("Which table lies in which", graph.root, sections)


def plan_page(graph: "ContainmentGraph", plan: "DeletionPlan", out: Path | None) -> Report:
    """Return the page of a plan, which is in a file where it was kept."""
    saved = plan.keep_all_usd_month - plan.cost_usd_month
    share = saved / plan.keep_all_usd_month if plan.keep_all_usd_month else 0.0
    num_bytes = sum(item.num_bytes for item in plan.deletions)
    facts = Facts(
        [
            ("tables that can go", f"{len(plan.deletions):,} of {len(graph.nodes):,}", ""),
            ("bytes that can go", _size(num_bytes), ""),
            ("saved a month", f"{_usd(saved)}, {share:.1%}", "derived"),
            ("kept as it is", f"{_usd(plan.keep_all_usd_month)} a month", "derived"),
            *_rewriting(plan),
        ]
    )
    kept: list[list[Cell]] = [
        [item.table, _size(item.num_bytes), item.reason] for item in plan.kept[:_MOST_LINES]
    ]
    heads = [Column("table"), Column("size", align="right"), Column("why")]
    chosen = {item.table: item.parent for item in plan.deletions}
    return Report(
        "What can go",
        graph.root,
        [
            Section("Plan", [facts, Text(_next(out))]),
            Section("Tables that can go", [_deletions(graph, plan)]),
            *_rewrites(plan),
            *_drawing(graph, chosen),
            Section("Tables that stay", [Table(heads, kept, caption=_more(len(plan.kept)))]),
            Section("How it was found", [_steps(graph)]),
            *_problems(graph.problems),
        ],
    )


def _deletions(graph: "ContainmentGraph", plan: "DeletionPlan") -> Table:
    """List the tables that can go."""
    nodes = {node.name: node for node in graph.nodes}
    rows: list[list[Cell]] = [
        [
            item.table,
            item.parent,
            f"{_rows(nodes[item.table].rows)} of {_rows(nodes[item.parent].rows)}",
            f"{len(nodes[item.table].columns)} of {len(nodes[item.parent].columns)}",
            "all rows" if item.is_whole else f"{item.rows_checked:,} drawn",
            _size(item.num_bytes),
            _usd(item.saved_usd_month),
            pretty(item.latency_s, "s"),
        ]
        for item in plan.deletions[:_MOST_LINES]
    ]
    right = ("size", "saves a month", "rebuilt in")
    heads = [Column("table"), Column("lies in"), Column("rows", align="right")]
    heads += [Column("columns", align="right"), Column("checked", rank=1)]
    heads += [Column(name, align="right") for name in right]
    is_exact = plan.gap <= _ROUNDING
    best = "no plan is cheaper" if is_exact else f"no plan is more than {plan.gap:.2%} cheaper"
    note = "; ".join(filter(None, (best, f"prices: {plan.source}", _more(len(plan.deletions)))))
    return Table(heads, rows, caption=note)


def _rewriting(plan: "DeletionPlan") -> list[tuple[str, str, str]]:
    """Say what writing tables in another way adds, where that was asked for."""
    if plan.delete_only_usd_month is None:
        return []
    gain = plan.delete_only_usd_month - plan.cost_usd_month
    share = gain / plan.delete_only_usd_month if plan.delete_only_usd_month else 0.0
    return [
        ("tables written anew", f"{len(plan.rewrites):,}", ""),
        ("less than by deleting only", f"{_usd(gain)} a month, {share:.1%}", "derived"),
    ]


def _rewrites(plan: "DeletionPlan") -> list[Section]:
    """List the tables that are written in another way."""
    rows: list[list[Cell]] = [
        [
            item.table,
            item.option,
            _size(item.old_bytes),
            _size(item.new_bytes),
            _usd(item.saved_usd_month),
            pretty(item.load_s, "s"),
        ]
        for item in plan.rewrites[:_MOST_LINES]
    ]
    heads = [Column("table"), Column("written as")]
    heads += [
        Column(name, align="right") for name in ("size", "afterwards", "saves a month", "read in")
    ]
    note = "what writing costs once is spread over months and taken off"
    note = "; ".join(filter(None, (note, _more(len(plan.rewrites)))))
    return (
        [Section("Tables that are written anew", [Table(heads, rows, caption=note)])]
        if rows
        else []
    )


def _next(out: Path | None) -> str:
    if out is None:
        return (
            "Nothing was changed. `--out plan.json` keeps the plan for `steelyard data lake apply`."
        )
    return (
        f"Nothing was changed. `steelyard data lake apply {out}` proves each deletion value by "
        "value, and with `--yes` moves the tables to a trash folder."
    )


def applied_page(found: "Applied", plan: "DeletionPlan") -> Report:
    """Return the page of a plan that was applied, or only proven."""
    words = "moved to the trash" if found.is_done else "proven; nothing was changed without --yes"
    saved = {item.table: item.saved_usd_month for item in (*plan.deletions, *plan.rewrites)}
    facts = Facts(
        [
            ("tables", f"{len(found.deleted):,} {words}", ""),
            ("size", _size(sum(item.num_bytes for item in found.deleted)), ""),
            ("saves a month", _usd(sum(saved[item.table] for item in found.deleted)), "derived"),
        ]
    )
    sections = [Section("Deletions", [facts, *_deleted(found.deleted)])]
    if found.rewritten:
        told = "put in place" if found.is_done else "read back; nothing was changed without --yes"
        sections.append(Section(f"Written anew, {told}", [_rewritten(found, saved)]))
    if found.refused:
        rows: list[list[Cell]] = [[name, why] for name, why in found.refused.items()]
        sections.append(
            Section("Kept all the same", [Table([Column("table"), Column("why")], rows)])
        )
    if found.is_done:
        told = (
            f"Recipes take {_size(found.recipe_bytes)}. `steelyard data lake rebuild {plan.root}` "
        )
        told += "lists what can be brought back; space is free once the trash folder is removed."
        sections[0].blocks.append(Text(told))
    return Report("Deletions", plan.root, sections)


def _rewritten(found: "Applied", saved: dict[str, float]) -> Table:
    """List tables that were written in another way."""
    rows: list[list[Cell]] = [
        [
            item.table,
            item.option,
            _size(item.old_bytes),
            _size(item.num_bytes),
            _usd(saved[item.table]),
        ]
        for item in found.rewritten
    ]
    heads = [Column("table"), Column("written as")]
    heads += [Column(name, align="right") for name in ("size", "now", "saves a month")]
    return Table(heads, rows)


def deleted_page(root: Path, deleted: "Sequence[DeletedTable]") -> Report:
    """Return the page of what was deleted from a lake."""
    blocks: list[Block] = list(_deleted(deleted)) or [Text("nothing was deleted")]
    return Report("Deleted tables", str(root), [Section("Tables", blocks)])


def _deleted(deleted: "Sequence[DeletedTable]") -> list[Table]:
    rows: list[list[Cell]] = [
        [item.table, item.parent, item.told, f"{item.rows:,}", _size(item.num_bytes)]
        for item in deleted
    ]
    heads = [Column("table"), Column("rebuilt from"), Column("which rows", rank=1)]
    heads += [Column("rows", align="right"), Column("size", align="right")]
    return [Table(heads, rows)] if rows else []


def _steps(graph: "ContainmentGraph") -> Table:
    """Say how many pairs each step left."""
    count = len(graph.nodes)
    steps = {"all pairs": count * (count - 1)}
    steps |= {f"after {name}": left for name, left in graph.counts.items()}
    rows: list[list[Cell]] = [[name, f"{left:,}"] for name, left in steps.items()]
    share = graph.rows_read / graph.brute_rows if graph.brute_rows else 0.0
    note = (
        f"{graph.rows_read:,} rows were read; joining every pair of fitting schemas reads "
        f"{graph.brute_rows:,} ({share:.1%})"
    )
    return Table([Column("step"), Column("pairs", align="right")], rows, caption=note)


def _drawing(graph: "ContainmentGraph", chosen: dict[str, str]) -> list[Section]:
    """Draw the graph, where there is an edge."""
    if not graph.edges:
        return []
    from steelyard.data.lake.picture import containment_chart

    edges = [(edge.child, edge.parent) for edge in graph.edges]
    sizes = {node.name: float(node.num_bytes) for node in graph.nodes}
    spec, left_out = containment_chart(edges, sizes, chosen)
    note = "A line leads up from a table to one that contains it; the area of a dot is its size."
    if chosen:
        note += " Coloured lines lead to what a table is rebuilt from."
    if left_out:
        note += f" {left_out:,} tables of other families are left out."
    return [Section("Graph", [Chart(spec, note)])]


def _problems(found: "dict[str, str] | Any") -> list[Section]:
    if not found:
        return []
    rows: list[list[Cell]] = [[name, why] for name, why in found.items()]
    return [Section("Left out", [Table([Column("table"), Column("why")], rows)])]


def _rows(count: int) -> str:
    return "unknown" if count < 0 else f"{count:,}"


def _size(num_bytes: float) -> str:
    return pretty(num_bytes, "byte")


def _usd(value: float) -> str:
    return pretty(value, "USD")


def _more(count: int) -> str:
    """Say how many lines are not shown."""
    return f"the first {_MOST_LINES} of {count:,}; --json has all" if count > _MOST_LINES else ""
