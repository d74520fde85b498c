"""Studies without fixed durations: cost of branches, losses of one schedule from others.

Shares of cost are those of Hägele et al. 2024 (arXiv 2405.18392). Curves of a 25M and a 100M model
under nine schedules come from Luo et al. 2025 (shared data set lr-schedule-curves). The rival is
Chinchilla in steps, fitted to the same three curves. The errors
of the authors' printed parameters and of a fit without prior are printed beside ours. With `quick`
every fourth point is fitted; every point is predicted.
"""

import csv
from collections.abc import Mapping

import numpy as np
from benchmarks.common import Check
from benchmarks.laws._shared import shared

from steelyard import laws
from steelyard.laws.decisions.best_schedule import best_schedule
from steelyard.laws.decisions.study import cheapest_study, plan_study
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.schedules.schedule import (
    Curve,
    cooldown_gain,
    fit_curves,
    multi_power,
    predict_curve,
)
from steelyard.laws.forms.schedules.schedule_rates import LearningRates

PAPER = ["40-beyond-fixed-durations"]

_WARMUP = 2160
_PEAK = 3e-4
_TRAINED = ("cosine_24000", "constant_24000", "wsdcon_9")
_MODELS = ("25m", "100m")
_NAMES = ("L0", "A", "alpha", "B", "C", "beta", "gamma")
_PRINTED = {
    "25m": (3.04045406, 0.52468604, 0.50786857, 363.78751622, 2.06560812, 0.58279013, 0.64142257),
    "100m": (2.6514477, 0.60115152, 0.45295811, 437.9464276, 2.13245612, 0.59785199, 0.65523644),
}


def run(quick: bool) -> list[Check]:
    """Check the account of branches, then the law on both models."""
    checks = [*_costs(), *_width(20 if quick else 100)]
    for model in _MODELS:
        checks += _schedules(model, quick)
    return checks


def _costs() -> list[Check]:
    """Compare the account with the paper's printed shares, over the Chinchilla suite's sizes."""
    rows = (
        ((10, 20, 30), 0.2, 0.60),
        ((10, 20, 30), 0.1, 0.55),
        ((10, 15, 20, 25), 0.1, 2.36e23 / 5.59e23),
    )
    sizes = np.geomspace(44e6, 16e9, 9).tolist()
    shares = [
        plan_study(sizes, ratios, cooldown=cooldown).ratio / printed - 1
        for ratios, cooldown, printed in rows
    ]
    return [
        Check(
            "3 study cost against the paper's share, largest relative error",
            float(np.abs(shares).max()),
            0.02,
            "lower",
        )
    ]


def _width(repeats: int) -> list[Check]:
    """Choose the cheapest study for a wanted interval, and measure the spread of repeated draws."""
    law = laws.chinchilla()
    noise = 0.002
    wanted = 0.03
    theta = law.coordinates(laws.published["besiroglu2024"].params)
    known = Fit(
        law=law, theta=theta, samples=np.zeros((0, len(theta))), noise=noise, provenance="published"
    )
    sizes = np.geomspace(1e7, 6e8, 6).tolist()
    ratios = [5, 10, 20, 30, 40]
    target = {"parameters": [3e9], "tokens": [6e10]}
    plan = cheapest_study(known, 3e9, 6e10, wanted, sizes, ratios)
    cells = {"parameters": plan.cells()[0], "tokens": plan.cells()[1]}
    generator = np.random.default_rng(0)
    said = []
    for _ in range(repeats):
        loss = np.exp(
            law.predict(theta[None], cells)[0]
            + noise * generator.standard_normal(len(cells["tokens"]))
        )
        drawn = laws.fit(
            law,
            cells,
            loss,
            starts=theta[None],
            bootstrap=laws.Bootstrap(count=0),
            prior=None,
            delta=np.inf,
        )
        said.append(float(np.log(drawn.predict(target, extrapolate=True).value[0])))
    width = float(np.diff(np.quantile(said, [0.1, 0.9]))[0])
    whole = plan_study(sizes, ratios, method="cosine").flops
    print(
        f"wanted 80 % width {wanted}, measured {width:.4f}; {len(cells['tokens'])} cells, "
        f"{plan.flops / whole:.2%} of the grid as cosine"
    )
    return [
        Check("3 measured width over the wanted one, cheapest study", width / wanted, 1.25, "lower")
    ]


