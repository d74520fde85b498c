"""The batched fit of L(N, D) from 72 starts with 300 bootstraps against scipy in a loop.

The rival is the obvious loop: `scipy.optimize.minimize` with BFGS and the same analytic gradient,
per start and per bootstrap from the best optimum. Both run on one thread. With `quick`, scipy runs
every fourth start and every tenth bootstrap and its time is scaled up; the full run does all of
them.

Then tables of 100,000 rows, each in a process of its own whose peak resident memory counts: a fit
with its default bootstraps, an isoFLOP analysis, and what the report of a fit draws. That one
Newton step stands for a bootstrap of a large table is held to full fits of 6,000 points.
"""

import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import scipy.optimize
from benchmarks.common import Check

from steelyard import laws
from steelyard.laws.fitting.large import newton_bootstrap
from steelyard.laws.fitting.minimizer import minimize
from steelyard.laws.fitting.terms import Array

PAPER: list[str] = []

_POINTS = 240
_LARGE = 100_000
_BOOTSTRAPS = 300
_DELTA = 1e-3
_NOISE = 0.003
_Objective = Callable[[Array], tuple[float, Array]]


def run(quick: bool) -> list[Check]:
    """Time both in fresh processes with one thread; compare the objectives they reach."""
    one_thread = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    with mock.patch.dict(os.environ, one_thread):
        ours_s, loop_s, excess = _alone(_measure, quick)
        print(
            f"ours {ours_s:.3f} s (median), scipy {loop_s:.2f} s{' (scaled up)' if quick else ''}, "
            f"one thread each"
        )
        return [
            Check("seconds of 72 starts and 300 bootstraps", ours_s, 3.0, "lower"),
            Check("scipy loop over ours, time", loop_s / ours_s, 10.0, "higher"),
            Check("objective above scipy's best, relative", excess, 1e-6, "lower"),
            *_large_tables(),
        ]


def _alone(work: Callable[..., Any], *arguments: object) -> Any:
    """Call a function in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def _large_tables() -> list[Check]:
    """Measure tables of 100,000 rows."""
    checks = []
    for name, work in (
        ("fit", _large_fit),
        ("isoflop, 3 budgets", _few_budgets),
        ("isoflop, 100 budgets", _many_budgets),
    ):
        seconds, peak_gb = _alone(work)
        print(f"{name} of 100,000 rows: {seconds:.2f} s of CPU, {peak_gb:.2f} GB at the peak")
        checks.append(Check(f"CPU seconds, {name} of 100,000 rows", seconds, 5.0, "lower"))
        checks.append(Check(f"peak memory in GB, {name} of 100,000 rows", peak_gb, 1.0, "lower"))
    drawn, seconds, peak_gb = _alone(_large_report)
    print(f"report of 100,000 rows: {drawn} points drawn, {seconds:.1f} s of CPU, {peak_gb:.2f} GB")
    return [
        *checks,
        Check(
            "points that the report of 100,000 rows draws, most of a chart", drawn, 2100, "lower"
        ),
        Check(
            "spread of one-step bootstraps against full fits, worst deviation of a parameter",
            _alone(_step_deviation),
            0.05,
            "lower",
        ),
    ]


def _large_fit() -> tuple[float, float]:
    """Fit 100,000 rows with the default bootstraps."""
    law = laws.chinchilla()
    inputs, loss = _points(law, _LARGE)
    return _timed(lambda: laws.fit(law, inputs, loss))


def _few_budgets() -> tuple[float, float]:
    """Find the best sizes of three budgets with 33,333 sizes each."""
    return _isoflop(3)


def _many_budgets() -> tuple[float, float]:
    """Find the best sizes of a hundred budgets with 1,000 sizes each."""
    return _isoflop(100)


def _isoflop(budgets: int) -> tuple[float, float]:
    generator = np.random.default_rng(0)
    law = laws.chinchilla()
    flops = np.repeat(np.geomspace(1e18, 1e22, budgets), _LARGE // budgets)
    sizes = np.sqrt(flops / 120) * np.exp(generator.uniform(-1.5, 1.5, len(flops)))
    inputs = {"parameters": sizes, "tokens": flops / 6 / sizes}
    table = {**inputs, "loss": _losses(law, inputs, generator)}
    return _timed(lambda: laws.isoflop(table))


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return CPU seconds of one thread, and the peak resident memory of this process in GB."""
    start = time.process_time()
    work()
    seconds = time.process_time() - start
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def _large_report() -> tuple[int, float, float]:
    """Return the most points a chart of the report holds, and its seconds and GB."""
    from steelyard.laws.pictures.report import fit_report

    law = laws.chinchilla()
    inputs, loss = _points(law, _LARGE)
    fitted = laws.fit(law, inputs, loss)
    reports = []
    seconds, peak_gb = _timed(lambda: reports.append(fit_report(fitted)))
    charts = [
        block.spec
        for section in reports[0].sections
        for block in section.blocks
        if hasattr(block, "spec")
    ]
    return max(map(_most_rows, charts)), seconds, peak_gb


def _most_rows(spec: Any) -> int:
    """Return the length of the longest list of rows in a chart's spec."""
    if isinstance(spec, dict):
        return max(map(_most_rows, spec.values()), default=0)
    if isinstance(spec, list):
        return max(len(spec), *map(_most_rows, spec), 0)
    return 0


def _step_deviation() -> float:
    """Compare one-step bootstraps of 6,000 points with full fits of the same draws."""
    law = laws.chinchilla()
    fitted = laws.fit(law, *_points(law, 6000), bootstrap=laws.Bootstrap(count=0))
    problem = fitted.study().problem()
    weights = np.random.default_rng(1).multinomial(6000, np.full(6000, 1 / 6000), 200) * 1.0
    starts = np.tile(fitted.theta, (200, 1))
    full = minimize(replace(problem, weights=weights), starts, far=False).theta
    drawn = iter(weights)
    steps = newton_bootstrap(
        problem,
        fitted.theta,
        np.tile(problem.center, (200, 1)),
        lambda count: (np.stack([next(drawn) for _ in range(count)]), problem.target),
    )
    return float(np.abs(steps.std(axis=0) / full.std(axis=0) - 1).max())


def _measure(quick: bool) -> tuple[float, float, float]:
    """Return our median seconds, the loop's, and our objective's relative excess over the loop's.

    Our rounds run half before and half after the loop, so that a busy machine hits both.
    """
    law = laws.chinchilla()
    inputs, loss = _points(law, _POINTS)
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


def _points(law: laws.Law, count: int) -> tuple[dict[str, Array], Array]:
    """Draw runs of a published law with 0.3 % noise."""
    generator = np.random.default_rng(0)
    sizes = np.exp(generator.uniform(np.log(4e7), np.log(1.6e10), count))
    tokens = np.exp(generator.uniform(np.log(1e9), np.log(5e11), count))
    inputs = {"parameters": sizes, "tokens": tokens}
    return inputs, _losses(law, inputs, generator)


def _losses(law: laws.Law, inputs: dict[str, Array], generator: np.random.Generator) -> Array:
    """Return the losses of a published law with 0.3 % noise."""
    truth = law.coordinates(laws.published["besiroglu2024"].params)
    log = law.predict(truth[None], inputs)[0]
    return np.exp(log + _NOISE * generator.standard_normal(len(log)))


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
