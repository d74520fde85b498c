"""Learning curves: generated ones of known truth, and extrapolation of published ones.

The regions are those of Hestness et al. 2017 (arXiv 1712.00409). Generated shards: seven over two
and a half decades with 5 % noise per run, the smallest near the known best guess. One run per shard
leaves beta less certain than its bar (the Cramer-Rao bound is printed), so five runs per shard are
checked as well.
"""

import csv
import warnings

import numpy as np
from benchmarks.common import Check
from benchmarks.laws._own_repeats import own_learning_curves
from benchmarks.laws._shared import shared

from steelyard import laws
from steelyard.errors import FitError, SteelyardWarning
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.learning_curves.curve_laws import smooth_transition
from steelyard.laws.forms.learning_curves.learning_curve import fit_learning_curve
from steelyard.laws.forms.rectified import fit_rectified

PAPER = ["22-hestness-predictable"]

_SHARDS = 7
_DECADES = 2.5
_NOISE = 0.05
_BETA = 0.5
_PLATEAU = 1.0
_MANY = 10**7
_TARGET = 1_638_400
_SHARE = 8


def run(quick: bool) -> list[Check]:
    """Check the generated curves with one and five runs per shard, then the published ones."""
    repeats = 20 if quick else 200
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SteelyardWarning)
        generated = [*_generated(1, repeats), *_generated(5, repeats)]
        return [*generated, *_extrapolation(quick), *own_learning_curves(quick)]


def _truth() -> tuple[Array, Array, dict[str, float]]:
    """Return the shards, their errors without noise, and the parameters."""
    # Floor and power are equal at the largest shard, so that each is visible and neither easy.
    samples = 1000.0 * np.logspace(0, _DECADES, _SHARDS)
    leaves = float(np.sqrt(samples[0] * samples[1]))
    falling = (samples / leaves) ** -_BETA
    share = float(falling[-1])
    scale = _PLATEAU / (1 + share)
    truth = {
        "alpha": scale * leaves**_BETA,
        "beta": _BETA,
        "gamma": scale * share,
        "power_from": leaves,
        "floor_from": float(samples[-1]),
    }
    return samples, np.minimum(scale * (falling + share), _PLATEAU), truth


def _generated(runs: int, repeats: int) -> list[Check]:
    """Fit repeated draws; compare parameters, profile intervals and breakpoints with the truth."""
    samples, clean, truth = _truth()
    generator = np.random.default_rng(runs)
    shard = _DECADES / (_SHARDS - 1)
    beta = []
    floor = []
    inside = []
    places = []
    for _ in range(repeats):
        error = clean * np.exp(_NOISE * generator.standard_normal((runs, _SHARDS)).mean(axis=0))
        found = fit_learning_curve(
            samples, error, best_guess=_PLATEAU, num_validation=_MANY, bootstrap=Bootstrap(count=0)
        )
        gamma = found.fit.params.get("gamma", 0.0)
        beta.append(abs(found.fit.params["beta"] - _BETA))
        floor.append(abs(gamma / truth["gamma"] - 1))
        known = [
            found.fit.profile(name, 0.9) for name in ("beta", "gamma") if name in found.fit.params
        ]
        inside.append(
            [item.low <= truth[item.name] <= item.high for item in known]
            + [False] * (2 - len(known))
        )
        found_places = (
            found.regions.power_from or samples[0],
            min(found.regions.floor_from, 1e300),
        )
        places.append(
            [
                abs(np.log10(place / truth[name])) <= shard
                for place, name in zip(found_places, ("power_from", "floor_from"), strict=True)
            ]
        )
    label = "one run per shard" if runs == 1 else f"{runs} runs per shard"
    coverage = np.mean(inside, axis=0)
    within = np.mean(places, axis=0)
    print(
        f"{label}: median error of beta {np.median(beta):.3f} (bound for an unbiased estimate "
        f"{_bound(samples, truth, runs):.3f}), of the "
        f"floor {np.median(floor):.1%}; 90 % intervals hold beta {coverage[0]:.0%}, floor "
        f"{coverage[1]:.0%}; within a shard: "
        f"plateau's end {within[0]:.0%}, floor's begin {within[1]:.0%}"
    )
    return [
        Check(f"1 median error of beta, {label}", float(np.median(beta)), 0.02, "lower"),
        Check(
            f"1 median relative error of the floor, {label}", float(np.median(floor)), 0.10, "lower"
        ),
        *(
            check
            for name, value in zip(("beta", "floor"), coverage, strict=True)
            for check in _covered(f"1 coverage of {name}, {label}", value)
        ),
        Check(f"1 plateau's end within one shard, {label}", float(within[0]), 0.9, "higher"),
        Check(f"1 floor's begin within one shard, {label}", float(within[1]), 0.9, "higher"),
    ]


