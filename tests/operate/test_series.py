"""Sets of series: reading, refusals by file, row and field, saving, and random windows."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from steelyard.errors import DataError, TraceError
from steelyard.operate.series import SeriesSet, WindowSampler, from_prometheus, joined, read_series

START = datetime(2026, 1, 1, tzinfo=UTC)


def table(values, minutes=None, **columns):
    minutes = minutes or [5 * step for step in range(len(values))]
    times = [(START + timedelta(minutes=item)).replace(tzinfo=None) for item in minutes]
    return pl.DataFrame({"timestamp": times, "cpu": values} | columns)


@pytest.fixture
def write(tmp_path):
    def written(frame, name="a.csv"):
        path = tmp_path / name
        frame.write_parquet(path) if name.endswith("parquet") else frame.write_csv(path)
        return path

    return written


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.tsv"])
def test_a_table_is_read_whatever_its_format(write, tmp_path, name):
    frame = table([1.0, 2.0, None, 4.0] * 10 + [5.0] * 200)
    path = tmp_path / name
    if name == "a.tsv":
        frame.write_csv(path, separator="\t")
    else:
        write(frame, name)
    series = read_series(path)
    assert series.ids == ("cpu",)
    assert series.step_s[0] == 300
    assert series.start_s[0] == START.timestamp()
    assert np.isnan(series.row(0)[2]) and not series.mask[2]
    assert series.row(0)[3] == 4
    assert str(path) in series.provenance[0]


def test_long_and_wide_tables_make_a_series_each(write):
    long = pl.concat([table([1.0, 2.0, 3.0, 4.0], pod=["a"] * 4), table([5.0] * 4, pod=["b"] * 4)])
    assert read_series(write(long)).ids == ("a", "b")
    wide = table([1.0, 2.0, 3.0], memory=[4.0, 5.0, 6.0])
    assert read_series(write(wide)).ids == ("cpu", "memory")


def test_missing_rows_become_holes_and_a_drifting_clock_stays_on_the_grid(write):
    minutes = [5 * step for step in range(100) if step != 50]
    series = read_series(write(table([1.0] * 99, minutes)))
    assert series.lengths[0] == 100 and np.isnan(series.row(0)[50])
    drift = [5 * step + (1 if step > 40 else 0) for step in range(100)]
    assert read_series(write(table([1.0] * 100, drift))).lengths[0] == 100


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (table([1.0] * 4, [0, 5, 5, 10]), "row 4, field 'cpu': time is that of the row before"),
        (table([1.0] * 4, [0, 5, 3, 10]), "row 4, field 'cpu': time goes back"),
        (table([1.0] * 6, [0, 5, 10, 15, 17, 20]), "row 6, field 'cpu': mixed steps"),
        (table([1.0] * 6, [0, 5, 10, 15, 40, 45]), "row 6, field 'cpu': 40.0% of the values"),
        (table([1.0] * 2), "tell no frequency"),
        (table([None] * 6), "no column of numbers"),
        (table(["1", "2", "x", "4"]), "row 4, field 'cpu': 'x' is no number"),
        (table([1.0] * 4).drop("timestamp"), "no column of times"),
        (table([1.0] * 4).drop("cpu"), "no column of numbers"),
    ],
)
def test_bad_tables_are_refused_by_file_row_and_field(write, frame, words):
    path = write(frame)
    with pytest.raises(TraceError, match=r"a\.csv") as caught:
        read_series(path)
    assert words in str(caught.value)


def test_files_of_other_kinds_are_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_series(tmp_path / "none.csv")
    (tmp_path / "a.xlsx").write_bytes(b"x")
    with pytest.raises(DataError, match="unknown kind"):
        read_series(tmp_path / "a.xlsx")
    (tmp_path / "e.csv").write_text("")
    with pytest.raises(DataError, match="cannot be read"):
        read_series(tmp_path / "e.csv")


def test_folders_patterns_and_addresses_are_read_by_the_scan_of_tables(tmp_path):
    pytest.importorskip("pyarrow")
    from steelyard.cli.operate.forecast_options import SeriesOptions
    from steelyard.data.table import DataTable

    whole = table([float(step % 12) for step in range(240)])
    whole.write_csv(tmp_path / "whole.csv")
    expected = read_series(tmp_path / "whole.csv")
    folder = tmp_path / "load"
    folder.mkdir()
    for place in range(3):
        whole.slice(80 * place, 80).write_csv(folder / f"{place}.csv")
    for name in ("a.arrow", "a.steelpack"):
        DataTable.scan(folder).write(tmp_path / name)
    sources = [folder, f"{folder}/*.csv", tmp_path / "a.arrow", tmp_path / "a.steelpack"]
    for source in (*sources, f"file://{folder}"):
        found = read_series(source)
        assert np.array_equal(found.row(0), expected.row(0))
        assert (found.start_s[0], found.step_s[0]) == (expected.start_s[0], 300)
        assert str(source) in found.provenance[0]
    assert SeriesOptions(step="5 min").read(f"{folder}/*.csv").lengths[0] == 240
    with (folder / "1.csv").open("a") as file:
        file.write("2026-01-01T13:20:00.000000,much\n")
    told = r"1\.csv, row 81, field 'cpu': 'much' is no number; 1 of 241 rows"
    with pytest.raises(TraceError, match=told):
        read_series(folder)
    (folder / "1.csv").write_text("")
    with pytest.raises(DataError, match=r"1\.csv cannot be read"):
        read_series(folder)
    with pytest.raises(DataError, match="no file at "):
        read_series(f"{tmp_path}/none*.csv")


def answer(pairs, name="up"):
    result = [{"metric": {"__name__": name, "pod": "a"}, "values": pairs}]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def test_a_prometheus_answer_is_read_and_its_counter_differenced(tmp_path):
    counts = [0, 30, 60, 10, 40, 70]  # restarts behind the third
    pairs = [[1000 + 15 * step, str(value)] for step, value in enumerate(counts)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(answer(pairs, "requests_total")))
    series = read_series(path, counter=True)
    assert series.ids == ('requests_total{pod="a"}',)
    assert series.start_s[0] == 1015
    np.testing.assert_allclose(series.row(0), [2, 2, 10 / 15, 2, 2])
    plain = from_prometheus(answer(pairs), "here")
    np.testing.assert_allclose(plain.row(0), counts)


def test_a_column_named_like_a_counter_that_falls_is_left_alone(write):
    frame = table([5.0, 3.0, 8.0, 1.0]).rename({"cpu": "request_count"})
    np.testing.assert_allclose(read_series(write(frame)).row(0), [5, 3, 8, 1])
    grows = table([5.0, 35.0, 95.0, 95.0]).rename({"cpu": "seconds_total"})
    np.testing.assert_allclose(read_series(write(grows)).row(0), [0.1, 0.2, 0.0])


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"status": "error", "error": "bad query"}, "bad query"),
        ({"status": "success", "data": {"resultType": "vector", "result": []}}, "'vector'"),
        (answer([]), "rows tell no frequency"),
        (answer([[1, "1"], [2, "x"], [3, "1"]]), "row 2"),
        ([], "not 'matrix'"),
    ],
)
def test_other_answers_are_refused(made, words):
    with pytest.raises(TraceError, match=words):
        from_prometheus(made, "here")


def test_the_cloudops_schema_is_read(tmp_path):
    rows = {
        "item_id": ["vm-1", "vm-2"],
        "start": ["2026-01-01 00:00:00", "2026-01-02 00:00:00"],
        "freq": ["5T", "1H"],
        "target": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]],
        "feat_static_real": [[4.0, 16.0], [8.0, 32.0]],
    }
    pl.DataFrame(rows).write_parquet(tmp_path / "c.parquet")
    series = read_series(tmp_path / "c.parquet")
    assert series.ids == ("vm-1", "vm-2")
    assert series.step_s.tolist() == [300, 3600]
    assert series.statics.tolist() == [[4, 16], [8, 32]]
    pl.DataFrame(rows | {"freq": ["5T", "M"]}).write_parquet(tmp_path / "m.parquet")
    with pytest.raises(TraceError, match=r"row 2, field 'freq', series 'vm-2': unknown frequency"):
        read_series(tmp_path / "m.parquet")


def test_a_set_is_saved_mapped_cut_and_joined(tmp_path):
    arrays = [np.arange(10.0), np.array([1.0, np.nan, 3.0])]
    series = SeriesSet.from_arrays(arrays, step_s=60, ids=["a", "b"], provenance="made")
    series.save(tmp_path / "set")
    series.save(tmp_path / "set")  # replaces the older one
    found = SeriesSet.load(tmp_path / "set")
    assert isinstance(found.values, np.memmap)
    assert found.ids == series.ids and found.provenance == ("made", "made")
    np.testing.assert_array_equal(found.values, series.values)
    part = found.cut([0, 0], [2, 4], [5, 9])
    assert part.ids == ("a", "a@4:9")
    assert part.start_s.tolist() == [120, 240]
    assert part.row(0).tolist() == [2, 3, 4]
    other = SeriesSet.from_arrays([np.ones(4)], step_s=60, ids=["c"])
    assert joined([series, other]).ids == ("a", "b", "c")
    with pytest.raises(TraceError, match="twice"):
        joined([series, series])
    with pytest.raises(TraceError, match="no series 'z'"):
        series.index("z")


def test_windows_are_drawn_by_length_and_depend_on_nothing_but_their_number():
    arrays = [np.arange(100.0), 1000 + np.arange(300.0)]
    series = SeriesSet.from_arrays(arrays, step_s=60)
    sampler = WindowSampler(series, 20, seed=3)
    values, rows = sampler.batch(5, 4000)
    again, _ = WindowSampler(series, 20, seed=3).batch(5, 4000)
    np.testing.assert_array_equal(values, again)
    assert (np.diff(values, axis=1) == 1).all()
    assert abs(rows.mean() - 281 / 362) < 0.03
    assert set(values[rows == 0][:, 0]) == set(range(81))
    short, _ = WindowSampler(series, 120, shortest=30, seed=3).batch(0, 500)
    assert np.isfinite(short[:, -30:]).all() and np.isnan(short[:, 0]).any()
    with pytest.raises(TraceError, match="no series has 400"):
        WindowSampler(series, 400)
