"""Laws of the updates-to-data ratio: published fits given back, planted truth, speed.

Published numbers are those of Rybkin et al. 2025 (shared data set rl-utd-scaling). The rival is the
procedure the paper describes: a brute grid over alpha, beta and Dmin, then L-BFGS-B with numeric
derivatives from its best 500 points (the grid has 125), one threshold after another; with `quick`
for three of ten thresholds, its time scaled up. Both sides run on one thread and are timed in
processor seconds. Learning curves are drawn from a known law; no agent is trained here.
"""

import csv
import multiprocessing
import os
import statistics
import time
import warnings
from unittest import mock

import numpy as np
import scipy.optimize
from benchmarks.common import Check
from benchmarks.laws._planted_returns import PlantedReturns
from benchmarks.laws._shared import shared

from steelyard.errors import SteelyardWarning
from steelyard.laws.decisions.updates_budget import budget_law
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.updates.return_curves import DataNeeds, data_needs, return_thresholds
from steelyard.laws.forms.updates.updates_fit import fit_updates
from steelyard.laws.forms.updates.updates_to_data import (
    UpdatesLaw,
    fit_hyperparameters,
    hyperparameter_law,
    updates_to_data,
)

PAPER = ["45-value-rl-scaling"]

_UTDS = np.array([0.25, 0.5, 1, 2, 4, 8, 16])
_SUITES = {"dmc": (4.92e6, 1e10, 7.25e4, 1.005e5), "gym": (1.5e5, 4e9, 2.11e5, 2.40e5)}
"""Critic parameters, FLOP per environment step, median need of the fitted and of the constant
recipe in steps."""
_EXPONENTS = {"dmc": -0.74, "gym": 0.62}
_BEST = {"dmc": (2.29, 1.03), "gym": (3.1, 6.3)}
_SHARES = {"dmc": 0.84, "gym": 0.66}


def run(quick: bool) -> list[Check]:
    """Check published numbers, planted truth and speed (in a fresh process with one thread)."""
    one_thread = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    with (
        mock.patch.dict(os.environ, one_thread),
        multiprocessing.get_context("spawn").Pool(1) as pool,
    ):
        ours_s, peer_s, excess = pool.apply(_speed, (quick,))
    note = " (scaled up)" if quick else ""
    print(
        f"10 fits: ours {ours_s:.3f} s (median), brute grid and L-BFGS-B {peer_s:.2f} s{note}, "
        f"one thread each"
    )
    checks = [*_published("dmc"), *_published("gym")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SteelyardWarning)
        checks += _planted(20 if quick else 100)
    return [
        *checks,
        Check("peer's time over ours, 10 fits", peer_s / ours_s, 20.0, "higher"),
        Check("squared error of ours over the peer's best, largest of 10", excess, 1.05, "lower"),
    ]


def _rows(name: str, **wanted: str) -> list[dict[str, str]]:
    """Read the rows of a published table that match."""
    with (shared("rl-utd-scaling") / name).open() as stream:
        return [
            row
            for row in csv.DictReader(stream)
            if all(row[key] == value for key, value in wanted.items())
        ]


def _setting(suite: str, name: str) -> Fit:
    """Return a published hyper-parameter law, one slope for all tasks."""
    rows = _rows("hparam_fits.csv", suite=suite, slope_type="shared", hparam=name)
    law = hyperparameter_law([row["env"] for row in rows])
    values = {f"coefficient[{row['env']}]": 10 ** float(row["intercept_log10"]) for row in rows}
    theta = law.coordinates({**values, "slope": -float(rows[0]["slope_log10"])})
    return Fit(law=law, theta=theta, samples=np.zeros((0, len(theta))), provenance="published")


def _law(suite: str, method: str) -> UpdatesLaw:
    """Return the published laws of a suite and recipe."""
    critic, _, unit, constant_unit = _SUITES[suite]
    law = updates_to_data(unit if method == "ours" else constant_unit)
    rows = _rows("data_pareto_fits.csv", suite=suite, method=method)
    fits = []
    for row in rows:
        size = unit if method == "ours" else constant_unit
        theta = law.coordinates(
            {
                "Dmin": size * float(row["d_min_normalised"]),
                "beta": float(row["beta"]),
                "alpha": float(row["alpha"]),
            }
        )
        fits.append(Fit(law=law, theta=theta, samples=np.zeros((0, 3)), provenance="published"))
    return UpdatesLaw(
        utds=_UTDS,
        thresholds=np.array([float(row["threshold_J"]) for row in rows]),
        fits=tuple(fits),
        batch_size=_setting(suite, "batch_size"),
        learning_rate=_setting(suite, "learning_rate"),
        critic_parameters=critic,
    )


