"""Folds of single sketches, and what every Fold must do."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from steelyard.data.sketch import hash_column
from steelyard.data.table import (
    CovarianceFold,
    DataTable,
    ProfileFold,
    RowCountFold,
    RowHashFold,
    folds,
)
from steelyard.errors import ConfigError

pa = pytest.importorskip("pyarrow")
_spec = importlib.util.spec_from_file_location(
    "check_fold", Path(__file__).parent / "check_fold.py"
)
_suite = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_suite)
check_fold = _suite.check_fold


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("folds")
    rng = np.random.default_rng(3)
    for name in range(5):
        rows = [
            f"{name * 900 + place},{rng.lognormal():.4f},"
            f"{'abcde'[rng.integers(5)] if place % 7 else ''},"
            f"2026-0{1 + place % 9}-11,{rng.integers(2000)}"
            for place in range(900)
        ]
        (made / f"{name}.csv").write_text("id,price,shop,day,code\n" + "\n".join(rows) + "\n")
    return made


@pytest.fixture(scope="module")
def table(folder):
    return DataTable.scan(folder)


@pytest.fixture(scope="module")
def rows(table):
    return table.collect()[0]


def ranks_agree(found, expected):
    for name, sketch in expected.items():
        assert found[name].count == sketch.count
        levels = np.arange(1, 20) / 20
        assert np.abs(sketch.rank(found[name].quantile(levels)) - levels).max() < 2 * 0.0165


def counters_agree(found, expected):
    for name, sketch in expected.items():
        mine, theirs = found[name].counters, sketch.counters
        assert mine.count == theirs.count
        counts = dict(zip(*map(list, mine.counters()), strict=True))
        for key, count in zip(*map(list, theirs.counters()), strict=True):
            assert abs(counts.get(key, 0) - count) <= mine.error + theirs.error


def profiles_agree(found, expected):
    assert (found.rows, found.distinct_rows) == (expected.rows, expected.distinct_rows)
    for mine, theirs in zip(found.columns, expected.columns, strict=True):
        assert (mine.name, mine.missing, mine.distinct) == (
            theirs.name,
            theirs.missing,
            theirs.distinct,
        )
        assert np.isclose(mine.mean, theirs.mean, equal_nan=True)
        assert dict(mine.frequent) == dict(theirs.frequent) or mine.count_error


CASES = {
    "rows": (RowCountFold(), {}),
    "row hashes": (RowHashFold(), {}),
    "covariance": (CovarianceFold(), {"exact": False}),
    "moments": (folds.moments(), {"exact": False}),
    "distinct": (folds.distinct(), {}),
    "count-min": (folds.count_min(width=256), {}),
    "histogram": (folds.histogram("price", "code", edges=[0, 1, 2, 100]), {}),
    "quantiles": (folds.quantiles("price", "id"), {"mergeable": ranks_agree}),
    "sampled quantiles": (folds.quantiles("price", "id", whole=1024), {"mergeable": ranks_agree}),
    "frequent": (folds.frequent(), {"mergeable": counters_agree}),
    "profile": (ProfileFold(), {"exact": False, "mergeable": profiles_agree}),
}


@pytest.mark.parametrize("name", list(CASES))
def test_a_fold_does_what_every_fold_must(table, name):
    fold, words = CASES[name]
    check_fold(fold, table, **words)


def test_single_folds_say_what_the_rows_hold(table, rows):
    given = [
        RowCountFold(),
        CovarianceFold(("price", "code")),
        folds.moments("price"),
        folds.quantiles("price"),
        folds.distinct("code"),
        folds.frequent("shop"),
        folds.count_min("shop"),
        folds.histogram("price", edges=[0.5, 1, 2]),
    ]
    found = table.fold(*given, workers=1)
    count, both, powers, ranks, codes, shops, often, bins = (
        found.results[fold.name] for fold in given
    )
    price = rows["price"].to_numpy()
    assert count == len(price)
    assert np.allclose(both.matrix, np.cov([price, rows["code"].to_numpy()]))
    assert powers["price"].skewness == pytest.approx(
        ((price - price.mean()) ** 3).mean() / price.std() ** 3
    )
    assert (price <= ranks["price"].quantile(0.9)).mean() == pytest.approx(0.9, abs=0.0165)
    true = len(set(rows["code"].to_pylist()))
    assert codes["code"].estimate() == pytest.approx(true, rel=3 * codes["code"].standard_error)
    values = [value for value in rows["shop"].to_pylist() if value]
    true = {word: values.count(word) for word in set(values)}
    assert dict(shops["shop"].counts(9)) == true
    words = pa.array(sorted(true))
    assert often["shop"].counts(hash_column(words)).tolist() == [true[w] for w in sorted(true)]
    assert bins["price"].counts.tolist() == np.histogram(price, [0.5, 1, 2])[0].tolist()
    assert bins["price"].below == (price < 0.5).sum()
    assert bins["price"].above == (price > 2).sum()


def test_the_fingerprint_of_rows_knows_no_order_and_every_value(table, tmp_path, rows):
    fold = RowHashFold()
    expected = table.fold(fold).results[fold.name]

    def printed(frame):
        from pyarrow import parquet

        parquet.write_table(frame, tmp_path / "rows.parquet")
        return DataTable.scan(tmp_path / "rows.parquet").fold(fold).results[fold.name]

    shuffled = rows.take(np.random.default_rng(0).permutation(len(rows)))
    assert printed(shuffled) == expected
    assert printed(rows.slice(1)) != expected
    changed = rows.to_pylist()
    changed[5]["code"] += 1
    assert printed(pa.Table.from_pylist(changed, rows.schema)) != expected
    changed = rows.to_pylist()
    changed[5]["price"], changed[6]["price"] = changed[6]["price"], changed[5]["price"]
    assert printed(pa.Table.from_pylist(changed, rows.schema)) != expected


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: folds.moments("none"), "no column 'none'"),
        (lambda: CovarianceFold(("shop",)), "'shop' is no column of numbers"),
        (lambda: folds.histogram("price", edges=[1, 1]), "do not ascend"),
        (lambda: folds.count_min(width=100), "100 cells"),
        (lambda: folds.quantiles(whole=5), "whole is 5"),
    ],
)
def test_folds_that_cannot_be_are_refused(table, make, words):
    with pytest.raises(ConfigError, match=words):
        table.fold(make())
