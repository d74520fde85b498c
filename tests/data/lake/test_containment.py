"""Which table lies in which: equal to sets of rows, and nothing dropped that is unknown."""

import itertools
import json
from datetime import date, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import ConfigError, DataError

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

from steelyard.data.lake import ContainmentGraph, GraphSettings, Lake, synthesize  # noqa: E402
from steelyard.data.lake.content import check_pairs, lower_bound, sample_size  # noqa: E402
from steelyard.data.lake.hashing import RowReader  # noqa: E402
from steelyard.data.lake.synthesis import base_tables  # noqa: E402

SHARED = Path(__file__).parents[4] / "shared" / "data" / "table-lake"
EXACT = GraphSettings(verify="exact")


def lake_of(folder, tables, **options):
    """Write tables by name, and scan them."""
    folder.mkdir(exist_ok=True)
    for name, table in tables.items():
        made = table if isinstance(table, pa.Table) else pa.table(table)
        parquet.write_table(made, folder / f"{name}.parquet", **options)
    return Lake.scan(folder)


def pairs(graph):
    return {(edge.child, edge.parent) for edge in graph.edges}


def true_pairs(tables):
    schemas = {
        name: {(field.name, str(field.type)) for field in table.schema}
        for name, table in tables.items()
    }

    def rows(table, names):
        return set(zip(*(table[name].to_pylist() for name in names), strict=True))

    return {
        (child, parent)
        for child, parent in itertools.permutations(tables, 2)
        if schemas[child] <= schemas[parent]
        and rows(tables[child], tables[child].schema.names)
        <= rows(tables[parent], tables[child].schema.names)
    }


def test_a_generated_lake_has_the_edges_of_sets_of_rows(tmp_path):
    made = synthesize(base_tables(3, 300, 5), 30, 5)
    made.write(tmp_path / "lake")
    graph = Lake.scan(tmp_path / "lake").containment(EXACT)
    assert pairs(graph) == true_pairs(made.tables)
    told = {(step.table, step.parent) for step in made.lineage if step.is_contained}
    assert told and told <= pairs(graph)
    assert all(edge.lower_bound == 1.0 for edge in graph.edges)


def test_the_shared_lake_loses_no_edge():
    if not SHARED.is_dir():
        pytest.skip("no shared data")
    truth = json.loads((SHARED / "truth.json").read_text())
    graph = Lake.scan(SHARED / "tables").containment()
    true = {tuple(edge) for edge in truth["containment_edges"]}
    assert true <= pairs(graph)
    assert len(true) >= 0.98 * len(pairs(graph))
    assert graph.counts["schemas"] == truth["schema_edges"]
    assert graph.counts["least and largest numbers"] == truth["minmax_edges"]
    assert graph.rows_read <= 0.1 * graph.brute_rows


