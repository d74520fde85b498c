"""Containment in lakes and what can be deleted: edges, work, misses, cost, and rebuilt tables.

1 finds the 83 edges of the shared lake, beside DuckDB joining every pair of fitting schemas in the
same run, and those of generated lakes that nothing was tuned on. 2 compares schemas of a generated
lake with every pair compared as Python sets. 3 plants wrong parents and counts how often they are
kept. 4 plans deletions with the prices of the shared lake, applies the plan to a copy and rebuilds
every table. 5 kills a process that applies a plan, at random, and runs it again. 6 rules pairs out
by sketches of columns, without a row read.
"""

import itertools
import json
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from benchmarks.common import Check, alternate, median_spread, ratio
from benchmarks.data._lake_kills import applied_after_kills
from benchmarks.data._lake_rewrites import rewrite_checks

from steelyard.data.lake import (
    GraphSettings,
    Lake,
    PlanRequest,
    StorageCosts,
    apply_plan,
    plan_deletion,
    rebuild_table,
    synthesize,
    write_sketches,
)
from steelyard.data.lake.content import check_pairs
from steelyard.data.lake.hashing import RowReader
from steelyard.data.lake.index import ColumnIndex
from steelyard.data.lake.pruning import KEPT, prune_by_statistics
from steelyard.data.lake.synthesis import base_tables

PAPER = ["05-r2d2-data-lake"]
SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "table-lake"
_HELD_OUT = range(100, 110)
_PLANTED = ((0.95, 45), (0.95, 90), (0.99, 230), (0.99, 459))


def run(quick: bool) -> list[Check]:
    """Run the checks.

    Args:
        quick: fewer tables, lakes, trials and kills.

    Returns:
        The checks.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checks = [
            *_generated_edges(folder, 2 if quick else len(_HELD_OUT)),
            *_schemas(folder, 1200 if quick else 5000, 3 if quick else 7),
            *_misses(folder, 200 if quick else 1000),
        ]
        if SHARED.is_dir():
            truth = json.loads((SHARED / "truth.json").read_text())
            checks += _shared_edges(truth, 1 if quick else 5)
            checks += _sketches(folder, truth)
            checks += _deletion(truth, folder)
            checks += _kills(folder, truth, 3 if quick else 20)
            checks += rewrite_checks(
                SHARED / "tables",
                _request(truth),
                folder,
                kills=2 if quick else 20,
                rows=100_000 if quick else 400_000,
            )
        else:
            print(f"left out: checks on {SHARED}, which is not there")
    return sorted(checks, key=lambda check: check.name)


def _shared_edges(truth: dict, rounds: int) -> list[Check]:
    """Compare edges, steps and rows with the truth of the shared lake, and time with DuckDB's."""
    lake = Lake.scan(SHARED / "tables")
    graph = lake.containment()
    true = {tuple(edge) for edge in truth["containment_edges"]}
    found = {(edge.child, edge.parent) for edge in graph.edges}
    pairs = lake.schema_edges()
    joined = [
        (lake.tables[child].name, lake.tables[parent].name)
        for child, parent in zip(pairs.children, pairs.parents, strict=True)
    ]
    rivals = {
        "ours": lambda: Lake.scan(SHARED / "tables").containment(),
        "joins": lambda: _joins(joined),
    }
    seconds = alternate(rivals, rounds=rounds)
    spread = ratio(seconds["joins"], seconds["ours"])
    print(
        f"shared lake: {len(found)} edges, {len(found - true)} of them wrong; rows read "
        f"{graph.rows_read:,} of {graph.brute_rows:,}; DuckDB joining {len(joined)} pairs takes "
        f"{spread.median:.1f} ({spread.low:.1f} to {spread.high:.1f}) times as long and differs in "
        f"{len(_joins(joined) ^ true)} edges from the truth"
    )
    after = graph.counts["least and largest numbers"]
    return [
        Check("1 recall of the 83 edges", len(found & true) / len(true), 1.0, "higher"),
        Check("1 precision of the edges", len(found & true) / len(found), 0.98, "higher"),
        Check("1 rows read over those of joins", graph.rows_read / graph.brute_rows, 0.1, "lower"),
        Check("1 pairs after schemas less 474", abs(graph.counts["schemas"] - 474), 0, "lower"),
        Check("1 pairs after numbers less 205", abs(after - 205), 0, "lower"),
    ]


