"""Studies without fixed durations: cost of branches, losses of one schedule from others.

Shares of cost are those of Hägele et al. 2024 (arXiv 2405.18392). Curves of a 25M and a 100M model
under nine schedules come from Luo et al. 2025 (shared data set lr-schedule-curves). The rival is
Chinchilla in steps, fitted to the same three curves. R2 stands there with and without the prior,
whose center is the authors' own fits of these curves. Schedules of one size are predicted from its
others, and those of one size from the other size and a single curve of its own. The schedule found
is judged by a law of the curves it was not searched under, and by real runs (`_real_schedules`).
With `quick` every fourth point is fitted; every point is predicted.
"""

import csv
from collections.abc import Mapping, Sequence

import numpy as np
from benchmarks.common import Check
from benchmarks.laws._own_cooldowns import own_cooldowns
from benchmarks.laws._real_schedules import real_runs
from benchmarks.laws._shared import shared

from steelyard import laws
from steelyard.laws.decisions.best_schedule import (
    BestSchedule,
    best_schedule,
    final_loss,
    rival_schedules,
)
from steelyard.laws.decisions.study import cheapest_study, plan_study
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.terms import Array
from steelyard.laws.forms.schedules.curves import (
    Curve,
    cooldown_gain,
    fit_curves,
    predict_curve,
)
from steelyard.laws.forms.schedules.schedule import BELIEFS, multi_power
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
    curves = {model: _curves(model) for model in _MODELS}
    fits = {}
    for model in _MODELS:
        fits[model], found = _schedules(model, curves[model], quick)
        checks += found
    checks += _coverage(curves, fits, quick)
    return [*checks, *real_runs(quick), *own_cooldowns(quick)]


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
            bootstrap=Bootstrap(count=0),
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
        # The authors' cooldowns reach their last rate one of 4000 steps earlier than ours.
        assert np.abs(curves[name].rates.at(step) - rate).max() < 3 * _PEAK / 4000, name
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