def _given_back(suite: str) -> float:
    """Fit the published laws' own points; return the largest relative error of a parameter."""
    worst = 0.0
    for method in ("ours", "baseline_utd2"):
        law = _law(suite, method)
        steps = np.stack([law.steps(threshold, _UTDS)[0] for threshold in law.thresholds], axis=1)
        unit = _SUITES[suite][2 if method == "ours" else 3]
        needs = DataNeeds(
            utds=_UTDS,
            thresholds=law.thresholds,
            steps=steps,
            samples=np.zeros((0, *steps.shape)),
            unit=unit,
        )
        found = fit_updates(
            needs,
            batch_size=law.batch_size,
            learning_rate=law.learning_rate,
            critic_parameters=law.critic_parameters,
        )
        for one, truth in zip(found.fits, law.fits, strict=True):
            worst = max(
                worst, *(abs(one.params[name] / value - 1) for name, value in truth.params.items())
            )
    return worst


def _published(suite: str) -> list[Check]:
    """Check what the published fits of one suite say."""
    delta = _SUITES[suite][1]
    law = _law(suite, "ours")
    line = budget_law(law, delta)
    misses = [abs(line.utds[index] / _BEST[suite][index] - 1) for index in (0, -1)]
    spent = []
    for threshold, budget in zip(line.thresholds[-2:], line.budgets[-2:], strict=True):
        said = np.array([line.utd(float(budget))])
        spent.append(
            float(law.steps(threshold, said)[0, 0] * (law.flops_per_step(said)[0] + delta) / budget)
        )
    share = (
        law.data_needed(800.0, 16.0).value
        / _law(suite, "baseline_utd2").data_needed(800.0, 16.0).value
    )
    wrong = 0
    for row in _rows("proposed_hparams.csv", suite=suite, recipe="shared_fitted"):
        chosen = law.hyperparameters(float(row["utd"]), row["env"])
        wrong += (
            chosen.batch_size != int(row["batch_size"])
            or abs(chosen.learning_rate / float(row["learning_rate"]) - 1) > 0.005
        )
    print(
        f"{suite}: exponent {line.exponent.value:.3f}, best UTD {line.utds[0]:.2f} -> "
        f"{line.utds[-1]:.2f}, "
        f"data of the fitted over the constant recipe at UTD 16 {share:.2f}"
    )
    return [
        Check(
            f"1 {suite} published points given back, largest relative error of a parameter",
            _given_back(suite),
            0.02,
            "lower",
        ),
        Check(
            f"1 {suite} exponent of the budget law, error",
            abs(line.exponent.value - _EXPONENTS[suite]),
            0.02,
            "lower",
        ),
        Check(
            f"1 {suite} best UTD at the lowest and highest threshold, relative error",
            float(max(misses)),
            0.02,
            "lower",
        ),
        Check(
            f"1 {suite} proposed batch sizes and learning rates that differ",
            float(wrong),
            0.0,
            "lower",
        ),
        Check(
            f"3 {suite} published data share at return 800 and UTD 16, error",
            abs(share - _SHARES[suite]),
            0.01,
            "lower",
        ),
        Check(
            f"4 {suite} budget at the extrapolated UTD over the least, top two returns",
            max(spent),
            1.10,
            "lower",
        ),
    ]


def _placeholder() -> Fit:
    """Return a batch-size law for fits that only need their data part."""
    return fit_hyperparameters(
        _UTDS, ["any"] * len(_UTDS), 400 * _UTDS**-0.4, bootstrap=Bootstrap(count=0)
    )


