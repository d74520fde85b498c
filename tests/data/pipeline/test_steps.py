"""Each step against the slow obvious version, on rows with gaps, infinities and odd columns."""

import datetime
import math
from collections import Counter

import numpy as np
import polars as pl
import pytest

pytest.importorskip("pyarrow")

from scipy import stats
from tests.data.table.check_fold import check_fold

from steelyard.data.pipeline import (
    PCA,
    Bin,
    DateParts,
    Drop,
    HashFeatures,
    Impute,
    KnnImpute,
    Log,
    OneHot,
    Ordinal,
    Outliers,
    Pipeline,
    QuantileMap,
    RejectMissing,
    Rescale,
    RidgeImpute,
    TargetEncode,
    TfIdf,
    YeoJohnson,
)
from steelyard.data.pipeline.duplicates import RowCodesFold
from steelyard.data.pipeline.hashing import WordRowsFold
from steelyard.data.pipeline.neighbours import RowSampleFold
from steelyard.data.pipeline.reshaping import golden_section, yeo_johnson
from steelyard.data.pipeline.target_encoding import GroupSumsFold
from steelyard.data.table import DataTable
from steelyard.data.table.fitting import ROW
from steelyard.data.table.splitting import StratumFold
from steelyard.errors import CapacityError, ConfigError, DataError

RNG = np.random.default_rng(7)
COUNT = 3000


def made(frame, *steps, training=False):
    """Fit steps on a frame and return what they make of it."""
    table = DataTable.scan(frame)
    fitted = Pipeline(steps).fit(table)
    rows, quarantine = fitted.transform(table, training=training).collect()
    return pl.from_arrow(rows), quarantine, fitted


@pytest.fixture(scope="module")
def numbers():
    values = RNG.lognormal(1, 0.6, COUNT)
    values[::17] = np.nan
    return pl.DataFrame({"a": values, "b": RNG.normal(10, 3, COUNT)}, nan_to_null=True)


def test_scales_are_those_of_all_rows_at_once(numbers):
    a, b = numbers["a"].drop_nulls().to_numpy(), numbers["b"].to_numpy()
    z = made(numbers, Rescale())[0]
    assert np.allclose(z["b"], (b - b.mean()) / b.std(ddof=1), atol=1e-9)
    assert np.allclose(z["a"].drop_nulls(), (a - a.mean()) / a.std(ddof=1), atol=1e-9)
    assert z["a"].null_count() == numbers["a"].null_count()
    unit = made(numbers, Rescale(method="minmax"))[0]
    assert (unit["a"].min(), unit["a"].max()) == (0.0, 1.0)
    robust = made(numbers, Rescale(method="robust", columns=("b",)))[0]
    low, middle, high = np.quantile(b, [0.25, 0.5, 0.75])
    assert np.allclose(robust["b"], (b - middle) / (high - low), atol=0.05)
    assert robust["a"].equals(numbers["a"])


def test_odd_columns_are_warned_of_and_kept():
    frame = pl.DataFrame(
        {
            "same": [4.0] * 50,
            "none": pl.Series([None] * 50, dtype=pl.Float64),
            "endless": [1.0, math.inf, 3.0, -math.inf, 5.0] * 10,
        }
    )
    found, quarantine, fitted = made(frame, Rescale(method="minmax"))
    assert len(found) == 50 and not quarantine.total
    assert found["same"].to_list() == [0.0] * 50
    assert found["none"].null_count() == 50
    assert math.isinf(found["endless"][1])
    told = " ".join(fitted.warnings)
    assert "same is constant" in told and "none has no values" in told
    assert "endless has infinite values" in told
    filled, _, fitted = made(frame, Impute(method="mean"))
    assert filled["none"].null_count() == 50
    assert fitted.warnings == ("step 1: column none has no values",)


def test_yeo_johnson_finds_the_power_of_the_exact_likelihood(numbers):
    a = numbers["a"].drop_nulls().to_numpy()
    bent, _, fitted = made(numbers, YeoJohnson(columns=("a",)))
    power = float(fitted.steps[0].powers[0])
    assert abs(power - stats.yeojohnson_normmax(a)) < 0.03
    assert np.allclose(bent["a"].drop_nulls(), stats.yeojohnson(a, power))
    mixed = RNG.normal(size=100)
    for chosen in (-1.0, 0.0, 0.5, 2.0, 3.0):
        assert np.allclose(yeo_johnson(mixed, chosen), stats.yeojohnson(mixed, chosen))
    assert abs(golden_section(lambda x: -((x - 1.7) ** 2), -5, 7) - 1.7) < 1e-3


