"""Forests, linear models, ridge, naive Bayes and neighbours: slow versions, and bad input."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

pytest.importorskip("pyarrow")

from steelyard.data.features import FeatureStore
from steelyard.data.learning import (
    LEARNERS,
    BayesConfig,
    BoostConfig,
    CompareOptions,
    FitJob,
    FitOptions,
    ForestConfig,
    KernelConfig,
    LinearConfig,
    NeighbourConfig,
    RidgeConfig,
    TableModel,
    compare_table,
    fit_table,
)
from steelyard.data.learning.codes import CodeStore
from steelyard.data.learning.forest_kernels import grow_whole_tree
from steelyard.data.learning.kernel_machine import FourierFeatures
from steelyard.data.learning.ridge import ridge_of
from steelyard.data.learning.targets import TargetColumn
from steelyard.data.sketch import Covariance
from steelyard.data.table import DataTable
from steelyard.errors import ConfigError, DataError

COUNT = 1500
NUMBER = TargetColumn(name="y", task="regress")
TWO = TargetColumn(name="y", task="classify", classes=("a", "b"), hashes=(1, 2))
THREE = TargetColumn(name="y", task="classify", classes=("a", "b", "c"), hashes=(1, 2, 3))
SMALL = {
    "boosted": BoostConfig(rounds=15, threads=1),
    "forest": ForestConfig(trees=10, threads=1),
    "linear": LinearConfig(epochs=6),
    "ridge": RidgeConfig(),
    "bayes": BayesConfig(),
    "neighbours": NeighbourConfig(sample_rows=500),
    "kernel": KernelConfig(waves=128, epochs=6),
}


def frame(count: int = COUNT, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=count), rng.normal(size=count)
    color = rng.choice(["red", "green", "blue"], count)
    logit = 2 * x + z + np.where(color == "red", 1.5, -0.5)
    bought = np.where(rng.random(count) < 1 / (1 + np.exp(-logit)), "yes", "no")
    shifted = x + rng.normal(size=count) / 3
    kind = np.array(["low", "mid", "top"])[np.digitize(shifted, [-0.5, 0.5])]
    price = 3 * x - z + rng.normal(size=count) / 2
    x = np.where(rng.random(count) < 0.1, np.nan, x)
    columns = {"x": x, "z": z, "color": color, "bought": bought, "kind": kind, "price": price}
    return pl.DataFrame(columns, nan_to_null=True)


def fitted(folder: Path, learner: str, target: str, **more):
    data = more.pop("data", None)
    others = [name for name in ("bought", "kind", "price") if name != target]
    given = {"target": target, "learner": SMALL[learner], "leave_out": others} | more
    table = DataTable.scan(frame() if data is None else data)
    return fit_table(table, FitOptions(**given), folder / "work")


def features_job(x: np.ndarray, y: np.ndarray, target: TargetColumn, held: int = 0) -> FitJob:
    store = FeatureStore(
        features=x.astype(np.float32),
        targets=y.astype(np.float32),
        is_held=np.arange(len(x)) < held,
    )
    return FitJob(store=store, target=target)


def test_every_learner_has_settings() -> None:
    assert set(SMALL) == set(LEARNERS)
    assert all(isinstance(item, LEARNERS[name]) for name, item in SMALL.items())


@pytest.mark.parametrize("learner", list(SMALL))
def test_learners_beat_the_constant_and_come_back_from_files(tmp_path: Path, learner: str) -> None:
    targets = [("bought", "log loss"), ("kind", "log loss"), ("price", "RMSE")]
    unfit = {"ridge": {"bought", "kind"}, "bayes": {"price"}}.get(learner, set())
    for target, measure in targets:
        if target in unfit:
            with pytest.raises(ConfigError, match=r"predicts numbers|tells classes"):
                fitted(tmp_path, learner, target)
            assert not (tmp_path / "work").exists()
            continue
        found = fitted(tmp_path, learner, target)
        by_name = {item.name: item for item in found.scores}
        assert by_name[measure].high < by_name[measure].baseline
        assert sum(share for _, share in found.model.importances()) == pytest.approx(
            0 if learner in {"neighbours", "kernel"} else 1
        )
        found.model.save(tmp_path / "a.model")
        again = TableModel.open(tmp_path / "a.model")
        # Values that no row had, and a column that is not there.
        new = frame(200, seed=5).with_columns(pl.lit("violet").alias("color")).drop("z")
        one, two = (list(item.predict(DataTable.scan(new))) for item in (found.model, again))
        assert one == two
        assert sum(len(batch) for batch in one) == 200


def test_the_first_version_of_model_files_is_read(tmp_path: Path) -> None:
    import json

    from steelyard.data.pack import Pack, write_pack

    model = fitted(tmp_path, "boosted", "bought").model
    model.save(tmp_path / "new.model")
    pack = Pack.open(tmp_path / "new.model")
    about = json.loads(pack["about"].tobytes())
    about |= {"version": 1, "best_rounds": about.pop("learned")["best_rounds"]}
    for name in ("needs", "learner"):
        del about[name]
    sections = {name.removeprefix("learner/"): pack[name] for name in pack.names if name != "about"}
    told = {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)}
    write_pack(tmp_path / "old.model", told | sections)
    table = DataTable.scan(frame(100, seed=2))
    old = TableModel.open(tmp_path / "old.model")
    assert list(old.predict(table)) == list(model.predict(table))


@pytest.mark.parametrize("penalty", [0.0, 3.0])
def test_ridge_is_the_solution_of_the_normal_equations_also_of_merged_parts(penalty) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4)) @ rng.normal(size=(4, 4)) + 5
    y = x @ [1, -2, 0.5, 3] + 7 + rng.normal(size=300)
    rows = np.column_stack([x, y])
    whole, parts = Covariance(5), [Covariance(5), Covariance(5)]
    whole.update(rows)
    for part, own in zip(parts, (rows[:90], rows[90:]), strict=True):
        part.update(own)
    parts[0].merge(parts[1])
    centred = x - x.mean(axis=0)
    slow = np.linalg.solve(centred.T @ centred + penalty * np.eye(4), centred.T @ (y - y.mean()))
    for spread in (whole, parts[0]):
        found = ridge_of(spread, penalty).coefficients[0]
        assert np.allclose(found[:4], slow, rtol=1e-8)
        assert found[4] == pytest.approx(y.mean() - x.mean(axis=0) @ slow)


def test_ridge_chooses_a_penalty_and_bears_equal_columns() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 30))
    y = x[:, 0] + rng.normal(size=40)
    chosen, none = (
        RidgeConfig(penalty=penalty).fit(features_job(x, y, NUMBER)) for penalty in (None, 0.0)
    )
    new = rng.normal(size=(2000, 30))
    errors = [float(((item.scores(new)[0] - new[:, 0]) ** 2).mean()) for item in (chosen, none)]
    assert errors[0] < errors[1] / 2
    twice = np.column_stack([x[:, :1], x[:, :1]])
    found = RidgeConfig(penalty=0.0).fit(features_job(twice, y, NUMBER)).coefficients
    assert np.isfinite(found).all()
    assert found[0, 0] == pytest.approx(found[0, 1], rel=1e-3)


@pytest.mark.parametrize(("target", "loss"), [(TWO, "log"), (TWO, "hinge"), (THREE, "log")])
def test_descent_comes_close_to_the_least_loss(target: TargetColumn, loss: str) -> None:
    from scipy import optimize

    rng = np.random.default_rng(2)
    x = rng.normal(size=(6000, 3))
    logits = x @ rng.normal(size=(3, len(target.classes))) + [0.5, 0, -0.5][: len(target.classes)]
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    y = (rng.random((6000, 1)) > shares.cumsum(axis=1)).sum(axis=1)
    model = LinearConfig(loss=loss, epochs=20).fit(features_job(x, y, target, held=1000))

    def mean(scores: np.ndarray) -> float:
        own = np.vstack([np.zeros(len(y)), scores]) if len(scores) == 1 else scores
        top = np.logaddexp.reduce(own, axis=0)
        return float((top - own[y, np.arange(len(y))]).mean())

    inputs = np.column_stack([x, np.ones(len(x))])
    shape = (target.width, 4)

    def whole(flat: np.ndarray) -> float:
        return mean(flat.reshape(shape) @ inputs.T)

    least = optimize.minimize(whole, np.zeros(shape).ravel(), method="BFGS").fun
    # The hinge is another loss: its scores are made log odds of afterwards.
    assert mean(model.scores(x.astype(np.float32))) < least * (1.03 if loss == "hinge" else 1.005)


def test_a_whole_tree_splits_as_trying_everything_says() -> None:
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 5, (2, 200)).astype(np.uint8)
    y = ((codes[1] > 2) * 1.0 + rng.random(200)).astype(np.float32)
    weights = rng.integers(1, 4, 200).astype(np.float32)
    made = (
        np.empty(41, np.int32),
        np.zeros(41, np.uint8),
        np.zeros(41, bool),
        np.zeros((41, 2), np.int32),
        np.empty((41, 1), np.float32),
        np.zeros(41, np.float32),
    )
    nodes = grow_whole_tree(codes, np.full(2, 5), weights, y, 1, 2, 10.0, 0, *made)
    features, splits, missing, children, values, gains = (part[:nodes] for part in made)

    def error(mask: np.ndarray) -> float:
        w, own = weights[mask].astype(float), y[mask].astype(float)
        return float((w * (own - np.average(own, weights=w)) ** 2).sum())

    best = 0.0
    for feature in range(2):
        for code in range(1, 4):
            for left_missing in (False, True):
                left = (codes[feature] > 0) & (codes[feature] <= code)
                left |= (codes[feature] == 0) & left_missing
                if min(weights[left].sum(), weights[~left].sum()) >= 10:
                    best = max(best, error(left | ~left) - error(left) - error(~left))
    assert gains[0] == pytest.approx(best, rel=1e-4)
    assert values[0, 0] == pytest.approx(np.average(y, weights=weights), rel=1e-5)
    assert nodes == 2 * (features < 0).sum() - 1
    at = np.zeros(200, int)
    while (features[at] >= 0).any():
        code = codes[np.maximum(features[at], 0), np.arange(200)]
        is_left = np.where(code == 0, missing[at], code <= splits[at])
        moved = children[at, np.where(is_left, 0, 1)]
        at = np.where(features[at] >= 0, moved, at)
    for leaf in np.unique(at):
        own = at == leaf
        assert weights[own].sum() >= 10
        assert values[leaf, 0] == pytest.approx(np.average(y[own], weights=weights[own]), rel=1e-4)


def test_a_forest_does_not_depend_on_threads_and_goes_on_after_a_stop() -> None:
    rng = np.random.default_rng(4)
    codes = rng.integers(0, 60, (5, 800)).astype(np.uint8)
    y = (codes[2] + rng.integers(0, 30, 800) > 45).astype(np.float32)
    store = CodeStore(codes=codes, targets=y, is_held=np.zeros(800, bool))
    given = {"store": store, "target": TWO, "num_codes": np.full(5, 60)}
    one = ForestConfig(trees=8, threads=1).fit(FitJob(**given))
    begun = ForestConfig(trees=4, threads=2).fit(FitJob(**given))
    two = ForestConfig(trees=8, threads=2).fit(FitJob(**given, begun=begun))
    assert np.array_equal(one.scores(codes), two.scores(codes))
    assert one.weights(5).argmax() == 2


def test_naive_bayes_counts_as_the_formula_says_and_of_parts_the_same() -> None:
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 3, (2, 300)).astype(np.uint8)
    y = rng.integers(0, 2, 300).astype(np.float32)
    store = CodeStore(codes=codes, targets=y, is_held=np.zeros(300, bool))
    job = FitJob(store=store, target=TWO, num_codes=np.full(2, 3), is_text=np.array([True, True]))
    found = BayesConfig(smoothing=10).fit(job).scores(codes[:, :5])[0]
    for row in range(5):
        odds = np.log((y == 1).sum() / (y == 0).sum())
        for column in codes:
            same = column == column[row]
            shares = [
                (same[y == c].sum() + 10 * same.mean()) / ((y == c).sum() + 10) for c in (0, 1)
            ]
            odds += np.log(shares[1] / shares[0])
        assert found[row] == pytest.approx(odds, rel=1e-4)


def test_neighbours_are_those_of_comparing_all() -> None:
    rng = np.random.default_rng(6)
    x, new = rng.normal(size=(200, 3)), rng.normal(size=(20, 3))
    y = rng.normal(size=200)
    found = (
        NeighbourConfig(neighbours=7).fit(features_job(x, y, NUMBER)).scores(new.astype(np.float32))
    )
    apart = ((new[:, None] - x) ** 2).sum(axis=2)
    slow = y[np.argsort(apart, axis=1)[:, :7]].mean(axis=1)
    assert np.allclose(found[0], slow, atol=1e-5)


def test_waves_come_close_to_the_kernel_and_part_rings() -> None:
    rng = np.random.default_rng(8)
    rows = rng.normal(size=(300, 2))
    waves = FourierFeatures.drawn(rows, 20_000, 0).apply(rows).astype(np.float64)
    squares = ((rows[:, None] - rows) ** 2).sum(axis=2)
    exact = np.exp(-squares / (2 * np.median(squares[squares > 0])))
    assert np.abs(waves @ waves.T / 20_000 - exact).max() < 0.05
    angles, radii = rng.uniform(0, 2 * np.pi, 2000), rng.choice([1.0, 2.0], 2000)
    x = np.column_stack([np.cos(angles), np.sin(angles)]) * radii[:, None]
    x += rng.normal(size=x.shape) / 6
    job = features_job(x, (radii > 1.5) * 1.0, TWO, held=500)
    machine = KernelConfig(waves=256, epochs=5).fit(job)
    right = (machine.scores(job.features[:500])[0] > 0) == (radii[:500] > 1.5)
    assert right.mean() > 0.95  # no line parts rings
    with pytest.raises(DataError, match="rows are equal"):
        KernelConfig().fit(features_job(np.ones((40, 2)), np.arange(40) % 2, TWO))


def test_narrower_features_are_learned_from(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    base = rng.normal(size=(COUNT, 3))
    wide = base @ rng.normal(size=(3, 12)) + rng.normal(size=(COUNT, 12)) / 10
    data = pl.DataFrame({f"w{at}": wide[:, at] for at in range(12)} | {"y": base @ [1, 2, 3]})
    for reduce, bar in (("pca:3", 0.95), ("random:8", 0.9)):
        options = FitOptions(target="y", learner=RidgeConfig(), reduce=reduce)
        found = fit_table(DataTable.scan(data), options, tmp_path / "work")
        assert {item.name: item.value for item in found.scores}["R2"] > bar
        found.model.save(tmp_path / "a.model")
        again = TableModel.open(tmp_path / "a.model")
        assert next(again.predict(DataTable.scan(data))) == next(
            found.model.predict(DataTable.scan(data))
        )
    with pytest.raises(ConfigError, match="every column by itself"):
        fit_table(DataTable.scan(data), FitOptions(target="y", reduce="pca:2"), tmp_path / "work")
    with pytest.raises(ConfigError, match="reduce is 'svd'"):
        fit_table(
            DataTable.scan(data),
            FitOptions(target="y", reduce="svd", learner=RidgeConfig()),
            tmp_path / "work",
        )


@pytest.mark.parametrize("learner", ["linear", "forest"])
def test_odd_columns_are_named(tmp_path: Path, learner: str) -> None:
    data = frame().with_columns(
        pl.lit(3.0).alias("same"),
        pl.lit(None, pl.Float64).alias("nothing"),
        pl.Series("wild", ([np.inf, -np.inf, 1.0, 2.0, np.nan] * COUNT)[:COUNT]),
        (pl.col("bought") == "yes").cast(pl.Int8).alias("told"),
    )
    told = " ".join(fitted(tmp_path, learner, "bought", data=data).warnings)
    for part in (
        "column same is constant",
        "column nothing is empty",
        "column wild has 600 infinite values",
        "column told alone tells bought",
    ):
        assert part in told


def test_a_table_without_columns_that_vary_is_refused(tmp_path: Path) -> None:
    data = pl.DataFrame({"same": [1.0] * 20, "y": ["a", "b"] * 10})
    with pytest.raises(DataError, match="no column varies"):
        fitted(tmp_path, "linear", "y", data=data, leave_out=[])
    with pytest.raises(DataError, match="'maybe'"):
        rare = frame().with_columns(pl.Series("bought", ["maybe"] + ["yes", "no"] * 750)[:COUNT])
        fitted(tmp_path, "linear", "bought", data=rare)


class _KilledError(Exception):
    pass


@pytest.mark.parametrize("learner", ["forest", "linear"])
def test_a_fit_that_was_killed_ends_with_the_same_model(tmp_path: Path, learner: str) -> None:
    frame().write_parquet(tmp_path / "t.parquet")
    table = DataTable.scan(str(tmp_path / "t.parquet"))
    options = FitOptions(target="bought", learner=SMALL[learner], leave_out=["kind", "price"])
    fit_table(table, options, tmp_path / "one").model.save(tmp_path / "one.model")

    def stop(what: str, share: float) -> None:
        if what == "trees" and share > 0.4:
            raise _KilledError

    with pytest.raises(_KilledError):
        fit_table(table, options, tmp_path / "two", done=stop)
    fit_table(table, options, tmp_path / "two").model.save(tmp_path / "two.model")
    assert (tmp_path / "one.model").read_bytes() == (tmp_path / "two.model").read_bytes()


@pytest.mark.parametrize("target", ["bought", "price"])
def test_learners_are_compared_on_rows_that_chose_nothing(tmp_path: Path, target: str) -> None:
    others = [name for name in ("bought", "kind", "price") if name != target]
    options = CompareOptions(
        fit=FitOptions(target=target, leave_out=others),
        time_s=30,
        learners=["linear", "ridge", "bayes", "neighbours"],
    )
    found = compare_table(DataTable.scan(frame(4000)), options, tmp_path / "work")
    # Rows are made by a linear law: no learner here is nearer to it.
    assert found.learners[0].name in {"linear", "ridge"}
    assert found.left_out.keys() == ({"ridge"} if target == "bought" else {"bayes"})
    assert [item.loss for item in found.learners] == sorted(item.loss for item in found.learners)
    assert all(item.rows == found.rows for item in found.learners)
    assert found.learners[0].points[-1][0] == found.rows
    assert found.rows + 2 * found.measured == pytest.approx(4000, abs=1)
    law = found.learners[0].law()
    assert law is not None
    assert law.predict({"samples": [8000.0]}).low[0] > 0
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("words", "told"), [({"time_s": 0}, "0 s"), ({"learners": ["tree"]}, "no learner 'tree'")]
)
def test_comparisons_that_cannot_be_are_refused(words, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        CompareOptions(fit=FitOptions(target="y"), **words)


def test_a_comparison_ends_in_time(tmp_path: Path) -> None:
    options = CompareOptions(
        fit=FitOptions(target="bought", leave_out=["kind", "price"]),
        time_s=1e-9,
        learners=["linear", "bayes"],
    )
    found = compare_table(DataTable.scan(frame(4000)), options, tmp_path / "work")
    # One fit is made in any case; for another no time is left.
    assert len(found.learners) == 1
    assert list(found.left_out.values()) == ["the time was over"]
