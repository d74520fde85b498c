"""Passes are as few as can be, results the same however rows are cut, and files hold no code."""

import math

import numpy as np
import polars as pl
import pytest

pytest.importorskip("pyarrow")

from steelyard.data.pipeline import (
    PCA,
    Duplicates,
    FittedPipeline,
    Impute,
    KnnImpute,
    NearDuplicates,
    OneHot,
    Outliers,
    Pipeline,
    Rescale,
    TargetEncode,
    pipeline_of,
)
from steelyard.data.pipeline.fitting import PipelineFitting
from steelyard.data.pipeline.planning import plan_fit
from steelyard.data.table import DataTable
from steelyard.data.table.splitting import split_stratified, split_time
from steelyard.errors import CapacityError, ConfigError, DataError


def frame_of(count=4000, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=count)
    a[rng.random(count) < 0.1] = np.nan
    return pl.DataFrame(
        {
            "id": np.arange(count),
            "a": a,
            "b": rng.lognormal(size=count),
            "c": rng.choice(["x", "y", "z"], count),
            "y": rng.integers(0, 2, count),
        },
        nan_to_null=True,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("pipeline")
    frame = frame_of()
    for place in range(4):
        frame.slice(place * 1000, 1000).write_csv(made / f"{place}.csv")
    return made


STEPS = (
    Impute(columns=("a",)),
    OneHot(columns=("c",)),
    Outliers(columns=("b",), action="clip"),
    Rescale(columns=("a", "b")),
    PCA(size=2, columns=("a", "b")),
)


def test_steps_that_do_not_wait_for_one_another_share_a_pass(folder):
    table = DataTable.scan(folder)
    assert Pipeline(STEPS[:3]).fit(table).scans == 1
    assert Pipeline(STEPS).fit(table).scans == 3
    # A step that sets rows aside changes what all later ones learn from.
    assert Pipeline((Outliers(columns=("b",)), OneHot(columns=("c",)))).fit(table).scans == 2
    assert Pipeline((OneHot(columns=("c",)), Outliers(columns=("b",)))).fit(table).scans == 1
    # All numbers, after a step that brings numbers, are not known before.
    assert Pipeline((OneHot(columns=("c",)), Rescale())).fit(table).scans == 2
    assert Pipeline((Rescale(), OneHot())).fit(table).scans == 1


def test_a_pass_learns_what_one_step_after_the_other_would(folder):
    # One part: sketches of merged parts differ within their error.
    table = DataTable.scan(str(folder / "0.csv"))
    rows = table
    for step in STEPS:
        fitted = Pipeline((step,)).fit(rows)
        rows = DataTable.scan(fitted.transform(rows, training=True).collect()[0])
    one_by_one = rows.collect()[0]
    fused, _ = Pipeline(STEPS).fit(table).transform(table, training=True).collect()
    assert fused.schema.names == one_by_one.schema.names
    for name in fused.schema.names:
        assert np.allclose(fused[name], one_by_one[name], rtol=1e-9, atol=1e-9)


def test_workers_batches_and_order_of_files_change_nothing(folder):
    steps = (
        *STEPS[:3],
        KnnImpute(columns=("a", "b"), sample=64),
        TargetEncode(columns=("id",), target="y"),
    )
    table = DataTable.scan(folder)
    one = Pipeline(steps).fit(table)
    assert Pipeline(steps).fit(table, workers=2).key == one.key
    small = Pipeline(STEPS).fit(table, memory="40MB")
    whole = Pipeline(STEPS).fit(table)
    for mine, other in zip(small.steps, whole.steps, strict=True):
        for name in ("shifts", "factors", "directions", "values", "low", "high"):
            if hasattr(mine, name):
                assert np.allclose(getattr(mine, name), getattr(other, name), rtol=1e-9)
    turned = DataTable.scan(*[str(folder / f"{place}.csv") for place in (3, 1, 0, 2)])
    again = Pipeline(STEPS[:2]).fit(turned)
    assert (again.steps[1].hashes == whole.steps[1].hashes).all()


def test_files_of_pipelines(folder, tmp_path):
    table = DataTable.scan(folder)
    fitted = Pipeline(STEPS).fit(table)
    fitted.save(tmp_path / "p.pipeline")
    opened = FittedPipeline.open(tmp_path / "p.pipeline")
    assert opened.key == fitted.key and opened.rows == 4000
    left, right = (item.transform(table).collect()[0] for item in (fitted, opened))
    assert left.equals(right)
    assert left.schema.metadata[b"steelyard.pipeline"].decode() == fitted.key
    raw = (tmp_path / "p.pipeline").read_bytes()
    place = raw.index(b'"OneHotColumns"')
    (tmp_path / "bad").write_bytes(raw[:place] + b'"OneHotKolumns"' + raw[place + 15 :])
    with pytest.raises(DataError, match="damaged"):
        FittedPipeline.open(tmp_path / "bad")
    with pytest.raises(DataError, match="no pack"):
        (tmp_path / "text").write_bytes(b"x" * 500)
        FittedPipeline.open(tmp_path / "text")
    with pytest.raises(ConfigError, match="needs the column 'a'"):
        opened.transform(DataTable.scan(frame_of(10).drop("a")))


def test_a_killed_fit_goes_on_where_it_was(folder, tmp_path, monkeypatch):
    table = DataTable.scan(folder)
    whole = Pipeline(STEPS).fit(table)
    run, calls = PipelineFitting.run, []

    def dies(self, stage, passing, done):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(stage)
        run(self, stage, passing, done)

    monkeypatch.setattr(PipelineFitting, "run", dies)
    with pytest.raises(KeyboardInterrupt):
        Pipeline(STEPS).fit(table, journal=tmp_path / "journal")
    monkeypatch.undo()
    read = []
    again = Pipeline(STEPS).fit(
        table, journal=tmp_path / "journal", done=lambda scan, size: read.append(scan)
    )
    assert set(read) == {3} and again.key == whole.key


def test_the_training_split_alone_is_learned_from(folder):
    table = DataTable.scan(folder)
    parts = table.split({"train": 0.7, "test": 0.3}, by="id")
    fitted = Pipeline((Rescale(columns=("b",)),)).fit(parts["train"])
    train, _ = parts["train"].collect()
    assert fitted.rows == len(train)
    assert fitted.steps[0].shifts[0] == pytest.approx(np.mean(train["b"]))
    done, _ = fitted.transform(parts["test"]).collect()
    assert len(done) == 4000 - len(train)


def test_duplicates_are_set_aside_with_the_row_they_equal(tmp_path):
    frame = pl.DataFrame({"k": [1, 2, 1, 3, 2, 1], "t": ["a", "b", "a", "c", "x", "a"]})
    frame.slice(0, 3).write_csv(tmp_path / "0.csv")
    frame.slice(3).write_csv(tmp_path / "1.csv")
    table = DataTable.scan(tmp_path)
    fitted = Pipeline((Duplicates(),)).fit(table)
    kept, quarantine = fitted.transform(table, training=True).collect()
    assert kept["k"].to_pylist() == [1, 2, 3, 2]
    assert [(row.row, row.value) for row in quarantine.rows] == [(3, "row 1"), (3, "row 1")]
    keyed = Pipeline((Duplicates(columns=("k",)),)).fit(table)
    assert keyed.transform(table, training=True).collect()[0]["k"].to_pylist() == [1, 2, 3]
    # Other rows are answered one by one, however often they are asked for.
    assert len(fitted.transform(table).collect()[0]) == 6
    with pytest.raises(CapacityError, match="search for duplicates"):
        big = DataTable.scan(frame_of(400_000).select("id"))
        Pipeline((Duplicates(),)).fit(big, memory="30MB")


def test_texts_that_are_nearly_alike_are_set_aside():
    words = [f"word{place}" for place in range(60)]
    texts = [" ".join(words), " ".join([*words[:-1], "other"]), " ".join(words[::-1]), "", ""]
    table = DataTable.scan(pl.DataFrame({"t": texts}))
    fitted = Pipeline((NearDuplicates(columns=("t",)),)).fit(table)
    kept, quarantine = fitted.transform(table, training=True).collect()
    assert len(kept) == 4 and quarantine.rows[0].row == 2


def test_rows_set_aside_add_up_and_name_their_rows(tmp_path):
    lines = [f"{place},{'x' if place == 3 else place}" for place in range(40)]
    lines[10] = "10,1000000000"
    (tmp_path / "t.csv").write_text("id,v\n" + "\n".join(lines) + "\n")
    table = DataTable.scan(str(tmp_path / "t.csv"))
    fitted = Pipeline((Outliers(columns=("v",), rule="mad"),)).fit(table)
    kept, quarantine = fitted.transform(table).collect()
    assert len(kept) + quarantine.total == 40
    assert {(row.row, row.reason.split()[0]) for row in quarantine.rows} == {
        (4, "no"),
        (11, "more"),
    }


def test_plans_name_passes_and_bytes(folder, tmp_path):
    frame_of(20_000).write_parquet(tmp_path / "t.parquet", row_group_size=5000)
    table = DataTable.scan(str(tmp_path / "t.parquet"))
    plan = plan_fit(Pipeline(STEPS), table, memory="100MB")
    assert [item.steps for item in plan.passes] == [(0, 1, 2), (3,), (4,)]
    assert plan.passes[0].columns == ("a", "b", "c") and plan.passes[1].columns == ("a", "b")
    assert plan.passes[1].num_bytes < plan.passes[0].num_bytes
    assert 0 < plan.memory_bytes < 100e6 and plan.duration_s > 0
    with pytest.raises(CapacityError):
        plan_fit(Pipeline(STEPS), table, memory="1MB")


def test_recipes_name_steps():
    given = [{"kind": "impute", "columns": ["a"]}, {"kind": "scale", "method": "robust"}]
    assert Pipeline(pipeline_of(given).steps).steps == [
        Impute(columns=("a",)),
        Rescale(method="robust"),
    ]
    with pytest.raises(ConfigError, match=r"step\[0\]: no kind 'eval'"):
        pipeline_of([{"kind": "eval"}])
    with pytest.raises(ConfigError, match=r"step\[1\]"):
        pipeline_of([given[0], {"kind": "scale", "way": "robust"}])


def test_parts_are_written_by_workers_as_by_one(folder, tmp_path):
    table = DataTable.scan(folder)
    made = Pipeline(STEPS).fit(table).transform(table)
    for workers in (1, 2):
        rows, _ = made.write(tmp_path / str(workers), parts=".parquet", workers=workers)
        assert rows == 4000
    left, right = (pl.read_parquet(tmp_path / name / "*.parquet") for name in "12")
    assert left.equals(right) and left.height == 4000


def test_each_class_is_shared_out_evenly():
    rng = np.random.default_rng(5)
    labels = rng.choice(["common", "rare"], 20_000, p=[0.97, 0.03])
    frame = pl.DataFrame({"id": np.arange(20_000), "y": labels})
    table = DataTable.scan(frame)
    given = {"train": 0.8, "test": 0.2}
    found = split_stratified(table, given, stratify="y", by=("id",), seed=3)
    sizes = {
        name: dict(pl.from_arrow(part.collect()[0])["y"].value_counts().iter_rows())
        for name, part in found.tables.items()
    }
    for name in ("common", "rare"):
        count = int((labels == name).sum())
        assert sizes["test"][name] == pytest.approx(0.2 * count, abs=max(1, 0.002 * count))
        assert sizes["train"][name] + sizes["test"][name] == count
    # Shards in any order: each row stays where it was.
    turned = frame.sample(fraction=1.0, shuffle=True, seed=1)
    again = split_stratified(DataTable.scan(turned), given, stratify="y", by=("id",), seed=3)
    first, other = (
        set(item.tables["test"].collect()[0]["id"].to_pylist()) for item in (found, again)
    )
    assert len(first ^ other) <= 0.002 * 20_000
    odd = frame.with_columns(y=pl.when(pl.col("id") == 5).then(None).otherwise(pl.col("y")))
    told = split_stratified(DataTable.scan(odd), given, stratify="y", by=("id",)).warnings
    assert any("fewer than two" in line for line in told)
    assert any("have no 'y'" in line for line in told)


def test_times_cut_a_table_and_rows_without_one_are_told_of():
    frame = pl.DataFrame({"at": [float(place % 500) for place in range(2000)] + [None] * 3})
    found = split_time(DataTable.scan(frame), {"train": 0.75, "test": 0.25}, time="at")
    train, test = (found.tables[name].collect()[0]["at"].to_pylist() for name in ("train", "test"))
    assert max(train) < min(test) and len(train) + len(test) == 2000
    assert len(train) == pytest.approx(1500, abs=8)
    assert found.warnings == ("3 rows have no 'at', and are in no share",)
    with pytest.raises(ConfigError, match="no order in time"):
        split_time(DataTable.scan(pl.DataFrame({"c": ["x"]})), {"a": 1.0}, time="c")
    with pytest.raises(ConfigError, match="shares"):
        split_time(DataTable.scan(frame), {"a": 2.0}, time="at")


def test_infinite_and_empty_tables_pass(tmp_path):
    empty = DataTable.scan(pl.DataFrame({"a": pl.Series([], dtype=pl.Float64)}))
    fitted = Pipeline((Impute(), Rescale())).fit(empty)
    assert len(fitted.transform(empty).collect()[0]) == 0
    assert "no values" in fitted.warnings[0]
    endless = DataTable.scan(pl.DataFrame({"a": [math.inf, 1.0, 2.0]}))
    rows, _ = Pipeline((Rescale(),)).fit(endless).transform(endless).collect()
    assert math.isinf(rows["a"][0].as_py())