def test_maps_and_bins_follow_ranks(numbers):
    a = numbers["a"].drop_nulls().to_numpy()
    ranks = stats.rankdata(a) / len(a)
    shares = made(numbers, QuantileMap(columns=("a",)))[0]["a"].drop_nulls().to_numpy()
    assert np.abs(shares - ranks).max() < 0.01
    bell = made(numbers, QuantileMap(columns=("a",), to="normal"))[0]["a"].drop_nulls()
    assert abs(bell.std() - 1) < 0.02 and abs(bell.mean()) < 0.02
    binned = made(numbers, Bin(columns=("a",), bins=4))[0]["a"].drop_nulls().to_numpy()
    assert np.allclose(np.bincount(binned) / len(a), 0.25, atol=0.01)
    wide = made(numbers, Bin(columns=("a",), bins=3, by="width"))[0]["a"].drop_nulls().to_numpy()
    edges = np.linspace(a.min(), a.max(), 4)[1:-1]
    assert (wide == np.searchsorted(edges, a)).all()
    logs = made(numbers, Log(columns=("b",)))[0]["b"]
    assert np.allclose(logs, np.sign(numbers["b"]) * np.log1p(abs(numbers["b"])))


CATEGORIES = pl.DataFrame({"c": ["x", "y", None, "x", "z", "None"] * 20, "f": [True, False] * 60})


def test_categories_become_columns_and_codes():
    found, _, fitted = made(CATEGORIES, OneHot())
    assert found.columns == [
        *(f"c={name}" for name in ("None", "x", "y", "z", "(other)")),
        *(f"f={name}" for name in ("False", "True", "(other)")),
    ]
    assert found["c=x"].sum() == 40 and found["c=None"].sum() == 20
    # A missing value is 0 throughout.
    assert sum(found.row(2)[:5]) == 0
    codes = made(CATEGORIES, Ordinal())[0]
    assert codes["c"].to_list()[:6] == [1, 2, None, 1, 3, 0]
    new = pl.DataFrame({"c": ["q", None], "f": [True, True]})
    rows, _ = fitted.transform(DataTable.scan(new)).collect()
    assert pl.from_arrow(rows)["c=(other)"].to_list() == [1, 0]
    few, _, fitted = made(CATEGORIES, Ordinal(columns=("c",), most=2))
    assert "more than 2" in fitted.warnings[0]
    assert few["c"].drop_nulls().max() == 2


def test_long_categories_that_begin_alike_stay_apart():
    long = "w" * 90
    frame = pl.DataFrame({"c": [long + "1", long + "2"] * 10})
    found = made(frame, OneHot())[0]
    assert found.width == 3 and found.sum_horizontal().to_list() == [1] * 20


def test_target_encoding_leaves_out_the_own_fold():
    count = 600
    city = RNG.choice(["a", "b", "c"], count)
    y = RNG.random(count)
    frame = pl.DataFrame({"city": city, "y": y, "who": RNG.integers(0, 60, count)})
    step = TargetEncode(columns=("city",), target="y", by=("who",), num_folds=4)
    training, _, fitted = made(frame, step, training=True)
    from steelyard.data.pipeline.target_encoding import fold_numbers

    batch = frame.to_arrow().to_batches()[0]
    folds = fold_numbers(batch, ("who",), 4)
    for row in range(0, count, 13):
        others = folds != folds[row]
        own = others & (city == city[row])
        expected = (y[own].sum() + 20 * y[others].mean()) / (own.sum() + 20)
        assert training["city"][row] == pytest.approx(expected)
    # New rows get all folds; one that was not seen gets the mean.
    new = pl.DataFrame({"city": ["a", "nowhere"]})
    rows, _ = fitted.transform(DataTable.scan(new)).collect()
    is_a = city == "a"
    expected = (y[is_a].sum() + 20 * y.mean()) / (is_a.sum() + 20)
    assert rows["city"].to_pylist() == [pytest.approx(expected), pytest.approx(y.mean())]


