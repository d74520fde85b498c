"""Learners, clusters, components and detectors of tables beside scikit-learn's, in one run.

3 compares k-means: the sum of squared distances, and passes over the rows with those of the first
centers. 4 compares isolation forests on tables with odd rows planted in them; PyOD's is
scikit-learn's. 5 is the angle between streamed components and those of a decomposition in memory. 6
compares other learners on the same rows. 7 counts how often the intervals of `compare_table` hold
what 100,000 fresh rows say; few cases would say nothing, so that --quick leaves it out.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
from benchmarks import peers
from benchmarks.common import Check
from benchmarks.serve._json_process import JsonProcess, peer_environment
from numpy.typing import NDArray

from steelyard.data.anomalies import IsolationForest
from steelyard.data.features import PrincipalComponents, randomized_components
from steelyard.data.kmeans import kmeans
from steelyard.data.learning import (
    LEARNERS,
    CompareOptions,
    FitOptions,
    TableModel,
    auc,
    compare_table,
    fit_table,
)
from steelyard.data.sketch.hashing import hash_integers
from steelyard.data.table import CovarianceFold, DataTable
from steelyard.errors import BackendError

__all__ = ["learner_checks"]

_Rows = NDArray[np.float64]


def learner_checks(quick: bool) -> list[Check]:
    """Return the checks; those beside scikit-learn only where it is installed.

    Args:
        quick: take fewer rows, seeds and cases.

    Returns:
        Checks.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = _beside(folder, quick)
        found += _components(folder, quick)
        return found if quick else [*found, *_intervals(folder)]


def _beside(folder: Path, quick: bool) -> list[Check]:
    """Return the checks beside scikit-learn."""
    try:
        program = str(Path(__file__).with_name("_analytics_program.py"))
        hint = "python -m benchmarks peers install tabular"
        environment = peer_environment() | {"OMP_NUM_THREADS": "2"}
        peer = JsonProcess([str(peers.python("tabular")), program], {}, environment, hint)
    except BackendError as error:
        print(f"left out: {error}; {error.hint}")
        return []
    clusters = _kmeans(peer, folder, quick)
    return [*clusters, *_forests(peer, folder, quick), *_learners(peer, folder, quick)]


def _blobs(count: int, width: int, parts: int, seed: int) -> _Rows:
    """Return parts of several sizes and widths that overlap."""
    rng = np.random.default_rng(seed)
    middles = rng.normal(size=(parts, width)) * 2.5
    own = rng.choice(parts, count, p=rng.dirichlet(np.full(parts, 2.0)))
    return middles[own] + rng.normal(size=(count, width)) * rng.uniform(0.5, 1.5, parts)[own, None]


def _heavy(count: int, width: int, seed: int) -> _Rows:
    """Return rows without clusters, some far out."""
    rng = np.random.default_rng(seed)
    return rng.standard_t(4, size=(count, width)) @ rng.normal(size=(width, width)) / 2


def _kmeans(peer: JsonProcess, folder: Path, quick: bool) -> list[Check]:
    """Compare clusters around means."""
    count, seeds = (20_000, 2) if quick else (200_000, 5)
    cases = [
        ("parts", _blobs(count, 8, 60, 0), 60),
        ("fewer centers than parts", _blobs(count, 16, 100, 1), 40),
        ("heavy tails", _heavy(count, 6, 2), 64),
    ]
    inertias, passes, of_lloyd = [], [], []
    for name, rows, centers in cases:
        path = folder / "points.npz"
        np.savez(path, x=rows.astype(np.float32))
        told = peer.ask({"kmeans": str(path), "count": centers, "seeds": seeds})
        ours = [
            kmeans(
                rows.astype(np.float32),
                centers,
                seed=seed,
                start="parallel",
                sample=500 * centers if not quick else 100 * centers,
                tries=4,
                bounds=True,
                precision="float32",
                tolerance=1e-3,
            )
            for seed in range(seeds)
        ]
        inertias.append(np.mean([item.inertia for item in ours]) / np.mean(told["inertias"]))
        own = np.mean([item.passes for item in ours])
        lloyd = float(np.mean(told["iterations"]))
        # A pass for each first center, and one for the labels at the end.
        passes.append(own / (centers + lloyd + 1))
        of_lloyd.append(own / lloyd)
        print(
            f"k-means {name}: inertia {inertias[-1]:.4f} of scikit-learn's, {own:.1f} passes, "
            f"{centers + lloyd + 1:.0f} there ({lloyd:.0f} without first centers)"
        )
    print(f"passes over those of Lloyd's algorithm alone: {max(of_lloyd):.2f} at most")
    return [
        Check("3 k-means inertia over scikit-learn's", float(max(inertias)), 1.01, "lower"),
        Check("3 k-means passes over scikit-learn's", float(max(passes)), 1 / 3, "lower"),
    ]


