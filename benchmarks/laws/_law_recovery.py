"""Points drawn from published laws with known noise: coverage of intervals, quality of optima."""

import multiprocessing
import os
import warnings
from unittest import mock

import numpy as np
from benchmarks.common import Check

from steelyard import laws
from steelyard.errors import SteelyardWarning
from steelyard.laws.fitting.minimizer import Problem, minimize
from steelyard.laws.fitting.terms import Array

__all__ = ["draw", "recovery"]

_NOISE = 0.003
_LEVEL = 0.9
_POINTS = 120
_BOOTSTRAPS = 200
_NAMES = (
    "hoffmann2022",
    "besiroglu2024",
    "muennighoff2023_c4",
    "muennighoff2023_c4_untied",
    "kaplan2020",
    "gadre2024_c4",
    "gadre2024_redpajama",
    "gadre2024_refinedweb",
)
"""Every registered law of loss by parameters and tokens; the rounded copy of one of them is left
out."""


def draw(name: str, count: int, seed: int) -> tuple[laws.Law, Array, dict[str, Array], Array]:
    """Draw runs of a published law, 40M to 16B parameters and 1e9 to 5e11 tokens, with 0.3 % noise.

    Args:
        name: name of the published law.
        count: number of runs.
        seed: seed of sizes and noise.

    Returns:
        The law, the true coordinates [P], the inputs and the losses [count].
    """
    item = laws.published[name]
    truth = item.law.coordinates(item.params)
    generator = np.random.default_rng(seed)
    sizes = np.exp(generator.uniform(np.log(4e7), np.log(1.6e10), count))
    tokens = np.exp(generator.uniform(np.log(1e9), np.log(5e11), count))
    inputs: dict[str, Array] = {"parameters": np.rint(sizes), "tokens": np.rint(tokens)}
    return (
        item.law,
        truth,
        inputs,
        np.exp(
            item.law.predict(truth[None], inputs)[0] + _NOISE * generator.standard_normal(count)
        ),
    )


def recovery(quick: bool) -> list[Check]:
    """Check coverage per parameter, and the optimum against the best of many random starts."""
    names, repeats, starts = (("besiroglu2024",), 40, 400) if quick else (_NAMES, 200, 2000)
    one_thread = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    with (
        mock.patch.dict(os.environ, one_thread),
        multiprocessing.get_context("spawn").Pool(2) as pool,
    ):
        coverages = pool.starmap_async(_coverage, [(name, repeats) for name in names])
        excesses = pool.starmap_async(_excess, [(name, starts) for name in names])
        covered = dict(zip(names, coverages.get(), strict=True))
        worse = dict(zip(names, excesses.get(), strict=True))
    for name in names:
        inside = ", ".join(f"{parameter} {value:.1%}" for parameter, value in covered[name].items())
        print(
            f"{name}: inside the 90 % interval in {repeats} repeats: {inside}; objective over "
            f"best of {starts} starts {worse[name]:+.1e}"
        )
    shares = [value for inside in covered.values() for value in inside.values()]
    # Forty repeats have a binomial error of .05 at .9, so the band is wider.
    below, above = (0.05, 0.02) if quick else (0.0, 0.0)
    return [
        Check(
            f"2 least covered parameter of {len(shares)}, {repeats} repeats",
            min(shares),
            0.85 - below,
            "higher",
        ),
        Check(
            f"2 most covered parameter of {len(shares)}, {repeats} repeats",
            max(shares),
            0.95 + above,
            "lower",
        ),
        Check(
            f"2 objective above the best of {starts} random starts, relative",
            max(worse.values()),
            1e-6,
            "lower",
        ),
    ]


def _coverage(name: str, repeats: int) -> dict[str, float]:
    """Count how often each parameter's 90 % interval holds the truth."""
    inside = []
    for seed in range(repeats):
        law, truth, inputs, loss = draw(name, _POINTS, seed)
        fitted = laws.fit(law, inputs, loss, bootstrap=laws.Bootstrap(count=_BOOTSTRAPS, seed=seed))
        ends = [fitted.interval(parameter, _LEVEL) for parameter in law.names]
        inside.append(
            [
                low <= value <= high
                for (low, high), value in zip(ends, law.values(truth).tolist(), strict=True)
            ]
        )
    return dict(zip(law.names, np.mean(inside, axis=0).tolist(), strict=True))


def _excess(name: str, starts: int) -> float:
    """Return the largest relative excess of the fitted objective over that of random starts."""
    excess = []
    for seed in range(2):
        law, _, inputs, loss = draw(name, _POINTS, 1000 + seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SteelyardWarning)
            fitted = laws.fit(law, inputs, loss, bootstrap=laws.Bootstrap(count=0), prior=None)
        grid = law.start_grid()
        span = np.maximum(np.ptp(grid, axis=0), 0.2)
        drawn = np.random.default_rng(seed).uniform(
            grid.min(axis=0) - span, grid.max(axis=0) + span, (starts, grid.shape[1])
        )
        count = len(law.names)
        problem = Problem(
            law=law,
            inputs=inputs,
            target=np.log(loss),
            weights=np.ones(_POINTS),
            delta=fitted.delta,
            center=np.zeros(count),
            precision=np.zeros(count),
        )
        best = minimize(problem, np.clip(drawn, *law.bounds), max_iterations=300).objective.min()
        excess.append(fitted.objective / best - 1)
    return float(max(excess))