def _rates(name: str) -> LearningRates:
    """Rebuild a schedule from its name; the check below compares it with the data's own column."""
    kind, *numbers = name.split("_")
    if kind == "constant":
        return LearningRates.constant(int(numbers[0]), _PEAK, _WARMUP)
    if kind == "cosine":
        return LearningRates.cosine(int(numbers[0]), _PEAK, _WARMUP, 0.1)
    if kind == "wsdcon":
        return LearningRates.two_stage(16000, _PEAK, float(numbers[0]) * 1e-5, 8000, _WARMUP)
    return LearningRates.trapezoid(
        24000, _PEAK, _WARMUP, 1 / 6, "exponential" if kind == "wsd" else "linear", 0.1
    )


def _curves(model: str) -> dict[str, Curve]:
    """Read the nine curves of one model."""
    rows: dict[str, list[tuple[float, float, float]]] = {}
    with (shared("lr-schedule-curves") / f"curves_{model}.csv").open() as stream:
        for row in csv.DictReader(stream):
            rows.setdefault(row["schedule"], []).append(
                (float(row["step"]), float(row["lr"]), float(row["loss"]))
            )
    curves = {}
    for name, points in rows.items():
        step, rate, loss = np.array(points).T
        curves[name] = Curve(rates=_rates(name), step=step, loss=loss)
        assert np.abs(curves[name].rates.at(step) - rate).max() < 1e-10, name
    return curves


def _errors(fit: Fit, curves: Mapping[str, Curve]) -> tuple[Array, Array]:
    """Return R2 and mean absolute error of each curve that was not fitted, [6] each."""
    fits = []
    errors = []
    for name, curve in curves.items():
        if name not in _TRAINED:
            miss = predict_curve(fit, curve.rates, curve.step).value - curve.loss
            fits.append(1 - float((miss**2).sum() / ((curve.loss - curve.loss.mean()) ** 2).sum()))
            errors.append(float(np.abs(miss).mean()))
    return np.array(fits), np.array(errors)


def _schedules(model: str, quick: bool) -> list[Check]:
    """Fit three curves, predict six; compare with Chinchilla in steps and printed parameters."""
    curves = _curves(model)
    every = 4 if quick else 1
    known = [
        Curve(rates=item.rates, step=item.step[::every], loss=item.loss[::every])
        for item in map(curves.__getitem__, _TRAINED)
    ]
    fits = {
        "ours": fit_curves(known, bootstrap=Bootstrap(count=20 if quick else 100)),
        "free": fit_curves(known, prior=None),
        "Chinchilla in steps": fit_curves(known, law=laws.power_law("step")),
    }
    law = multi_power([item.rates for item in known])
    fits["printed"] = Fit(
        law=law,
        theta=law.coordinates(dict(zip(_NAMES, _PRINTED[model], strict=True))),
        samples=np.zeros((0, 7)),
        provenance="published",
    )
    scores = {name: _errors(fit, curves) for name, fit in fits.items()}
    for name, (r2, error) in scores.items():
        print(
            f"{model} {name}: R2 {r2.mean():.5f} (worst {r2.min():.4f}), mean error "
            f"{error.mean():.5f} (worst {error.max():.4f})"
        )
    print(
        f"{model} parameters: "
        f"{', '.join(f'{name} {value:.4g}' for name, value in fits['ours'].params.items())}"
    )
    r2, error = (float(part.mean()) for part in scores["ours"])
    rival = float(scores["Chinchilla in steps"][1].mean())
    return [
        Check(f"5 {model} R2 of six unseen schedules, mean", r2, 0.998, "higher"),
        Check(
            f"5 {model} mean absolute error of six unseen schedules, nats", error, 0.005, "lower"
        ),
        Check(f"5 {model} error of Chinchilla in steps over ours", rival / error, 3.0, "higher"),
        *_decisions(model, fits["ours"], curves),
    ]


def _decisions(model: str, fit: Fit, curves: Mapping[str, Curve]) -> list[Check]:
    """Check a cooldown's gain against the measured one, and the best schedule against rivals."""
    trunk, cooled = curves["constant_24000"], curves["wsdld_20000_24000"]
    # A trunk's loss at its full rate is noisy from step to step, that of a cooled run is not.
    measured = float(trunk.loss[-8:].mean() - cooled.loss[-1])
    said = cooldown_gain(fit, trunk.rates, cooled.rates).gain.value
    found = best_schedule(fit, 24000, _PEAK, warmup=_WARMUP, final=0.1)
    print(f"{model} cooldown gain {said:.4f}, measured {measured:.4f}")
    print(
        f"{model} best schedule {found.loss:.4f}, best rival {found.best_rival} "
        f"{found.loss + found.gain:.4f}"
    )
    return [
        Check(
            f"5 {model} gain of a linear cooldown, relative error",
            abs(said / measured - 1),
            0.15,
            "lower",
        ),
        Check(
            f"6 {model} best cosine or WSD over the best schedule, under the law, nats",
            found.gain,
            1e-4,
            "higher",
        ),
    ]