@settings(max_examples=30, deadline=None)
@given(st.lists(st.frozensets(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=25))
def test_pairs_of_schemas_are_those_of_comparing_all(tmp_path_factory, schemas):
    folder = tmp_path_factory.mktemp("lake")
    tables = {
        f"t{place:02d}": pa.table({f"c{name}": pa.array([], pa.int64()) for name in schema})
        for place, schema in enumerate(schemas)
    }
    lake = lake_of(folder, tables)
    found = lake.schema_edges()
    expected = {
        (one, other)
        for one, other in itertools.permutations(range(len(schemas)), 2)
        if schemas[one] <= schemas[other]
    }
    assert len(found.children) == len(expected)
    assert set(zip(found.children.tolist(), found.parents.tolist(), strict=True)) == expected


@pytest.mark.parametrize(
    ("child", "parent", "reason"),
    [
        ([1, 9], [1, 2, 8], "least and largest numbers"),
        ([0.5], [1.0, 2.0], "least and largest numbers"),
        ([date(2026, 1, 1)], [date(2026, 1, 2)], "least and largest numbers"),
        ([datetime(2026, 1, 3)], [datetime(2026, 1, 2)], "least and largest numbers"),
        (["a"], ["b", "c"], "least and largest texts"),
        (["b", None], ["b", "c"], "missing values"),
    ],
)
def test_statistics_drop_what_they_contradict(tmp_path, child, parent, reason):
    graph = lake_of(tmp_path, {"a": {"x": child}, "b": {"x": parent, "y": parent}}).containment()
    steps = list(graph.counts)
    before = graph.counts[steps[steps.index(reason) - 1]]
    assert (before, graph.counts[reason], graph.edges, graph.rows_read) == (1, 0, (), 0)


def test_what_statistics_do_not_say_is_kept(tmp_path):
    tables = {"a": {"x": [1, 5], "s": ["k", "l"]}, "b": {"x": [1, 2, 5], "s": ["k", "z", "l"]}}
    without = lake_of(tmp_path / "none", tables, write_statistics=False).containment()
    assert pairs(without) == {("a", "b")}
    # Only of "b" is the parent's range unknown, of "a" the child's.
    for name, table in tables.items():
        folder = tmp_path / name
        lake_of(folder, tables)
        parquet.write_table(pa.table(table), folder / f"{name}.parquet", write_statistics=False)
        assert pairs(Lake.scan(folder).containment()) == {("a", "b")}


def test_texts_that_a_writer_may_have_cut_are_unknown(tmp_path):
    from steelyard.data.lake.bounds import bounds_of

    lake_of(tmp_path, {"a": {"s": ["a" * 90, "b"]}})
    chunk = parquet.read_metadata(tmp_path / "a.parquet").row_group(0).column(0)
    known = bounds_of(chunk, pa.string(), "parquet-cpp-arrow version 26")
    assert known[0] < known[1]
    low, high, nulls = bounds_of(chunk, pa.string(), "parquet-mr version 1.12")
    assert np.isnan([low, high]).all() and nulls == 0


def test_nan_and_missing_values_are_values_like_others(tmp_path):
    tables = {
        "nan": pa.table({"x": [1.0, float("nan")]}),
        "plain": pa.table({"x": [1.0, 2.0]}),
        "both": pa.table({"x": [2.0, None, float("nan"), 1.0]}),
        "missing": pa.table({"x": pa.array([None, None], pa.float64())}),
    }
    assert pairs(lake_of(tmp_path, tables).containment(EXACT)) == {
        ("nan", "both"),
        ("plain", "both"),
        ("missing", "both"),
    }


def test_types_that_differ_match_only_when_asked(tmp_path):
    tables = {
        "whole": pa.table({"x": pa.array([1, 2], pa.int32())}),
        "real": pa.table({"x": [1.0, 2.0, 2.5]}),
        "text": pa.table({"x": ["1", "2"]}),
        "wide": pa.table({"x": pa.array(["1", "2", "3"], pa.large_string())}),
    }
    lake = lake_of(tmp_path, tables)
    assert pairs(lake.containment()) == {("text", "wide")}
    assert pairs(lake.containment(GraphSettings(coerce=True))) == {
        ("text", "wide"),
        ("whole", "real"),
    }


def test_fields_of_structures_are_columns(tmp_path):
    rows = [{"city": "A", "at": {"x": 1, "y": 2}}, {"city": "B", "at": {"x": 3, "y": None}}, None]
    parent = pa.table({"place": pa.array(rows), "n": [1, 2, 3]})
    child = pa.table({"place": pa.array([{"at": {"x": 3}}, None])})
    decoy = pa.table({"place": pa.array([{"at": {"x": 2}}])})
    lake = lake_of(tmp_path, {"parent": parent, "child": child, "decoy": decoy})
    assert [column.name for column in lake.tables[0].columns] == ["place.at.x"]
    assert pairs(lake.containment()) == {("child", "parent")}


def test_a_table_without_rows_lies_in_all_that_have_its_columns(tmp_path):
    tables = {
        "empty": pa.table({"x": pa.array([], pa.int64())}),
        "one": pa.table({"x": [1]}),
        "none": pa.table({}),
    }
    graph = lake_of(tmp_path, tables).containment()
    assert pairs(graph) == {("empty", "one")}


def test_a_bag_counts_rows(tmp_path):
    lake = lake_of(tmp_path, {"a": {"x": [1, 1]}, "b": {"x": [1, 2]}, "c": {"x": [1, 1, 2]}})
    assert ("a", "b") in pairs(lake.containment(EXACT))
    bag = lake.containment(GraphSettings(verify="exact", bag=True))
    assert pairs(bag) == {("a", "c"), ("b", "c")}
    with pytest.raises(ConfigError, match="from all rows"):
        GraphSettings(bag=True)


def test_what_cannot_be_read_is_named_and_left_out(tmp_path):
    lake_of(tmp_path, {"a": {"x": [1]}, "b": {"x": [1, 2]}})
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 this is none")
    (tmp_path / "bad.csv").write_text("x,y\n1,2\n1,2,3\n" + "1,2\n" * 20)
    (tmp_path / "other.csv").write_text("x,y\n" + "1,2\n" * 20)
    damaged = tmp_path / "c.parquet"
    parquet.write_table(pa.table({"x": list(range(1, 3)) * 2000}), damaged, compression="none")
    raw = bytearray(damaged.read_bytes())
    raw[4:60] = bytes(56)
    damaged.write_bytes(raw)
    lake = Lake.scan(tmp_path)
    assert [Path(path).name for path in lake.unreadable] == ["broken.parquet"]
    graph = lake.containment()
    assert ("a", "b") in pairs(graph)
    assert not {"c", "bad"} & {name for pair in pairs(graph) for name in pair}
    assert {"c", "bad"} < set(graph.problems)
    assert "row 2" in graph.problems["bad"]
    with pytest.raises(DataError, match="no table"):
        Lake.scan(tmp_path / "nowhere")


def test_files_of_a_table_must_agree(tmp_path):
    folder = tmp_path / "sales.parquet"
    folder.mkdir()
    parquet.write_table(pa.table({"x": [1]}), folder / "0.parquet")
    parquet.write_table(pa.table({"x": ["1"]}), folder / "1.parquet")
    parquet.write_table(pa.table({"y": [1]}), tmp_path / "other.parquet")
    (folder / "_SUCCESS").touch()
    lake = Lake.scan(tmp_path)
    assert [table.name for table in lake.tables] == ["other"]
    (reason,) = lake.unreadable.values()
    assert "column 'x'" in reason and "1.parquet is string" in reason and "int64" in reason


def test_text_and_arrow_files_are_tables_too(tmp_path):
    (tmp_path / "a.csv").write_text("x,s\n1,u\n2,v\n")
    (tmp_path / "b.jsonl").write_text('{"x": 2, "s": "v", "z": 1}\n{"x": 1, "s": "u", "z": 1}\n')
    table = pa.table({"x": [2], "s": ["v"]})
    path = str(tmp_path / "c.arrow")
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    lake = Lake.scan(tmp_path)
    assert [table.rows for table in lake.tables] == [-1, -1, 1]
    assert pairs(lake.containment()) == {("a", "b"), ("c", "a"), ("c", "b")}


def test_a_sample_is_as_large_as_the_bound_asks():
    assert (sample_size(0.01, 0.01), sample_size(0.05, 0.01)) == (459, 90)
    assert all(
        (1 - epsilon) ** sample_size(epsilon, 0.02) <= 0.02 for epsilon in (0.001, 0.01, 0.3, 0.9)
    )
    for name, value in (("epsilon", 0), ("delta", 1), ("verify", "hope")):
        with pytest.raises(ConfigError, match=name):
            GraphSettings(**{name: value})


def test_rows_are_drawn_anywhere_and_parts_are_passed_over(tmp_path):
    rows = np.arange(20_000)
    columns = {"n": rows, "s": [f"k{row % 7}" for row in rows]}
    tables = {"a": pa.table(columns).slice(9_000, 2_000), "b": pa.table(columns)}
    lake = lake_of(tmp_path, tables, row_group_size=1_000)
    child, parent = lake.tables
    reader = RowReader()
    found = list(check_pairs([(child, parent)], reader, sample=50, rng=np.random.default_rng(0)))
    assert [(place, check.rows, check.missing) for place, check in found] == [(0, 50, 0)]
    # Of the parent's 20 parts two can hold the rows.
    assert reader.rows_read == 4_000
    assert lower_bound(found[0][1], 0.01) == pytest.approx(0.01 ** (1 / 50))
    # The first half is contained: looking at the first rows alone would be fooled.
    words = [f"k{(row + (row >= 10_000)) % 7}" for row in rows]
    half = pa.table({"n": rows, "s": words})
    parquet.write_table(half, tmp_path / "a.parquet")
    graph = Lake.scan(tmp_path).containment()
    assert graph.edges == () and graph.ruled_out[0].row > 10_000


def test_an_update_reads_only_what_has_changed(tmp_path):
    made = synthesize(base_tables(2, 300, 9), 16, 9)
    home = tmp_path / "lake"
    made.write(home)
    first = Lake.scan(home).containment(EXACT)
    first.save(tmp_path / "graph.json")
    first = ContainmentGraph.load(tmp_path / "graph.json")
    again = Lake.scan(home).containment(EXACT, previous=first)
    assert (again.edges, again.ruled_out, again.rows_read) == (first.edges, first.ruled_out, 0)
    # One table is new, one is gone, one has other rows.
    tables = dict(made.tables)
    tables["new"] = tables["t00"].slice(10, 20)
    del tables["t01"]
    tables["t05"] = tables["t05"].slice(0, 3)
    (home / "t01.parquet").unlink()
    for name in ("new", "t05"):
        parquet.write_table(tables[name], home / f"{name}.parquet")
    fresh, updated = (Lake.scan(home).containment(EXACT, previous=graph) for graph in (None, first))
    assert pairs(updated) == pairs(fresh) == true_pairs(tables)
    assert 0 < updated.rows_read < fresh.rows_read
    # A graph of other settings says nothing.
    other = Lake.scan(home).containment(previous=first)
    assert pairs(other) == pairs(fresh)


def test_files_that_are_added_to_a_table_are_read_alone(tmp_path):
    rows = np.arange(1_000)
    for name, count in (("child", 300), ("parent", 600)):
        (tmp_path / f"{name}.parquet").mkdir()
        parquet.write_table(pa.table({"x": rows[:count]}), tmp_path / f"{name}.parquet/0.parquet")
    first = Lake.scan(tmp_path).containment(EXACT)
    assert pairs(first) == {("child", "parent")}
    parquet.write_table(pa.table({"x": rows[600:]}), tmp_path / "parent.parquet/1.parquet")
    grown = Lake.scan(tmp_path).containment(EXACT, previous=first)
    assert (pairs(grown), grown.rows_read) == ({("child", "parent")}, 0)
    parquet.write_table(pa.table({"x": rows[590:640]}), tmp_path / "child.parquet/1.parquet")
    added = Lake.scan(tmp_path).containment(EXACT, previous=grown)
    assert pairs(added) == {("child", "parent")}
    assert (added.edges[0].rows, added.rows_read) == (350, 50 + 1_000)
    parquet.write_table(pa.table({"x": [5, 4_000]}), tmp_path / "child.parquet/2.parquet")
    assert Lake.scan(tmp_path).containment(EXACT, previous=added).edges == ()