def test_target_encoding_of_noise_tells_nothing():
    rng = np.random.default_rng(1)
    frame = pl.DataFrame(
        {"k": rng.integers(0, 500, 2000).astype(str), "y": rng.choice(["no", "yes"], 2000)}
    )
    step = TargetEncode(columns=("k",), target="y", positive="yes", weight=1.0)
    training, _, _ = made(frame, step, training=True)
    plain, _, _ = made(frame, step)
    truth = (frame["y"] == "yes").to_numpy().astype(float)
    assert abs(np.corrcoef(training["k"], truth)[0, 1]) < 0.1
    # With its own target in the mean, noise looks like knowledge.
    assert np.corrcoef(plain["k"], truth)[0, 1] > 0.3


def test_hashed_and_weighed_words_are_those_of_plain_python():
    texts = ["red wine", "white wine wine", None, "Bread, and wine!", ""] * 5
    frame = pl.DataFrame({"t": texts, "n": [1.5, None, 2.0, 0.0, 4.0] * 5})
    found = made(frame, TfIdf(columns=("t",), width=1 << 12))[0]
    words = [[word.strip(",!").lower() for word in (text or "").split()] for text in texts]
    seen = Counter(word for own in words for word in set(own))
    for own, places, values in zip(words, found["t.places"], found["t.values"], strict=True):
        weights = {
            word: count * (math.log((1 + len(texts)) / (1 + seen[word])) + 1)
            for word, count in Counter(own).items()
        }
        length = math.sqrt(sum(value**2 for value in weights.values())) or 1.0
        assert len(places) == len(weights)
        expected = sorted(value / length for value in weights.values())
        assert np.allclose(sorted(values), expected, atol=1e-6)
    hashed = made(frame, HashFeatures(columns=("t", "n")))[0]
    assert [len(own) for own in hashed["hashed.places"]][:5] == [2, 1, 1, 2, 2]
    assert hashed["hashed.places"].explode().max() < 1 << 18
    assert abs(hashed["hashed.values"][0][1]) == 1.5
    with pytest.raises(ConfigError, match="power of two"):
        HashFeatures(width=100)


def test_times_in_parts_say_their_zone():
    utc = datetime.datetime(2026, 3, 1, 23, 30)
    frame = pl.DataFrame({"bare": [utc, None], "day": [utc.date(), utc.date()]})
    zoned = frame.with_columns(at=pl.col("bare").dt.replace_time_zone("UTC"))
    step = DateParts(parts=("day", "hour", "weekday"), timezone="Europe/Paris")
    found, _, fitted = made(zoned, step)
    assert found["bare.day"].to_list() == [1, None]
    assert (found["at.day"][0], found["at.hour"][0], found["at.weekday"][0]) == (2, 0, 0)
    assert found["day.weekday"][0] == 6
    assert fitted.warnings == ("step 1: column bare has no time zone: Europe/Paris",)
    with pytest.raises(ConfigError, match="no time zone"):
        DateParts(timezone="Mars/Base")


def test_gaps_are_filled_and_marked(numbers):
    a = numbers["a"].drop_nulls().to_numpy()
    gaps = numbers["a"].is_null().to_numpy()
    for method, value, room in (("mean", a.mean(), 1e-9), ("median", np.median(a), 0.02)):
        found = made(numbers, Impute(method=method, columns=("a",), mark=True))[0]
        assert found["a"].to_numpy()[gaps] == pytest.approx(value, abs=room)
        assert (found["a.missing"].to_numpy() == gaps).all()
    texts = made(CATEGORIES, Impute(method="mode"))[0]
    assert texts["c"].to_list()[2] == "x" and not texts["c"].null_count()
    words = made(CATEGORIES, Impute(method="constant", value="?"))[0]
    assert words["c"].to_list()[2] == "?"
    coded = pl.DataFrame({"n": [3, 3, None, 5]})
    assert made(coded, Impute(method="mode", columns=("n",)))[0]["n"].to_list() == [3, 3, 3, 5]
    assert made(coded, Impute(method="constant", value=-1))[0]["n"].to_list() == [3, 3, -1, 5]