def _sketches(folder: Path, truth: dict) -> list[Check]:
    """Compare what sketches leave with the edges, on the shared lake and the generated ones."""
    lakes = {SHARED / "tables": {tuple(edge) for edge in truth["containment_edges"]}}
    for path in sorted(folder.glob("lake-*")):
        exact = Lake.scan(path).containment(GraphSettings(verify="exact"))
        lakes[path] = {(edge.child, edge.parent) for edge in exact.edges}
    lost, shares = 0, []
    for number, (path, true) in enumerate(lakes.items()):
        lake = Lake.scan(path)
        home = folder / f"sketches-{number}"
        write_sketches(lake.tables, home)
        graph = lake.containment(GraphSettings(verify="sketch"), sketches=home)
        found = {(edge.child, edge.parent) for edge in graph.edges}
        before = graph.counts["missing values"]
        lost += len(true - found)
        shares.append((len(found) - len(true)) / max(before - len(true), 1))
        if not number:
            size = sum(file.stat().st_size for file in home.iterdir())
            print(
                f"sketches of {size:,} bytes leave {len(found)} of {before} pairs, shared lake; "
                f"{graph.rows_read} rows read"
            )
    return [
        Check("6 edges lost by sketches, all lakes", lost, 0, "lower"),
        Check("6 wrong pairs left by sketches, shared lake", shares[0], 0.5, "lower"),
        Check("6 wrong pairs left, median lake", float(np.median(shares)), 0.5, "lower"),
    ]


