"""Vectors from columns of tables, and codes that are long enough for a recall."""

import json

import numpy as np
import polars as pl
import pytest

from steelyard.errors import ConfigError, DataError
from steelyard.retrieve import IVFPQ, IVFFastScan, IVFFlat
from steelyard.retrieve.code_sizes import smallest_code
from steelyard.retrieve.reading import read_vectors

ROWS = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)


def written(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def read(path, column=""):
    return np.asarray(read_vectors(path, column), np.float32)


def test_parquet_lists_arrays_and_lines_of_json_give_the_same_vectors(tmp_path):
    frame = pl.DataFrame({"id": range(30), "vector": ROWS.tolist(), "tags": [["a"]] * 30})
    frame.write_parquet(tmp_path / "lists.parquet")
    typed = frame.with_columns(pl.col("vector").cast(pl.Array(pl.Float64, 8)))
    typed.write_parquet(tmp_path / "arrays.parquet")
    written(tmp_path / "bare.jsonl", ROWS.tolist())
    named = [{"id": n, "vector": row} for n, row in enumerate(ROWS.tolist())]
    written(tmp_path / "named.ndjson", named)
    for path in tmp_path.iterdir():
        np.testing.assert_allclose(read(path), ROWS, rtol=1e-6)
    np.testing.assert_allclose(read(tmp_path / "lists.parquet", "vector"), ROWS, rtol=1e-6)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([[1, 2], [3]], "row 2 has 1 numbers"),
        ([[1, 2], None], "row 2 holds no vector"),
        ([[1, 2], [3, None]], "row 2 holds what is no finite number"),
        ([[1, 2], [3, "x"]], "row 2 holds what is no finite number"),
        ([{"v": [1], "w": [2]}], "columns with lists of numbers: v, w"),
        ([{"v": [1]}, {"w": [2]}], "row 2 holds no vector"),
        ([], "holds no rows"),
    ],
)
def test_bad_rows_of_json_are_named(tmp_path, rows, told):
    with pytest.raises(DataError, match=told):
        read_vectors(written(tmp_path / "x.jsonl", rows))


def test_broken_files_and_columns_are_refused(tmp_path):
    (tmp_path / "x.jsonl").write_text("[1, 2]\n[3,\n")
    with pytest.raises(DataError, match="row 2 is no JSON"):
        read_vectors(tmp_path / "x.jsonl")
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="cannot read vectors"):
        read_vectors(tmp_path / "x.parquet")
    pl.DataFrame({"a": [1], "v": [[1.0, float("nan")]]}).write_parquet(tmp_path / "y.parquet")
    with pytest.raises(DataError, match="row 1 holds what is no finite"):
        read_vectors(tmp_path / "y.parquet")
    with pytest.raises(DataError, match="column 'a' holds no vectors"):
        read_vectors(tmp_path / "y.parquet", "a")
    with pytest.raises(DataError, match="cannot read"):
        read_vectors(tmp_path / "none.jsonl")


def test_the_smallest_code_reaches_the_recall():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(300, 8)).astype(np.float32)
    asked = rng.normal(size=(20, 8)).astype(np.float32)
    index = IVFPQ(8, nlist=4, parts=2)
    found = smallest_code(index, rows, asked, recall=0.5, k=5)
    assert found.code_bytes in (4, 8) and found.recall >= 0.5 and found.vectors == 300
    assert f"--code-bytes {found.code_bytes}" in found.told()
    # Half bytes of eight parts take four bytes: the next longer codes are compared.
    fast = IVFFastScan(8, nlist=4, parts=8, rerank=1)
    assert smallest_code(fast, rows, asked, recall=0.01, k=5).code_bytes == 8
    longest = IVFPQ(8, nlist=4, parts=8)
    whole = smallest_code(longest, rows, asked, recall=1.0, k=5)
    assert whole.code_bytes == 0 and "--kind ivf" in whole.told()
    with pytest.raises(ConfigError):
        smallest_code(IVFFlat(8), rows, asked, recall=0.5)
