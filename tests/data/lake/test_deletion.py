"""Plans of deletions: optimal beside enumeration, safe, and applied without losing a bit."""

import itertools
import json
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.data.lake.retention import retain
from steelyard.errors import CapacityError, ConfigError, DataError, StoreError
from steelyard.files import exclusive

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

from steelyard.data.lake import (  # noqa: E402
    DeletionPlan,
    GraphSettings,
    Lake,
    PlanRequest,
    StorageCosts,
    apply_plan,
    deleted_tables,
    plan_deletion,
    rebuild_table,
    synthesize,
)
from steelyard.data.lake.recipes import RebuildRecipe, infer_recipe  # noqa: E402
from steelyard.data.lake.synthesis import base_tables  # noqa: E402

SHARED = Path(__file__).parents[4] / "shared" / "data" / "table-lake"


def by_enumeration(keep, edges):
    """Return the least cost over all sets of kept tables."""
    best = np.inf
    for size in range(1, len(keep) + 1):
        for kept in itertools.combinations(range(len(keep)), size):
            cost = sum(keep[table] for table in kept)
            for table in set(range(len(keep))) - set(kept):
                cost += min(
                    (price for child, parent, price in edges if child == table and parent in kept),
                    default=np.inf,
                )
            best = min(best, cost)
    return best


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 8), st.sampled_from([1.0, 1e-6]))
def test_a_plan_costs_what_enumeration_finds(seed, count, unit):
    rng = np.random.default_rng(seed)
    keep = rng.uniform(1, 10, count) * unit
    edges = [
        (child, parent, float(rng.uniform(0.1, 8)) * unit)
        for child, parent in itertools.permutations(range(count), 2)
        if rng.random() < 0.4
    ]
    columns = list(zip(*edges, strict=True)) or [(), (), ()]
    found = retain(keep, *columns)
    least = by_enumeration(keep, edges)
    assert found.is_exact and found.cost == pytest.approx(least, rel=1e-6)
    assert found.bound == pytest.approx(least, rel=1e-6)
    # Each table that goes is rebuilt from one that stays.
    assert all(found.parents[parent] < 0 for parent in found.parents if parent >= 0)
    greedy = retain(keep, *columns, is_exact=False)
    assert greedy.bound * (1 - 1e-9) <= least <= greedy.cost * (1 + 1e-9)
    assert greedy.cost <= 1.25 * least


def test_a_chain_costs_what_its_dynamic_program_says():
    rng = np.random.default_rng(2)
    size = np.sort(rng.uniform(1, 100, 60))[::-1]
    accesses = rng.integers(1, 9, 60)
    keep = 1.5 * size
    edges = [
        (child, parent, accesses[child] * (0.04 * size[parent] + 0.01 * size[child]))
        for parent in range(60)
        for child in range(parent + 1, 60)
    ]
    prices = np.zeros((60, 60))
    for child, parent, price in edges:
        prices[parent, child] = price
    # V(v), the cost of what follows v with v kept: the next kept table is w, or none.
    suffix = np.zeros(61)
    for v in range(59, -1, -1):
        between = np.concatenate([[0.0], np.cumsum(prices[v, v + 1 :])])
        suffix[v] = keep[v] + min(between + suffix[v + 1 :])
    found = retain(keep, *zip(*edges, strict=True))
    assert found.cost == pytest.approx(suffix[0])
    assert 2 <= (found.parents < 0).sum() <= 58


def test_duplicates_are_not_all_deleted():
    pairs = list(itertools.permutations(range(5), 2))
    found = retain([1.0] * 5, *zip(*((*pair, 0.1) for pair in pairs), strict=True))
    assert (found.parents < 0).sum() == 1
    assert found.cost == pytest.approx(1.4)


def test_tables_that_have_to_stay_do():
    edges = [(0, 1, 0.1), (1, 0, 0.1), (2, 1, 0.1)]
    found = retain([5.0, 1.0, 2.0], *zip(*edges, strict=True), locked=[0, 2])
    assert found.parents.tolist() == [-1, 0, -1]


def shared_request(truth):
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


@pytest.fixture
def shared(tmp_path):
    if not SHARED.is_dir():
        pytest.skip("no shared data")
    for path in (SHARED / "tables").iterdir():
        (tmp_path / "lake").mkdir(exist_ok=True)
        shutil.copyfile(path, tmp_path / "lake" / path.name)
    return tmp_path / "lake"


