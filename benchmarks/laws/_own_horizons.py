"""Own runs of a small batch over rates and lengths: how the best rate falls with the horizon.

Five rates share one trunk each for six lengths; three seeds. The loss of a rate is the mean over
seeds, a run that diverged counts as infinite.
"""

import numpy as np
from benchmarks.common import Check
from benchmarks.train._own_recipes import horizon_runs
from numpy.typing import NDArray

from steelyard.laws.decisions.optima.optimum import optimum

__all__ = ["own_horizons"]

Array = NDArray[np.float64]
_SHORT = 8
"""The longest horizon is foretold from those of an eighth of it and less."""


def own_horizons(quick: bool) -> list[Check]:
    """Fit the best rate over horizons, and foretell the longest from short ones."""
    runs = horizon_runs(quick)
    if not runs:
        return []
    cells = [run for run in runs if not run.is_trunk]
    shared = sum(run.tokens_run for run in runs) / sum(run.tokens for run in cells)
    print(
        f"  branches off {sum(run.is_trunk for run in runs)} trunks cost {shared:.0%} of whole runs"
    )
    cost = Check("4 own runs: cost of branches over whole runs", shared, 0.45, "lower")
    tokens = np.array(sorted({run.tokens for run in cells}), dtype=float)
    rates = np.array(sorted({run.learning_rate for run in cells}))
    seeds = sorted({run.seed for run in cells})
    # [seeds, lengths, rates]
    loss = np.array(
        [
            [
                [
                    next(
                        run.loss
                        for run in cells
                        if (run.seed, run.tokens, run.learning_rate) == (seed, length, rate)
                    )
                    for rate in rates
                ]
                for length in tokens
            ]
            for seed in seeds
        ]
    )
    for length, row in zip(tokens, loss.mean(axis=0), strict=True):
        shown = ", ".join(
            f"{rate:.3g}: {value:.4f}" for rate, value in zip(rates, row, strict=True)
        )
        print(f"  {length:>9.0f} tokens, loss by rate {shown}")
    return [cost, *_slope(tokens, rates, loss), *_foretold(tokens, rates, loss.mean(axis=0))]


def _best(rates: Array, loss: Array) -> float:
    """Return ln of the best rate."""
    return float(np.log(optimum(rates, loss, at_edge="keep").value))


def _slope(tokens: Array, rates: Array, loss: Array) -> list[Check]:
    """Fit the power of the best rate in tokens; its interval is that of drawn seeds."""
    logs = np.log(tokens)
    best = np.array([_best(rates, row) for row in loss.mean(axis=0)])
    beta = -float(np.polyfit(logs, best, 1)[0])
    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(200):
        chosen = generator.integers(0, len(loss), len(loss))
        rows = loss[chosen].mean(axis=0)
        drawn.append(-np.polyfit(logs, [_best(rates, row) for row in rows], 1)[0])
    low, high = np.quantile(drawn, (0.05, 0.95))
    print(f"  best rates {np.round(np.exp(best), 4)}: beta {beta:.2f} [{low:.2f}, {high:.2f}]")
    return [
        Check("3 own runs: beta, at least", beta, 0.15, "higher"),
        Check("3 own runs: beta, at most", beta, 0.5, "lower"),
        Check("3 own runs: lower end of beta's 90 % interval", float(low), 0.0, "higher"),
    ]


def _foretold(tokens: Array, rates: Array, loss: Array) -> list[Check]:
    """Extrapolate from short horizons; compare with the best rate found and with the same rate."""
    best = np.array([_best(rates, row) for row in loss])
    short = tokens <= tokens[-1] / _SHORT
    slope, level = np.polyfit(np.log(tokens[short]), best[short], 1)
    said = float(slope * np.log(tokens[-1]) + level)
    same = float(best[short][-1])
    # A parabola in ln rate through the measured losses says what a rate in between would lose.
    curve = np.polynomial.Polynomial.fit(np.log(rates), loss[-1], 3)
    print(
        f"  rate for {tokens[-1]:.0f} tokens from {tokens[short][-1]:.0f} and fewer: "
        f"{np.exp(said):.4f}, best {np.exp(best[-1]):.4f}; loss there {curve(said):.4f}, at the "
        f"rate of {tokens[short][-1]:.0f} tokens {curve(same):.4f}"
    )
    return [
        Check(
            "3 own runs: rate of the longest foretold, factor off",
            float(np.exp(abs(said - best[-1]))),
            1.5,
            "lower",
        ),
        Check(
            "3 own runs: loss at the same rate over that at the rate foretold",
            float(curve(same) / curve(said)),
            1.0,
            "higher",
        ),
    ]
