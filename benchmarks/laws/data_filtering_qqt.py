"""Pools of data: single pools forecast mixtures, the best choice and where it changes.

The law is that of Goyal, Maini et al. 2024 (arXiv 2404.07177). No errors per bucket were published,
so the truth is generated: once by the law itself with noise, once by training runs in miniature
(averaged stochastic gradient descent on linear data), for which the law is only an approximation
and can fail. Those are judged twice, with the irreducible error known, as the paper's programs set
it, and with it fitted.
"""

import math
import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np
from benchmarks.common import Check
from benchmarks.laws._floor_inside import error_with_floor_inside
from benchmarks.laws._own_pools import own_pools
from benchmarks.laws._pool_clip import clip_checks
from benchmarks.laws._pool_grid import (
    FLOOR,
    PASSES,
    SIDE,
    SIZE,
    START,
    error_bare,
    error_by_arrays,
    grid_search,
)
from benchmarks.laws._pool_runs import FLOOR as TRAINED_FLOOR
from benchmarks.laws._pool_runs import Pool, draw_pools, train
from benchmarks.laws._pool_truths import (
    BUDGETS,
    HALF_LIFE,
    NAMES,
    UTILITY,
    Truth,
    by_passes,
    first_pools,
    law_truths,
    mixture_errors,
    numbers,
    points_of,
    trained_truth,
)
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from steelyard import laws
from steelyard.errors import SteelyardWarning
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.pools.pool_fit import PoolFit
from steelyard.laws.forms.pools.pool_utility import log_mixture_excess

Rows = NDArray[np.int64]
PAPER = ["43-data-filtering-qqt"]


def run(quick: bool) -> list[Check]:
    """Check the mathematics, both generators, CLIP's pool sizes, and the time against a grid."""
    with warnings.catch_warnings():
        # Points are few on purpose, and curves of noisy pools rise at their end.
        warnings.simplefilter("ignore", SteelyardWarning)
        trained = [trained_truth(2 if quick else 6)]
        return [
            *_exactness(),
            *_published_choice(),
            *_judge("law", law_truths(6 if quick else 30)),
            *_judge(
                "training runs, floor known", trained, laws.data.pool_utility().fix(d=TRAINED_FLOOR)
            ),
            *_judge("training runs, floor fitted", trained),
            *_monotone(2 if quick else 8),
            *_coverage(10 if quick else 40),
            *_speed(quick),
            *clip_checks(),
            *own_pools(quick),
        ]


def _exactness() -> list[Check]:
    """Compare with the power law, the differential equation and the published aggregate."""
    endless = numbers() | {"b": np.full((1, 4), -0.2), "tau": np.full((1, 4), np.inf)}
    shares = np.array([[0.4, 0.1, 0.3, 0.2]])
    sizes = np.array([[3e6, 1e7, 2e6, 5e6]])
    power = (
        np.exp(log_mixture_excess(endless, shares, sizes, np.array([7e8])))[0, 0]
        / (7e8 / START) ** -0.2
        - 1
    )
    ours = float(np.exp(log_mixture_excess(numbers(), shares, sizes, np.array([1.5e8])))[0, 0])
    solved = _solve(shares[0], sizes[0], 1.5e8)
    aggregate = max(
        abs(mixture_errors(first_pools(p), np.array([n]))[0] / by_passes(p, n) - 1)
        for p in (2, 3, 4)
        for n in BUDGETS
    )
    return [
        Check(
            "1 endless half-lives against the power law, relative",
            float(abs(power)),
            1e-12,
            "lower",
        ),
        Check(
            "1 closed form against the differential equation, relative",
            abs(ours / solved - 1),
            1e-6,
            "lower",
        ),
        Check("1 published aggregate of 2 to 4 pools, relative", float(aggregate), 1e-12, "lower"),
    ]


def _solve(shares: Array, sizes: Array, samples: float) -> float:
    """Integrate dy = y b dn / n numerically between all pass boundaries."""
    bounds = sorted(
        k * m / r
        for m, r in zip(sizes, shares, strict=True)
        for k in range(1, math.ceil(samples * r / m))
    )
    y = 1.0
    begin = START
    for end in [*bounds, samples]:
        passed = np.floor(0.5 * (begin + end) * shares / sizes)
        utility = float((shares * UTILITY * 0.5 ** (passed * shares / HALF_LIFE)).sum())
        y = float(
            solve_ivp(
                _growth(utility), (math.log(begin), math.log(end)), [y], rtol=1e-10, atol=1e-14
            ).y[0, -1]
        )
        begin = end
    return y


def _growth(utility: float) -> Callable[[float, Array], Array]:
    return lambda _, y: utility * y