def test_the_shared_lake_costs_its_optimum_and_comes_back(shared):
    truth = json.loads((SHARED / "truth.json").read_text())
    graph = Lake.scan(shared).containment()
    plan = plan_deletion(graph, shared_request(truth))
    assert plan.keep_all_usd_month == pytest.approx(truth["keep_all_cost"])
    assert plan.cost_usd_month == pytest.approx(truth["optimal_cost"], rel=1e-6)
    assert sorted(item.table for item in plan.kept) == truth["optimal_retained"]
    greedy = plan_deletion(graph, shared_request(truth), is_exact=False)
    assert greedy.cost_usd_month <= 1.03 * truth["optimal_cost"]
    done = apply_plan(plan, dry_run=False)
    assert (len(done.deleted), done.refused) == (26, {})
    assert len(list(shared.glob("*.parquet"))) == 22
    for entry in done.deleted:
        made = parquet.read_table(rebuild_table(shared, entry.table))
        assert made.equals(parquet.read_table(SHARED / "tables" / f"{entry.table}.parquet"))
    assert deleted_tables(shared) == ()


def small(folder, **more):
    """Make a lake in which "part" and "some" can go, and plan that."""
    folder.mkdir(exist_ok=True)
    whole = pa.table({"n": range(100), "s": [f"w{row % 9}" for row in range(100)]})
    tables = {"whole": whole, "part": whole.select(["s"]), "some": whole.slice(20, 30), **more}
    for name, table in tables.items():
        parquet.write_table(table, folder / f"{name}.parquet")
    return planned(folder)


def planned(folder):
    """Plan with prices that make every safe deletion pay."""
    prices = StorageCosts(read_usd_per_byte=0, write_usd_per_byte=0)
    graph = Lake.scan(folder).containment(GraphSettings(verify="exact"))
    return plan_deletion(graph, PlanRequest(prices=prices))


def names(folder):
    return sorted(path.stem for path in folder.glob("*.parquet"))


def test_nothing_is_written_without_a_word(tmp_path):
    plan = small(tmp_path / "lake")
    before = sorted((tmp_path / "lake").rglob("*"))
    found = apply_plan(plan)
    assert [entry.table for entry in found.deleted] == ["some", "part"]
    assert not found.is_done
    assert sorted((tmp_path / "lake").rglob("*")) == before


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        (np.arange(100), "all rows"),
        (np.arange(20, 50), "range"),
        (np.flatnonzero(np.arange(100) % 9 == 4), "range"),
        (np.array([3, 5, 6, 40, 99]), "rows"),
        (np.array([5, 3, 3, 99]), "rows"),
        (np.array([], int), "rows"),
    ],
)
def test_a_recipe_brings_back_rows_in_their_order(tmp_path, rows, kind):
    whole = pa.table({"n": range(100), "s": [f"w{row % 9}" for row in range(100)]})
    parquet.write_table(whole, tmp_path / "whole.parquet", row_group_size=30)
    parquet.write_table(whole.take(pa.array(rows)), tmp_path / "part.parquet")
    part, parent = Lake.scan(tmp_path).tables
    recipe = infer_recipe(part, parent)
    assert recipe.kind == kind
    recipe.save(tmp_path / "r.pack")
    assert RebuildRecipe.load(tmp_path / "r.pack").replay(parent).equals(whole.take(pa.array(rows)))


def test_values_come_back_to_the_bit_or_the_table_stays(tmp_path):
    odd = np.array([np.nan, 0.0, 1.5])
    other_nan = odd.copy()
    other_nan.view(np.uint64)[0] += 1
    columns = {
        "same": pa.table({"x": odd[::-1]}),
        "signed": pa.table({"x": [-0.0, 1.5]}),
        "payload": pa.table({"x": other_nan}),
    }
    parents = {
        "z_whole": pa.table({"x": odd, "n": [1, 2, 3]}),
        "z_times": pa.table(
            {"t": pa.array([1, None, 3], pa.timestamp("ns", "UTC")), "n": [1, 2, 3]}
        ),
    }
    columns["times"] = parents["z_times"].select(["t"])
    plan = small(tmp_path, **columns, **parents)
    found = apply_plan(plan, dry_run=False)
    assert {"same", "times"} <= {entry.table for entry in found.deleted}
    # Equal as numbers, and not to the bit.
    assert set(found.refused) == {"signed", "payload"}
    same, times = (
        parquet.read_table(rebuild_table(tmp_path, name)).column(0) for name in ("same", "times")
    )
    assert same.to_numpy().tobytes() == odd[::-1].tobytes()
    assert times.equals(columns["times"].column(0))


