"""Keep, write anew or delete: what a plan says it costs beside what the files cost afterwards."""

import shutil
from pathlib import Path

import numpy as np
from benchmarks.common import Check
from benchmarks.data._lake_kills import applied_after_kills

from steelyard.data.formats.advice import known_costs
from steelyard.data.lake import (
    DeletionPlan,
    Lake,
    PlanRequest,
    apply_plan,
    deleted_tables,
    find_encodings,
    plan_rewrites,
    rebuild_table,
)
from steelyard.data.lake.encodings import read_rows
from steelyard.data.lake.recipes import row_digest

__all__ = ["rewrite_checks"]


def rewrite_checks(
    shared: Path, request: PlanRequest, folder: Path, *, kills: int, rows: int
) -> list[Check]:
    """Plan, apply and rebuild copies of the shared lake and of one of larger tables.

    Args:
        shared: folder of the shared lake's tables.
        request: its prices and accesses.
        folder: place for copies.
        kills: processes to kill while a plan is applied.
        rows: rows of the largest tables of the other lake.

    Returns:
        The checks.
    """
    small = folder / "rewritten"
    shutil.copytree(shared, small, copy_function=shutil.copyfile)
    plan = _plan(small, request)
    plan.save(folder / "rewrites.json")
    differing, moments = applied_after_kills(small, folder / "rewrites.json", kills, seed=13)
    print(f"killed {kills} times while tables were written anew: {moments}")
    shutil.rmtree(small)
    shutil.copytree(small.with_name("kept"), small)
    large = _large(folder / "large", rows)
    worst, errors, unequal = -1.0, [], 0
    for root, made, asked in ((small, plan, request), (large, None, PlanRequest())):
        done = made or _plan(root, asked)
        error, lost = _applied(root, done, asked)
        errors.append(abs(error))
        unequal += lost
        assert done.delete_only_usd_month is not None
        worst = max(worst, done.cost_usd_month / done.delete_only_usd_month)
        print(
            f"{root.name}: {len(done.deletions)} tables deleted, {len(done.rewrites)} written anew "
            f"of {len(done.deletions) + len(done.kept)}; cost "
            f"{done.cost_usd_month / done.delete_only_usd_month:.3f} of deleting only, as done "
            f"{error:+.2%} off"
        )
    return [
        Check("7 cost with rewriting over that of deleting only", worst, 1.0, "lower"),
        Check("7 error of the cost as done", max(errors), 0.05, "lower"),
        Check("7 tables not equal row by row", unequal, 0, "lower"),
        Check("7 lakes that differ after a kill and a rerun", differing, 0, "lower"),
    ]


def _plan(root: Path, request: PlanRequest) -> DeletionPlan:
    """Plan a lake."""
    graph = Lake.scan(root).containment(request.checks)
    ways = find_encodings(graph, request.prices, known_costs(), max_latency_s=request.max_latency_s)
    return plan_rewrites(graph, request, ways)


def _large(root: Path, rows: int) -> Path:
    """Write tables whose sizes in other formats are predicted, parts and projections of them."""
    import pyarrow as pa
    from pyarrow import parquet

    root.mkdir()
    rng = np.random.default_rng(21)
    words = np.array([f"place {number}" for number in range(4000)])
    for base in range(3):
        count = rows // (base + 1)
        columns = {
            "id": np.arange(count) * 7 + base,
            "when": np.sort(rng.integers(1_600_000_000, 1_700_000_000, count)),
            "where": words[rng.zipf(1.4, count) % len(words)],
            "price": rng.lognormal(3, 1, count).round(2),
            "load": rng.normal(size=count),
            "kind": rng.integers(0, 5 + 200 * base, count),
        }
        whole = pa.table(columns)
        some = whole.slice(count // 5, count // 3)
        for name, table in {
            "whole": whole,
            "some": some,
            "few": whole.select(["id", "where", "kind"]),
        }.items():
            way = ("snappy", "none", "zstd")[base]
            parquet.write_table(table, root / f"{name}{base}.parquet", compression=way)
    return root


def _applied(root: Path, plan: DeletionPlan, request: PlanRequest) -> tuple[float, int]:
    """Return the error of a plan's cost, by the bytes that are there, and tables that differ."""
    files = {item.table: item.prints[0][0] for item in (*plan.deletions, *plan.rewrites)}
    before = {name: row_digest(read_rows(name, path)) for name, path in files.items()}
    found = apply_plan(plan, dry_run=False)
    prices = request.prices
    sizes = {table.name: table.num_bytes for table in Lake.scan(root).tables}
    cost = sum(map(prices.keep_usd_month, sizes.values()))
    for item in found.rewritten:
        once = prices.rebuild_usd(item.old_bytes, item.num_bytes)
        cost += once / request.rewrite_months
    for item in plan.deletions:
        cost += item.accesses_month * prices.rebuild_usd(sizes[item.parent], item.num_bytes)
    now = {item.table: str(root / item.path) for item in found.rewritten}
    now |= {item.table: str(rebuild_table(root, item.table)) for item in deleted_tables(root)}
    unequal = sum(row_digest(read_rows(name, path)) != before[name] for name, path in now.items())
    return cost / plan.cost_usd_month - 1, unequal + len(found.refused)
