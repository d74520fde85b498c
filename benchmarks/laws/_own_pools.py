"""Own runs on four pools of text of falling quality: each alone, then unions to be forecast.

A pool is 20 thousand tokens of abstracts, in which a share of 0, 5, 12 or 25 % was drawn anew from
all tokens; the error is the least loss on clean held-out text so far, as if stopped early, at a
constant rate with an average of the weights. A law is fitted to the pools alone and forecasts the
unions of the best two, three and four, which it never saw.

It fails here: one pool's curve cannot tell the floor of so small a model from the end of what
repetition gives, the fit takes all of it for repetition, and unions are forecast far too low. The
crossing itself is there: the best pool alone for the smallest budget, the best two for all others.
"""

import numpy as np
from benchmarks.common import Check
from benchmarks.train._own_recipes import POOL_TOKENS, POOLS, pool_runs
from benchmarks.train._own_study import OwnRun
from numpy.typing import NDArray

from steelyard import laws
from steelyard.laws.forms.pools.pool_fit import PoolFit

__all__ = ["own_pools"]

Array = NDArray[np.float64]


def own_pools(quick: bool) -> list[Check]:
    """Forecast mixtures from single pools; compare choices by budget."""
    runs = pool_runs(quick)
    if not runs:
        return []
    steps, loss = _curves(runs)
    tokens = steps * runs[0].batch_size * (runs[0].tokens / runs[0].steps / runs[0].batch_size)
    # Two to ten passes of a pool alone, one pass of the largest union and more of mixtures.
    seen = _nearest(tokens, POOL_TOKENS * np.arange(2.0, 11.0, 2.0))
    asked = _nearest(tokens, POOL_TOKENS * np.array([4.0, 6.0, 8.0, 12.0, 16.0, 20.0]))
    points = {
        "samples": np.tile(tokens[seen], len(POOLS)),
        "pool_size": np.full(len(POOLS) * len(seen), float(POOL_TOKENS)),
        "pool": np.repeat(np.array(POOLS), len(seen)),
    }
    alone = np.concatenate([loss[name][seen] for name in POOLS])
    fit = laws.data.fit_pools(points, alone, bootstrap=laws.Bootstrap(count=0))
    for name in POOLS:
        utility, life = fit.utilities()[name].value, fit.half_lives()[name].value
        shown = np.round(loss[name][seen], 3)
        print(f"  pool {name}: b {utility:.3f}, tau {life:.2f}, losses {shown}")
    return _judged(fit, tokens[asked], loss, asked)


def _curves(runs: list[OwnRun]) -> tuple[Array, dict[str, Array]]:
    """Return the evaluated steps, and the mean curve over seeds by pool."""
    steps = runs[0].best_curve[0]
    pools = {run.pool for run in runs}
    return steps, {
        pool: np.mean(
            [np.minimum.accumulate(run.best_curve[1]) for run in runs if run.pool == pool], axis=0
        )
        for pool in pools
    }


def _nearest(tokens: Array, wanted: Array) -> NDArray[np.int64]:
    """Return the places of the evaluations nearest to numbers of tokens."""
    return np.array([int(np.abs(tokens - value).argmin()) for value in wanted])


def _judged(
    fit: PoolFit, budgets: Array, loss: dict[str, Array], asked: NDArray[np.int64]
) -> list[Check]:
    """Compare forecasts of the unions with what was trained."""
    counts = range(1, len(POOLS) + 1)
    said = np.stack([fit.predict(POOLS[:count], budgets).value for count in counts])
    measured = np.stack(
        [loss["first" if count == 1 else f"best{count}"][asked] for count in counts]
    )
    for count, row, other in zip(counts, said, measured, strict=True):
        print(f"  best {count}: said {np.round(row, 3)}, trained {np.round(other, 3)}")
    columns = np.arange(len(budgets))
    picked = measured[said.argmin(axis=0), columns]
    ranks = [
        float(np.corrcoef(one.argsort().argsort(), two.argsort().argsort())[0, 1])
        for one, two in zip(said.T, measured.T, strict=True)
    ]
    regret = float((picked - measured.min(axis=0)).sum())
    usual = min(float((row - measured.min(axis=0)).sum()) for row in (measured[0], measured[-1]))
    moves = measured.argmin(axis=0)
    print(f"  best number of pools by budget: {moves + 1}, said {said.argmin(axis=0) + 1}")
    return [
        Check(
            "2 own runs: error of forecast unions, mean of 18",
            float(np.abs(said / measured - 1)[1:].mean()),
            0.05,
            "lower",
        ),
        Check(
            "2 own runs: rank correlation of choices, mean over budgets",
            float(np.mean(ranks)),
            0.8,
            "higher",
        ),
        Check(
            "2 own runs: budgets with a choice within 1 % of the best",
            float((picked <= 1.01 * measured.min(axis=0)).mean()),
            0.8,
            "higher",
        ),
        Check(
            "3 own runs: pools of the best choice, largest less smallest budget",
            float(moves[-1] - moves[0]),
            1.0,
            "higher",
        ),
        Check(
            "3 own runs: regret less that of top pool or all, nats", regret - usual, 0.0, "lower"
        ),
    ]