def _schedules(model: str, curves: Mapping[str, Curve], quick: bool) -> tuple[Fit, list[Check]]:
    """Fit three curves, predict six; compare with Chinchilla in steps and printed parameters."""
    every = 4 if quick else 1
    known = _thinned(curves, _TRAINED, every)
    fits = {
        "ours": fit_curves(known, bootstrap=Bootstrap(count=10 if quick else 100)),
        "without prior": fit_curves(known, prior=None),
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
    beliefs = ", ".join(f"{name} {item.center:g}" for name, item in BELIEFS.items())
    print(f"{model} prior: {beliefs}, from the authors' fits of these same curves and of 400M")
    print(
        f"{model} parameters: "
        f"{', '.join(f'{name} {value:.4g}' for name, value in fits['ours'].params.items())}"
    )
    r2, error = (float(part.mean()) for part in scores["ours"])
    free = float(scores["without prior"][0].mean())
    rival = float(scores["Chinchilla in steps"][1].mean())
    others = _thinned(curves, [name for name in curves if name not in _TRAINED], every)
    return fits["ours"], [
        Check(
            f"5 {model} R2 of six unseen schedules, mean, prior from the authors' fits",
            r2,
            0.998,
            "higher",
        ),
        Check(f"5 {model} R2 of six unseen schedules, mean, no prior", free, 0.998, "higher"),
        Check(
            f"5 {model} mean absolute error of six unseen schedules, nats", error, 0.005, "lower"
        ),
        Check(f"5 {model} error of Chinchilla in steps over ours", rival / error, 3.0, "higher"),
        *_decisions(model, fits["ours"], fit_curves(others, prior=None), curves),
    ]


def _decisions(model: str, fit: Fit, other: Fit, curves: Mapping[str, Curve]) -> list[Check]:
    """Check a cooldown's gain against the measured one, and the best schedule against rivals.

    Args:
        model: name of the model.
        fit: law of the three curves, under which the schedule is searched.
        other: law of the six other curves, which judges it.
        curves: all nine.

    Returns:
        The checks.
    """
    trunk, cooled = curves["constant_24000"], curves["wsdld_20000_24000"]
    # A trunk's loss at its full rate is noisy from step to step, that of a cooled run is not.
    measured = float(trunk.loss[-8:].mean() - cooled.loss[-1])
    said = cooldown_gain(fit, trunk.rates, cooled.rates).gain.value
    found = best_schedule(fit, 24000, _PEAK, warmup=_WARMUP, final=0.1)
    print(f"{model} cooldown gain {said:.4f}, measured {measured:.4f}")
    # Under its own law the schedule found is best by construction; under another it need not be.
    judged, least, rival = _judged(other, found)
    print(
        f"{model} best schedule {found.loss:.4f}, best rival {found.best_rival} "
        f"{found.loss + found.gain:.4f}; under the law of the six other curves {judged:.4f}, best "
        f"rival {rival} {least:.4f}"
    )
    return [
        Check(
            f"5 {model} gain of a linear cooldown, relative error",
            abs(said / measured - 1),
            0.15,
            "lower",
        ),
        Check(
            f"6 {model} best cosine or WSD over the schedule found, under a law of the six other "
            f"curves, nats",
            least - judged,
            0.0,
            "higher",
        ),
    ]


def _judged(law: Fit, found: BestSchedule) -> tuple[float, float, str]:
    """Return final losses under a law: the schedule found, the best rival, and the rival's name."""
    rivals = rival_schedules(found.rates.steps, _PEAK, warmup=_WARMUP, final=0.1)
    losses = {name: final_loss(law.params, rates.rates)[0] for name, rates in rivals.items()}
    best = min(losses, key=losses.__getitem__)
    return final_loss(law.params, found.rates.rates)[0], losses[best], best


def _thinned(curves: Mapping[str, Curve], names: Sequence[str], every: int) -> list[Curve]:
    """Take every so manieth point of some curves."""
    return [
        Curve(rates=item.rates, step=item.step[::every], loss=item.loss[::every])
        for item in map(curves.__getitem__, names)
    ]


def _coverage(
    curves: Mapping[str, Mapping[str, Curve]], fits: Mapping[str, Fit], quick: bool
) -> list[Check]:
    """Count what 80 % intervals hold: unseen schedules of a size, and those of the other size."""
    own = [_held(fits[model], curves[model], _TRAINED, f"{model} from itself") for model in _MODELS]
    lent = []
    for known, wanted in (_MODELS, _MODELS[::-1]):
        for anchor in curves[wanted]:
            # The measured length: 16000 steps and less end before most of what is predicted.
            if curves[wanted][anchor].rates.steps == 24000:
                one = _thinned(curves[wanted], [anchor], 4 if quick else 1)
                fit = fit_curves(
                    one, prior=fits[known], bootstrap=Bootstrap(count=5 if quick else 20)
                )
                label = f"{wanted} from {known} and its own {anchor}"
                lent.append(_held(fit, curves[wanted], (anchor,), label))
    checks = []
    for name, rows in (("unseen schedules of the same size", own), ("the other size", lent)):
        points, ends, widths, errors = np.array(rows).mean(axis=0)
        print(f"{name}: half-width {widths:.2%} of the loss, error {errors:.2%}")
        checks += [
            Check(f"8 80 % intervals, {name}: share of points held, least", points, 0.7, "higher"),
            Check(f"8 80 % intervals, {name}: share of points held, most", points, 0.9, "lower"),
            Check(f"8 80 % intervals, {name}: share of final losses held", ends, 0.7, "higher"),
            Check(f"8 {name}: half-width over mean error", widths / errors, 2.5, "lower"),
        ]
    return checks


def _held(
    fit: Fit, curves: Mapping[str, Curve], seen: Sequence[str], label: str
) -> tuple[float, float, float, float]:
    """Return the shares of points and ends held over the unseen curves, half-width and error.

    Every curve counts once, however many points it has.
    """
    rows = []
    for name, curve in curves.items():
        if name not in seen:
            said = predict_curve(fit, curve.rates, curve.step)
            inside = (said.low <= curve.loss) & (curve.loss <= said.high)
            widths = np.log(said.high / said.low) / 2
            miss = np.abs(np.log(curve.loss / said.value))
            rows.append((inside.mean(), inside[-1], np.median(widths), miss.mean()))
    points, ends, widths, errors = np.array(rows, dtype=np.float64).mean(axis=0).tolist()
    print(
        f"{label}: drift {fit.drift:.3f} ({fit.drift_source}), points {points:.0%}, ends {ends:.0%}"
    )
    return points, ends, widths, errors
