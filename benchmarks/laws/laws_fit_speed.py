"""The batched fit of L(N, D) from 72 starts with 300 bootstraps against scipy in a loop.

The rival is the obvious loop: `scipy.optimize.minimize` with BFGS and the same analytic gradient,
per start and per bootstrap from the best optimum. Both run on one thread. With `quick`, scipy runs
every fourth start and every tenth bootstrap and its time is scaled up; the full run does all of
them.
"""

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from unittest import mock

import numpy as np
import scipy.optimize
from benchmarks.common import Check

from steelyard import laws
from steelyard.laws.fitting.terms import Array

PAPER: list[str] = []

_POINTS = 240
_BOOTSTRAPS = 300
_DELTA = 1e-3
_NOISE = 0.003
_Objective = Callable[[Array], tuple[float, Array]]


def run(quick: bool) -> list[Check]:
    """Time both in a fresh process with one thread; compare the objectives they reach."""
    one_thread = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    with (
        mock.patch.dict(os.environ, one_thread),
        multiprocessing.get_context("spawn").Pool(1) as pool,
    ):
        ours_s, loop_s, excess = pool.apply(_measure, (quick,))
    print(
        f"ours {ours_s:.3f} s (median), scipy {loop_s:.2f} s{' (scaled up)' if quick else ''}, "
        f"one thread each"
    )
    return [
        Check("seconds of 72 starts and 300 bootstraps", ours_s, 3.0, "lower"),
        Check("scipy loop over ours, time", loop_s / ours_s, 10.0, "higher"),
        Check("objective above scipy's best, relative", excess, 1e-6, "lower"),
    ]


def _measure(quick: bool) -> tuple[float, float, float]:
    """Return our median seconds, the loop's, and our objective's relative excess over the loop's.

    Our rounds run half before and half after the loop, so that a busy machine hits both.
    """
    law = laws.chinchilla()
    inputs, loss = _points(law)
    fitted = laws.fit(law, inputs, loss, bootstrap=laws.Bootstrap(count=10))

    def rounds() -> list[float]:
        samples = []
        for _ in range(2 if quick else 4):
            start = time.perf_counter()
            laws.fit(law, inputs, loss, bootstrap=laws.Bootstrap(count=_BOOTSTRAPS))
            samples.append(time.perf_counter() - start)
        return samples

    before = rounds()
    loop_s, best = _scipy_loop(law, inputs, loss, quick)
    return statistics.median(before + rounds()), loop_s, fitted.objective / best - 1


def _points(law: laws.Law) -> tuple[dict[str, Array], Array]:
    """Draw runs of a published law with 0.3 % noise."""
    generator = np.random.default_rng(0)
    sizes = np.exp(generator.uniform(np.log(4e7), np.log(1.6e10), _POINTS))
    tokens = np.exp(generator.uniform(np.log(1e9), np.log(5e11), _POINTS))
    inputs = {"parameters": sizes, "tokens": tokens}
    truth = law.coordinates(laws.published["besiroglu2024"].params)
    return inputs, np.exp(
        law.predict(truth[None], inputs)[0] + _NOISE * generator.standard_normal(_POINTS)
    )


def _objective(inputs: dict[str, Array], loss: Array) -> _Objective:
    """Write the sum of Huber losses and its gradient the way one would in a notebook."""
    log_n = np.log(inputs["parameters"])
    log_d = np.log(inputs["tokens"])
    goal = np.log(loss)

    def value(theta: Array) -> tuple[float, Array]:
        a, b, e, alpha, beta = theta
        terms = np.stack([a - alpha * log_n, b - beta * log_d, np.full_like(log_n, e)])
        top = terms.max(axis=0)
        shares = np.exp(terms - top)
        total = shares.sum(axis=0)
        residual = top + np.log(total) - goal
        slope = np.clip(residual, -_DELTA, _DELTA)
        size = np.abs(residual)
        shares = shares / total * slope
        gradient = np.array(
            [
                shares[0].sum(),
                shares[1].sum(),
                shares[2].sum(),
                -shares[0] @ log_n,
                -shares[1] @ log_d,
            ]
        )
        return float(
            np.where(size <= _DELTA, 0.5 * size**2, _DELTA * (size - 0.5 * _DELTA)).sum()
        ), gradient

    return value


def _scipy_loop(
    law: laws.Law, inputs: dict[str, Array], loss: Array, quick: bool
) -> tuple[float, float]:
    """Return the loop's seconds for all starts and bootstraps, and its best objective."""
    step, share = (4, 10) if quick else (1, 1)
    starts = law.start_grid()[::step]
    begin = time.perf_counter()
    found = [
        scipy.optimize.minimize(_objective(inputs, loss), start, jac=True, method="BFGS")
        for start in starts
    ]
    best = min(found, key=lambda result: result.fun)
    starts_s = time.perf_counter() - begin
    generator = np.random.default_rng(0)
    begin = time.perf_counter()
    # Bootstraps start from the best optimum only, as ours do.
    for _ in range(_BOOTSTRAPS // share):
        rows = generator.integers(0, _POINTS, _POINTS)
        drawn = {name: column[rows] for name, column in inputs.items()}
        scipy.optimize.minimize(_objective(drawn, loss[rows]), best.x, jac=True, method="BFGS")
    return starts_s * step + (time.perf_counter() - begin) * share, float(best.fun)