def _planted(seed: int) -> dict[str, tuple[_Rows, NDArray[np.bool_]]]:
    """Return generated tables with odd rows."""
    rng = np.random.default_rng(seed)
    count, few = 2000, 40
    is_odd = np.arange(count) < few
    parts = _blobs(count, 6, 5, seed)
    parts[is_odd] = rng.uniform(-8, 8, (few, 6))
    base = rng.normal(size=(count, 3))
    tied = np.column_stack([base, base @ rng.normal(size=(3, 3)) + rng.normal(size=(count, 3)) / 4])
    tied[is_odd, 3:] = tied[rng.permutation(count)[:few], 3:] * 1.5
    tails = rng.standard_t(5, size=(count, 8))
    tails[is_odd] *= 2.5
    return {
        "uniform among parts": (parts, is_odd),
        "relation broken": (tied, is_odd),
        "wider tails": (tails, is_odd),
    }


def _forests(peer: JsonProcess, folder: Path, quick: bool) -> list[Check]:
    """Compare isolation forests."""
    peer.ask({"sets": str(folder / "sets.npz")})
    loaded = dict(np.load(folder / "sets.npz"))
    names = {key.removesuffix("/x") for key in loaded if key.endswith("/x")}
    given = {name: (loaded[f"{name}/x"], loaded[f"{name}/odd"]) for name in names} | _planted(5)
    apart = []
    for name, (rows, odd) in sorted(given.items()):
        # Chance is to part two means by about .003: forests of some hundred rows vary several times
        # as much as those of thousands.
        seeds = 8 if quick else 60 if len(rows) > 200 else 400
        np.savez(folder / "one.npz", **{f"{name}/x": rows, f"{name}/odd": odd})
        area = float(peer.ask({"forest": str(folder / "one.npz"), "seeds": seeds})[name])
        # Other seeds than those of the peer: both are means over as many forests.
        ours = [
            auc(odd.astype(float), IsolationForest.fit(rows, seed=100 + seed).score(rows))
            for seed in range(seeds)
        ]
        apart.append(abs(float(np.mean(ours)) - area))
        print(f"isolation forest {name}: ROC-AUC {np.mean(ours):.4f}, scikit-learn {area:.4f}")
    return [
        Check("4 isolation forest ROC-AUC off scikit-learn's", max(apart), 0.01, "lower"),
        Check("4 sets with planted rows", len(apart), 6, "higher"),
    ]


def _learners(peer: JsonProcess, folder: Path, quick: bool) -> list[Check]:
    """Compare learners on the same rows."""
    rows = 10_000 if quick else 100_000
    rng = np.random.default_rng(7)
    x = rng.normal(size=(rows, 12))
    logit = x[:, 0] + x[:, 1] * x[:, 2] + np.sin(3 * x[:, 3]) + (x[:, 4] > 0) / 2
    y = rng.random(rows) < 1 / (1 + np.exp(-logit))
    x[rng.random(x.shape) < 0.05] = np.nan
    columns = {f"x{at}": x[:, at] for at in range(12)}
    frame = pl.DataFrame(columns | {"y": y.astype(np.int8)}, nan_to_null=True)
    drawn = hash_integers(np.arange(rows)) ^ hash_integers(np.array([0], np.int64))
    held = hash_integers(drawn.view(np.int64)) < np.uint64(int(0.2 * (2.0**64 - 2**12)))
    np.savez(folder / "rows.npz", x=x, y=y, held=held)
    found = []
    for name in ("forest", "linear", "bayes", "neighbours"):
        options = FitOptions(target="y", learner=LEARNERS[name]())
        ours = fit_table(DataTable.scan(frame), options, folder / "work").scores[0].value
        told = peer.ask({"learner": name, "rows": str(folder / "rows.npz")})
        print(f"{name}: AUC {ours:.4f}, scikit-learn {told['auc']:.4f}")
        if name in {"forest", "linear"}:
            below = float(told["auc"]) - ours
            found.append(Check(f"6 {name} AUC below scikit-learn's", below, 0.003, "lower"))
    return found


def _angle(one: _Rows, other: _Rows) -> float:
    """Return the largest angle between two subspaces."""
    left = other - (other @ one.T) @ one
    # The sine tells small angles, of which the cosine is 1.
    return float(np.arcsin(min(np.linalg.svd(left)[1].max(), 1.0)))