def planted():
    rng = np.random.default_rng(2)
    base = rng.normal(size=(800, 2))
    full = np.column_stack([base, base @ [2.0, -1.0] + 0.05 * rng.normal(size=800) + 4])
    rows = full.copy()
    rows[rng.random(full.shape) < 0.1] = np.nan
    return full, rows


def test_rows_nearby_fill_gaps_as_a_loop_does():
    full, rows = planted()
    frame = pl.DataFrame(dict(zip("abc", rows.T, strict=True)), nan_to_null=True)
    found, _, fitted = made(frame, KnnImpute(sample=200))
    step = fitted.steps[0]
    filled = found.to_numpy()
    gaps = np.isnan(rows)
    assert not np.isnan(filled).any() and (filled[~gaps] == rows[~gaps]).all()
    for row, at in np.argwhere(gaps)[:40]:
        both = ~np.isnan(step.sample) & ~np.isnan(rows[row])
        squares = ((step.sample - rows[row]) / step.spreads) ** 2
        apart = [
            squares[own][both[own]].mean() if both[own].any() else np.inf for own in range(200)
        ]
        known = [own for own in np.argsort(apart) if not np.isnan(step.sample[own, at])][:5]
        assert filled[row, at] == pytest.approx(step.sample[known, at].mean())
    spread = full.std(axis=0)
    error = np.abs(filled - full)[gaps] / np.broadcast_to(spread, full.shape)[gaps]
    assert error.mean() < 0.6


def test_regressions_fill_gaps_nearly_exactly_where_columns_tell():
    full, rows = planted()
    frame = pl.DataFrame(dict(zip("abc", rows.T, strict=True)), nan_to_null=True)
    filled = made(frame, RidgeImpute())[0].to_numpy()
    one_gap = np.isnan(rows) & (np.isnan(rows).sum(axis=1) == 1)[:, None]
    assert np.abs(filled - full)[one_gap].mean() < 0.15
    with pytest.raises(DataError, match="no gap"):
        made(pl.DataFrame({"a": [1.0, None], "b": [None, 2.0]}), RidgeImpute())


@pytest.mark.parametrize("rule", ["zscore", "iqr", "mad"])
def test_outliers_are_those_of_the_rule(rule):
    rng = np.random.default_rng(3)
    values = np.append(rng.normal(size=1000), [50.0, -40.0, math.inf])
    frame = pl.DataFrame({"v": values, "id": np.arange(1003)})
    found, quarantine, _ = made(frame, Outliers(columns=("v",), rule=rule))
    finite = values[np.isfinite(values)]
    if rule == "zscore":
        low, high = finite.mean() - 3 * finite.std(), finite.mean() + 3 * finite.std()
    elif rule == "iqr":
        q1, q3 = np.quantile(values[:1000], [0.25, 0.75])
        low, high = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    else:
        spread = 1.4826 * np.median(np.abs(finite - np.median(finite)))
        low, high = np.median(finite) - 3.5 * spread, np.median(finite) + 3.5 * spread
    expected = set(np.flatnonzero((values < low) | (values > high)).tolist())
    gone = set(range(1003)) - set(found["id"].to_list())
    # Bounds come from sketches: rows within a hair of them may go either way.
    near = set(np.flatnonzero(np.minimum(abs(values - low), abs(values - high)) < 0.05).tolist())
    assert gone ^ expected <= near and {1000, 1001, 1002} <= gone
    assert quarantine.total == len(gone)
    assert {row.row for row in quarantine.rows} == {place + 1 for place in gone}
    assert quarantine.rows[0].field == "v"


def test_outliers_are_cut_or_emptied_too():
    values = [1.0, 2.0, 3.0, 2.0, 100.0, math.inf, None]
    frame = pl.DataFrame({"v": values})
    cut = made(frame, Outliers(rule="range", low=0, high=10, action="clip"))[0]
    assert cut["v"].to_list() == [1.0, 2.0, 3.0, 2.0, 10.0, 10.0, None]
    emptied = made(frame, Outliers(rule="infinite", action="missing"))[0]
    assert emptied["v"].to_list() == [1.0, 2.0, 3.0, 2.0, 100.0, None, None]
    whole, quarantine, _ = made(frame, RejectMissing())
    assert len(whole) == 6 and quarantine.rows[0].reason == "missing"
    constant = pl.DataFrame({"v": [5.0] * 20})
    for rule in ("zscore", "mad", "iqr"):
        assert len(made(constant, Outliers(rule=rule))[0]) == 20