def _joins(pairs: list[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the pairs of which no row of the child is missing in the parent, by DuckDB."""
    import duckdb

    found = set()
    with duckdb.connect() as database:
        database.execute("SET threads = 1")
        for child, parent in pairs:
            own, other = (str(SHARED / "tables" / f"{name}.parquet") for name in (child, parent))
            columns = ", ".join(
                f'"{row[0]}"'
                for row in database.execute(
                    "DESCRIBE SELECT * FROM read_parquet(?)", [own]
                ).fetchall()
            )
            query = (
                f"SELECT count(*) FROM (SELECT {columns} FROM read_parquet(?) EXCEPT "
                f"SELECT {columns} FROM read_parquet(?))"
            )
            answer = database.execute(query, [own, other]).fetchone()
            if answer == (0,):
                found.add((child, parent))
    return found


def _generated_edges(folder: Path, lakes: int) -> list[Check]:
    """Compare edges of generated lakes with those of sets of rows in Python; and greedy plans."""
    recalls, precisions, shares, greedy = [], [], [], []
    for seed in itertools.islice(_HELD_OUT, lakes):
        made = synthesize(base_tables(5, 1500, seed), 80, seed)
        made.write(folder / f"lake-{seed}")
        true = _true_edges(made.tables)
        graph = Lake.scan(folder / f"lake-{seed}").containment()
        found = {(edge.child, edge.parent) for edge in graph.edges}
        recalls.append(len(found & true) / len(true))
        precisions.append(len(found & true) / len(found))
        shares.append(graph.rows_read / graph.brute_rows)
        plans = [plan_deletion(graph, PlanRequest(), is_exact=exact) for exact in (True, False)]
        greedy.append(plans[1].cost_usd_month / plans[0].cost_usd_month - 1)
    print(
        f"{lakes} generated lakes: recall {min(recalls):.4f} or more, precision "
        f"{min(precisions):.4f} or more, rows read {max(shares):.1%} of those of joins or less, "
        f"greedy plans dearer by {max(greedy):.3%} at most"
    )
    return [
        Check("1 least recall, generated lakes", min(recalls), 1.0, "higher"),
        Check("1 least precision, generated lakes", min(precisions), 0.98, "higher"),
        Check("4 greedy over the optimum less 1, generated lakes", max(greedy), 0.03, "lower"),
    ]


def _true_edges(tables: dict) -> set[tuple[str, str]]:
    """Return the pairs of which all rows of the child are in the parent."""
    schemas = {
        name: {(field.name, str(field.type)) for field in table.schema}
        for name, table in tables.items()
    }
    return {
        (child, parent)
        for child, parent in itertools.permutations(tables, 2)
        if schemas[child] <= schemas[parent]
        and _rows(tables[child], tables[child]) <= _rows(tables[parent], tables[child])
    }


def _rows(table, columns) -> set:
    return set(zip(*(table[name].to_pylist() for name in columns.schema.names), strict=True))


def _schemas(folder: Path, count: int, rounds: int) -> list[Check]:
    """Compare schemas and statistics of many tables with all pairs of Python sets."""
    bases = 400 * count // 5000 + 1
    made = synthesize(base_tables(bases, 12, 7), count, 7)
    made.write(folder / "many")
    lake = Lake.scan(folder / "many")
    tokens = [frozenset(table.tokens) for table in lake.tables]

    def ours() -> int:
        found = lake.schema_edges()
        reasons, _ = prune_by_statistics(lake.index, found.children, found.parents)
        return int((reasons == KEPT).sum())

    rivals = {
        "ours": ours,
        "sets": lambda: _all_pairs(tokens),
        "built": lambda: ColumnIndex.of(lake.tables),
    }
    seconds = alternate(rivals, rounds=rounds)
    spread = ratio(seconds["sets"], seconds["ours"])
    found = lake.schema_edges()
    share = found.tests / (count * (count - 1) / 2)
    assert len(found.children) == _all_pairs(tokens)
    own_s, sets_s, built_s = (
        median_spread(seconds[name]).median for name in ("ours", "sets", "built")
    )
    print(
        f"{count:,} tables from {bases} base schemas, {found.schemas:,} schemas, "
        f"{len(found.children):,} pairs: {found.tests:,} comparisons in "
        f"{found.centres:,} clusters; steps 1 and 2 take {own_s:.4f} s, sets "
        f"{spread.median:.0f} ({spread.low:.0f} to {spread.high:.0f}) times as long, or "
        f"{sets_s / (own_s + built_s):.0f} times with putting footers into arrays"
    )
    return [
        Check("2 comparisons of schemas over all pairs", share, 0.05, "lower"),
        Check("2 time of Python sets over steps 1 and 2", spread.median, 20.0, "higher"),
    ]


def _all_pairs(tokens: list[frozenset]) -> int:
    """Count pairs with one schema inside the other, each pair compared once unless sizes agree."""
    ordered = sorted(tokens, key=len)
    found = 0
    for small, large in itertools.combinations(ordered, 2):
        if small <= large:
            found += 2 if len(small) == len(large) else 1
    return found


def _misses(folder: Path, trials: int) -> list[Check]:
    """Count how often a parent that lacks a planted share of the rows is kept."""
    import pyarrow as pa
    from pyarrow import parquet
    from scipy.stats import binom

    rows, outside, told = 20_000, 0, []
    home = folder / "planted"
    home.mkdir()
    columns = {name: np.arange(rows) * step for name, step in (("a", 1), ("b", 7), ("c", 13))}
    parquet.write_table(pa.table(columns), home / "child.parquet")
    for held, sample in _PLANTED:
        parent = np.random.default_rng(3).permutation(rows)[: round(held * rows)]
        parquet.write_table(
            pa.table({name: values[parent] for name, values in columns.items()}),
            home / "parent.parquet",
        )
        tables = {table.name: table for table in Lake.scan(home).tables}
        pair = [(tables["child"], tables["parent"])]
        rng, reader = np.random.default_rng(4), RowReader()
        kept = sum(
            check.missing == 0
            for _ in range(trials)
            for _, check in check_pairs(pair, reader, sample=sample, rng=rng)
        )
        low, high = binom.interval(0.95, trials, held**sample)
        outside += not low <= kept <= high
        told.append(f"{held:.0%} held, {sample} rows: {kept} of {trials} ({low:.0f} to {high:.0f})")
    print("wrong parents kept, with the 95 % band of (1 - epsilon)^rows: " + "; ".join(told))
    return [Check("3 cases outside the 95 % band", outside, 0, "lower")]


def _request(truth: dict) -> PlanRequest:
    """Return the prices and accesses of the shared lake."""
    costs = truth["costs"]
    return PlanRequest(
        max_latency_s=costs["max_latency_s"],
        accesses={name: float(n) for name, n in truth["accesses_per_month"].items()},
        prices=StorageCosts(
            storage_usd_per_byte_month=costs["storage_per_byte_month"],
            maintenance_usd_per_byte=costs["maintenance_per_byte_month"],
            read_usd_per_byte=costs["read_per_byte"],
            write_usd_per_byte=costs["write_per_byte"],
            scan_bytes_per_s=costs["scan_bytes_per_s"],
        ),
    )


def _copy(folder: Path) -> Path:
    """Copy the shared lake to where it can be changed."""
    folder.mkdir()
    for path in (SHARED / "tables").iterdir():
        shutil.copyfile(path, folder / path.name)
    return folder


def _deletion(truth: dict, folder: Path) -> list[Check]:
    """Plan, apply and rebuild on a copy of the shared lake."""
    from pyarrow import parquet

    root = _copy(folder / "shared")
    graph = Lake.scan(root).containment(GraphSettings(verify="exact"))
    request = _request(truth)
    plan = plan_deletion(graph, request)
    greedy = plan_deletion(graph, request, is_exact=False)
    began_s = time.perf_counter()
    done = apply_plan(plan, dry_run=False)
    took_s = time.perf_counter() - began_s
    unequal = 0
    for entry in done.deleted:
        made = parquet.read_table(rebuild_table(root, entry.table))
        unequal += not made.equals(parquet.read_table(SHARED / "tables" / f"{entry.table}.parquet"))
    print(
        f"plan: {len(plan.kept)} tables stay, at "
        f"{plan.cost_usd_month / plan.keep_all_usd_month:.1%} of the cost of all; "
        f"{len(done.deleted)} deleted in {took_s:.2f} s, recipes of {done.recipe_bytes:,} bytes, "
        f"{unequal} rebuilt unequal"
    )
    optimum = truth["optimal_cost"]
    return [
        Check("4 cost over the optimum less 1", plan.cost_usd_month / optimum - 1, 0.001, "lower"),
        Check("4 greedy cost over it less 1", greedy.cost_usd_month / optimum - 1, 0.03, "lower"),
        Check("4 tables that were deleted", len(done.deleted), 26, "higher"),
        Check("4 tables not rebuilt row by row", unequal + len(done.refused), 0, "lower"),
    ]


def _kills(folder: Path, truth: dict, kills: int) -> list[Check]:
    """Kill processes that apply a plan, and compare what the next one leaves."""
    root = _copy(folder / "killed")
    plan = plan_deletion(Lake.scan(root).containment(), _request(truth))
    plan.save(folder / "plan.json")
    differing, moments = applied_after_kills(root, folder / "plan.json", kills, seed=11)
    print(f"killed {kills} times while a plan was applied: {moments}")
    return [Check("5 lakes that differ after a kill and a rerun", differing, 0, "lower")]