def _components(folder: Path, quick: bool) -> list[Check]:
    """Compare streamed components with those of a decomposition in memory."""
    rows, width = (20_000, 60) if quick else (200_000, 120)
    rng = np.random.default_rng(8)
    turn = np.linalg.qr(rng.normal(size=(width, width)))[0]
    # Means far from 0: sums of squares would lose the variance to rounding.
    x = rng.normal(size=(rows, width)) * (1.0 / np.arange(1, width + 1)) @ turn + 1e4
    path = folder / "wide.parquet"
    pl.DataFrame({f"c{at}": x[:, at] for at in range(width)}).write_parquet(
        path, row_group_size=rows // 8
    )
    fold = CovarianceFold()
    streamed = PrincipalComponents.of(DataTable.scan(str(path)).fold(fold).results[fold.name], 16)
    _, _, exact = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)
    angle = _angle(exact[:16], streamed.directions)
    few = x[: rows // 10]
    _, _, exact = np.linalg.svd(few - few.mean(axis=0), full_matrices=False)
    drawn = randomized_components(lambda: np.array_split(few, 7), width, 4, power=2)
    wide = _angle(exact[:4], drawn.directions)
    print(f"components: angle {angle:.1e} from covariances, {wide:.1e} by random directions")
    return [Check("5 streamed PCA subspace angle", angle, 1e-3, "lower")]


def _case(number: int) -> tuple[Callable[[int, int], pl.DataFrame], str]:
    """Return what draws rows of a table, and its target."""
    law = np.random.default_rng([9, number])
    weights, widths = law.normal(size=6), law.uniform(0.5, 2, 6)
    noise, is_number, curved = law.uniform(0.3, 3), number % 2 == 0, law.normal(size=6) / 2

    def rows(count: int, seed: int) -> pl.DataFrame:
        rng = np.random.default_rng([seed, number])
        x = rng.normal(size=(count, 6)) * widths
        middle = x @ weights + (np.abs(x) @ curved)
        columns = {f"x{at}": x[:, at] for at in range(6)}
        if is_number:
            # Errors are uneven, and some are large.
            spread = noise * (1 + np.abs(x[:, 0])) * rng.standard_t(5, count)
            return pl.DataFrame(columns | {"y": middle + spread})
        y = rng.random(count) < 1 / (1 + np.exp(-middle / noise))
        return pl.DataFrame(columns | {"y": np.where(y, "yes", "no")})

    return rows, "RMSE" if is_number else "AUC"


def _intervals(folder: Path) -> list[Check]:
    """Count how often intervals hold what fresh rows say."""
    cases, fresh = 60, 100_000
    holds, widths, errors = [], [], []
    for number in range(cases):
        draw, measure = _case(number)
        options = CompareOptions(
            fit=FitOptions(target="y", seed=number),
            time_s=2.0,
            learners=["linear", "bayes", "ridge", "boosted"],
        )
        best = compare_table(DataTable.scan(draw(5000, 1)), options, folder / "race").learners[0]
        said = next(item for item in best.scores if item.name == measure)
        truth = _measured(best.model, draw(fresh, 2), measure)
        holds.append(said.low <= truth <= said.high)
        widths.append((said.high - said.low) / 2)
        errors.append(abs(said.value - truth))
    share = float(np.mean(holds))
    # Widths over errors of the same case and measure: both have its unit.
    kinds = [np.arange(cases) % 2 == kind for kind in (0, 1)]
    wide = max(
        float(np.median(np.array(widths)[own]) / np.median(np.array(errors)[own])) for own in kinds
    )
    print(
        f"intervals of {cases} comparisons: {share:.3f} hold; half-width {wide:.2f} median errors"
    )
    return [
        Check("7 intervals that hold", share, 0.7, "higher"),
        Check("7 intervals that hold too often", share, 0.9, "lower"),
        Check("7 half-width over median error", wide, 2.5, "lower"),
    ]


def _measured(model: TableModel, frame: pl.DataFrame, measure: str) -> float:
    """Return a measure of fresh rows."""
    table = DataTable.scan(frame)
    batches = list(model.predict(table))
    if measure == "RMSE":
        said = np.concatenate([batch.column(0).to_numpy() for batch in batches])
        return float(np.sqrt(((said - frame["y"].to_numpy()) ** 2).mean()))
    shares = np.concatenate([batch.column(1).to_numpy() for batch in batches])
    return auc((frame["y"] == "yes").to_numpy().astype(float), shares)