def test_components_are_those_of_all_rows(numbers):
    rows = RNG.normal(size=(500, 4)) @ RNG.normal(size=(4, 4))
    frame = pl.DataFrame(dict(zip("abcd", rows.T, strict=True)))
    found, _, fitted = made(frame, PCA(size=2))
    _, spreads, axes = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    cosines = np.linalg.svd(axes[:2] @ fitted.steps[0].directions.T)[1]
    assert np.arccos(np.clip(cosines, -1, 1)).max() < 1e-3
    assert np.allclose(fitted.steps[0].variances, spreads[:2] ** 2 / 499)
    assert np.allclose(found["pc1"].to_numpy().var(ddof=1), spreads[0] ** 2 / 499)
    with pytest.raises(ConfigError, match="5 components"):
        made(frame, PCA(size=5))
    with pytest.raises(DataError, match="need"):
        made(pl.DataFrame({"a": [None, 1.0], "b": [2.0, None]}), PCA(size=1))


def test_what_does_not_fit_is_refused():
    frame = pl.DataFrame({"a": [1.0], "c": ["x"]})
    with pytest.raises(ConfigError, match="step 1: Rescale: no column 'q'"):
        made(frame, Rescale(columns=("q",)))
    with pytest.raises(ConfigError, match="'c' is string"):
        made(frame, Rescale(columns=("c",)))
    with pytest.raises(ConfigError, match="no columns of"):
        made(frame.select("c"), Rescale())
    with pytest.raises(ConfigError, match="needs a step"):
        made(frame)
    with pytest.raises(ConfigError, match="no column 'y'"):
        made(frame, TargetEncode(target="y"))
    assert made(frame, Drop(columns=("a",)))[0].columns == ["c"]
    for wrong in (
        lambda: Rescale(method="odd"),
        lambda: Bin(bins=1),
        lambda: Outliers(rule="odd"),
        lambda: Outliers(rule="range", low=2, high=1),
        lambda: OneHot(most=0),
        lambda: KnnImpute(neighbours=0),
        lambda: RidgeImpute(strength=0),
        lambda: DateParts(parts=("eon",)),
        lambda: Impute(method="odd"),
        lambda: PCA(size=0),
        lambda: Drop(),
    ):
        with pytest.raises(ConfigError):
            wrong()


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    rng = np.random.default_rng(4)
    for name in range(4):
        frame = pl.DataFrame(
            {
                "a": rng.normal(size=300),
                "c": rng.choice(["x", "y", "z"], 300),
                "y": rng.random(300),
                "t": rng.choice(["red wine", "white wine", "beer"], 300),
            }
        )
        frame.write_csv(folder / f"{name}.csv")
    return DataTable.scan(folder).with_row_numbers()


def same_strata(found, expected):
    assert found.keys() == expected.keys()
    for number, sketch in expected.items():
        assert found[number].count == sketch.count


@pytest.mark.parametrize(
    ("fold", "mergeable"),
    [
        (GroupSumsFold(("c",), "y", "", ("a",), 3), None),
        (WordRowsFold("t", 64), None),
        (RowSampleFold(("a", "y"), 50), None),
        (RowCodesFold(("a", "c")), None),
        (StratumFold("c", ("a",)), same_strata),
    ],
    ids=lambda item: getattr(item, "name", ""),
)
def test_folds_of_steps(parts, fold, mergeable):
    check_fold(fold, parts, exact=not isinstance(fold, GroupSumsFold), mergeable=mergeable)
    assert ROW in parts.schema.names


def test_too_many_categories_are_refused(monkeypatch):
    monkeypatch.setattr("steelyard.data.pipeline.target_encoding._MOST", 10)
    frame = pl.DataFrame({"k": [str(place) for place in range(20)], "y": [1.0] * 20})
    with pytest.raises(CapacityError, match="more than 10 categories"):
        made(frame, TargetEncode(columns=("k",), target="y"))