def _published_choice() -> list[Check]:
    """Choose among the first 1 to 4 buckets with the published constants, as the programs do."""
    budgets = np.array([32e6, 64e6, 128e6, 640e6])
    ours = np.stack([mixture_errors(first_pools(p), budgets) for p in (1, 2, 3, 4)]).argmin(axis=0)
    theirs = np.array(
        [[by_passes(p, n, inside=True) for n in budgets] for p in (1, 2, 3, 4)]
    ).argmin(axis=0)
    rows = [np.tile(first_pools(p), (4, 1)) for p in (1, 2, 3, 4)]
    variant = np.stack(
        [error_with_floor_inside(numbers(), row, np.full((4, 4), SIZE), budgets)[0] for row in rows]
    )
    print(
        f"published constants at 32, 64, 128, 640 million samples: best number of buckets "
        f"{ours + 1}, by its programs {theirs + 1}"
    )
    far = max(
        abs(variant[p, i] / by_passes(p + 1, n, inside=True) - 1)
        for p in range(4)
        for i, n in enumerate(budgets)
    )
    return [
        Check(
            "1 budgets of 4 with the choice of the published programs",
            float((ours == theirs).sum()),
            4,
            "higher",
        ),
        Check("1 formula of the published programs, relative error", float(far), 1e-12, "lower"),
    ]


def _judge(name: str, truths: list[Truth], law: laws.Law | None = None) -> list[Check]:
    """Forecast mixtures that were not fitted; compare errors, ranks, choices and crossings."""
    found = [_forecast(truth, law) for truth in truths]
    mean = {key: float(np.mean([item[key] for item in found])) for key in found[0]}
    crossing = statistics.median(item["crossing"] for item in found)
    print(
        f"{name}, {len(truths)} tables: { ({key: round(value, 4) for key, value in mean.items()}) }"
    )
    usual = min(mean[f"regret of {label}"] for label in ("top pool", "all", "one law"))
    return [
        Check(f"2 {name}: relative error of forecast mixtures, mean", mean["error"], 0.05, "lower"),
        Check(
            f"2 {name}: rank correlation of choices, mean over budgets",
            mean["ranks"],
            0.8,
            "higher",
        ),
        Check(
            f"2 {name}: budgets with a choice within 1 % of the best, fraction",
            mean["near"],
            0.8,
            "higher",
        ),
        Check(
            f"3 {name}: forecast crossing of best pool and all, factor of error, median",
            crossing,
            1.5,
            "lower",
        ),
        Check(
            f"3 {name}: regret over that of the best baseline",
            mean["regret of ours"] / usual,
            1.0,
            "lower",
        ),
    ]


def _forecast(truth: Truth, law: laws.Law | None) -> dict[str, float]:
    """Fit the single pools and judge what is forecast for the first 1 to 4."""
    # The baseline knows the floor when the law does.
    known = {"d": law.fixed["d"]} if law else {}
    fit = laws.data.fit_pools(truth.points, truth.error, law=law, bootstrap=laws.Bootstrap(count=0))
    said = np.stack([fit.predict(NAMES[:p], truth.budgets).value for p in (1, 2, 3, 4)])
    baseline = laws.data.fit_pools(
        truth.points,
        truth.error,
        law=laws.data.effective_pool().fix(**known),
        bootstrap=laws.Bootstrap(count=0),
    )
    other = np.stack([baseline.predict(NAMES[:p], truth.budgets).value for p in (1, 2, 3, 4)])
    ranks = [_rank_correlation(said[:, i], truth.mixtures[:, i]) for i in range(len(truth.budgets))]
    columns = np.arange(len(truth.budgets))
    best = truth.mixtures.min(axis=0)
    picks = said.argmin(axis=0)
    return {
        "error": float(np.abs(said / truth.mixtures - 1)[1:].mean()),
        "error of the effective-data baseline": float(
            np.abs(other / truth.mixtures - 1)[1:].mean()
        ),
        "ranks": float(np.mean(ranks)),
        "near": float(np.mean(truth.mixtures[picks, columns] <= 1.01 * best)),
        "crossing": _crossing_off(fit, truth),
        "crossing of the effective-data baseline": _crossing_off(baseline, truth),
    } | {
        f"regret of {label}": float((truth.mixtures[rows, columns] - best).sum())
        for label, rows in _rivals(truth, other, picks).items()
    }


def _rank_correlation(first: Array, second: Array) -> float:
    return float(np.corrcoef(first.argsort().argsort(), second.argsort().argsort())[0, 1])


def _rivals(truth: Truth, other: Array, picks: Rows) -> dict[str, Rows]:
    """Return the choices of the baselines."""
    single = laws.fit(
        laws.data.effective_pool(), truth.points, truth.error, bootstrap=laws.Bootstrap(count=0)
    )
    one = np.stack([_one_law(single, truth, p) for p in (1, 2, 3, 4)]).argmin(axis=0)
    none = np.zeros(len(truth.budgets), dtype=np.int64)
    return {
        "ours": picks,
        "top pool": none,
        "all": none + 3,
        "one law": one,
        "effective data per pool": other.argmin(axis=0),
    }


def _one_law(single: laws.Fit, truth: Truth, count: int) -> Array:
    """Predict with a law that knows repetition but no quality."""
    size = count * truth.points["pool_size"][0]
    return single.predict(
        {"samples": truth.budgets, "pool_size": np.full(len(truth.budgets), size)}, extrapolate=True
    ).value


