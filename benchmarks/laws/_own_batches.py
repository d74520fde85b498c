"""Own runs of six batches and three rates: steps to a target, and the noise scale on the way.

The rate is constant and averages of the weights are evaluated, so one run serves every target. The
target at a number of tokens is the least loss there of batches of 8 and less, over rates and
averages; a batch is judged at its best rate, against the one that needs the fewest examples.
Batches count sequences of 64 tokens.
"""

import numpy as np
from benchmarks.common import Check
from benchmarks.train._own_recipes import batch_runs
from benchmarks.train._own_study import OwnRun, steps_to
from numpy.typing import NDArray

from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.forms.batch_size import critical_batch, fit_steps, tradeoff

__all__ = ["own_critical_batches", "own_noise_scale"]

Array = NDArray[np.float64]
_SHARES = (1 / 16, 1 / 8, 1 / 4)
"""Targets: what the best small batch reaches after these parts of the tokens."""
_SMALL = 8
"""Largest batch that may set a target."""


def _targets(runs: list[OwnRun]) -> list[float]:
    """Return the target losses, falling."""
    small = [run for run in runs if run.batch_size <= _SMALL]
    return [min(_loss_at(run, share * run.steps) for run in small) for share in _SHARES]


def _loss_at(run: OwnRun, step: float) -> float:
    """Return the least loss of a run's weights and averages at a step."""
    steps, losses = run.best_curve
    return float(np.interp(np.log(step), np.log(steps), losses))


def _steps(runs: list[OwnRun], target: float) -> tuple[Array, Array, Array]:
    """Return batches, fewest steps to a target over rates, and the steps that were run."""
    batches = np.array(sorted({run.batch_size for run in runs}), dtype=float)
    steps = [
        min(steps_to(run, target) for run in runs if run.batch_size == batch) for batch in batches
    ]
    caps = [max(run.steps for run in runs if run.batch_size == batch) for batch in batches]
    return batches, np.array(steps), np.array(caps, dtype=float)


def own_critical_batches(quick: bool) -> list[Check]:
    """Fit steps over batches at each target; leave inner batches out."""
    runs = batch_runs(quick)
    if not runs:
        return []
    critical, knees, errors = [], [], []
    for share, target in zip(_SHARES, _targets(runs), strict=True):
        batches, steps, caps = _steps(runs, target)
        fitted = fit_steps(batches, steps, caps, bootstrap=Bootstrap(count=200))
        least = float(batches[np.argmin(steps * batches)])
        found = critical_batch(fitted, reference=least).batch
        critical.append(found.value)
        ended = np.isfinite(steps)
        knees.append(tradeoff(steps[ended], steps[ended] * batches[ended]).batch_critical.value)
        print(
            f"  target {target:.3f} ({share:.0%} of the tokens): steps "
            f"{np.round(steps)} of batches {batches}, B* {found.value:.1f} [{found.low:.1f}, "
            f"{found.high:.1f}] sequences"
        )
        for held in range(1, len(batches) - 1):
            if np.isfinite(steps[held]):
                rest = np.delete(np.arange(len(batches)), held)
                one = fit_steps(
                    batches[rest], steps[rest], caps[rest], bootstrap=Bootstrap(count=0)
                )
                said = float(one.predict({"batch": batches[held]}).value[0])
                errors.append(abs(said / steps[held] - 1))
    power, knee = (
        float(np.polyfit(np.log(_SHARES), np.log(found), 1)[0]) for found in (critical, knees)
    )
    print(f"  power in tokens: of B* {power:.2f}, of the hyperbola's knee {knee:.2f}")
    return [
        Check(
            "2 own runs: power of the hyperbola's knee in tokens, at least", knee, 0.25, "higher"
        ),
        Check("2 own runs: power of the hyperbola's knee in tokens, at most", knee, 0.7, "lower"),
        Check("2 own runs: power of B* in tokens, at least", power, 0.25, "higher"),
        Check("2 own runs: power of B* in tokens, at most", power, 0.7, "lower"),
        Check(
            "3 own runs: steps of a held-out batch, median error",
            float(np.median(errors)),
            0.1,
            "lower",
        ),
    ]


def own_noise_scale(quick: bool) -> list[Check]:
    """Compare the knee of steps over examples with the noise scale on the way there."""
    runs = batch_runs(quick)
    if not runs:
        return []
    ratios, fits = [], []
    for target in _targets(runs):
        batches, steps, _ = _steps(runs, target)
        ended = np.isfinite(steps)
        curve = tradeoff(steps[ended], steps[ended] * batches[ended])
        fastest = min(
            (run for run in runs if run.batch_size == 8), key=lambda run: steps_to(run, target)
        )
        on_way = [value for step, value in fastest.noise if step <= steps_to(fastest, target)]
        knee, scale = curve.batch_critical, float(np.mean(on_way))
        print(
            f"  target {target:.3f}: B_crit {knee.value:.1f} [{knee.low:.1f}, {knee.high:.1f}], "
            f"mean B_simple of batch 8 {scale:.1f} sequences, R2 {curve.r2:.3f}"
        )
        ratios.append(max(knee.value / scale, scale / knee.value))
        fits.append(curve.r2)
    longest = max((run for run in runs if run.batch_size == 8), key=lambda run: len(run.noise))
    noise = np.array([value for _, value in longest.noise])
    eighth = max(len(noise) // 8, 1)
    rise = float(np.median(noise[-eighth:]) / np.median(noise[:eighth]))
    return [
        Check(
            "3 own runs: B_crit over mean B_simple, largest factor of three targets",
            max(ratios),
            4.0,
            "lower",
        ),
        Check("3 own runs: R2 of the hyperbola in log space, least", min(fits), 0.95, "higher"),
        Check("4 own runs: rise of B_simple, first to last eighth of batch 8", rise, 5.0, "higher"),
    ]