def test_a_range_of_times_is_told_to_the_nanosecond(tmp_path):
    times = pa.array(np.arange(50).astype("datetime64[ns]") + np.timedelta64(7, "D"))
    whole = pa.table({"t": times, "n": [0] * 50})
    plan = small(tmp_path, zwhole=whole, times=whole.slice(10, 5))
    told = {entry.table: entry.told for entry in apply_plan(plan, dry_run=False).deleted}
    assert told["times"].endswith("1970-01-08 00:00:00.000000014")
    assert parquet.read_table(rebuild_table(tmp_path, "times")).equals(whole.slice(10, 5))


def test_structures_and_dictionaries_come_back(tmp_path):
    places = [{"at": {"x": row, "y": -row}, "city": "A"} for row in range(20)] + [None]
    words = pa.array(["u", "v", None] * 7).dictionary_encode()
    whole = pa.table({"place": pa.array(places), "word": words, "n": range(21)})
    inner = pa.table({"place": pa.array([{"at": {"x": row}} for row in range(5)] + [None])})
    plan = small(tmp_path, whole2=whole, inner=inner, words=whole.select(["word"]))
    done = apply_plan(plan, dry_run=False)
    assert {"inner", "words"} <= {entry.table for entry in done.deleted}
    assert parquet.read_table(rebuild_table(tmp_path, "inner")).equals(inner)
    assert parquet.read_table(rebuild_table(tmp_path, "words")).equals(whole.select(["word"]))


def test_what_has_changed_since_the_plan_stays(tmp_path):
    lake = tmp_path / "lake"
    plan = small(lake)
    parquet.write_table(pa.table({"s": ["other"]}), lake / "part.parquet")
    found = apply_plan(plan, dry_run=False)
    assert [entry.table for entry in found.deleted] == ["some"]
    assert "has changed" in found.refused["part"]
    # The parent has other rows now, so that neither table is proven.
    plan = small(tmp_path / "second")
    whole = pa.table({"n": range(100, 200), "s": ["x"] * 100})
    parquet.write_table(whole, tmp_path / "second" / "whole.parquet")
    found = apply_plan(plan, dry_run=False)
    assert found.deleted == () and set(found.refused) == {"part", "some"}
    assert names(tmp_path / "second") == ["part", "some", "whole"]


def test_a_table_that_others_come_from_stays_later_on(tmp_path):
    lake = tmp_path / "lake"
    done = apply_plan(small(lake), dry_run=False)
    assert {entry.parent for entry in done.deleted} == {"whole"}
    big = pa.table({"n": range(200), "s": [f"w{row % 9}" for row in range(200)], "z": [0] * 200})
    parquet.write_table(big, lake / "big.parquet")
    plan = planned(lake)
    assert [item.table for item in plan.deletions] == ["whole"]
    refused = apply_plan(plan, dry_run=False).refused
    assert "is rebuilt from it" in refused["whole"]
    locked = plan_deletion(
        Lake.scan(lake).containment(), PlanRequest(), locked={"whole": "a reason"}
    )
    assert {item.table: item.reason for item in locked.kept}["whole"] == "a reason"


def test_a_rebuild_from_a_changed_parent_is_refused(tmp_path):
    lake = tmp_path / "lake"
    apply_plan(small(lake), dry_run=False)
    whole = parquet.read_table(lake / "whole.parquet")
    # A row within the range of the filter, after the others: it was not in the table.
    more = pa.table({"n": [25], "s": ["new"]})
    parquet.write_table(pa.concat_tables([whole, more]), lake / "whole.parquet")
    for name in ("some", "part"):
        rebuild_table(lake, name, out=tmp_path / f"{name}.parquet")
    assert parquet.read_table(tmp_path / "some.parquet").equals(whole.slice(20, 30))
    grown = pa.concat_tables([more, whole])
    parquet.write_table(grown, lake / "whole.parquet")
    for name in ("some", "part"):
        with pytest.raises(DataError, match="no longer holds the rows"):
            rebuild_table(lake, name)
    (lake / "whole.parquet").unlink()
    parquet.write_table(grown, lake / "other.parquet")
    with pytest.raises(DataError, match="is not there"):
        rebuild_table(lake, "some")
    with pytest.raises(ConfigError, match="was deleted"):
        rebuild_table(lake, "nothing")


def test_a_second_writer_is_refused(tmp_path):
    plan = small(tmp_path / "lake")
    with exclusive(tmp_path / "lake" / ".steelyard"):
        with pytest.raises(StoreError, match="another process"):
            apply_plan(plan, dry_run=False)
        with pytest.raises(StoreError, match="another process"):
            rebuild_table(tmp_path / "lake", "part")
    assert names(tmp_path / "lake") == ["part", "some", "whole"]