def _crossing_off(fit: PoolFit, truth: Truth) -> float:
    """Return the factor of error of the budget at which all pools overtake the best one."""
    ahead = truth.mixtures[3] - truth.mixtures[0]
    at = int(np.flatnonzero((ahead[:-1] > 0) & (ahead[1:] <= 0))[0])
    logs = np.log(truth.budgets)
    measured = logs[at] + ahead[at] / (ahead[at] - ahead[at + 1]) * (logs[at + 1] - logs[at])
    grid = np.geomspace(truth.points["pool_size"][0], 100 * truth.budgets[-1], 400)
    crossings = laws.data.pool_frontier(fit, grid, candidates=[NAMES[:1], NAMES]).crossings
    if not crossings:
        return float("inf")
    return math.exp(abs(math.log(crossings[0].samples.value) - float(measured)))


def _monotone(seeds: int) -> list[Check]:
    """Train on pools with ever more copies, noisier labels, and thinner cover of test inputs."""
    kinds = {
        "copies": [Pool(copies=share) for share in (0.0, 0.3, 0.5, 0.7)],
        "noise": [Pool(noise=sd) for sd in (0.2, 0.3, 0.4, 0.5)],
        "coverage": [Pool(decay=decay) for decay in (1.1, 1.2, 1.3, 1.4)],
    }
    found = {name: _levels(pools, seeds).numbers() for name, pools in kinds.items()}
    for name, values in found.items():
        print(
            f"four levels of {name}: half-life {values['tau'][0].round(2)}, utility "
            f"{values['b'][0].round(3)}"
        )
    shorter = float((np.diff(found["copies"]["tau"][0]) < 0).sum())
    weaker = {
        name: float((np.diff(found[name]["b"][0]) > 0).sum()) for name in ("noise", "coverage")
    }
    return [
        Check("4 steps of 3 in which more copies shorten the half-life", shorter, 3, "higher"),
        Check("4 steps of 3 in which more noise weakens the utility", weaker["noise"], 3, "higher"),
        Check(
            "4 steps of 3 in which thinner cover weakens the utility",
            weaker["coverage"],
            3,
            "higher",
        ),
    ]


def _levels(kinds: list[Pool], seeds: int) -> PoolFit:
    size = 1500
    curves = []
    for seed in range(seeds):
        pools = draw_pools(kinds, size, 200 + seed)
        curves.append([train([pool], PASSES * size, seed) for pool in pools])
    law = laws.data.pool_utility().fix(d=TRAINED_FLOOR)
    return laws.data.fit_pools(
        points_of(size, len(kinds)),
        np.mean(curves, axis=0).ravel(),
        law=law,
        bootstrap=laws.Bootstrap(count=0),
    )


def _coverage(rounds: int) -> list[Check]:
    """Count how often profile intervals hold the truth on curves of the law with 0.3 % noise."""
    clean = np.stack([mixture_errors(row, PASSES * SIZE) for row in np.eye(4)]).ravel()
    generator = np.random.default_rng(1)
    held = 0
    total = 0
    names = {
        "d": FLOOR,
        f"b[{NAMES[0]}]": UTILITY[0],
        f"tau[{NAMES[0]}]": HALF_LIFE[0],
        f"tau[{NAMES[3]}]": HALF_LIFE[3],
    }
    for _ in range(rounds):
        fit = laws.data.fit_pools(
            points_of(SIZE, 4),
            clean * np.exp(0.003 * generator.standard_normal(20)),
            bootstrap=laws.Bootstrap(count=0),
            delta=math.inf,
        ).fit
        for name, value in names.items():
            profile = fit.profile(name, 0.9)
            held += profile.low <= value <= profile.high
            total += 1
    return [
        Check(
            "5 coverage of 90 % profile intervals of d, b and tau",
            float(held / total),
            0.85,
            "higher",
        )
    ]


def _speed(quick: bool) -> list[Check]:
    """Time a fit with every parameter free against a grid over b and tau of each pool.

    The grid is given the truth of all other parameters. It is written twice: with small arrays per
    checkpoint, as in the paper's programs, and in bare Python.
    """
    truth = law_truths(1)[0]
    laws.data.fit_pools(truth.points, truth.error, bootstrap=laws.Bootstrap(count=0))
    times = []
    for _ in range(7):
        begin = time.process_time()
        fit = laws.data.fit_pools(truth.points, truth.error, bootstrap=laws.Bootstrap(count=0))
        times.append(time.process_time() - begin)
    ours = statistics.median(times)
    curves = np.split(truth.error, 4)
    arrays_s, best = grid_search(curves, error_by_arrays, 100 if quick else 4)
    bare_s, _ = grid_search(curves, error_bare, 50 if quick else 2)
    print(
        f"ours {ours:.3f} s CPU; grid of {SIDE**2} points per pool by small arrays {arrays_s:.0f} "
        f"s, in bare Python {bare_s:.1f} s"
    )
    return [
        Check(
            "6 grid search as the paper's programs over ours, CPU time",
            arrays_s / ours,
            100,
            "higher",
        ),
        Check("6 grid search in bare Python over ours, CPU time", bare_s / ours, 100, "higher"),
        Check("6 our objective over the grid's best", fit.fit.objective / best, 1.0, "lower"),
    ]