def _covered(name: str, value: float) -> list[Check]:
    """Hold the coverage of 90 % intervals between 85 and 95 %."""
    return [
        Check(f"{name}, at least", float(value), 0.85, "higher"),
        Check(f"{name}, at most", float(value), 0.95, "lower"),
    ]


def _bound(samples: Array, truth: dict[str, float], runs: int) -> float:
    """Return the least median error of beta that an unbiased estimate can have."""
    falling = truth["alpha"] * samples[1:] ** -_BETA
    share = falling / (falling + truth["gamma"])
    slopes = np.stack([share, -share * np.log(samples[1:]), 1 - share])
    variance = _NOISE**2 / runs * np.linalg.inv(slopes @ slopes.T)
    return 0.6745 * float(np.sqrt(variance[1, 1]))


def _extrapolation(quick: bool) -> list[Check]:
    """Fit fine-tuning curves up to an eighth of the data and predict the loss at all of it."""
    errors: dict[str, list[float]] = {
        "learning curve": [],
        "log-log line": [],
        "rectified": [],
        "smooth transition": [],
    }
    refused = 0
    for task in ("flan", "wmt19"):
        sizes, curves = _published(task)
        kept = sizes <= _TARGET // _SHARE
        for loss in curves[:: 6 if quick else 1]:
            try:
                said = _forecasts(sizes[kept], loss[kept])
            except FitError:
                refused += 1
                continue
            for name, value in said.items():
                errors[name].append(abs(value / float(loss[-1]) - 1))
    medians = {name: float(np.median(values)) for name, values in errors.items()}
    shown = ", ".join(f"{name} {value:.2%}" for name, value in medians.items())
    print(
        f"{_SHARE}x the data, median error over {len(errors['rectified'])} curves ({refused} "
        f"refused as flat): {shown}"
    )
    return [
        Check("4 median relative error at 8x the data", medians["learning curve"], 0.05, "lower"),
        Check(
            "4 log-log line over learning curve, median error",
            medians["log-log line"] / medians["learning curve"],
            2.0,
            "higher",
        ),
    ]


def _forecasts(sizes: Array, loss: Array) -> dict[str, float]:
    """Predict the loss at the target by each form from the sizes given."""
    target = {name: np.array([float(_TARGET)]) for name in ("samples", "examples")}
    smooth = laws.fit(
        smooth_transition(),
        {"samples": sizes},
        loss,
        delta=np.inf,
        bootstrap=laws.Bootstrap(count=0),
        prior=None,
    )
    line = np.polyfit(np.log(sizes), np.log(loss), 1)
    return {
        "learning curve": float(
            fit_learning_curve(sizes, loss, num_validation=_MANY, bootstrap=Bootstrap(count=0))
            .fit.predict(target)
            .value[0]
        ),
        "log-log line": float(np.exp(np.polyval(line, np.log(_TARGET)))),
        "rectified": float(
            fit_rectified(sizes, loss, bootstrap=Bootstrap(count=0)).predict(target).value[0]
        ),
        "smooth transition": float(smooth.predict(target).value[0]),
    }


def _published(task: str) -> tuple[Array, list[Array]]:
    """Read data sizes, rising, and the losses of each model after tuning."""
    with (shared("finetune-scaling") / f"{task}.csv").open() as file:
        rows = list(csv.DictReader(file))
    sizes = sorted(int(key) for key in rows[0] if key.isdigit() and int(key) > 0)
    return np.array(sizes, dtype=np.float64), [
        np.array([float(row[str(size)]) for size in sizes]) for row in rows
    ]