def test_a_full_disk_moves_no_table(tmp_path, monkeypatch):
    from steelyard.data.lake import recipes

    plan = small(tmp_path / "lake")
    written = []

    def full(path, sections):
        if written:
            raise CapacityError("the disk is full")
        written.append(path)

    real = recipes.write_pack
    monkeypatch.setattr(
        recipes, "write_pack", lambda path, sections: (full(path, sections), real(path, sections))
    )
    with pytest.raises(CapacityError):
        apply_plan(plan, dry_run=False)
    assert names(tmp_path / "lake") == ["part", "some", "whole"]
    assert deleted_tables(tmp_path / "lake") == ()
    monkeypatch.setattr(recipes, "write_pack", real)
    assert len(apply_plan(plan, dry_run=False).deleted) == 2


def test_a_manifest_that_leads_out_of_the_lake_is_refused(tmp_path):
    apply_plan(small(tmp_path / "lake"), dry_run=False)
    manifest = tmp_path / "lake" / ".steelyard" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"some.parquet"', '"../../some.parquet"'))
    with pytest.raises(DataError, match="out of the lake"):
        rebuild_table(tmp_path / "lake", "some")


def test_a_plan_with_a_parent_that_goes_is_refused_in_part(tmp_path):
    plan = small(tmp_path / "lake")
    first = plan.deletions[0]
    wrong = DeletionPlan(
        **{name: getattr(plan, name) for name in plan.__struct_fields__ if name != "deletions"},
        deletions=(
            first,
            type(first)(
                **{name: getattr(first, name) for name in first.__struct_fields__}
                | {"table": "whole", "parent": first.table}
            ),
        ),
    )
    refused = apply_plan(wrong).refused
    assert set(refused) == {first.table, "whole"} or "is to go too" in refused["whole"]


PROGRAM = """
import os, sys
from pathlib import Path
from steelyard.data.lake import DeletionPlan, apply_plan
import steelyard.data.lake.applying as applying
moves = [0]
real = Path.rename
def rename(self, target):
    if moves[0] == int(sys.argv[2]):
        os.kill(os.getpid(), 9)
    moves[0] += 1
    return real(self, target)
Path.rename = rename
apply_plan(DeletionPlan.load(Path(sys.argv[1])), dry_run=False)
"""


@pytest.mark.parametrize("changes", [False, True])
def test_a_killed_call_is_completed_or_undone(tmp_path, lines, changes):
    lake = tmp_path / "lake"
    plan = small(lake)
    plan.save(tmp_path / "plan.json")
    words = ["-c", PROGRAM, str(tmp_path / "plan.json"), "1"]
    assert lines.run(words, tmp_path).code == -signal.SIGKILL
    assert names(lake) == ["part", "whole"]
    if changes:
        # What was not moved yet is another table now: it must not be taken for the proven one.
        time.sleep(0.01)
        parquet.write_table(pa.table({"s": ["other"]}), lake / "part.parquet")
    found = apply_plan(plan, dry_run=False)
    assert not (lake / ".steelyard" / "journal.json").exists()
    listed = sorted(entry.table for entry in deleted_tables(lake))
    if changes:
        assert (names(lake), listed) == (["part", "whole"], ["some"])
        assert "has changed" in found.refused["part"]
    else:
        assert (names(lake), listed) == (["whole"], ["part", "some"])


def test_numbers_and_names_that_mean_nothing_are_refused(tmp_path):
    graph = Lake.scan(small(tmp_path / "lake").root).containment()
    with pytest.raises(ConfigError, match="no table 'nowhere'"):
        plan_deletion(graph, PlanRequest(accesses={"nowhere": 1.0}))
    with pytest.raises(ConfigError, match="0 or more a month"):
        plan_deletion(graph, PlanRequest(accesses={"whole": -1.0}))
    with pytest.raises(ConfigError, match="latency"):
        plan_deletion(graph, PlanRequest(max_latency_s=-1))
    with pytest.raises(ConfigError, match="read_usd_per_byte"):
        StorageCosts(read_usd_per_byte=-1)


def test_text_files_stay(tmp_path):
    plan = small(tmp_path / "lake")
    (tmp_path / "lake" / "copy.csv").write_text("s\nw1\nw2\n")
    plan = planned(tmp_path / "lake")
    reasons = {item.table: item.reason for item in plan.kept}
    assert "text" in reasons["copy"]


def test_generated_lakes_come_back_whole(tmp_path):
    made = synthesize(base_tables(2, 200, 21), 24, 21)
    made.write(tmp_path / "lake")
    done = apply_plan(planned(tmp_path / "lake"), dry_run=False)
    assert len(done.deleted) >= 5
    for entry in done.deleted:
        path = rebuild_table(tmp_path / "lake", entry.table)
        assert parquet.read_table(path).equals(made.tables[entry.table])
