"""The trade-off between steps and examples on generated runs whose critical batch is known.

The hyperbola and the noise scale are those of McCandlish et al. 2018 (arXiv 1812.06162). Two
generators: tables drawn from the hyperbola with noise, for recovery and coverage; and SGD with
sampled gradient noise on three quadratics, where the noise scale along the run is known exactly.
`_noise_runs` measures the noise scale inside training runs, `_own_batches` holds it against batches
that were tried; `_own_adaptive` lets batches follow it.
"""

import math

import numpy as np
from benchmarks.common import Check
from benchmarks.laws._noise_runs import own_runs
from benchmarks.laws._own_adaptive import own_adaptive
from benchmarks.laws._own_batches import own_noise_scale
from numpy.typing import NDArray

from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.forms.batch_size import tradeoff

PAPER = ["86-gradient-noise-scale"]

_Array = NDArray[np.float64]
_OCTAVES = np.arange(-5.0, 6.0)
_TASKS = {
    "spectrum i^-0.3, little noise": (0.3, 30.0),
    "spectrum i^-0.5": (0.5, 1000.0),
    "spectrum i^-0.7, much noise": (0.7, 30000.0),
}
"""Exponent of the Hessian's eigenvalues, and variance of the gradient of one example."""


def run(quick: bool) -> list[Check]:
    """Recover known trade-offs, run the quadratics, then measure inside training runs."""
    checks = [*_recovery(400 if quick else 2000), *_quadratics(2 if quick else 8)]
    return [*checks, *own_runs(quick), *own_noise_scale(quick), *own_adaptive(quick)]


def _recovery(count: int) -> list[Check]:
    """Draw tables of seven batches with 5 % noise; critical batches span four decades."""
    errors = []
    inside = []
    for seed in range(count):
        generator = np.random.default_rng(seed)
        truth = 10 ** generator.uniform(1, 5)
        batch = truth * 4.0 ** np.arange(-3, 4)
        steps = (
            10 ** generator.uniform(2, 5)
            * (1 + truth / batch)
            * np.exp(0.05 * generator.standard_normal(7))
        )
        found = tradeoff(
            steps, steps * batch, level=0.9, bootstrap=Bootstrap(count=300, seed=seed)
        ).batch_critical
        errors.append(abs(math.log(found.value / truth)))
        inside.append(found.low <= truth <= found.high)
    print(
        f"  known hyperbolas: B_crit off by {100 * np.median(errors):.1f} % (median); 90 % "
        f"intervals hold {100 * np.mean(inside):.1f} %"
    )
    return [
        Check(
            "3 B_crit of known hyperbolas, median |ln ratio|",
            float(np.median(errors)),
            0.1,
            "lower",
        ),
        Check(
            "3 coverage of 90 % intervals of B_crit: at least",
            float(np.mean(inside)),
            0.85,
            "higher",
        ),
        Check(
            "3 coverage of 90 % intervals of B_crit: at most", float(np.mean(inside)), 0.95, "lower"
        ),
    ]


def _quadratics(repeats: int) -> list[Check]:
    """Train each quadratic with batches around its noise scale; compare the knee with the scale."""
    ratios = []
    fits = []
    pairs = []
    for name, (power, variance) in _TASKS.items():
        curvature = np.arange(1.0, 65.0) ** -power
        _, scale = _steps(curvature, variance, math.inf, np.random.default_rng(0))
        batch = np.repeat(scale * 2.0**_OCTAVES, repeats)
        steps = np.array(
            [
                _steps(curvature, variance, size, np.random.default_rng(seed))[0]
                for seed, size in enumerate(batch)
            ]
        )
        curve = tradeoff(steps, steps * batch)
        knee = curve.batch_critical
        print(
            f"  {name}: B_crit {knee.value:.0f} [{knee.low:.0f}, {knee.high:.0f}], mean B_simple "
            f"{scale:.0f}, R2 {curve.r2:.3f}"
        )
        ratios.append(max(knee.value / scale, scale / knee.value))
        fits.append(curve.r2)
        pairs.append((scale, knee.value))
    order = np.array(pairs).argsort(axis=0).argsort(axis=0)
    return [
        Check("3 B_crit against run-averaged B_simple, largest factor", max(ratios), 4.0, "lower"),
        Check(
            "3 rank correlation over three quadratics",
            float(np.corrcoef(order[:, 0], order[:, 1])[0, 1]),
            1.0 - 1e-9,
            "higher",
        ),
        Check("3 R2 of the hyperbola in log space, least", min(fits), 0.95, "higher"),
    ]


def _steps(
    curvature: _Array, variance: float, batch: float, generator: np.random.Generator
) -> tuple[float, float]:
    """Descend with the best step for this batch until the loss is a hundredth.

    Args:
        curvature: eigenvalues of the Hessian.
        variance: variance of the gradient of one example, summed over directions.
        batch: examples per step; infinite for no noise.
        generator: source of the gradient noise.

    Returns:
        Steps, the last one as a fraction, and the mean of B_simple along the run.
    """
    weights = np.ones_like(curvature)
    loss = start = 0.5 * float(curvature @ weights**2)
    taken = 0.0
    scales = []
    noise = math.sqrt(variance / len(curvature) / batch)
    while True:
        gradient = curvature * weights
        bend = float(curvature @ gradient**2)
        scales.append(variance / float(gradient @ gradient))
        # The best step on a quadratic whose gradient carries noise: less than without it, because
        # curvature turns noise into loss.
        rate = float(gradient @ gradient) / (
            bend + variance / len(curvature) * float(curvature.sum()) / batch
        )
        weights = weights - rate * (gradient + noise * generator.standard_normal(len(weights)))
        before, loss = loss, 0.5 * float(curvature @ weights**2)
        if loss <= start / 100:
            share = math.log(100 * before / start) / math.log(before / loss)
            return taken + share, float(np.mean(scales))
        taken += 1
