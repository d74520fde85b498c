"""Keep, write anew or delete: cheapest beside enumeration, and applied without losing a row."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import CapacityError, ConfigError

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

from steelyard.cli.data.lake import app  # noqa: E402
from steelyard.data.formats.advice import FormatCosts  # noqa: E402
from steelyard.data.lake import (  # noqa: E402
    ContainmentEdge,
    ContainmentGraph,
    Encoding,
    GraphSettings,
    Lake,
    PlanRequest,
    StorageCosts,
    apply_plan,
    find_encodings,
    plan_rewrites,
    rebuild_table,
    rewritten_tables,
)
from steelyard.data.lake import rewritten as exchange  # noqa: E402
from steelyard.data.lake.graph import TableNode  # noqa: E402
from steelyard.data.table import DataTable, RowHashFold  # noqa: E402

NO_COSTS = FormatCosts({})
"""Small tables are written and read; nothing is predicted of them."""


def graph_of(sizes, edges):
    nodes = tuple(
        TableNode(
            name=f"t{place}",
            path=f"t{place}.parquet",
            num_bytes=size,
            rows=1,
            columns=("a:int64",),
            is_columnar=True,
            prints=((f"t{place}.parquet", "x"),),
        )
        for place, size in enumerate(sizes)
    )
    found = tuple(
        ContainmentEdge(child=f"t{one}", parent=f"t{two}", rows=1, is_whole=True, lower_bound=1.0)
        for one, two in edges
    )
    return ContainmentGraph(
        root="",
        settings=GraphSettings(),
        nodes=nodes,
        edges=found,
        ruled_out=(),
        counts={},
        rows_read=0,
        brute_rows=0,
        problems={},
    )


def by_enumeration(sizes, edges, ways, request):
    """Return the least cost over what can be done with each table."""
    prices, best = request.prices, np.inf
    for states in itertools.product(("keep", "rewrite", "delete"), repeat=len(sizes)):
        if any(state == "rewrite" and place not in ways for place, state in enumerate(states)):
            continue
        now = [ways[p] if state == "rewrite" else sizes[p] for p, state in enumerate(states)]
        cost = 0.0
        for place, state in enumerate(states):
            if state == "delete":
                reads = [
                    prices.rebuild_usd(now[parent], sizes[place])
                    for child, parent in edges
                    if child == place
                    and states[parent] != "delete"
                    and prices.latency_s(now[parent]) <= request.max_latency_s
                ]
                cost += request.accesses.get(f"t{place}", 1.0) * min(reads, default=np.inf)
            else:
                cost += prices.keep_usd_month(now[place])
                if state == "rewrite":
                    once = prices.rebuild_usd(sizes[place], now[place])
                    cost += once / request.rewrite_months
        best = min(best, cost)
    return best


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5))
def test_a_plan_costs_what_enumeration_finds(seed, count):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 1000, count).tolist()
    edges = [
        (one, two)
        for one in range(count)
        for two in range(count)
        if one != two and rng.random() < 0.4
    ]
    ways = {
        place: float(sizes[place] * rng.uniform(0.2, 0.99))
        for place in range(count)
        if rng.random() < 0.7
    }
    request = PlanRequest(
        max_latency_s=float(rng.uniform(100, 900)),
        accesses={f"t{place}": float(rng.uniform(0, 3)) for place in range(count)},
        prices=StorageCosts(
            storage_usd_per_byte_month=1.0,
            maintenance_usd_per_byte=0.5,
            read_usd_per_byte=0.4,
            write_usd_per_byte=0.1,
            scan_bytes_per_s=1.0,
        ),
        rewrite_months=float(rng.uniform(0.5, 20)),
    )
    encodings = {
        f"t{place}": Encoding(table=f"t{place}", option="parquet zstd", num_bytes=size, load_s=0.0)
        for place, size in ways.items()
    }
    plan = plan_rewrites(graph_of(sizes, edges), request, encodings)
    assert plan.cost_usd_month == pytest.approx(by_enumeration(sizes, edges, ways, request))
    assert plan.cost_usd_month <= plan.delete_only_usd_month * (1 + 1e-9)
    greedy = plan_rewrites(graph_of(sizes, edges), request, encodings, is_exact=False)
    assert plan.cost_usd_month <= greedy.cost_usd_month * (1 + 1e-9)
    assert greedy.cost_usd_month <= greedy.delete_only_usd_month * (1 + 1e-9)


def small(folder):
    """Make a lake of badly written tables in which "part" can go, and plan it."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    whole = pa.table(
        {
            "n": range(5000),
            "s": [f"word {row % 9}" for row in range(5000)],
            "x": pa.array(np.where(rng.random(5000) < 0.1, np.nan, rng.normal(size=5000).round(2))),
        }
    )
    for name, table in {"whole": whole, "part": whole.slice(20, 3000)}.items():
        parquet.write_table(
            table, folder / f"{name}.parquet", compression="none", use_dictionary=False
        )
    return planned(folder)


def planned(folder, **more):
    graph = Lake.scan(folder).containment(GraphSettings(verify="exact"))
    request = PlanRequest(prices=StorageCosts(read_usd_per_byte=1e-15), **more)
    ways = find_encodings(graph, request.prices, NO_COSTS, max_latency_s=request.max_latency_s)
    return plan_rewrites(graph, request, ways)


