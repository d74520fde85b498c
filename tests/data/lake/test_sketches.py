"""Sketches of columns: no pair that holds is ruled out, no row is read, stale ones do not count."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

from steelyard.data.lake import GraphSettings, Lake, synthesize, write_sketches  # noqa: E402
from steelyard.data.lake.sketches import (  # noqa: E402
    can_contain,
    load_sketches,
    sketch_table,
)
from steelyard.data.lake.synthesis import base_tables  # noqa: E402


def pairs(graph):
    return {(edge.child, edge.parent) for edge in graph.edges}


def test_sketches_rule_out_pairs_and_no_edge(tmp_path):
    made = synthesize(base_tables(2, 600, 31), 30, 31)
    made.write(tmp_path / "lake")
    lake = Lake.scan(tmp_path / "lake")
    assert write_sketches(lake.tables, tmp_path / "sketches") == {}
    plain = lake.containment()
    with_sketches = lake.containment(sketches=tmp_path / "sketches")
    assert pairs(with_sketches) == pairs(plain)
    assert with_sketches.rows_read <= plain.rows_read
    candidates = lake.containment(GraphSettings(verify="sketch"), sketches=tmp_path / "sketches")
    assert candidates.rows_read == 0 and pairs(plain) <= pairs(candidates)
    wrong = plain.counts["missing values"] - len(plain.edges)
    assert len(candidates.edges) - len(plain.edges) < 0.8 * wrong


def test_a_sketch_of_other_files_does_not_count(tmp_path):
    lake, folder = tmp_path / "lake", tmp_path / "sketches"
    lake.mkdir()
    for name, rows in (("a", [1, 2]), ("b", [1, 2, 3])):
        parquet.write_table(pa.table({"x": rows}), lake / f"{name}.parquet")
    write_sketches(Lake.scan(lake).tables, folder)
    parquet.write_table(pa.table({"x": [3, 1]}), lake / "a.parquet")
    tables = Lake.scan(lake).tables
    assert set(load_sketches(tables, folder)) == {"b"}
    damaged = min(folder.glob("*.sketch"), key=lambda path: path.stat().st_mtime_ns)
    for path in folder.glob("*.sketch"):
        path.write_bytes(path.read_bytes()[:-9])
    assert load_sketches(tables, folder) == {} and damaged.is_file()
    assert pairs(Lake.scan(lake).containment(sketches=folder)) == {("a", "b")}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 2000), st.integers(2, 4000))
def test_a_part_is_never_ruled_out(tmp_path_factory, seed, count, distinct):
    folder = tmp_path_factory.mktemp("lake")
    rng = np.random.default_rng(seed)
    whole = pa.table({"x": rng.integers(0, distinct, count), "y": rng.standard_normal(count)})
    part = whole.take(pa.array(rng.choice(count, rng.integers(1, count + 1), replace=False)))
    for name, table in (("part", part), ("whole", whole)):
        parquet.write_table(table, folder / f"{name}.parquet")
    inner, outer = map(sketch_table, Lake.scan(folder).tables)
    assert can_contain(outer, inner)
    # With few values the sketches are whole, and say what is so.
    if len(part) <= 128 and count > len(part):
        assert not can_contain(inner, outer)