def _planted(repeats: int) -> list[Check]:
    """Draw curves of 8 seeds; count intervals that hold the exponent, and forecast UTD 8 and 16."""
    truth = PlantedReturns()
    settings = _placeholder()
    thresholds = return_thresholds(200, count=10)
    options = {"batch_size": settings, "learning_rate": settings, "critic_parameters": 1e5}
    covered = np.zeros(len(thresholds))
    errors = []
    for seed in range(repeats):
        generator = np.random.default_rng(seed)
        needs = data_needs(
            truth.curves(_UTDS, generator), thresholds, bootstraps=100, generator=generator
        )
        for index, one in enumerate(fit_updates(needs, **options).fits):
            low, high = one.interval("alpha", 0.9)
            covered[index] += low <= truth.alpha <= high
        low_utds = DataNeeds(
            utds=_UTDS[:5],
            thresholds=thresholds,
            steps=needs.steps[:5],
            samples=needs.samples[:0, :5],
            unit=needs.unit,
        )
        early = fit_updates(low_utds, **options)
        said = np.stack([early.steps(threshold, _UTDS[5:])[0] for threshold in thresholds], axis=1)
        errors.append(float(np.median(np.abs(said / needs.steps[5:] - 1))))
    share = covered / repeats
    print(
        f"planted: 90 % intervals of alpha hold the truth in {share.mean():.0%} of repeats and "
        f"thresholds, {share.min():.0%} at the worst"
    )
    return [
        Check(
            "2 planted, error at UTD 8 and 16 fitted up to 4, median of repeats",
            statistics.median(errors),
            0.25,
            "lower",
        ),
        Check("5 coverage of alpha at return 800", float(share[-1]), 0.85, "higher"),
        Check("5 coverage of alpha, mean over thresholds", float(share.mean()), 0.85, "higher"),
    ]


def _speed(quick: bool) -> tuple[float, float, float]:
    """Return the seconds of ten fits on both sides, and the largest ratio of squared errors."""
    # This process is thrown away after its measurement, so the filter needs no end.
    warnings.simplefilter("ignore", SteelyardWarning)
    generator = np.random.default_rng(0)
    law = _law("dmc", "ours")
    steps = (
        np.stack([law.steps(threshold, _UTDS)[0] for threshold in law.thresholds], axis=1)
        / _SUITES["dmc"][2]
    )
    steps *= np.exp(0.03 * generator.standard_normal(steps.shape))
    needs = DataNeeds(
        utds=_UTDS, thresholds=law.thresholds, steps=steps, samples=np.zeros((0, *steps.shape))
    )
    options = {
        "batch_size": law.batch_size,
        "learning_rate": law.learning_rate,
        "critic_parameters": 1.0,
    }
    found = fit_updates(needs, loss="linear", **options)

    def rounds() -> list[float]:
        samples = []
        for _ in range(3 if quick else 7):
            start = time.process_time()
            fit_updates(needs, loss="linear", **options)
            samples.append(time.process_time() - start)
        return samples

    before = rounds()
    peer_s = []
    excess = 0.0
    share = found.fits[::4] if quick else found.fits
    for one in share:
        start = time.process_time()
        theirs = _brute_then_descend(_UTDS, one.target)
        peer_s.append(time.process_time() - start)
        ours = float(
            ((np.exp(one.law.predict(one.theta[None], {"utd": _UTDS})[0]) - one.target) ** 2).mean()
        )
        excess = max(excess, ours / theirs)
    return statistics.median(before + rounds()), len(found.fits) * statistics.mean(peer_s), excess


def _brute_then_descend(utds: Array, data: Array, best: int = 500) -> float:
    """Return the least mean squared error of one threshold, fitted as the paper describes."""

    def error(params: Array) -> float:
        alpha, beta, floor = params
        return float(((floor + (utds / (beta + 1e-12)) ** -alpha - data) ** 2).mean())

    grid = [
        (alpha, beta, floor)
        for alpha in np.arange(-2, 2, 0.8)
        for beta in np.arange(0, 1, 0.2)
        for floor in np.arange(-2, 2, 0.8)
    ]
    with np.errstate(all="ignore"):
        ranked = sorted(grid, key=lambda point: error(np.array(point)))[:best]
        return min(
            float(scipy.optimize.minimize(error, point, method="L-BFGS-B").fun) for point in ranked
        )