def hashed(path):
    return DataTable.scan(path).fold(RowHashFold()).results["row hashes"]


def test_tables_are_written_anew_and_deleted_ones_come_back_from_them(tmp_path):
    lake = tmp_path / "lake"
    plan = small(lake)
    before = {name: hashed(lake / f"{name}.parquet") for name in ("whole", "part")}
    assert [item.table for item in plan.deletions] == ["part"]
    assert [item.table for item in plan.rewrites] == ["whole"]
    assert plan.cost_usd_month < plan.delete_only_usd_month
    tried = apply_plan(plan)
    assert [item.table for item in tried.rewritten] == ["whole"] and not (
        lake / ".steelyard"
    ).exists()
    found = apply_plan(plan, dry_run=False)
    assert found.refused == {} and found.rewritten == rewritten_tables(lake)
    (entry,) = found.rewritten
    assert [path.name for path in lake.iterdir() if path.is_file()] == [Path(entry.path).name]
    assert (lake / entry.path).stat().st_size == entry.num_bytes == plan.rewrites[0].new_bytes
    assert hashed(lake / entry.path) == before["whole"]
    assert hashed(rebuild_table(lake, "part")) == before["part"]
    again = apply_plan(plan, dry_run=False)
    assert again.rewritten == () and "part" not in {item.table for item in again.deleted}


def test_a_way_that_is_read_too_slowly_is_none(tmp_path):
    lake = tmp_path / "lake"
    small(lake)
    assert planned(lake, max_latency_s=0.0).rewrites == ()
    with pytest.raises(ConfigError, match="rewrite_months"):
        planned(lake, rewrite_months=0.0)


def test_what_does_not_fit_stays_as_it_is(tmp_path):
    lake = tmp_path / "lake"
    plan = small(lake)
    (lake / "whole.steelpack").write_bytes(b"of somebody else")
    refused = apply_plan(plan, dry_run=False).refused
    if plan.rewrites[0].option.startswith("steelpack"):
        # Two files of one name are two tables, and neither is the planned one.
        assert refused
    (lake / "whole.steelpack").unlink()
    parquet.write_table(pa.table({"n": [1]}), lake / "whole.parquet")
    assert "has changed" in apply_plan(plan, dry_run=False).refused["whole"]
    assert parquet.read_table(lake / "whole.parquet").num_rows == 1


@pytest.mark.parametrize("moves", [0, 1])
def test_an_exchange_that_stops_half_way_is_completed(tmp_path, monkeypatch, moves):
    lake = tmp_path / "lake"
    plan = small(lake)
    before = hashed(lake / "whole.parquet")
    real, done = Path.rename, []

    def rename(self, target):
        if "whole" in f"{self} {target}":
            if len(done) == moves:
                raise KeyboardInterrupt
            done.append(target)
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    # The new file waits under a name that does not tell the table: a kill leaves it there.
    monkeypatch.setattr(Path, "unlink", lambda self, missing_ok=False: None)
    with pytest.raises(KeyboardInterrupt):
        apply_plan(plan, dry_run=False)
    monkeypatch.undo()
    assert (lake / ".steelyard" / "exchange.json").exists()
    # A writer that is killed leaves files of its own, whose names tell nothing.
    (lake / ".steelyard" / "waiting" / "..half.tmp").write_bytes(b"half")
    apply_plan(plan, dry_run=False)
    (entry,) = rewritten_tables(lake)
    assert hashed(lake / entry.path) == before
    assert not (lake / ".steelyard" / "exchange.json").exists()
    assert list((lake / ".steelyard" / "waiting").iterdir()) == []


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    lake = tmp_path / "lake"
    plan = small(lake)

    def full(table, path, chosen):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exchange, "write_as", full)
    with pytest.raises(CapacityError):
        apply_plan(plan, dry_run=False)
    assert (lake / "whole.parquet").exists() and rewritten_tables(lake) == ()


def test_other_rows_are_never_put_in_place(tmp_path, monkeypatch):
    lake = tmp_path / "lake"
    plan = small(lake)
    monkeypatch.setattr(exchange, "read_as", lambda path, way: pa.table({"n": [1]}))
    assert "other rows" in apply_plan(plan, dry_run=False).refused["whole"]
    assert (lake / "whole.parquet").exists()


def test_the_command_plans_and_applies(tmp_path, capsys, monkeypatch):
    lake, plan = tmp_path / "lake", tmp_path / "plan.json"
    small(lake)
    monkeypatch.setattr("steelyard.data.formats.advice.known_costs", lambda: NO_COSTS)

    def run(*words):
        app([str(word) for word in words], result_action="return_value")
        return capsys.readouterr().out

    told = run("plan", lake, "--reencode", "--out", plan)
    assert "tables written anew" in told and "less than by deleting only" in told
    assert "put in place" not in run("apply", plan)
    found = json.loads(run("apply", plan, "--yes", "--json"))
    assert [item["table"] for item in found["rewritten"]] == ["whole"]
    shutil.rmtree(lake)
